"""Custom functions inside of code that is read by its jaxpr: a call of one is one equation, so that
its own gradient is not lost.

Jax writes such a call into the jaxpr with the rules of its own kind, which cannot be read back.
What is traced here is kept apart from what jax keeps for others, as it holds our equation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeAlias

import jax
from jax.interpreters import ad, batching

from multigrad.graph.support.data import dataclass

from ..versions import core, primal_of
from ..walk import opened, within
from .custom_functions import recording

Tensor: TypeAlias = Any
CALLED = core.Primitive("multigrad_custom_call")
CALLED.multiple_results = True
APART = jax.make_user_context("")
_importing: ContextVar[bool] = ContextVar("multigrad_jax_importing", default=False)
# The function whose next call is jax's.
_passing: ContextVar[Any] = ContextVar("multigrad_jax_passing", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """One call of a custom function.

    Attributes:
        function: the function.
        tree, leaves: its arguments; in `leaves`, at `places`, stand the arrays of the equation.
        avals: what jax knows of each of its results.
    """

    function: Any
    tree: Any
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    avals: tuple[Any, ...] = ()

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with these in the places of the arrays."""
        leaves = list(self.leaves)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        return jax.tree.unflatten(self.tree, leaves)

    def run(self, *arrays: Tensor) -> list[Tensor]:
        """Call the function itself, by jax's own means; what its rules call are equations again."""
        args, kwargs = self.arguments(arrays)
        reset = _passing.set(self.function)
        try:
            return jax.tree.leaves(self.function(*args, **kwargs))
        finally:
            _passing.reset(reset)

    def compute(self, *arrays: Tensor) -> list[Tensor]:
        """Compute what the function does, without its gradient."""
        args, kwargs = self.arguments(arrays)
        return jax.tree.leaves(primal_of(self.function)(*args, **kwargs))


@contextmanager
def reading() -> Iterator[None]:
    """Let calls of custom functions become equations of ours."""
    reset = _importing.set(True)
    try:
        with APART("reading"):
            yield
    finally:
        _importing.reset(reset)


def is_reading() -> bool:
    """Return whether code is read by its jaxpr."""
    return _importing.get()


def holds_loop(jaxpr: Any) -> bool:
    """Return whether a jaxpr has a loop in it that values may end, which has no derivative."""
    return any(equation.primitive.name == "while" for equation in within(opened(jaxpr)[0]))


def note(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_derived: bool = False
) -> tuple[Any, ...] | None:
    """Return the result of a custom function's call that became an equation, in a tuple; None where
    jax takes it itself.

    Args:
        is_derived: its gradient is the derivative of what it computes, and matters where there is
            a loop in that.
    """
    if _passing.get() is function:
        _passing.set(None)
        return None
    leaves, tree = jax.tree.flatten((args, kwargs))
    if not _importing.get() or not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    arrays = [leaves[i] for i in places]
    rest = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
    bare = Called(function, tree, rest, places)

    def compute(*arrays: Tensor) -> Any:
        given, named = bare.arguments(arrays)
        return primal_of(function)(*given, **named)

    if is_derived:
        with APART("looking"):
            if not holds_loop(jax.make_jaxpr(compute)(*arrays)):
                return None
    flat, results = jax.tree.flatten(jax.eval_shape(compute, *arrays))
    avals = tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in flat)
    called = replace(bare, avals=avals)
    return (jax.tree.unflatten(results, CALLED.bind(*arrays, called=called)),)


@CALLED.def_abstract_eval
def _describe(*_: Any, called: Called) -> Sequence[Any]:
    return called.avals


@CALLED.def_impl
def _compute(*arrays: Tensor, called: Called) -> list[Tensor]:
    return called.run(*arrays)


def _push(primals: Sequence[Tensor], tangents: Sequence[Any], *, called: Called) -> Any:
    """Differentiate by the function's own rule, where jax asks while it traces."""
    return jax.jvp(called.run, list(primals), [ad.instantiate_zeros(t) for t in tangents])


def _batch(arrays: Sequence[Tensor], axes: Sequence[Any], *, called: Called) -> Any:
    """Map over an axis: a call of a function whose gradient is that of the other one, mapped."""
    results = jax.tree.leaves(mapped(called, tuple(axes))(*arrays))
    return results, [0] * len(results)


def mapped(called: Called, axes: tuple[Any, ...]) -> Any:
    """Return a custom function of the arrays of a call, each with one more axis or None."""

    def run(*arrays: Tensor) -> list[Tensor]:
        return jax.vmap(called.run, in_axes=axes)(*arrays)

    def forward(*arrays: Tensor) -> Any:
        return compute(*arrays), arrays

    def backward(arrays: tuple[Tensor, ...], cotangents: Any) -> tuple[Tensor, ...]:
        with recording(called.function):  # its rules may call it
            found = jax.vjp(run, *arrays)[1](cotangents)
        return tuple(None if each.dtype == jax.dtypes.float0 else each for each in found)

    def compute(*arrays: Tensor) -> list[Tensor]:
        return jax.vmap(called.compute, in_axes=axes)(*arrays)

    compute.__name__ = getattr(called.function, "__name__", compute.__name__)
    function = jax.custom_vjp(compute)
    function.defvjp(forward, backward)
    return function


ad.primitive_jvps[CALLED] = _push
batching.primitive_batchers[CALLED] = _batch
