"""The surrogate gradients of norse, sinabs, spyx and snnax, by their names and with their defaults.

norse's alpha is that of its neurons' parameters, but for the triangle. Where a curve of sinabs
depends on the spike threshold, that is a param. Without `tin` the factor is 1.
"""

from __future__ import annotations

import math
from typing import Any

from ...registry import register
from .. import curves

Tensor = Any
named = curves.table(__name__)
named(
    "norse.super",
    curves.fast_sigmoid,
    "`super` of norse; `fast_sigmoid` with another default. norse 1.1.0 takes 1 for alpha, "
    "whatever is given",
    slope=("alpha", 100.0),
)
named("norse.tanh", curves.tanh, slope=("alpha", 100.0))
named("norse.circ", curves.circle, alpha=100.0)
named("sinabs.Gaussian", curves.gaussian, mean=("mu", 0.0), sigma=0.5, scale=("grad_scale", 1.0))
named(
    "sinabs.MultiGaussian",
    curves.multi_gaussian,
    mean=("mu", 0.0),
    sigma=0.5,
    h=0.15,
    s=6.0,
    scale=("grad_scale", 1.0),
)
named(
    "sinabs.PeriodicExponential",
    curves.periodic_exponential,
    width=("grad_width", 0.5),
    scale=("grad_scale", 1.0),
    threshold=1.0,
)
named(
    "spyx.superspike",
    curves.fast_sigmoid,
    "`superspike` of spyx; `fast_sigmoid` under another name",
    slope=("k", 25.0),
)
named("spyx.tanh", curves.tanh, slope=("k", 1.0))
named(
    "snnax.sigmoid",
    curves.sigmoid,
    "`sigmoid_surrogate` of snnax as it is documented; its code raises a TypeError",
    alpha=("beta", 1.0),
)


@register("norse.triangle", ranges={"alpha": "finite"})
def norse_triangle(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.3) -> Tensor:
    """grad_out * alpha * max(0, 1 - |tin|): alpha at zero, 0 from |tin| = 1 on.

    Source: `triangle` of norse.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, alpha, 1.0)


@register("norse.heavi_erfc", ranges={"alpha": ">= 0 and finite"})
def norse_heavi_erfc(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 100.0
) -> Tensor:
    """grad_out * 2 / sqrt(pi) * exp(-(alpha * tin)^2).

    Its area is 2 / alpha; `erf_surrogate` has area 1. Source: `heavi_erfc` of norse.
    """
    return grad_out if tin is None else grad_out * curves.bell(tin, 2.0 * math.pi**-0.5, alpha)


@register("sinabs.Heaviside", ranges={"window": "finite", "threshold": "> 0 and finite"})
def sinabs_heaviside(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, window: float = 1.0, threshold: float = 1.0
) -> Tensor:
    """grad_out / threshold where tin >= -window, else 0; the edge belongs to it.

    Source: `Heaviside` of sinabs, where tin is the membrane minus the threshold.
    """
    return grad_out if tin is None else grad_out * ((tin >= -window) / threshold)


@register(
    "sinabs.SingleExponential",
    ranges={"grad_width": "> 0 and finite", "grad_scale": "finite", "threshold": "> 0 and finite"},
)
def sinabs_single_exponential(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    grad_width: float = 0.5,
    grad_scale: float = 1.0,
    threshold: float = 1.0,
) -> Tensor:
    """grad_out * grad_scale / w * exp(-|tin| / w), with w = grad_width * threshold.

    Source: `SingleExponential` of sinabs, its default.
    """
    if tin is None:
        return grad_out
    return grad_out * curves.exponential(
        tin, 1.0 / (grad_width * threshold), grad_scale / (grad_width * threshold)
    )


@register("spyx.boxcar", ranges={"width": ">= 0", "height": "finite"})
def spyx_boxcar(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, width: float = 2.0, height: float = 0.5
) -> Tensor:
    """grad_out * height where |tin| < width / 2, else 0; the edges do not belong to the window,
    though spyx's documentation says so.

    Source: `boxcar` of spyx.
    """
    return grad_out if tin is None else grad_out * (height * (abs(tin) < 0.5 * width))


@register("spyx.triangular", ranges={"k": "finite"})
def spyx_triangular(ctx: Any, grad_out: Tensor, tin: Tensor | None, k: float = 2.0) -> Tensor:
    """grad_out * max(0, 1 - |k tin|): 1 at zero, 0 from |tin| = 1 / k on.

    Here k is the slope; `triangular` takes the width. Source: `triangular` of spyx.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, 1.0, abs(k))


@register("spyx.arctan", ranges={"k": ">= 0 and finite"})
def spyx_arctan(ctx: Any, grad_out: Tensor, tin: Tensor | None, k: float = 2.0) -> Tensor:
    """grad_out / (pi * (1 + (pi k tin)^2)): 1 / pi at zero.

    Source: `arctan` of spyx; `arctan` is another curve.
    """
    return grad_out if tin is None else grad_out * curves.cauchy(tin, 1.0 / math.pi, math.pi * k)


@register("snnax.superspike", ranges={"beta": ">= 0 and finite"})
def snnax_superspike(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 10.0) -> Tensor:
    """grad_out / (1 + beta * |tin|): 1 at zero.

    The paper's curve is squared, as `fast_sigmoid` is. Source: `superspike_surrogate` of snnax,
    whose curve this is.
    """
    return grad_out if tin is None else grad_out / (1.0 + beta * abs(tin))


@register("snnax.piecewise", ranges={"beta": ">= 0"})
def snnax_piecewise(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 0.5) -> Tensor:
    """grad_out where -beta < tin < beta, else 0; the edges do not belong to it.

    Source: `piecewise_surrogate` of snnax.
    """
    return grad_out if tin is None else grad_out * (abs(tin) < beta)
