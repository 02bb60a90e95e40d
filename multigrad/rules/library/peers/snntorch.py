"""The surrogate gradients of snnTorch 1.0.0, by its names and with its defaults.

The forward that they belong to is `Heaviside`, 0 at exactly 0. Without `tin` the factor is 1.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves
from ..straight_through import straight_through

Tensor = Any
named = curves.table(__name__)
named(
    "snntorch.straight_through_estimator",
    straight_through,
    "`StraightThroughEstimator` of snnTorch",
)
named(
    "snntorch.fast_sigmoid",
    curves.fast_sigmoid,
    "`fast_sigmoid` of snnTorch; the same as ours",
    slope=25.0,
)
named(
    "snntorch.atan",
    curves.arctan,
    "`atan` of snnTorch, as its code has it; its documentation says 1 / pi for alpha / 2",
    alpha=2.0,
)
named(
    "snntorch.sigmoid",
    curves.sigmoid,
    "`sigmoid` of snnTorch, which gives NaN where exp(-slope tin) overflows: in float32 below "
    "-88 / slope, with its default below -3.5",
    alpha=("slope", 25.0),
)
named(
    "snntorch.spike_rate_escape",
    curves.spike_rate_escape,
    "`spike_rate_escape` of snnTorch; the same as ours",
    beta=1.0,
    slope=25.0,
)
named(
    "snntorch.SFS",
    curves.sparse_fast_sigmoid,
    "`SFS` of snnTorch, the sparse fast sigmoid",
    slope=25.0,
    threshold=("B", 1.0),
)
named(
    "snntorch.SSO",
    curves.stochastic_spike,
    "`SSO` of snnTorch, the stochastic spike operator",
    mean=0.0,
    variance=0.2,
)
named(
    "snntorch.LSO",
    curves.leaky_spike,
    "`LSO` of snnTorch as it is documented, the leaky spike operator; in 1.0.0 it raises a "
    "TypeError",
    slope=0.1,
)


@register("snntorch.triangular", ranges={"threshold": "finite"})
def triangular(ctx: Any, grad_out: Tensor, tin: Tensor | None, threshold: float = 1.0) -> Tensor:
    """grad_out * threshold where tin < 0, else -threshold * grad_out (-threshold at zero).

    This is no triangle, and gradients above the threshold have the wrong sign; `triangular` is the
    triangle. Source: `triangular` of snnTorch 1.0.0, whose curve this is.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, -threshold, threshold)


@register("snntorch.heaviside")
def heaviside(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out where tin > 0, else 0 (0 at tin = 0).

    Source: `Heaviside` of snnTorch, its default.
    """
    return grad_out if tin is None else grad_out * (tin > 0.0)
