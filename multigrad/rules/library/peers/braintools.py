"""The surrogate gradients of braintools 0.3, by its functions' names and with its defaults.

The forward that they belong to is `Heaviside` with `at_zero=1.0`. Without `tin` the factor is 1.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves

Tensor = Any


@register("braintools.sigmoid", ranges={"alpha": "> 0 and finite"})
def sigmoid(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0) -> Tensor:
    """grad_out * alpha * s(alpha tin) * (1 - s(alpha tin)), s the logistic sigmoid.

    Source: `sigmoid` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.sigmoid(tin, alpha)


@register("braintools.piecewise_quadratic", ranges={"alpha": "> 0 and finite"})
def piecewise_quadratic(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0
) -> Tensor:
    """grad_out * alpha * max(0, 1 - alpha * |tin|): 0 from |tin| = 1 / alpha on.

    Source: `piecewise_quadratic` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, alpha, alpha)


@register("braintools.piecewise_exp", ranges={"alpha": "> 0 and finite"})
def piecewise_exp(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * (alpha / 2) * exp(-alpha * |tin|): alpha / 2 at zero.

    Source: `piecewise_exp` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin, 0.5 * alpha, alpha)


@register("braintools.soft_sign", ranges={"alpha": "> 0 and finite"})
def soft_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + alpha * |tin|)^2: alpha / 2 at zero.

    Source: `soft_sign` of braintools.
    """
    return grad_out if tin is None else grad_out * (0.5 * alpha * curves.fast_sigmoid(tin, alpha))


@register("braintools.arctan", ranges={"alpha": "> 0 and finite"})
def arctan(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero.

    Source: `arctan` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.arctan(tin, alpha)


@register("braintools.nonzero_sign_log", ranges={"alpha": "> 0 and finite"})
def nonzero_sign_log(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out / (1 / alpha + |tin|): alpha at zero.

    Source: `nonzero_sign_log` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.nonzero_sign_log(tin, alpha)


@register("braintools.erf", ranges={"alpha": "> 0 and finite"})
def erf(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha / sqrt(pi) * exp(-(alpha * tin)^2): alpha / sqrt(pi) at zero.

    Source: `erf` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.erf(tin, alpha)


@register("braintools.piecewise_leaky_relu", ranges={"c": "finite", "w": "> 0 and finite"})
def piecewise_leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, c: float = 0.01, w: float = 1.0
) -> Tensor:
    """grad_out / (2 w) where |tin| <= w, else c * grad_out (1 / (2 w) at both edges).

    Source: `piecewise_leaky_relu` of braintools.
    """
    return grad_out if tin is None else grad_out * xp.where(abs(tin) <= w, 0.5 / w, c)


@register(
    "braintools.squarewave_fourier_series", ranges={"n": ">= 1", "t_period": "> 0 and finite"}
)
def squarewave_fourier_series(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, n: int = 2, t_period: float = 8.0
) -> Tensor:
    """grad_out * (4 / t_period) * sum of cos((2i - 1) 2 pi tin / t_period) for i = 1..n. NaN at
    infinity.

    Source: `squarewave_fourier_series` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.squarewave_fourier(tin, n, t_period)


@register("braintools.s2nn", ranges={"alpha": "> 0 and finite", "beta": "finite"})
def s2nn(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 4.0, beta: float = 1.0
) -> Tensor:
    """grad_out * alpha s(alpha tin) (1 - s(alpha tin)) where tin < 0, s the logistic sigmoid; else
    grad_out * beta / (tin + 1): beta at zero.

    Source: `s2nn` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.s2nn(tin, alpha, beta)


@register("braintools.q_pseudo_spike", ranges={"alpha": "> 0 and finite"})
def q_pseudo_spike(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha + 1))^-alpha: 1 at zero.

    The paper's curve, and ours of this name, has alpha - 1.

    Source: `q_pseudo_spike` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.q_pseudo_spike(tin, alpha, alpha + 1.0)


@register("braintools.leaky_relu", ranges={"alpha": "finite", "beta": "finite"})
def leaky_relu(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.1, beta: float = 1.0
) -> Tensor:
    """grad_out * alpha where tin < 0, else grad_out * beta (beta at zero).

    Source: `leaky_relu` of braintools.
    """
    return grad_out if tin is None else grad_out * xp.where(tin < 0.0, alpha, beta)


@register("braintools.log_tailed_relu", ranges={"alpha": "finite"})
def log_tailed_relu(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.0) -> Tensor:
    """grad_out / tin where tin > 1, grad_out where 0 < tin <= 1, else alpha * grad_out.

    Source: `log_tailed_relu` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.log_tailed_relu(tin, alpha)


@register("braintools.relu_grad", ranges={"alpha": "finite", "width": ">= 0 and finite"})
def relu_grad(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 0.3, width: float = 1.0
) -> Tensor:
    """grad_out * alpha * max(0, width - |tin|): 0 from |tin| = width on.

    Source: `relu_grad` of braintools.
    """
    return grad_out if tin is None else grad_out * (alpha * xp.maximum(width - abs(tin), 0.0))


@register("braintools.gaussian_grad", ranges={"sigma": "> 0 and finite", "alpha": "finite"})
def gaussian_grad(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, sigma: float = 0.5, alpha: float = 0.5
) -> Tensor:
    """grad_out * alpha * N(tin; 0, sigma), N the density of the normal distribution.

    Source: `gaussian_grad` of braintools.
    """
    return grad_out if tin is None else grad_out * (alpha * curves.normal(tin, 0.0, sigma))


@register(
    "braintools.multi_gaussian_grad",
    ranges={"h": "finite", "s": "> 0 and finite", "sigma": "> 0 and finite", "scale": "finite"},
)
def multi_gaussian_grad(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    h: float = 0.15,
    s: float = 6.0,
    sigma: float = 0.5,
    scale: float = 0.5,
) -> Tensor:
    """grad_out * scale * ((1 + h) N(tin; 0, sigma) - h N(tin; sigma, s sigma)
    - h N(tin; -sigma, s sigma)), N the density of the normal distribution.

    Source: `multi_gaussian_grad` of braintools.
    """
    if tin is None:
        return grad_out
    return grad_out * (scale * curves.multi_gaussian(tin, 0.0, sigma, h, s))


@register("braintools.inv_square_grad", ranges={"alpha": ">= 0 and finite"})
def inv_square_grad(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 100.0) -> Tensor:
    """grad_out / (1 + alpha * |tin|)^2: 1 at zero.

    Source: `inv_square_grad` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.fast_sigmoid(tin, alpha)


@register("braintools.slayer_grad", ranges={"alpha": ">= 0 and finite"})
def slayer_grad(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """grad_out * exp(-alpha * |tin|): 1 at zero.

    Source: `slayer_grad` of braintools.
    """
    return grad_out if tin is None else grad_out * curves.exponential(tin, 1.0, alpha)
