"""From a lowering to `tf.custom_gradient`.

The params are closed over: `tf.custom_gradient` would make tensors of them, and takes no keywords in graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from multigrad.lowering.lower import Lowering

Tensor = Any


def render(lowering: Lowering) -> str:
    """Return the source of a function of the tensor and the params."""
    f, b, name = lowering.forward, lowering.backward, lowering.identifier
    draw = "    if key is None:\n        key = draw_key()\n" if lowering.draws else ""
    return f"""\
def {name}(tin{lowering.signature}):
{draw}
    @custom_gradient
    def function(tin):
        def backward(grad_out):
{b.indented(12)}            return {lowering.grad_in}

{f.indented(8)}        return {f.result}, backward

    return function(tin)
"""


NAMESPACE = {"custom_gradient": tf.custom_gradient}


def finish(namespace: dict[str, Any], lowering: Lowering) -> Callable[..., Any]:
    """Return the function."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    # AutoGraph has nothing to convert in straight-line code, and cannot find its source.
    return tf.autograph.experimental.do_not_convert(native)


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the function."""
    return native


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on tensors."""

    def native_rule(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        @tf.custom_gradient
        def function(tin: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            def pull(grad_out: Tensor) -> Tensor:
                return backward(None, grad_out, tin, values)

            return forward(tin), pull

        return function(tin)

    return native_rule
