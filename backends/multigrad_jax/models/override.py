"""`xg.override` for functions of jax: traced at each call, computed with the rules.

A function is traced anew at each call, as what it closes over may have changed; under `jax.jit`
that is once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import jax

from multigrad.errors import RuleValueError
from multigrad.functions.custom_gradient import name_of
from multigrad.models.interpose import Following, parts_of

from .jaxpr import Rewriting
from .operations import find
from .relevance import composite_of, reads_layers, run

Compute = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def override_calls(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls."""
    if reads_layers(rules):
        composite = composite_of(rules)

        @functools.wraps(function)
        def attributed(*args: Any, **kwargs: Any) -> Any:
            compute = functools.partial(run, composite, name_of(function))
            return call(f"function {name_of(function)!r}", compute, function, args, kwargs)

        return attributed
    parts = parts_of(rules)
    meant = [find(part) for part, _ in parts]
    name = f"function {name_of(function)!r}"

    def make(found: Sequence[Any]) -> Rewriting:
        return Rewriting(list(zip(meant, found, strict=True)))

    acting = Following([rule for _, rule in parts], make)

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        checked = functools.partial(acting.now().checked, name)
        return call(name, checked, function, args, kwargs)

    return overridden


def call(name: str, compute: Compute, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Trace a call, and compute it with the rules.

    Args:
        compute: what computes a jaxpr of arguments, and of what objects among them hold, with the
            rules.

    Raises:
        RuleValueError: it calls none of the operations that a selector means.
    """
    given, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_object)
    places = [i for i, leaf in enumerate(given) if isinstance(leaf, jax.Array)]
    objects = objects_of(function, given)
    result: list[Any] = []

    def traced(arrays: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        whole = list(given)
        for i, array in zip(places, arrays, strict=True):
            whole[i] = array
        called, copies = function, []
        if objects is not None:
            copies = objects.copies(state)
            called = objects.put_into(whole, copies)
        args, kwargs = jax.tree_util.tree_unflatten(tree, whole)
        outputs, tree_out = jax.tree_util.tree_flatten(called(*args, **kwargs))
        found = [i for i, leaf in enumerate(outputs) if isinstance(leaf, jax.Array)]
        result[:] = [tree_out, found, [None if i in found else o for i, o in enumerate(outputs)]]
        return [outputs[i] for i in found], objects.state_of(copies) if objects else []

    arrays, state = [given[i] for i in places], objects.arrays if objects else []
    try:
        closed = jax.make_jaxpr(traced)(arrays, state)
    except Exception as error:
        refuse_changed(name, error)
        raise
    computed = compute(closed, arrays, state)
    tree_out, found, outputs = result
    for i, each in zip(found, computed, strict=False):
        outputs[i] = each
    if objects is not None:
        objects.update(computed[len(found) :])
    return jax.tree_util.tree_unflatten(tree_out, outputs)


# --- functions whose calls change objects of flax nnx ---------------------------------------------
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
