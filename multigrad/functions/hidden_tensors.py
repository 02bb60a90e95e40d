"""Tensors of objects as hidden arguments of a call.

The state of an object is read at each call (`user_code/object_state.py`), so that weights are never
stale. `HiddenTensors` adds its tensors to the call as one more keyword, and a `Structure` that
stands for all else that it holds:

    layer(x)    ->    (x), {"~": {"": Structure, "weight": ..., "inner.bias": ...}}
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backend.contract import Backend
from ..capture.user_code.inspection import plain_function, wrapped_function
from ..capture.user_code.libraries import OWN
from ..capture.user_code.object_state import ObjectState, held_by, is_open, read_state
from ..graph.support.trees import optree
from ..trace.trace import Trace, Value
from .calls.arguments import flatten, owner_of
from .calls.completion import Completion
from .entries import MOST_ENTRIES

Tensor = Any
# The name of the hidden argument, which sorts behind all identifiers.
STATE = "~"


def owner_of_method(function: Any) -> Any:
    """Return the object whose state a callable reads, or a plain function itself; else None."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
    elif isinstance(function, types.FunctionType):
        return function
    elif wrapped_function(function) is not None:
        return None
    else:
        owner = function
    if plain_function(function) is None or type(owner).__module__.startswith(OWN):
        return None
    return owner if is_open(owner) else None


def holds_state(function: Any) -> bool:
    """Return whether a callable's result depends on tensors that an object holds."""
    # For a plain function: an object that its names refer to.
    if isinstance(function, types.FunctionType):
        return bool(read_state(function).tensors)
    return owner_of_method(function) is not None


class Structure:
    """A static argument that stands for all that objects hold besides their tensors."""

    __slots__ = ("__weakref__",)


class HiddenTensors(Completion):
    """Completes a call by the tensors that objects hold: what is called, or some arguments.

    Attributes:
        called: the object, or the method of one, that is called.
        holds: whether an argument holds tensors; None: those of `called` are meant.
    """

    def __init__(self, called: Any = None, holds: Callable[[Any], bool] | None = None) -> None:
        super().__init__(None)
        self.called, self.holds = called, holds
        self._structures: dict[Any, Structure] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = super().__deepcopy__(memo)
        copied._structures = {}
        copied.called = copy.deepcopy(self.called, memo)
        return copied

    def is_needed(self, leaves: Sequence[Any]) -> bool:
        return self.holds is None or bool(self.values) or any(map(self.holds, leaves))

    def complete(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Sequence[Any], Any]:
        args, kwargs = optree.tree_unflatten(tree, leaves)
        if STATE in kwargs or not self.is_needed(leaves):
            return leaves, tree
        is_inside = self.holds is not None and any(isinstance(leaf, Value) for leaf in leaves)
        # The tensors of objects may be symbols only inside a capture.
        state = self._read(leaves)
        if is_inside and not all(isinstance(own, Value) for own in state.tensors.values()):
            return leaves, tree  # what is no symbol of the capture around is a constant there
        owners = (owner_of(leaf) for leaf in leaves if not isinstance(leaf, Value))
        home = next((owner for owner in owners if owner is not None), None)
        held = {
            name: own if is_inside else on_backend(home, held_by(own))
            for name, own in state.tensors.items()
        }
        return flatten(args, {**kwargs, STATE: {"": self._structure(state), **held}})

    def key(self, leaves: Sequence[Any], tree: Any) -> tuple[Any, ...]:
        return (self._structure(self._read(leaves)),) if self.is_needed(leaves) else ()

    def _read(self, leaves: Sequence[Any]) -> ObjectState:
        if self.holds is None:
            return read_state(owner_of_method(self.called))
        return read_state(tuple(filter(self.holds, leaves)))

    def _structure(self, state: ObjectState) -> Structure:
        # Equal states have the same one. Of a full table they get new ones, and are captured again.
        if len(self._structures) >= MOST_ENTRIES:
            self._structures.clear()
        return self._structures.setdefault(state.key, Structure())


def on_backend(backend: Backend | None, tensor: Tensor) -> Tensor:
    """Return a tensor of a call's framework; one of another framework becomes a constant there."""
    owner = owner_of(tensor)
    if backend is None or owner is None or owner is backend:
        return tensor
    return backend.tensors.from_numpy(owner.tensors.to_numpy(tensor))


def split_hidden(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the user's own keywords, and the tensors for the objects by name."""
    # The empty name is that of the `Structure`.
    hidden = {name: held for name, held in kwargs.get(STATE, {}).items() if name}
    return {name: each for name, each in kwargs.items() if name != STATE}, hidden


def refuse_updates(
    trace: Trace, whose: str, symbols: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Raise if the code has updated a tensor of an object in place."""
    for name, symbol in symbols.items():
        if symbol.node is not before[name]:
            raise trace.error(
                f"updates {name!r} of {whose} in place, which a graph does not do. A module in "
                "training may: call its .eval() first"
            )
