"""Walls around the process of a kernel: what it may not do is refused, and told.

Two layers. A hook of Python's names what Python code tries: files outside its folder, sockets,
other programs, signals, forks, the reference's file. Where Linux has Landlock (5.13), the system
refuses writes, TCP (6.7) and signals (6.12) to every thread and program of the process, compiled
code among them, which no hook sees. They keep out mistakes and shortcuts; they are no sandbox for
code that means harm.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

JOURNAL = "told"  # a file in the folder of the walls: what code tried that they refuse
PLACES_OF_FILES = """
TMPDIR XDG_CACHE_HOME MPLCONFIGDIR MULTIGRAD_CACHE JAX_COMPILATION_CACHE_DIR
TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR TRITON_CACHE_DIR
"""
MOST_BYTES_OF_A_FILE = 2**26  # compilers write some
DEVICES = re.compile(r"/dev/(null|zero|full|u?random|tty|nvidia[^/]*|dri(/.*)?)|/proc/self/.*")
# What frameworks call to compile.
COMPILERS = re.compile(r"(.*-)?(g?cc|[gc]\+\+|clang(\+\+)?|ld|as|ar|ninja|nvcc|ptxas)(-[\d.]+)?")
# Events of Python, and which of their arguments are paths that are written.
WRITTEN: Mapping[str, tuple[int, ...]] = {
    "os.chmod": (0,), "os.chown": (0,), "os.link": (1,), "os.mkdir": (0,), "os.remove": (0,),
    "os.rename": (0, 1), "os.rmdir": (0,), "os.setxattr": (0,), "os.symlink": (1,),
    "os.truncate": (0,), "os.utime": (0,), "shutil.move": (0, 1), "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}  # fmt: skip
PROGRAMS = {"subprocess.Popen": 0, "os.posix_spawn": 0, "os.exec": 0, "os.spawn": 1}
SENDING = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind")
NAMED = {"os.system": "runs a command of the shell", "os.fork": "forks", "os.forkpty": "forks"}
SIGNALS = ("os.kill", "os.killpg")
PATH = (str, bytes, os.PathLike)


def wall_in(walls: str, memory: float, reference: str | None = None) -> None:
    """Confine this process to a folder from now on.

    Args:
        walls: a folder, which gets one for this process, and a journal.
        memory: in GiB.
        reference: a file that it may not read, "" if there is none; None: this process has the
            reference itself, and is trusted.
    """
    folder = tempfile.mkdtemp(dir=walls)
    os.chdir(folder)
    tempfile.tempdir = folder
    os.environ |= dict.fromkeys(PLACES_OF_FILES.split(), folder)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no other processes
    sys.dont_write_bytecode = True
    _limit_resources(memory)
    journal, unreadable = os.open(os.devnull, os.O_WRONLY), set[str]()
    if reference is not None:
        journal = os.open(Path(walls, JOURNAL), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if reference:
        bytecode = importlib.util.cache_from_source(reference)
        unreadable = {reference, os.path.realpath(bytecode)}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # where the next requests are
    lock_land(folder)

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        for offence in offences(event, args, folder, unreadable):
            os.write(journal, f"{offence}\n".encode())
            raise PermissionError(f"it {offence}, which the gate does not allow")

    sys.addaudithook(refuse)


def offences(event: str, args: tuple[Any, ...], folder: str, unreadable: set[str]) -> Iterator[str]:
    """Yield what an event of Python's audit does that the walls refuse."""
    if event == "open" and isinstance(args[0], PATH):
        path = os.path.realpath(os.fsdecode(args[0]))
        if _is_writing(*args[1:]) and not _is_free(path, folder):
            yield f"writes a file outside its folder: {path}"
        elif path in unreadable:
            yield f"reads the reference: {path}"
    elif event in WRITTEN:
        for n in WRITTEN[event]:
            path = os.path.realpath(os.fsdecode(args[n])) if isinstance(args[n], PATH) else folder
            if not (_is_free(path, folder) or args[n] == ":memory:"):
                yield f"changes a file outside its folder: {path}"
    elif event in PROGRAMS:
        program = os.path.basename(os.fsdecode(args[PROGRAMS[event]] or ""))
        if not COMPILERS.fullmatch(program):
            yield f"runs a program: {program}"
    elif event in SENDING and isinstance(args[1], tuple):  # a text is a socket of this machine
        yield "connects to a network"
    elif event in SIGNALS and args[0] != os.getpid():
        yield "sends a signal to another process"
    elif event in NAMED:
        yield NAMED[event]


def _is_writing(mode: Any = None, flags: Any = 0) -> bool:
    by_mode = isinstance(mode, str) and bool(set(mode) & set("wax+"))
    return by_mode or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _is_free(path: str, folder: str) -> bool:
    inside = f"{path}/".startswith(f"{os.path.realpath(folder)}/")
    return inside or DEVICES.fullmatch(path) is not None


def _limit_resources(memory: float) -> None:
    import resource  # of POSIX alone

    def limit(kind: int, most: int) -> None:
        with contextlib.suppress(ValueError, OSError):  # the shell has a smaller one
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))

    limit(resource.RLIMIT_FSIZE, MOST_BYTES_OF_A_FILE)
    limit(resource.RLIMIT_CORE, 0)
    # A GPU's driver reserves more addresses than any machine has memory.
    if os.path.exists("/proc/self/statm") and not os.path.exists("/dev/nvidiactl"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit(resource.RLIMIT_AS, pages * resource.getpagesize() + int(memory * 2**30))


# --- Landlock, by its system calls: https://docs.kernel.org/userspace-api/landlock.html -----------
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH, NO_NEW_PRIVS = 1, 1, 38
WRITE_FILE, TRUNCATE, REFER = 1 << 1, 1 << 14, 1 << 13
CHANGES = WRITE_FILE | sum(1 << n for n in range(4, 13))  # remove and make entries of all kinds
TCP, SIGNAL = 0b11, 0b10


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scopes")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def lock_land(folder: str) -> bool:
    """Let the system refuse writes outside a folder, TCP and signals; return whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
    version = call(CREATE_RULESET, None, 0, VERSION_FLAG)
    if version < 1:
        return False  # an older system, or one that has it switched off
    files = CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rules = _Ruleset(files, TCP if version >= 4 else 0, SIGNAL if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call(CREATE_RULESET, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return False
    devices = [f"/dev/{name}" for name in os.listdir("/dev")]
    for path in (folder, *filter(DEVICES.fullmatch, devices)):
        handle = os.open(path, os.O_PATH)
        allowed = (
            files if path == folder or os.path.isdir(path) else files & (WRITE_FILE | TRUNCATE)
        )
        call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(_Beneath(allowed, handle)), 0)
        os.close(handle)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    is_locked = call(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return is_locked
