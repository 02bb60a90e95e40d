"""Surrogate gradients: stand-ins for the derivative of a step, or of a rectifier.

`tin` is the forward's input (for spiking units: membrane minus threshold). Without it, where the
rule acts on a parameter's gradient, the factor is 1.
"""

from __future__ import annotations

from typing import Any

from ...support.trees import Tensor
from ...trace.xp import all as xp
from ..registry import register


@register("d(ReLU)")
def relu_derivative(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out where tin > 0, else 0 (0 at tin = 0).

    Source: the derivative of max(x, 0); "d(ReLU)" of FreeGrad.
    """
    if tin is None:
        return grad_out
    return grad_out * (tin > 0)


@register("rectangular", ranges={"a": "<= b", "b": ">= a"})
def rectangular(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, a: float = -0.5, b: float = 0.5
) -> Tensor:
    """grad_out where a <= tin <= b, else 0; both edges belong to the window.

    Source: "rectangular" of FreeGrad; the boxcar of Zheng et al., 2021.
    """
    if tin is None:
        return grad_out
    return grad_out * ((tin >= a) & (tin <= b))


@register("triangular", ranges={"width": ">= 0"})
def triangular(ctx: Any, grad_out: Tensor, tin: Tensor | None, width: float = 1.0) -> Tensor:
    """grad_out * max(0, 1 - |tin| / max(width, 1e-6)): 1 at zero, 0 from |tin| = width on.

    Source: "triangular" of FreeGrad; the window of Bellec et al., 2018 (arXiv 1803.09574).
    """
    if tin is None:
        return grad_out
    return grad_out * xp.maximum(1.0 - abs(tin) / xp.maximum(width, 1e-6), 0.0)


@register("arctan", ranges={"alpha": "> 0 and finite"})
def arctan(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero.

    Source: Fang et al., 2021 (arXiv 2007.05785), eq. 11; `ATan` of spikingjelly.
    """
    if tin is None:
        return grad_out
    u = (0.5 * xp.pi) * alpha * tin
    return grad_out * (0.5 * alpha / (1.0 + u * u))


@register("fast_sigmoid", ranges={"slope": ">= 0 and finite"})
def fast_sigmoid(ctx: Any, grad_out: Tensor, tin: Tensor | None, slope: float = 25.0) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2: 1 at zero.

    Source: Zenke and Ganguli, 2018 (SuperSpike, arXiv 1705.11146); `fast_sigmoid` of snnTorch.
    """
    if tin is None:
        return grad_out
    u = 1.0 + slope * abs(tin)
    return grad_out / (u * u)


@register("sigmoid_surrogate", ranges={"alpha": "> 0 and finite"})
def sigmoid_surrogate(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0) -> Tensor:
    """grad_out * alpha * s(alpha tin) * (1 - s(alpha tin)), s the logistic sigmoid: alpha / 4 at
    zero.

    Written as s(u) s(-u), which neither overflows nor cancels. Source: `Sigmoid` of spikingjelly
    (alpha 4); snnTorch's `sigmoid` is the same curve with its slope for alpha.
    """
    if tin is None:
        return grad_out
    u = alpha * tin
    return grad_out * (alpha * (xp.sigmoid(u) * xp.sigmoid(-u)))


# --- gradients of a rectifier that explain a network ----------------------------------------------
@register("guided")
def guided(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """max(grad_out, 0) where tin > 0, else 0 (0 at tin = 0).

    Source: guided backpropagation, Springenberg et al., 2014 (arXiv 1412.6806), eq. for R^l;
    `ReLUGuidedBackprop` of zennit, `GuidedBackprop` of captum.
    """
    positive = xp.maximum(grad_out, 0.0)
    return positive if tin is None else positive * (tin > 0)


@register("deconvnet")
def deconvnet(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """max(grad_out, 0), whatever tin is.

    Source: the deconvolutional network of Zeiler and Fergus, 2013 (arXiv 1311.2901), section 2.1;
    `ReLUDeconvNet` of zennit, `Deconvolution` of captum.
    """
    return xp.maximum(grad_out, 0.0)


@register("beta_smooth", ranges={"beta": "finite"})
def beta_smooth(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 10.0) -> Tensor:
    """grad_out * s(beta tin), s the logistic sigmoid: 1 / 2 at zero.

    Source: the derivative of a softplus instead of a rectifier's, Dombrowski et al., 2019
    (arXiv 1906.07983), eq. 9; `ReLUBetaSmooth` of zennit.
    """
    return grad_out if tin is None else grad_out * xp.sigmoid(beta * tin)
