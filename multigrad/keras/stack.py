"""Who called: Keras (3.15) hands a layer neither the step nor the model nor the loop that it is
called in.

So these are looked for on the stack, where a compiler traces or an error passes: not in a compiled
step.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import keras


def running(*endings: str) -> Iterator[tuple[Any, FrameType]]:
    """Yield the models whose methods with such endings of a name run around a call, with the
    methods' frames.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.endswith(endings or ("",)):
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model):
                yield model, frame
        frame = frame.f_back


def find_state(model: Any) -> tuple[Any, ...]:
    """Return what the `fit` of a model on jax, which runs around this call, has taken of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit":
            names = frame.f_locals
            if names.get("self") is model and "state" in names:
                return names["state"]
        frame = frame.f_back
    return ()


def put_first(callback: Any) -> None:
    """Put a callback before the others of the `fit` that begins around this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        group: Any = frame.f_locals.get("self")
        if isinstance(group, keras.callbacks.CallbackList):
            # Those that have begun stay so: the loop over the list is past them.
            if callback in group.callbacks:
                group.callbacks.remove(callback)
                group.callbacks.insert(0, callback)
            return
        frame = frame.f_back


def is_within(module: str | tuple[str, ...], function: str = "") -> bool:
    """Return whether code of a module of such a beginning runs around a call; there, of a function
    of that name.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_there = frame.f_globals.get("__name__", "").startswith(module)
        if is_there and function in ("", frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False
