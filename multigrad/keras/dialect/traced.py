"""Functions of Keras that no row knows: the backend that Keras runs on traces the call."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras

from ...capture.code.modes import ModeOf
from ...capture.code.table import OwnTrace, find_dialect
from ...graph.support.trees import optree
from ...trace.scope.reads import note

Handler = Callable[..., Any]
ROOMS = (keras.ops, keras.ops.image, keras.activations, keras.losses, keras.utils)
COMPUTING = frozenset(
    each for room in ROOMS for each in vars(room).values() if isinstance(each, FunctionType)
)


def find_traced(function: Any) -> Handler | None:
    """Return what records a function of Keras's by the trace of its backend; None: it has none."""
    below = find_dialect(keras.config.backend())
    if function not in COMPUTING or below is None or below.own_trace is None:
        return None
    return OwnTrace(record, function, below.own_trace(function))


def record(function: Handler, traced: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call, whose numbers may have Keras's default dtype.

    Raises:
        TypeError: it takes a variable, or its backend's trace of it is not captured.
    """
    leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
    if any(isinstance(x, keras.Variable) for x in leaves):
        raise TypeError("it is given a variable, which a graph does not hold")
    mode = ModeOf("keras")
    note({mode: mode.meaning()})
    return traced(*args, **kwargs)
