"""Straight-through estimators: backward as if forward had been the identity, or nearly."""

from __future__ import annotations

from typing import Any

from ..registry import register

Tensor = Any


@register("d(Linear)")
def linear_derivative(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out, unchanged.

    Source: the derivative of the identity; "d(Linear)" of FreeGrad.
    """
    return grad_out


@register("straight_through")
@register("pass")
def straight_through(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out, unchanged.

    Source: the straight-through estimator of Bengio et al., 2013 (arXiv 1308.3432).
    """
    return grad_out


@register("clipped_straight_through", ranges={"clip": ">= 0"})
def clipped_straight_through(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clip: float = 1.0
) -> Tensor:
    """grad_out where |tin| <= clip, else 0; the edge belongs to the window.

    Source: Hubara et al., 2016 (arXiv 1602.02830), eq. 4; `ste_sign` of larq (clip_value).
    """
    if tin is None:
        return grad_out
    return grad_out * (abs(tin) <= clip)
