"""The backend that Keras runs on: its dtypes, where it differs from others, and its trace of a
call.

Keras has one backend for the process. Functions of Keras without a handler are captured by its
trace.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import keras
import numpy as np

from ...core.support.trees import optree
from ...core.trace.lookups import note
from ...engine.capture.dialect import Dialect, Handler, OwnTrace, find_dialect
from ...engine.capture.values.oracle import ModeOf, StandInCall, TypeOracle


def below() -> Dialect:
    """Return the dialect of the library that Keras computes with."""
    dialect = find_dialect(keras.config.backend())
    assert dialect is not None
    return dialect


# --- dtypes: those of its backend, on that backend's tensors --------------------------------------
OWN: TypeOracle = below().types


def run(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    return OWN.run(calls, mode[2])


def mode() -> Any:
    return keras.config.backend(), keras.config.floatx(), OWN.mode()


def floats(mode: Any) -> Sequence[str]:
    return OWN.floats(mode[2])


def canonical(dtype: str, mode: Any) -> str:
    return OWN.canonical(dtype, mode[2])


WIDE = frozenset(
    """
    batch_normalization layer_normalization moments rms_normalization round std var
    """.split()  # noqa: SIM905
)


# Functions that compute in an operand's own dtype before they promote.
AT_ONCE = frozenset({"floor_divide", "where"})


def casts_operands_first(function: Any) -> bool:
    return getattr(function, "__name__", "") not in AT_ONCE


def rounds_once(function: Any) -> bool:
    return getattr(function, "__name__", "") in WIDE


TYPES = TypeOracle(
    OWN.tiny,
    run,
    OWN.read,
    mode,
    floats,
    ranks_count=OWN.ranks_count,
    canonical=canonical,
    is_wide=rounds_once,
    casts_first=casts_operands_first,
)


# --- differences between backends: tried once, on numbers for which they differ -------------------


@contextmanager
def compute_at_once() -> Iterator[None]:
    """Let Keras's backend compute now, even while it compiles."""
    own = below().calls.at_once
    with nullcontext() if own is None else own():
        yield


@functools.cache
def answer(question: Callable[[], bool]) -> bool:
    """Return the answer of Keras's backend to one of the questions below."""
    return compute_at_once()(question)()


def number(x: Any) -> float:
    array: Any = keras.ops.convert_to_numpy(x)
    return float(np.ravel(array)[0])


def remembers_logits() -> bool:
    """Return whether probabilities keep the logits that they were made of: on TensorFlow."""
    return hasattr(keras.ops.sigmoid(keras.ops.zeros(1)), "_keras_logits")


def floors_quotients() -> bool:
    """Return whether `floor_divide` of inf is inf, the floor of a quotient: on TensorFlow."""
    return math.isinf(number(keras.ops.floor_divide(keras.ops.full((1,), math.inf), 2.0)))


def limits_logarithms() -> bool:
    """Return whether the cross-entropy of 1 and 1 is 0 in 16 bits, where 1 - eps is 1: on torch."""
    x = keras.ops.ones(1, "float16")
    # others multiply 0 by log(0)
    return math.isfinite(number(keras.ops.binary_crossentropy(x, x)))


def takes_lower_limit() -> bool:
    """Return whether `clip` between crossed limits gives the lower one: on TensorFlow."""
    return number(keras.ops.clip(keras.ops.zeros(1), 2.0, 1.0)) == 2


# --- functions without a handler: the backend traces the call -------------------------------------


ROOMS = (keras.ops, keras.ops.image, keras.activations, keras.losses, keras.utils)
COMPUTING = frozenset(
    each for room in ROOMS for each in vars(room).values() if isinstance(each, FunctionType)
)


def find_traced(function: Any) -> Handler | None:
    """Return a handler that records a Keras function by its backend's trace, if there is one."""
    own_trace = below().calls.own_trace
    if function not in COMPUTING or own_trace is None:
        return None
    return OwnTrace(record, function, own_trace(function))


def record(function: Handler, traced: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by the backend's trace."""
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
    if any(isinstance(x, keras.Variable) for x in leaves):
        raise TypeError("it is given a variable, which a graph does not hold")
    mode = ModeOf("keras")
    # numbers in the call may take Keras's default dtype, so the capture depends on it
    note({mode: mode.meaning()})
    return traced(*args, **kwargs)
