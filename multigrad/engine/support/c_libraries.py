"""Compiled C code: built by the system's compiler, kept by content, and optional.

`CLibrary.load` returns a library's functions, or raises with the reason why there are none; then
plain code gives the same bits. Nothing compiles before `enable("kernels")`, its variable or
`fused=True` asks for it. `MULTIGRAD_NATIVE=off` starts no compiler and loads nothing, whoever asks;
`auto` is `enable`; `on` also warns if a library cannot be kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from ...errors import RuleValueError
from .files import LIBRARIES, check_private, open_folder, write_file

VARIABLE = "MULTIGRAD_NATIVE"
MOST_KEPT = 128  # libraries of one name
MOST_SECONDS = 120.0  # that a compiler may take
PROCESSORS = ("x86_64", "amd64", "aarch64", "arm64")
# No option lets the compiler change a result: no fused multiply-add, no other order of sums.
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno")

Bound = TypeVar("Bound")


class NoLibraryError(Exception):
    """The reason why there is no compiled library."""


class FailedError(NoLibraryError):
    """The compiler failed; its first message."""


class CLibrary:
    """A library that an earlier process kept, or else one that is compiled now.

    Attributes:
        name: the start of its files' names.
        source: in C.
        flags: further options of the compiler; if it fails, it runs again without the last one.
    """

    def __init__(self, name: str, source: str, flags: Sequence[str] = ()) -> None:
        self.name, self.source, self.flags = name, source, flags

    def load(self) -> ctypes.CDLL:
        """Return the library, or raise NoLibraryError with the reason."""
        if read_setting() == "off":
            raise NoLibraryError(f"{VARIABLE}=off")
        try:
            return self.find() or self.make()
        except OSError as error:
            raise NoLibraryError(str(error)) from error

    def find(self) -> ctypes.CDLL | None:
        """Load the library that an earlier process kept, if any; a damaged one is removed."""
        commands = self.commands()
        try:
            folder = open_folder(LIBRARIES)
        except OSError:
            return None  # `keep` reports it
        if folder is None:
            return None
        starts = [self.file_start(command) for command in commands]
        for path in [path for start in starts for path in sorted(folder.glob(f"{start}-*.so"))]:
            try:
                # The name ends in the digest of the content: a file that was cut off is not loaded.
                check_private(path)
                if digest(path.read_bytes()) == path.stem.rpartition("-")[2]:
                    return ctypes.CDLL(str(path))
            except OSError:
                continue
            path.unlink(missing_ok=True)
        return None

    def commands(self) -> list[list[str]]:
        """Return the compiler's commands to try: with all flags, then without the last ones."""
        return [find_command(self.flags[:count]) for count in range(len(self.flags), -1, -1)]

    def make(self) -> ctypes.CDLL:
        """Compile the library, keep it for later processes if possible, and load it."""
        with tempfile.TemporaryDirectory(prefix="multigrad-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"{self.name}.so"
            command = self.compile_to(path)
            try:
                cached_path = self.keep(path.read_bytes(), self.file_start(command))
            except OSError as error:
                cached_path = None
                if read_setting() == "on":
                    warnings.warn(f"compiled, but not kept: {error}", RuntimeWarning, stacklevel=2)
            return ctypes.CDLL(str(cached_path or path))

    def compile_to(self, path: Path) -> list[str]:
        """Compile to a file by the first command that works, and return that command."""
        *attempts, last = self.commands()
        for command in attempts:
            with suppress(FailedError):
                self.compile([*command, "-x", "c", "-", "-o", str(path)])
                return command
        self.compile([*last, "-x", "c", "-", "-o", str(path)])
        return last

    def compile(self, command: list[str]) -> None:
        """Run one command; raise NoLibraryError if it fails or takes too long."""
        import subprocess

        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            errors = process.communicate(self.source.encode(), MOST_SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise NoLibraryError(f"{command[0]} took more than {MOST_SECONDS:.0f} s") from None
        if process.returncode:
            first_line = errors.decode(errors="replace").strip().partition("\n")[0]
            raise FailedError(f"{shlex.join(command)} failed: {first_line}")

    def keep(self, content: bytes, start: str) -> Path | None:
        """Write a library into the cache, and delete the oldest if there are too many."""
        folder = open_folder(LIBRARIES)
        if folder is None:
            return None
        path = folder / f"{start}-{digest(content)}.so"
        write_file(path, content)
        libraries = sorted(folder.glob(f"{self.name}-*.so"), key=lambda each: each.stat().st_mtime)
        for library in libraries[:-MOST_KEPT]:
            library.unlink(missing_ok=True)
        return path

    def file_start(self, command: list[str]) -> str:
        """Return the start of a file name, made of the source, the compiler and the machine."""
        parts = (self.source, *command, describe_compiler(command[0]), describe_processor())
        return f"{self.name}-{digest(chr(0).join(parts).encode())}"


_enabled: set[str] = set()


def enable(what: Literal["kernels"]) -> None:
    """Let this process compile code in the background where that pays, as MULTIGRAD_NATIVE=auto.

    Compiled are the kernels of `fused="auto"`, in C or Triton. What was compiled is kept in the
    cache folder and loaded from there. Results stay the same. Without it, only `fused=True` starts
    a compiler.

    Args:
        what: "kernels".

    Raises:
        RuleValueError: there is nothing of that name.
    """
    if what != "kernels":
        raise RuleValueError(f'enable takes "kernels", got {what!r}')
    _enabled.add(what)


def read_setting() -> str:
    """Return on, off or auto, or "" where nothing asks for compiled code."""
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "on", "off", "auto"):
        raise RuleValueError(f"{VARIABLE} is on, off or auto, got {setting!r}")
    return setting or ("auto" if _enabled else "")


def find_command(flags: Sequence[str] = ()) -> list[str]:
    """Return the compiler's command: `$CC`, or the system's.

    Raise NoLibraryError if there is none, or this kind of machine was never tried.
    """
    if os.name == "nt" or platform.machine().lower() not in PROCESSORS:
        raise NoLibraryError(f"not on {platform.system()} on {platform.machine()}")
    words = shlex.split(os.environ.get("CC", ""))
    path = next(filter(None, map(shutil.which, words[:1] or ("cc", "gcc", "clang"))), None)
    if path is None:
        raise NoLibraryError(f"no C compiler {words[0] if words else 'cc'}: install gcc or clang")
    if sys.platform == "darwin" and path.startswith("/usr/bin/") and not has_xcode_tools():
        raise NoLibraryError("no C compiler: type xcode-select --install")
    native = ["-march=native"] if describe_processor() else []
    return [path, *words[1:], *FLAGS, *flags, *native]


def has_xcode_tools() -> bool:
    """Return whether macOS's compiler exists; without it, its command opens a window."""
    import subprocess

    return subprocess.run(["xcode-select", "-p"], capture_output=True, check=False).returncode == 0


def describe_compiler(path: str) -> str:
    """Return a text that differs between versions of a compiler, without running it."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def describe_processor() -> str:
    """Return an x86-64 processor's model and flags, or "": models differ in instructions."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        with open("/proc/cpuinfo") as file:
            lines = itertools.takewhile(str.strip, file)  # of the first processor; all are alike
            return "".join(line for line in lines if line.startswith(("model name", "flags")))
    except OSError:
        return ""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
