"""Forward, residuals and backward as one function with a pullback: toy has no derivatives of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import toy

from multigrad.lowering.code import Lowering

Tensor = Any


class Differentiable:
    """`f(*inputs)` is the forward; `f.vjp(*inputs)` gives the outputs and the pullback."""

    def __init__(self, run: Callable[..., Any], single: bool) -> None:
        self.run = run
        self.single = single

    def __call__(self, *args: Any) -> Any:
        outputs, _ = self.run(*args)
        return outputs[0] if self.single else outputs

    def vjp(self, *args: Any) -> tuple[Any, Callable[..., Any]]:
        outputs, pull = self.run(*args)

        def pullback(cotangent: Any) -> Any:
            given = (cotangent,) if self.single else cotangent
            gradients = pull(*map(zero_if_none, given, outputs))
            return gradients[0] if len(gradients) == 1 else gradients

        return (outputs[0] if self.single else outputs), pullback


def zero_if_none(cotangent: Tensor | None, like: Tensor) -> Tensor:
    return toy.Array(np.zeros(like.shape, like.dtype)) if cotangent is None else cotangent


def render(lowering: Lowering) -> str:
    """Return the source of a function that gives the outputs, and the pullback of their cotangents."""
    forward, keep, backward = lowering.forward, lowering.keep, lowering.backward
    draw = "    key = draw_key() if key is None else key\n" if lowering.draws else ""
    outputs = ", ".join(lowering.outputs)
    kept = zip(lowering.computed, keep.results, strict=True)
    residuals = "".join(f"    {name} = {result}\n" for name, result in kept)
    residuals += "".join(f"    shape_of_{name} = {name}.shape\n" for name in lowering.shapes)
    return f"""\
def {lowering.identifier}({", ".join(lowering.inputs)}{lowering.signature}):
{draw}{forward.indented(4)}    {outputs} = {forward.result}
{keep.indented(4)}{residuals}
    def pullback({", ".join(lowering.cotangents)}):
{backward.indented(8)}        return ({", ".join(lowering.gradients(backward))},)

    return ({outputs},), pullback
"""


def finish(namespace: dict[str, Any], lowering: Lowering) -> Differentiable:
    return Differentiable(namespace[lowering.identifier], lowering.single)


def call(native: Differentiable, lowering: Lowering) -> Callable[..., Any]:
    return native


def attach_native(
    forward: Callable[..., Tensor], backward: Callable[..., Tensor], name: str
) -> Callable[..., Tensor]:
    def run_forward(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        return forward(tin)

    return run_forward


def attach_function(
    run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str
) -> tuple[Tensor, ...]:
    return run(*tensors)[0]
