"""The surrogate gradients of braintools 0.3, by its functions' names and with its defaults.

The forward that they belong to is `Heaviside` with `at_zero=1.0`. Without `tin` the factor is 1.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves

Tensor = Any
named = curves.table(__name__)
named("braintools.sigmoid", curves.sigmoid, alpha=4.0)
named("braintools.piecewise_quadratic", curves.piecewise_quadratic, alpha=1.0)
named("braintools.piecewise_exp", curves.piecewise_exp, alpha=1.0)
named("braintools.soft_sign", curves.soft_sign, alpha=1.0)
named("braintools.arctan", curves.arctan, alpha=1.0)
named("braintools.nonzero_sign_log", curves.nonzero_sign_log, alpha=1.0)
named("braintools.erf", curves.erf, alpha=1.0)
named(
    "braintools.squarewave_fourier_series", curves.squarewave_fourier, n=2, period=("t_period", 8.0)
)
named("braintools.s2nn", curves.s2nn, alpha=4.0, beta=1.0)
named("braintools.log_tailed_relu", curves.log_tailed_relu, alpha=0.0)
named("braintools.gaussian_grad", curves.gaussian, sigma=0.5, scale=("alpha", 0.5))
named("braintools.multi_gaussian_grad", curves.multi_gaussian, h=0.15, s=6.0, sigma=0.5, scale=0.5)
named("braintools.inv_square_grad", curves.fast_sigmoid, slope=("alpha", 100.0))
named("braintools.slayer_grad", curves.slayer, alpha=1.0)


@register("braintools.piecewise_leaky_relu", ranges={"c": "finite", "w": "> 0 and finite"})
def piecewise_leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, c: float = 0.01, w: float = 1.0
) -> Tensor:
    """grad_out / (2 w) where |tin| <= w, else c * grad_out (1 / (2 w) at both edges).

    Source: `piecewise_leaky_relu` of braintools.
    """
    return grad_out if tin is None else grad_out * xp.where(abs(tin) <= w, 0.5 / w, c)


@register("braintools.q_pseudo_spike", ranges={"alpha": "> 0 and finite"})
def q_pseudo_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha + 1))^-alpha: 1 at zero.

    The paper's curve, and ours of this name, has alpha - 1.

    Source: `q_pseudo_spike` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.pseudo_spike(tin, alpha, alpha + 1.0)


@register("braintools.leaky_relu", ranges={"alpha": "finite", "beta": "finite"})
def leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.1, beta: float = 1.0
) -> Tensor:
    """grad_out * alpha where tin < 0, else grad_out * beta (beta at zero).

    Source: `leaky_relu` of braintools.
    """
    return grad_out if tin is None else grad_out * xp.where(tin < 0.0, alpha, beta)


@register("braintools.relu_grad", ranges={"alpha": "finite", "width": ">= 0 and finite"})
def relu_grad(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.3, width: float = 1.0
) -> Tensor:
    """grad_out * alpha * max(0, width - |tin|): 0 from |tin| = width on.

    Source: `relu_grad` of braintools.
    """
    return grad_out if tin is None else grad_out * (alpha * xp.maximum(width - abs(tin), 0.0))
