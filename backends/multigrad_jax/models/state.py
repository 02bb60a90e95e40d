"""Functions whose calls change objects of flax nnx: batch statistics, counts of draws.

Such an object may be changed only in the trace that made it. So a call is traced on copies, whose
state goes in with the arguments and comes out with the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax

from multigrad.errors import RuleValueError


class Objects:
    """The nnx modules of a call: its arguments, the function itself or what it is a method of."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any]) -> None:
        nnx = sys.modules["flax.nnx"]
        self.function = function
        owner = getattr(function, "__self__", function)
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, nnx.Module)]
        self.is_owned = isinstance(owner, nnx.Module)
        self.objects = [leaves[i] for i in self.places] + ([owner] if self.is_owned else [])
        self.definition, state = nnx.split(self.objects)
        self.arrays, self.tree = jax.tree_util.tree_flatten(state)
        self.tree_after: Any = self.tree

    def copies(self, arrays: list[Any]) -> list[Any]:
        """Return copies that hold these arrays."""
        state = jax.tree_util.tree_unflatten(self.tree, arrays)
        return sys.modules["flax.nnx"].merge(self.definition, state)

    def put_into(self, leaves: list[Any], copies: list[Any]) -> Callable[..., Any]:
        """Put copies in the place of the objects; return the function that is called."""
        for i, copy in zip(self.places, copies, strict=False):
            leaves[i] = copy
        if not self.is_owned:
            return self.function
        own = getattr(self.function, "__func__", None)
        return copies[-1] if own is None else MethodType(own, copies[-1])

    def state_of(self, copies: list[Any]) -> list[Any]:
        """Return the arrays that copies hold after the call."""
        state = sys.modules["flax.nnx"].state(copies)
        arrays, self.tree_after = jax.tree_util.tree_flatten(state)
        return arrays

    def update(self, arrays: list[Any]) -> None:
        """Give the objects what their copies hold."""
        unchanged = self.tree_after == self.tree and all(map(_is, arrays, self.arrays))
        if not unchanged:
            state = jax.tree_util.tree_unflatten(self.tree_after, arrays)
            sys.modules["flax.nnx"].update(self.objects, state)


def _is(a: Any, b: Any) -> bool:
    return a is b


def is_object(leaf: Any) -> bool:
    """Return whether a leaf of arguments is a module of nnx, which is not looked into."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(leaf, nnx.Module)


def objects_of(function: Callable[..., Any], leaves: list[Any]) -> Objects | None:
    """Return the nnx modules of a call; None: there are none."""
    owner = getattr(function, "__self__", function)
    return Objects(function, leaves) if any(map(is_object, [owner, *leaves])) else None


def refuse_changed(name: str, error: Exception) -> None:
    """Say how a function may change a module of nnx, where an error says that it did.

    Raises:
        RuleValueError: it did.
    """
    if type(error).__name__ == "TraceContextError":
        raise RuleValueError(
            f"{name} changes a module of flax nnx that it closes over ({error.args[0]:.60}...): "
            "give the module itself, xg.override(model, ...), or give it to the function as an "
            "argument"
        ) from error
