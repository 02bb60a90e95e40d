"""Stand-ins: replacements, in a rule's copy, for functions and modules that offer no protocol.

Builtins and `math` take no symbolic values, and some libraries (`jax.numpy`, TensorFlow,
`keras.ops`) have no protocol at all. A stand-in records a call with a symbol among its arguments,
and otherwise calls the function itself.
"""

from __future__ import annotations

import builtins
import functools
import logging
import math
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ....core.support.lazy_modules import imported_module
from ....core.trace.source import OWN
from ....core.trace.trace import Value, is_symbolic_tensor
from ....core.trace.xp import all as xp
from ...trace.assertions import is_searched
from ...trace.code_trace import CodeTrace, Pair
from ..dialect import CHANGES, SWITCHES, Dialect, find_dialect, registered_dialects
from ..dialects import scipy
from ..foreign_calls import record_call
from ..meanings.creation import stand_ins_of
from ..name_tables import named
from ..symbols import (
    ATTRIBUTES,
    SCALAR_CLASSES,
    SymbolicDType,
    SymbolicShape,
    among_numbers,
    class_of,
    get_attribute,
    has_attribute,
    identity_of,
    may_be_scalar,
    rounded,
)
from ..values.indexing import Picked

TENSORS = (Value, Pair, Picked)
SYMBOLS = (*TENSORS, SymbolicShape, SymbolicDType)
# Kinds that may be or hold a symbol: a function may have one in its closure.
HELD = (*SYMBOLS, types.FunctionType, types.MethodType, functools.partial)


# --- builtins -------------------------------------------------------------------------------------
def type_of(*args: Any, **kwargs: Any) -> Any:
    """Replace the builtin `type`: the class of a symbol is that of its real value."""
    if len(args) != 1 or kwargs:
        return builtins.type(*args, **kwargs)
    (value,) = args
    if is_symbolic_tensor(value):
        dialect = find_dialect(value.trace.dialect)
        if dialect is not None and dialect.classes.classes and is_searched(sys._getframe(1)):
            return TextOfClasses(dialect.classes.classes, value.trace)
    return class_of(value)


class TextOfClasses(str):
    """One of several classes, and its own text, of which only `word in str(kind)` is known: if it
    is the same for all of them.
    """

    __slots__ = ("_classes", "_trace")

    def __new__(cls, classes: tuple[type, ...], trace: CodeTrace) -> Self:
        text = super().__new__(cls, "one of several classes")
        text._classes, text._trace = classes, trace
        return text

    def __str__(self) -> str:
        return self

    __repr__ = __str__

    def __contains__(self, word: object) -> bool:
        answers = {word in builtins.str(kind) for kind in self._classes}  # type: ignore[operator]
        if len(answers) > 1:
            raise self._trace.error(f"looks for {word!r} in the class of a tensor")
        return answers.pop()


def is_instance(value: Any, classes: Any) -> bool:
    """Replace the builtin `isinstance`: a symbol is a number or a tensor of the code's library."""
    classes = _real(classes)
    if isinstance(value, ATTRIBUTES):
        return issubclass(class_of(value), classes)
    if not isinstance(value, Value):
        return isinstance(value, classes)
    if value.is_number:
        return issubclass(value.kind, classes)
    if value.node.type.kind == "scalar":
        return issubclass(SCALAR_CLASSES[value.node.type.dtype], classes)
    library, dialects = value.trace.dialect, registered_dialects()
    if library in ("", OWN):
        return any(issubclass(dialect.tensors.tensor, classes) for dialect in dialects.values())
    answers: set[bool] = set()
    if (dialect := dialects.get(library)) is not None:
        scalars = dialect.tensors.scalars if may_be_scalar(value, dialect) else ()
        answers = {issubclass(kind, classes) for kind in (dialect.tensors.tensor, *scalars)}
    if len(answers) != 1:
        advice = ". Write it with xg.xp, for all libraries" if value.trace.words.write else ""
        raise value.trace.error(f"asks for the class of a tensor{advice}")
    return answers.pop()


def _real(classes: Any) -> Any:
    # `type` itself may be among the classes, as its stand-in.
    if isinstance(classes, tuple):
        return tuple(map(_real, classes))
    return builtins.type if classes is type_of else classes


