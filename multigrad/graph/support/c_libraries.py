"""Compiled C code: built by the system's compiler, kept by content, and optional.

A program neither needs nor waits for the compiler: until a library is ready, and where none can be,
plain code gives the same bits. Nothing starts before `enable("kernels")` or its variable asks for
it. From then on `get(work)` returns the functions or None, and goes through

    first call                      looks for a file that an earlier process kept (`find`)
    `work` adds up to `pays_from`   a thread compiles (`make`), while calls still return None
    settled                         `bound` holds the functions, or `reason` why there are none

and `load()` does all at once, or raises: what asks for one kernel, as `fused=True` does, calls it.
`MULTIGRAD_NATIVE=off` starts no compiler and loads nothing, whoever asks; `auto` is `enable`; `on`
compiles at the first use, and warns with the reason if that fails.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from ...errors import RuleValueError
from .files import LIBRARIES, check_private, open_folder, write_file
from .threads import in_child, make_lock

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


class CLibrary(Generic[Bound]):
    """A library that is looked for once, and compiled in the background once it pays.

    Attributes:
        bound: the library's functions, once they are ready.
        reason: why there are none and will be none.
        is_settled: whether one of the two is known; then nothing changes again.
        work: how much work plain code has done since.
        thread, process: in which the compiler runs or ran.
        is_stopping: whether the program ends, so that no compiler may run on.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[], str],
        bind: Callable[[ctypes.CDLL], Bound],
        pays_from: int,
        setting: str | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Describe a library.

        Args:
            name: the start of its files' names.
            write: gives the C source.
            bind: gives the functions of a library, or raises where they are not right.
            pays_from: how much work plain code does before the compiler starts.
            setting: "on", "off" or "auto", instead of the environment's.
            flags: further options of the compiler; if it fails, it runs again without the last one.
        """
        self.name, self.write, self.bind, self.pays_from = name, write, bind, pays_from
        self.setting, self.flags = setting, flags
        self.bound: Bound | None = None
        self.reason = ""
        # Guards `work`, `is_looked_for` and the start of `thread`. `is_settled` is read without it,
        # so it is set after `bound` and `reason`.
        self.lock = make_lock()
        self.work = 0
        self.is_settled = self.is_looked_for = False
        self.thread: threading.Thread | None = None
        self.process: Any = None
        self.is_stopping = False

    def load(self) -> Bound:
        """Return the functions, compiled now if no earlier process kept them, or raise
        NoLibraryError with the reason.
        """
        if (self.setting or read_setting()) == "off":
            raise NoLibraryError(f"{VARIABLE}=off")
        try:
            return self.find() or self.make()
        except OSError as error:
            raise NoLibraryError(str(error)) from error

    def get(self, work: int) -> Bound | None:
        """Return the functions, or None where plain code must do this much work."""
        # The path of every call: one attribute, no lock.
        return self.bound if self.is_settled else self.advance(work)

    def advance(self, work: int) -> Bound | None:
        """Count the work; look for the library, or start to compile it, when it is time."""
        setting = self.setting or read_setting()
        if not setting:
            return None  # without the lock, as most processes never ask for compiled code
        with self.lock:
            if self.is_settled or self.thread is not None:
                return self.bound
            self.setting = setting
            if setting == "off":
                return self.settle(f"{VARIABLE}=off")
            self.work += work
            if not self.is_looked_for:
                self.is_looked_for = True
                self.attempt(self.find)
            if self.is_settled:
                pass
            elif setting == "on":
                self.attempt(self.make)
            elif self.work >= self.pays_from:
                self.thread = threading.Thread(target=self.attempt, args=(self.make,), daemon=True)
                # An interpreter that exits kills its compiler, and a fork does not inherit the
                # thread.
                atexit.register(self.stop)
                in_child(self.forget_thread)
                self.thread.start()
            return self.bound

    def attempt(self, step: Callable[[], Bound | None]) -> None:
        """Settle by the functions that `find` or `make` returns, or by the reason of its error."""
        try:
            bound = step()
        except Exception as error:  # noqa: BLE001 - whatever happens, plain code is there
            self.settle(str(error) or type(error).__name__)
        else:
            if bound is not None:
                self.settle("", bound)

    def settle(self, reason: str, bound: Bound | None = None) -> Bound | None:
        """Set the outcome, for good, and return the functions; warn where they were asked for."""
        self.bound, self.reason = bound, reason
        self.is_settled = True
        if bound is None and self.setting == "on":
            message = f"{VARIABLE}=on, but plain code runs, with the same results: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return bound

    def find(self) -> Bound | None:
        """Load the library that an earlier process kept, if any; a damaged one is removed."""
        source, commands = self.write(), self.commands()
        try:
            folder = open_folder(LIBRARIES)
        except OSError:
            return None  # `keep` reports it
        if folder is None:
            return None
        starts = [self.file_start(source, command) for command in commands]
        for path in [path for start in starts for path in sorted(folder.glob(f"{start}-*.so"))]:
            try:
                # The name ends in the digest of the content: a file that was cut off is not loaded.
                check_private(path)
                if digest(path.read_bytes()) == path.stem.rpartition("-")[2]:
                    return self.bind(ctypes.CDLL(str(path)))
            except OSError:
                continue
            path.unlink(missing_ok=True)
        return None

    def commands(self) -> list[list[str]]:
        """Return the compiler's commands to try: with all flags, then without the last ones."""
        return [find_command(self.flags[:count]) for count in range(len(self.flags), -1, -1)]

    def make(self) -> Bound:
        """Compile the library, keep it for later processes if possible, and load it."""
        source = self.write()
        with tempfile.TemporaryDirectory(prefix="multigrad-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"{self.name}.so"
            command = self.compile_to(path, source)
            try:
                cached_path = self.keep(path.read_bytes(), self.file_start(source, command))
            except OSError as error:
                cached_path = None
                if self.setting == "on":
                    warnings.warn(f"compiled, but not kept: {error}", RuntimeWarning, stacklevel=2)
            return self.bind(ctypes.CDLL(str(cached_path or path)))

    def compile_to(self, path: Path, source: str) -> list[str]:
        """Compile to a file by the first command that works, and return that command."""
        *attempts, last = self.commands()
        for command in attempts:
            with suppress(FailedError):
                self.compile(source, [*command, "-x", "c", "-", "-o", str(path)])
                return command
        self.compile(source, [*last, "-x", "c", "-", "-o", str(path)])
        return last

    def compile(self, source: str, command: list[str]) -> None:
        """Run one command; raise NoLibraryError if it fails or takes too long."""
        import subprocess

        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            # `stop` may have run before there was a process to kill.
            if self.is_stopping:
                self.process.kill()
            errors = self.process.communicate(source.encode(), MOST_SECONDS)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise NoLibraryError(f"{command[0]} took more than {MOST_SECONDS:.0f} s") from None
        if self.process.returncode:
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

    def file_start(self, source: str, command: list[str]) -> str:
        """Return the start of a file name, made of the source, the compiler and the machine."""
        parts = (source, *command, describe_compiler(command[0]), describe_processor())
        return f"{self.name}-{digest(chr(0).join(parts).encode())}"

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def stop(self) -> None:
        """Kill a compiler that still runs when the program ends."""
        self.is_stopping = True
        if self.process is not None:
            self.process.kill()
        self.wait()

    def forget_thread(self, thread: int) -> None:
        # In a forked child: the compiler belongs to the parent.
        self.thread = self.process = None


_enabled: set[str] = set()


def enable(what: Literal["kernels"]) -> None:
    """Let this process compile code in the background where that pays, as MULTIGRAD_NATIVE=auto.

    Compiled are the kernels of `fused="auto"`, in C or Triton, and the C code of random draws; what
    was compiled is kept in the cache folder and loaded from there. Results stay the same. Without
    it, only `fused=True` starts a compiler.

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
