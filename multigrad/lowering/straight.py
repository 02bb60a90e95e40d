"""A pair of graphs as plain functions of one framework, outside of its autodiff: what runs for another framework.

The parts are those of every lowering (forward, what it keeps, backward) without the native object around them; and
backward from the inputs alone, for hosts that keep nothing of a guest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .backend import Backend

if TYPE_CHECKING:
    from .code import Lowering

Tensor = Any
Pull = Callable[..., tuple[Tensor, ...]]


def straighten(backend: Backend) -> Backend:
    """Return a backend that lowers to a `Straight` object."""

    def finish_straight(namespace: dict[str, Any], lowering: Lowering) -> Straight:
        return Straight(namespace, lowering, backend.outside)

    return replace(
        backend,
        render=render,
        finish=finish_straight,
        call=call,
        differentiates_residuals=True,  # nobody differentiates straight code
        forbid_derivative=None,
        fast=replace(backend.fast, constants={}),  # there is nowhere to prepare a number
    )


class Straight:
    """Forward and backward as plain functions; all take the tensors, then the run-time params, then a key.

    Attributes:
        lowering: what they were made of.
        is_random: whether they take a key.
        keeps_outputs: whether the map that `record` returns holds outputs.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        lowering: Lowering,
        outside: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    ) -> None:
        names = ("forward", "keep", "backward", "function")
        functions = [namespace[name] for name in names]
        if outside is not None:
            functions = [outside(function) for function in functions]
        self._forward, self._keep, self._backward, self._gradients = functions
        self.lowering = lowering
        self.is_random = "key" in lowering.params
        self.keeps_outputs = any(name in lowering.outputs for name in lowering.residuals)
        self._count = len(lowering.inputs)
        self._read = tuple(lowering.params.index(name) for name in lowering.forward_params)
        places = [*lowering.inputs, *lowering.outputs, *lowering.computed]
        self._residuals = tuple(places.index(name) for name in lowering.residuals)
        self._places = tuple(
            lowering.wrt.index(n) if n in lowering.wrt else None for n in lowering.inputs
        )

    def run(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the outputs."""
        inputs, values = args[: self._count], args[self._count :]
        return self._forward(*inputs, *[values[i] for i in self._read])

    def record(self, *args: Any) -> tuple[tuple[Tensor, ...], Pull]:
        """Return the outputs, and the map from their cotangents to a gradient, or None, for each tensor."""
        outputs, computed = self._keep(*args)
        held = (*args[: self._count], *outputs, *computed)
        residuals = [held[i] for i in self._residuals]
        values = args[self._count :]
        del held, computed, args

        def pull(*cotangents: Tensor) -> tuple[Tensor, ...]:
            return self._arrange(self._backward(*cotangents, *residuals, *values))

        return outputs, pull

    def gradients(self, args: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return a gradient, or None, for each tensor, from what forward was called with."""
        return self._arrange(self._gradients(*cotangents, *args))

    def _arrange(self, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(None if i is None else found[i] for i in self._places)


def call(native: Straight, lowering: Lowering) -> Callable[..., Any]:
    """Return what runs forward alone."""
    return native.run


def render(lowering: Lowering) -> str:
    """Return the source of the four functions; each returns a tuple."""
    f, k, b = lowering.fast.forward, lowering.fast.keep, lowering.fast.backward
    inputs, cotangents = ", ".join(lowering.inputs), ", ".join(lowering.cotangents)
    outputs = _tuple(lowering.outputs)
    given = "".join(f", {name}" for name in lowering.forward_params)
    residuals = "".join(f", {name}" for name in lowering.residuals)
    results = list(b.results)
    if lowering.check:
        results[0] = f"{lowering.check}({results[0]}, {lowering.cotangents[0]})"
    run = f"    {outputs} = forward({inputs}{given})\n"
    needed = k.reads.union(lowering.residuals).intersection(lowering.outputs)
    computed = f"    {_tuple(lowering.computed)} = {_tuple(k.results)}\n" if k.results else ""
    return f"""\
def forward({inputs}{given}):
{f.indented(4)}    return {_tuple(f.results)}


def keep({inputs}{lowering.arguments}):
{run}{k.indented(4)}    return {outputs}, {_tuple(k.results)}


def backward({cotangents}{residuals}{lowering.arguments}):
{b.indented(4)}    return {_tuple(results)}


def function({cotangents}, {inputs}{lowering.arguments}):
{run if needed else ""}{k.indented(4)}{computed}    return backward({cotangents}{residuals}{lowering.arguments})
"""


def _tuple(words: Sequence[str]) -> str:
    """Return the source of a tuple."""
    return f"({', '.join(words)},)" if words else "()"
