"""Gradients that explain a network: what a rectifier sends back to show what its input was for.

`tin` is the forward's input. Without it, what depends on it is 1.
"""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..registry import register

Tensor = Any


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
