"""Straight-through estimators, and gradients of signs and quantizers that see the input alone.

`tin` is the number before it is rounded or made binary; without it the factor is 1. Quantizers with
a forward and learnable numbers of their own are in `xg.estimators`.
"""

from __future__ import annotations

import math
from typing import Any

from ...support.trees import Tensor
from ...trace.xp import all as xp
from ..registry import register
from . import curves, transforms
from .curves import POSITIVE, rule_of_curve


# --- backward as if forward had been the identity, or nearly --------------------------------------
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


@rule_of_curve("clipped_straight_through", clip=">= 0")
def clipped_straight_through(tin: Tensor, clip: float = 1.0) -> Tensor:
    """grad_out where |tin| <= clip, else 0; the edge belongs to the window.

    Source: Hubara et al., 2016 (arXiv 1602.02830), eq. 4; `ste_sign` of larq (clip_value).
    """
    return abs(tin) <= clip


# --- signs with two values: their forward is `Sign` -----------------------------------------------
@rule_of_curve("approx_sign")
def approx_sign(tin: Tensor) -> Tensor:
    """grad_out * 2 * (1 - |tin|) where |tin| <= 1, else 0: 2 at zero, 0 at both edges.

    Source: the piecewise quadratic sign of Bi-Real Net, Liu et al., 2018 (arXiv 1808.00278), eq. 7;
    `approx_sign` of larq.
    """
    return curves.triangle(tin, 2.0, 1.0)


@rule_of_curve("swish_sign", beta=POSITIVE)
def swish_sign(tin: Tensor, beta: float = 5.0) -> Tensor:
    """grad_out * beta * (2 - u * tanh(u / 2)) / (1 + cosh(u)), with u = beta * tin. The factor is
    beta at zero, negative from |u| = 2.4 on, and 0 at infinity.

    1 / (1 + cosh(u)) is written as 2 s(u) s(-u), s the logistic sigmoid, which does not overflow.
    Source: BNN+, Darabi et al., 2018 (arXiv 1812.11800), eq. 4; `swish_sign` of larq.
    """
    u = xp.minimum(beta * abs(tin), 1000.0)  # from there on it is 0 in every dtype
    slope = xp.sigmoid(u) * xp.sigmoid(-u)  # 1 / (1 + cosh(u)) is twice that, and does not overflow
    return (2.0 * beta) * (slope * (2.0 - u * xp.tanh(0.5 * u)))


@rule_of_curve("magnitude_aware_sign", clip=">= 0")
def magnitude_aware_sign(tin: Tensor, clip: float = 1.0) -> Tensor:
    """grad_out * m where |tin| <= clip, else 0, with m the mean of |tin| over all axes but the
    last, which counts as a constant; the edge belongs to the window.

    Of a tensor with one axis or none, m is |tin| itself, as in larq. Source: Bi-Real Net, Liu et
    al., 2018 (arXiv 1808.00278), section 3.3; `MagnitudeAwareSign` of larq.
    """
    return xp.stop_gradient(transforms.mean_magnitude(tin)) * (abs(tin) <= clip)


@rule_of_curve("absolute_binary_sign")
def absolute_binary_sign(tin: Tensor) -> Tensor:
    """grad_out where tin >= 0, else -grad_out (grad_out at both zeros): the slope of |tin| without
    a zero.

    Source: `AbsBinarySignGradFn` of brevitas.
    """
    return xp.where(tin >= 0.0, 1.0, -1.0)


@rule_of_curve("dorefa_activations")
def dorefa_activations(tin: Tensor) -> Tensor:
    """grad_out where 0 <= tin <= 1, else 0; both edges belong to the window; without tin,
    grad_out everywhere.

    Source: DoReFa-Net, Zhou et al., 2016 (arXiv 1606.06160), section 2.3; `DoReFa` of larq.
    """
    return (tin >= 0.0) & (tin <= 1.0)


def dorefa_of_weights(grad_out: Tensor, x: Tensor) -> Tensor:
    """grad_out * (1 - tanh(x)^2) / max|tanh(x)| with a constant maximum, 0 where that is 0."""
    largest = xp.stop_gradient(xp.norm(xp.tanh(x), ord=math.inf))
    is_zero = largest == 0.0
    # Divided last: the inverse of a subnormal maximum is infinite.
    slope = xp.where(is_zero, 0.0, curves.tanh_slope(x, 1.0))
    return grad_out * slope / xp.where(is_zero, 1.0, largest)


@register("dorefa_weights")
def dorefa_weights(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * (1 - tanh(tin)^2) / max|tanh(tin)|, the maximum over all of tin, which counts as a
    constant; 0 where all of tin is 0; without tin the factor is 1.

    Source: DoReFa-Net, Zhou et al., 2016 (arXiv 1606.06160), eq. 9; `DoReFa` of larq with
    mode="weights".
    """
    return grad_out if tin is None else dorefa_of_weights(grad_out, tin)


@register("quantization_noise", ranges={"factor": ">= 0 and <= 1"})
def quantization_noise(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, factor: float = 0.5
) -> Tensor:
    """grad_out * (1 - factor), whatever tin is: the share of a number that is not quantized yet.

    Source: `qnoise_factor` of qkeras's quantizers with use_ste=False.
    """
    return grad_out * (1.0 - factor)


@register("clamp_with_grad", ranges={"low": "<= high", "high": ">= low"})
def clamp_with_grad(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """grad_out where tin is in [low, high], or where gradient descent moves tin back towards it
    (grad_out <= 0 below low, grad_out >= 0 above high); else 0. Without tin, grad_out.

    That is grad_out * (tin - clip(tin, low, high)) >= 0, without its underflow. Source:
    `ClampWithGrad` of VQGAN+CLIP by Crowson, 2021.
    """
    if tin is None:
        return grad_out
    is_inside = (tin >= low) & (tin <= high)
    leads_back = ((tin < low) & (grad_out <= 0.0)) | ((tin > high) & (grad_out >= 0.0))
    return grad_out * (is_inside | leads_back)
