"""Functions that a graph cannot hold: what they give is another thing each time, or they act on the
world outside.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...trace.trace import Trace
from .table import Dialect

AT_ONCE = "which happens once, when the rule is captured, and not at each call"
CHANGES = "which gives another value at each call: make it"
UNSEEDED = "which gives another generator at each call: give it a seed"
LOGS = "which says so once, when the rule is captured, and not at each call"
SWITCHES = "which changes the state of a library"

# Modules that hold these functions, by the name that people import.
ROOTS = ("logging", "math", "os", "random", "secrets", "time", "uuid")
CHANGING = {
    time: """
        time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time
        process_time_ns thread_time ctime localtime gmtime strftime
    """,
    os: "urandom getpid getenv times getloadavg",
    uuid: "uuid1 uuid4 getnode",
    secrets: "choice randbelow randbits token_bytes token_hex token_urlsafe",
}
# What writes into a log, with the level that it has.
LEVELS = {
    "critical": logging.CRITICAL,
    "debug": logging.DEBUG,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "info": logging.INFO,
    "log": None,
    "warning": logging.WARNING,
}
FUNCTIONS: dict[Any, str] = {
    **{getattr(logging, name): LOGS for name in LEVELS},
    **{getattr(room, name): CHANGES for room, names in CHANGING.items() for name in names.split()},
    **dict.fromkeys((time.sleep, os.system, os.remove, os.mkdir, os.putenv), AT_ONCE),
    **dict.fromkeys((np.seterr, np.seterrcall, np.set_printoptions, random.seed), SWITCHES),
    np.geterr: CHANGES,
}
# Those that are as they should be with a seed, by their modules, which NumPy imports when they are
# first asked for.
SEEDED = {
    "random": ("Random",),
    "numpy.random": ("default_rng", "RandomState", "SeedSequence"),
}
BUILTIN = ("breakpoint", "input", "open", "print")


def imported() -> list[str]:
    """Return the modules of generators that somebody has imported."""
    return [module for module in SEEDED if module in sys.modules]


def refused_functions(dialects: Mapping[str, Dialect]) -> dict[int, tuple[Any, str]]:
    """Return functions refused with no symbol among their arguments too, by `id`, and why."""
    rows: dict[Any, str] = dict(FUNCTIONS)
    for module in imported():
        rows.update({getattr(sys.modules[module], name): UNSEEDED for name in SEEDED[module]})
    for dialect in dialects.values():
        if dialect.protocol:
            rows.update(dialect.refused)
    return {id(function): (function, reason) for function, reason in rows.items()}


def refusing(function: Any, reason: str, trace: Trace, name: str = "") -> Callable[..., Any]:
    """Return what stands in for such a function."""
    shown = name or getattr(function, "__name__", repr(function))

    def refused(*args: Any, **kwargs: Any) -> Any:
        if reason is UNSEEDED and any(each is not None for each in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        if reason is LOGS and not is_heard(function, args):
            return None
        what = f"{reason} {trace.words.param}" if reason is CHANGES else reason
        raise trace.error(f"calls {shown}, {trace.words.ways(what)}")

    return refused


def refused_builtins(trace: Trace) -> dict[str, Any]:
    """Return the stand-ins for builtins that act on the world outside."""
    own = sys.modules["builtins"]
    return {name: refusing(getattr(own, name), AT_ONCE, trace, f"{name}()") for name in BUILTIN}


def is_heard(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether a function that writes into a log does so at the levels that are set."""
    level = LEVELS[function.__name__]
    logger = getattr(function, "__self__", logging.root)
    return logger.isEnabledFor(args[0] if level is None else level)


class Log:
    """Stands in for a logger."""

    def __init__(self, logger: Any, trace: Trace) -> None:
        self._logger = logger
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._logger, name)
        if name not in LEVELS:
            return value
        return refusing(value, LOGS, self._trace, f"{name}() of a logger")
