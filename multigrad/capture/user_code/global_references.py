"""References of code to the world outside it: functions that a graph cannot hold, because they act
or give another value at each call, and tensors of the module, the enclosing function or a default.

Small tensors become constants of the graph, whose values are compared anew at each call.
"""

from __future__ import annotations

import logging
import math
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ...backend.discovery import backend_of
from ...errors import BackendNotFound
from ...graph.support.lazy_modules import whole
from ...trace.lookups import Telling
from ...trace.trace import Trace
from ..dialect import Dialect
from .inspection import contents, defaults, mentioned

AT_ONCE = "which happens once, when the rule is captured, and not at each call"
CHANGES = "which gives another value at each call: make it"
UNSEEDED = "which gives another generator at each call: give it a seed"
LOGS = "which says so once, when the rule is captured, and not at each call"
SWITCHES = "which changes the state of a library"

# Modules with such functions, by the name that people import.
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
# Functions that write into a log, with their level; `log` takes it as an argument.
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
    random.Random: UNSEEDED,
}
# Refused only without a seed. NumPy imports these on first access, so they are looked up then.
SEEDED = "default_rng", "RandomState", "SeedSequence"
GENERATORS = "numpy.random"
BUILTIN = ("breakpoint", "input", "open", "print")


def refused_functions(dialects: Mapping[str, Dialect]) -> dict[int, tuple[Any, str]]:
    """Return functions that are refused even without symbols, and why, by `id`."""
    rows: dict[Any, str] = dict(FUNCTIONS)
    if (module := whole(GENERATORS)) is not None:
        rows.update({getattr(module, name): UNSEEDED for name in SEEDED})
    for dialect in dialects.values():
        if dialect.calls.protocol:
            rows.update(dialect.names.refused)
    return {id(function): (function, reason) for function, reason in rows.items()}


def refusing(function: Any, reason: str, trace: Trace, name: str = "") -> Callable[..., Any]:
    """Return a stand-in that raises if called, except with a seed or below the logging level."""
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
    own = sys.modules["builtins"]
    return {name: refusing(getattr(own, name), AT_ONCE, trace, f"{name}()") for name in BUILTIN}


def is_heard(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether a logging function writes at the levels that are set."""
    level = LEVELS[function.__name__]
    logger = getattr(function, "__self__", logging.root)
    return logger.isEnabledFor(args[0] if level is None else level)


class Log:
    """A stand-in for a logger."""

    def __init__(self, logger: Any, trace: Trace) -> None:
        self._logger = logger
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._logger, name)
        if name not in LEVELS:
            return value
        return refusing(value, LOGS, self._trace, f"{name}() of a logger")


MOST_ELEMENTS = 1024
MOST_ITEMS = 64


class OutsideTensor(Telling):
    """The fact that gives the values of a tensor outside the code, found by the path to it."""

    read: Callable[[], Any]
    path: tuple[int, ...]

    @classmethod
    def found(cls, anchor: Any, name: str, read: Callable[[], Any], path: Any = ()) -> Any:
        """Return the fact about the result of `read`, or about an item in its nested tuples.

        `read` must keep `anchor` alive, so that no other object gets its id.
        """
        fact = cls(f"tensor {id(anchor)} {name} {path}")
        fact.read, fact.path = read, path
        return fact

    def meaning(self) -> Any:
        """Return the values as a key; None if they cannot be read."""
        found = self.read()
        for place in self.path:
            if not isinstance(found, tuple) or place >= len(found):
                return None
            found = found[place]
        return values_of(found)


def values_of(value: Any) -> Any:
    """Return a small tensor's values as a key, None for anything else."""
    try:
        tensors = backend_of(value).tensors
        if tensors.is_traced(value) or math.prod(value.shape) > MOST_ELEMENTS:
            return None
        array = np.asarray(tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, NotImplementedError, RuntimeError, TypeError):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def tensors_of(function: FunctionType) -> Iterator[tuple[Any, OutsideTensor]]:
    """Yield the tensors that a function refers to, with the facts about them."""
    namespace = function.__globals__
    for name, value in mentioned(function):
        yield from _inside(value, namespace, name, partial(namespace.get, name))
    for cell in function.__closure__ or ():
        yield from _inside(contents(cell), cell, "", partial(contents, cell))
    for value in defaults(function):
        yield from _inside(value, value, "", partial(_given, value))


def note_constants(trace: Trace, module: ModuleType, name: str) -> None:
    """Note a module's value: a number such as pi, or the tensors in it."""
    value = getattr(module, name)
    if type(value) is float:
        trace.source.numbers.add(value)
    found = _inside(value, module, name, partial(getattr, module, name, None))
    trace.memory.outside.update((id(tensor), fact) for tensor, fact in found)


def _given(value: Any) -> Any:
    return value


def _inside(
    value: Any, anchor: Any, name: str, read: Callable[[], Any], path: tuple[int, ...] = ()
) -> Iterator[tuple[Any, OutsideTensor]]:
    if isinstance(value, tuple) and len(value) <= MOST_ITEMS:
        for i, each in enumerate(value):
            yield from _inside(each, anchor, name, read, (*path, i))
    # A class that the code names may hold tensors as attributes or defaults.
    elif isinstance(value, type) and not path:
        if held := defaults_of(value):
            yield from _inside(held, value, "", partial(defaults_of, value))
    elif hasattr(type(value), "dtype") and hasattr(type(value), "shape") and _is_foreign(value):
        yield value, OutsideTensor.found(anchor, name, read, path)


def defaults_of(kind: type) -> tuple[Any, ...]:
    """Return the arrays among a class's attributes and constructor defaults, at most MOST_ITEMS."""
    held: list[Any] = []
    for base in kind.__mro__[:-1]:
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", value)
            is_made = name in ("__new__", "__init__")
            held += (getattr(function, "__defaults__", None) or ()) if is_made else (value,)
    return tuple(each for each in held if hasattr(type(each), "dtype"))[:MOST_ITEMS]


def _is_foreign(value: Any) -> bool:
    # A framework's tensor; the values of NumPy's arrays are fixed at the capture.
    try:
        return backend_of(value).name != "numpy"
    except BackendNotFound:
        return False
