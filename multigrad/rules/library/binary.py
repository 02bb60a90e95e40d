"""Gradients of a sign with two values: stand-ins for a derivative that is zero.

`tin` is the number that is made binary. Without it the factor is 1. The forward that they belong to
is `Sign`.
"""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..registry import register
from . import curves, norms

Tensor = Any


@register("approx_sign")
def approx_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * 2 * (1 - |tin|) where |tin| <= 1, else 0: 2 at zero, 0 at both edges.

    Source: the piecewise quadratic sign of Bi-Real Net, Liu et al., 2018 (arXiv 1808.00278), eq. 7;
    `approx_sign` of larq.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, 2.0, 1.0)


@register("swish_sign", ranges={"beta": "> 0 and finite"})
def swish_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 5.0) -> Tensor:
    """grad_out * beta * (2 - u * tanh(u / 2)) / (1 + cosh(u)), with u = beta * tin: beta at zero,
    below zero from |u| = 2.4 on, 0 at infinity.

    1 / (1 + cosh(u)) is written as 2 s(u) s(-u), s the logistic sigmoid, which does not overflow.
    Source: BNN+, Darabi et al., 2018 (arXiv 1812.11800), eq. 4; `swish_sign` of larq.
    """
    return grad_out if tin is None else grad_out * curves.swish_sign(tin, beta)


@register("magnitude_aware_sign", ranges={"clip": ">= 0"})
def magnitude_aware_sign(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clip: float = 1.0
) -> Tensor:
    """grad_out * m where |tin| <= clip, else 0, with m the mean of |tin| over all axes but the
    last, which counts as a constant; the edge belongs to the window.

    Of a tensor with one axis or none, m is |tin| itself, as in larq. Source: Bi-Real Net, Liu et
    al., 2018 (arXiv 1808.00278), section 3.3; `MagnitudeAwareSign` of larq.
    """
    if tin is None:
        return grad_out
    return grad_out * (xp.stop_gradient(norms.mean_magnitude(tin)) * (abs(tin) <= clip))


@register("absolute_binary_sign")
def absolute_binary_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out where tin >= 0, else -grad_out (grad_out at both zeros): the slope of |tin| without
    a zero.

    Source: `AbsBinarySignGradFn` of brevitas.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, 1.0, -1.0)