def extreme_of(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    """Return the builtin `max` or `min` that also takes symbolic scalars and tensors."""

    @functools.wraps(plain)
    def extreme(*args: Any, **kwargs: Any) -> Any:
        values = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args
        if len(values) > 1 and not kwargs and any(isinstance(v, Value) for v in values):
            if all(not isinstance(v, Value) or v.is_number for v in values):
                return functools.reduce(functools.partial(among_numbers, symbolic), values)
            return functools.reduce(symbolic, values)
        return plain(*args, **kwargs)

    return extreme


def length_of(x: Any) -> Any:
    # The builtin `len`, which stays symbolic for a tensor.
    return xp.dim(x, 0) if isinstance(x, Value) else builtins.len(x)


BUILTINS: dict[str, Any] = {
    "getattr": get_attribute,
    "hasattr": has_attribute,
    "id": identity_of,
    "isinstance": is_instance,
    "len": length_of,
    "max": extreme_of(builtins.max, xp.maximum),
    "min": extreme_of(builtins.min, xp.minimum),
    "type": type_of,
}


def on_symbols(function: Callable[..., Any], symbolic: Callable[..., Any], *args: Any) -> Any:
    # A function of `math`; on a symbolic scalar, record its meaning.
    scalars = [a for a in args if isinstance(a, Value) and a.node.type.kind == "scalar"]
    if any(isinstance(a, Value) and a.is_number for a in args):
        if function in (math.ceil, math.floor, math.trunc):
            return rounded(symbolic, *args)
        return among_numbers(symbolic, *args, divides=True)
    return symbolic(*args) if scalars else function(*args)


MATH = named(
    """
    ceil; cos; erf; exp; expm1; abs: fabs; floor; isfinite; isinf; isnan; log1p; pow; sin; sqrt;
    tanh; trunc; atan
    """,
    math,
)


# --- functions that a graph cannot hold: they act, or give another value at each call -------------
AT_ONCE = "which happens once, when the rule is captured, and not at each call"
UNSEEDED = "which gives another generator at each call: give it a seed"
LOGS = "which says so once, when the rule is captured, and not at each call"

# Modules with such functions, by the name that people import.
ROOTS = (
    "logging", "math", "os", os.path.__name__, "random", "secrets", "threading", "time", "uuid",
)  # fmt: skip
CHANGING = {
    time: """
        time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time
        process_time_ns thread_time ctime localtime gmtime strftime
    """,
    os: "urandom getpid times getloadavg getcwd listdir scandir stat",
    os.path: "exists getmtime getsize isdir isfile",
    np: "fromfile genfromtxt load loadtxt",
    threading: "active_count current_thread get_ident",
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


def refusing(function: Any, reason: str, trace: CodeTrace, name: str = "") -> Callable[..., Any]:
    """Return a stand-in that raises if called, except with a seed or below the logging level."""
    name_shown = name or getattr(function, "__name__", repr(function))

    def refused(*args: Any, **kwargs: Any) -> Any:
        if reason is UNSEEDED and any(each is not None for each in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        if reason is LOGS and not is_heard(function, args):
            return None
        reason_shown = f"{reason} {trace.words.param}" if reason is CHANGES else reason
        trace.source.calls_refused = True
        raise trace.error(f"calls {name_shown}, {trace.words.ways(reason_shown)}")

    return refused


def refused_builtins(trace: CodeTrace) -> dict[str, Any]:
    module = sys.modules["builtins"]
    return {name: refusing(getattr(module, name), AT_ONCE, trace, f"{name}()") for name in BUILTIN}


def is_heard(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether a logging function writes at the levels that are set."""
    level = LEVELS[function.__name__]
    logger = getattr(function, "__self__", logging.root)
    return logger.isEnabledFor(args[0] if level is None else level)


class Log:
    """A stand-in for a logger."""

    def __init__(self, logger: Any, trace: CodeTrace) -> None:
        self._logger, self._trace = logger, trace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._logger, name)
        if name not in LEVELS:
            return value
        return refusing(value, LOGS, self._trace, f"{name}() of a logger")


# --- functions that choose by the class of a symbol -----------------------------------------------
class Dispatch:
    """A stand-in for a `functools.singledispatch` function that chooses by a symbol's class."""

    def __init__(self, function: Any, stand_in: Callable[[Any], Any]) -> None:
        self.__wrapped__ = function
        self._stand_in = stand_in

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args:
            return self.__wrapped__(*args, **kwargs)
        return self._stand_in(self._chosen(args[0]))(*args, **kwargs)

    def _chosen(self, value: Any) -> Any:
        # For a tensor, the implementation of the code's own library; another library's is refused.
        dispatch, default = self.__wrapped__.dispatch, self.__wrapped__.dispatch(object)
        if not isinstance(value, Value) or value.node.type.kind == "scalar":
            return dispatch(class_of(value))
        dialect = registered_dialects().get(value.trace.dialect)
        others = (d for d in registered_dialects().values() if d is not dialect)
        method = default if dialect is None else dispatch(class_of(value))
        if method is default and any(dispatch(d.tensors.tensor) is not default for d in others):
            raise value.trace.error(
                "dispatches by the class of a tensor, and knows that of another library"
            )
        return method

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


# --- the index of all stand-ins -------------------------------------------------------------------
class Index:
    """The stand-ins for the dialects registered now.

    Attributes:
        functions: by `id`, each function (kept alive, so that its id stays its own) and its
            stand-in.
        names: the names of these functions, by which a module that holds one is recognized.
        libraries: the dialects without a protocol, by import name.
        roots: the packages with known functions.
        refused: functions that no graph holds, and why, by `id`.
        companions: imported modules with known functions that no dialect imports itself.
        keepers: predicates for classes and functions that stay unreplaced.
    """

    def __init__(self) -> None:
        dialects = registered_dialects()
        rows: dict[Any, Callable[..., Any]] = {
            function: functools.partial(on_symbols, function, symbolic)
            for function, symbolic in MATH.items()
        }
        rows.update(stand_ins_of(dialects))
        self.companions = companions_of(dialects.values())
        for dialect in dialects.values():
            rows.update(dialect.names.hidden)
            for name, functions in dialect.names.companions.items():
                rows.update(functions() if name in self.companions else {})
        # Last, so that SciPy's rows win over a dialect's.
        if scipy.MODULE in self.companions:
            rows.update(scipy.stand_ins(functools.partial(holds, kinds=TENSORS)))
        reasons: dict[Any, str] = dict(FUNCTIONS)
        if (module := imported_module(GENERATORS)) is not None:
            reasons.update({getattr(module, name): UNSEEDED for name in SEEDED})
        for dialect in dialects.values():
            if dialect.calls.protocol:
                reasons.update(dialect.names.refused)
        # By id: a library's function may define `==` or refuse to be hashed.
        self.functions = {id(function): (function, stand_in) for function, stand_in in rows.items()}
        self.refused = {id(function): (function, reason) for function, reason in reasons.items()}
        self.names = {getattr(function, "__name__", "") for function in (*rows, *reasons)}
        self.libraries = {name: d for name, d in dialects.items() if not d.calls.protocol}
        self.roots = {*self.libraries, *ROOTS, *(n.partition(".")[0] for n in self.companions)}
        self.keepers = [d.calls.keeps for d in dialects.values() if d.calls.keeps is not None]
        self.dialects = dict(dialects)

    def is_current(self) -> bool:
        dialects = registered_dialects()
        if self.companions != companions_of(dialects.values()):
            return False
        return len(dialects) == len(self.dialects) and all(
            self.dialects.get(name) is dialect for name, dialect in dialects.items()
        )


def companions_of(dialects: Iterable[Dialect]) -> tuple[str, ...]:
    # Only modules that the user has imported: nothing here imports them.
    declared_names = [name for dialect in dialects for name in dialect.names.companions]
    names = [name for name in (scipy.MODULE, GENERATORS, *declared_names) if name in sys.modules]
    return tuple([name for name in names if imported_module(name) is not None])


_index: list[Index] = []  # the latest, replaced when a dialect or companion appears


def find_index() -> Index:
    """Return the index of all stand-ins, rebuilt if a dialect was registered since."""
    if not _index or not _index[0].is_current():
        _index[:] = [Index()]
    return _index[0]


def holds(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    """Return whether values, or the lists, tuples and dicts among them, hold one of these kinds."""
    for value in values:
        if isinstance(value, kinds):
            return True
        kind = type(value)
        if kind in (list, tuple) and holds(value, kinds):
            return True
        if kind is dict and holds(value.values(), kinds):
            return True
    return False


@dataclass(slots=True, eq=False)
class FunctionStandIn:
    """The stand-in for one function of a library without a protocol."""

    library: str
    dialect: Dialect
    function: Any
    name: str
    trace: CodeTrace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        reason = self.dialect.names.refused.get(self.function)
        if reason is not None:
            raise self.trace.error(f"calls {self.name}, {reason}")
        if self.function in self.dialect.names.trees:
            return self.function(*args, **kwargs)
        # An unknown function may well take a symbolic shape; if not, its error says that it needs
        # the real one.
        kinds = HELD if self.function in self.dialect.names.aliases else TENSORS
        if holds(args, kinds) or (kwargs and holds(kwargs.values(), kinds)):
            return record_call(
                self.library, self.function, args, kwargs, trace=self.trace, shown=self.name
            )
        if self.dialect.calls.at_once is None:
            return self.function(*args, **kwargs)
        with self.dialect.calls.at_once():
            return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __repr__(self) -> str:
        return f"<stand-in for {self.name}>"
