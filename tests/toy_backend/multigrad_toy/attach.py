"""Forward, residuals and backward as one function: toy has no derivatives of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import toy

from multigrad.backend import Emitted


class Differentiable:
    """`f(*inputs)` is the forward; `f.vjp(*inputs)` gives the outputs and the pullback."""

    def __init__(self, vjp: Callable[..., Any]) -> None:
        self.vjp = vjp

    def __call__(self, *args: Any) -> Any:
        return self.vjp(*args)[0]


def zero_if_none(cotangent: Any, like: Any) -> Any:
    return toy.Array(np.zeros(like.shape, like.dtype)) if cotangent is None else cotangent


def render(emitted: Emitted) -> str:
    """Return the source of a function that gives the outputs and their pullback."""
    forward, keep, backward = emitted.forward, emitted.keep, emitted.backward
    draw = "    key = draw_key() if key is None else key\n" if emitted.draws else ""
    kept = [*zip(emitted.residuals.computed, keep.results, strict=True)]
    kept += [(f"shape_of_{name}", f"{name}.shape") for name in emitted.residuals.shapes]
    residuals = "".join(f"    {name} = {result}\n" for name, result in kept)
    outputs, cotangents = ", ".join(emitted.names.outputs), ", ".join(emitted.names.cotangents)
    take = "" if emitted.single else f"        {cotangents} = cotangents\n"
    for pair in zip(emitted.names.cotangents, emitted.names.outputs, strict=True):
        take += f"        {pair[0]} = zero_if_none({', '.join(pair)})\n"
    return f"""\
def {emitted.names.identifier}({", ".join(emitted.names.inputs)}{emitted.signature}):
{draw}{forward.indented(4)}    {outputs} = {forward.result}
{keep.indented(4)}{residuals}
    def pullback({cotangents if emitted.single else "cotangents"}):
{take}{backward.indented(8)}        return ({", ".join(emitted.gradients(backward))})

    return ({outputs}), pullback
"""


def finish(namespace: dict[str, Any], emitted: Emitted) -> Differentiable:
    return Differentiable(namespace[emitted.names.identifier])


def call(native: Differentiable, emitted: Emitted) -> Callable[..., Any]:
    return native


def attach(run: Callable[..., Any], tensors: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    return run(*tensors)[0]
