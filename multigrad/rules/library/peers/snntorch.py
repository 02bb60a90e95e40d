"""The surrogate gradients of snnTorch 1.0.0, by its names and with its defaults.

The forward that they belong to is `Heaviside`, 0 at exactly 0. Without `tin` the factor is 1.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves

Tensor = Any


@register("snntorch.straight_through_estimator")
def straight_through_estimator(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out, unchanged.

    Source: `StraightThroughEstimator` of snnTorch.
    """
    return grad_out


@register("snntorch.heaviside")
def heaviside(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out where tin > 0, else 0 (0 at tin = 0).

    Source: `Heaviside` of snnTorch, its default.
    """
    return grad_out if tin is None else grad_out * (tin > 0.0)


@register("snntorch.triangular", ranges={"threshold": "finite"})
def triangular(ctx: Any, grad_out: Tensor, tin: Tensor | None, threshold: float = 1.0) -> Tensor:
    """grad_out * threshold where tin < 0, else -threshold * grad_out (-threshold at zero).

    This is no triangle, and gradients above the threshold have the wrong sign; `triangular` is the
    triangle. Source: `triangular` of snnTorch 1.0.0, whose curve this is.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, -threshold, threshold)


@register("snntorch.fast_sigmoid", ranges={"slope": ">= 0 and finite"})
def fast_sigmoid(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 25.0) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2: 1 at zero.

    Source: `fast_sigmoid` of snnTorch; the same as ours.
    """
    return grad_out if tin is None else grad_out * curves.fast_sigmoid(tin, slope)


@register("snntorch.atan", ranges={"alpha": "> 0 and finite"})
def atan(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero.

    Source: `atan` of snnTorch, as its code has it; its documentation says 1 / pi for alpha / 2.
    """
    return grad_out if tin is None else grad_out * curves.arctan(tin, alpha)


@register("snntorch.sigmoid", ranges={"slope": "> 0 and finite"})
def sigmoid(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 25.0) -> Tensor:
    """grad_out * slope * s(slope tin) * (1 - s(slope tin)), s the logistic sigmoid: slope / 4 at
    zero.

    Source: `sigmoid` of snnTorch, which gives NaN where exp(-slope tin) overflows: in float32 below
    -88 / slope, with its default below -3.5.
    """
    return grad_out if tin is None else grad_out * curves.sigmoid(tin, slope)


@register("snntorch.spike_rate_escape", ranges={"beta": ">= 0 and finite", "slope": "finite"})
def spike_rate_escape(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 1.0, slope: float = 25.0
) -> Tensor:
    """grad_out * slope * exp(-beta * |tin - 1|): slope at tin = 1.

    Source: `spike_rate_escape` of snnTorch; the same as ours.
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin - 1.0, slope, beta)


@register("snntorch.SFS", ranges={"slope": ">= 0 and finite", "B": "finite"})
def sfs(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 25.0, B: float = 1.0
) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2 where tin > B, else 0 (0 at B).

    Source: `SFS` of snnTorch, the sparse fast sigmoid.
    """
    return grad_out if tin is None else grad_out * (curves.fast_sigmoid(tin, slope) * (tin > B))


@register("snntorch.SSO", ranges={"mean": "finite", "variance": ">= 0 and finite"})
def sso(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, mean: float = 0.0, variance: float = 0.2
) -> Tensor:
    """grad_out where tin > 0, else grad_out * (U - 1/2 + mean) * variance, with U uniform on [0, 1)
    for each element (zero counts as below).

    Source: `SSO` of snnTorch, the stochastic spike operator.
    """
    if tin is None:
        return grad_out
    return grad_out * xp.where(tin > 0.0, 1.0, (xp.rand_like(tin) - 0.5 + mean) * variance)


@register("snntorch.LSO", ranges={"slope": "finite"})
def lso(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 0.1) -> Tensor:
    """grad_out where tin > 0, else grad_out * slope (slope at zero).

    Source: `LSO` of snnTorch as it is documented, the leaky spike operator; in 1.0.0 it raises a
    TypeError.
    """
    return grad_out if tin is None else grad_out * xp.where(tin > 0.0, 1.0, slope)
