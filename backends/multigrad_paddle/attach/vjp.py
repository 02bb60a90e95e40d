"""`xg.vjp` on Paddle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.autograd import PyLayer

from multigrad.backend import GradientError

from ..kernels.widening import Tensor, is_float, is_tensor
from .attach import RAISED, noting_errors


def vjp(
    run: Callable[[Sequence[Tensor]], list[Any]], inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return what a function of tensors gives, and the map from cotangents to one gradient per
    input.

    Inside of another differentiation the inputs stay part of its graph, and so do the gradients.
    """
    nested = paddle.is_grad_enabled() and any(not x.stop_gradient for x in inputs)
    with paddle.enable_grad():
        own = [track(x, nested) for x in inputs]
        outputs = run(own)
    active = [i for i, y in enumerate(outputs) if is_tensor(y) and not y.stop_gradient]
    wrt = [i for i, x in enumerate(own) if not x.stop_gradient]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        gradients: list[Tensor | None] = [
            paddle.zeros_like(x) if is_float(x) else None for x in inputs
        ]
        if not active or not wrt:
            return gradients
        given = [
            paddle.zeros_like(outputs[i]) if cotangents[i] is None else cotangents[i]
            for i in active
        ]
        asked = [outputs[i] for i in active], [own[i] for i in wrt]
        found = differentiate(*asked, given, retain_graph=True, create_graph=nested)
        for i, gradient in zip(wrt, found, strict=True):
            gradients[i] = gradients[i] if gradient is None else gradient
        return gradients

    if nested:
        return outputs, pullback
    return [y.detach() if is_tensor(y) else y for y in outputs], pullback


def differentiate(*tensors: Any, **options: Any) -> list[Tensor | None]:
    """Call paddle.grad, and raise an error of ours as it was raised.

    Raises:
        MultigradError: a backward raised it.
    """
    RAISED.error = None
    try:
        return paddle.grad(*tensors, allow_unused=True, **options)
    except OSError:
        if RAISED.error is None:
            raise
        raise RAISED.error from None
    finally:
        RAISED.error = None


def track(x: Tensor, nested: bool) -> Tensor:
    """Return the input as a tensor of its own whose gradient is asked for."""
    if not is_float(x):
        return x
    if nested and not x.stop_gradient:
        return x.clone()
    own = x.detach()
    own.stop_gradient = False
    return own


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity, which raises where a derivative of it is taken."""

    class Once(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        @noting_errors
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            raise GradientError(message)

    return Once.apply


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on a number, which refuses a tensor that asks for a gradient."""

    def refuse(number: Any) -> Any:
        if is_tensor(number) and not number.stop_gradient and paddle.is_grad_enabled():
            raise GradientError(message)
        return number

    return refuse


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, run eagerly under Paddle's defaults; the generator stays."""
    state, dtype = paddle.get_rng_state(), paddle.get_default_dtype()
    try:
        with paddle.base.dygraph.guard(), paddle.enable_grad(), paddle.amp.auto_cast(enable=False):
            return run()
    finally:
        paddle.set_rng_state(state)
        paddle.set_default_dtype(dtype)
