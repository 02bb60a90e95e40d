"""Calls in another process: one that hangs or ends its process is an error, not the end."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Self

from multigrad.errors import MultigradError
from multigrad.look.convert import brief

from .messages import pack, unpack

CALM = 5.0  # seconds in which a process that was told to end does
START = 600.0  # seconds for what each process does first, such as to import a framework
# A busy machine gives a call a part of its time: so much longer than its CPU seconds it may last,
# unless it uses so little of them that it sleeps, or waits for a lock.
PATIENCE, ASLEEP = 10.0, 0.02
TOLD = list[Connection]()  # of a process that serves: the pipe to its parent


class Lost(MultigradError):
    """A call that did not end, or ended its process."""


class Apart:
    """A process that runs one call after another, and is replaced if a call is lost.

    Args:
        limit: seconds for a call, of the CPU where others keep it busy.
        method: "spawn", as threads and locks of frameworks do not survive a fork; "fork" for a
            parent that has imported them and runs nothing.
    """

    def __init__(self, limit: float, method: str = "spawn") -> None:
        self.limit, self.method = limit, method
        # What each process calls before all else, each a function and its arguments.
        self.first: list[tuple[Any, ...]] = []
        self.told: Any = None  # what the last call has told last, before its result
        self.spent = 0.0  # seconds of the last call, of the CPU if these are fewer
        self._process: Any = None
        self._ours: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # A fork has nothing to put in order, and takes half a second for it.
        if self.method == "fork" and self._process is not None:
            self._process.kill()
        self._end()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a module's function in the process; its arguments and result are plain data.

        Raises:
            Lost: the call does not end in time, or the process ends.
            MultigradError: the function raises; the message is that of its error.
        """
        # State of the process: `first` is run again in each new one, outside the limit of calls.
        if self._process is None:
            self._start()
            for each in self.first:
                self._ask(*each, limit=START)
        option = "; --limit sets the seconds for each target"
        return self._ask(function, *args, limit=self.limit, option=option)

    def _ask(self, function: Callable[..., Any], *args: Any, limit: float, option: str = "") -> Any:
        begin, used, wait = time.monotonic(), cpu_seconds(self._process.pid), limit
        self.told = None
        try:
            home = f"{function.__module__}:{function.__name__}"
            self._ours.send_bytes(pack((home, pack(args))))
            while True:
                is_there = self._ours.poll(wait)
                wall, cpu = time.monotonic() - begin, cpu_seconds(self._process.pid) - used
                self.spent = min(wall, cpu) if cpu else wall
                if is_there:
                    is_returned, answer = unpack(self._ours.recv_bytes())
                    if is_returned is not None:
                        break
                    self.told = answer
                elif cpu >= limit or cpu <= ASLEEP * wall or wall >= PATIENCE * limit:
                    # Python cannot stop a call from outside, only its process.
                    self._end()
                    raise Lost(f"it does not end within {limit:g} s{option}")
                wait = max(limit - self.spent, 0.1)
        except (EOFError, ConnectionError):
            raise Lost(f"it ends its process: {self._end()}") from None
        if not is_returned:
            raise MultigradError(answer)
        return answer

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(self.method)
        self._ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _alone():
            process.start()
        self._process = process
        # Ours would never see the end of the pipe while this copy is open.
        theirs.close()

    def _end(self) -> str:
        """End the process, and return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return ""
        # The process reads EOF then, and ends by itself if it is not in a call.
        self._ours.close()
        process.join(0.5)
        if process.is_alive():
            process.kill()
        process.join(CALM)
        code = process.exitcode or 0
        # A negative code is a signal, which may have no name (ValueError).
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"exit code {code}"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    # Without this a new process would run the caller's script again, which would start another one.
    # It also ignores Ctrl-C from its start: that is for its parent. Only a main thread can set it.
    script, is_main = sys.modules["__main__"], threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        if is_main:
            signal.signal(signal.SIGINT, handler)


def _serve(theirs: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Windows it is not inherited
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is printed is no part of the report
    TOLD[:] = [theirs]
    while True:
        try:
            home, message = unpack(theirs.recv_bytes())
        except (EOFError, ConnectionError):
            return
        module, _, name = home.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)  # declares what is sent
            answer = pack((True, function(*unpack(message))))
        except MultigradError as error:
            answer = pack((False, str(error)))
        except BaseException as error:  # SystemExit, too
            answer = pack((False, brief(error)))
        with contextlib.suppress(ConnectionError):  # the caller has given up waiting
            theirs.send_bytes(answer)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its threads; 0 where the system does not tell."""
    # The clock of a process, as Linux's clock_getcpuclockid makes it.
    with contextlib.suppress(OSError, AttributeError, OverflowError):
        return time.clock_gettime((~pid << 3) | 2) if sys.platform == "linux" else 0.0
    return 0.0


def tell(value: Any) -> None:
    """Tell the parent of this process what a call has found so far."""
    for pipe in TOLD:
        with contextlib.suppress(ConnectionError):
            pipe.send_bytes(pack((None, value)))
