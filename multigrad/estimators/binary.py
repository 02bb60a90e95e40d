"""Signs, steps and three levels. NaN stays NaN in forward. The width of a step's surrogate may be
learned.
"""

from __future__ import annotations

import math
from typing import Any

from ..core.support.trees import Tensor
from ..core.trace.xp import all as xp
from ..errors import RuleValueError, suggest
from .declared import estimator, summed, widened

# Beyond it exp(-u) is zero in every dtype; u itself may be infinite.
FAR = 1000.0
# Beyond it a sigmoid is flat in every dtype; an arc tangent only beyond the other, whose square
# float32 does not hold.
FLAT = {"sigmoid": 200.0, "arctan": 1e18}


def sign_of(x: Tensor) -> Tensor:
    return xp.where(x == 0, 1.0, xp.sign(x))


def within(grad_out: Tensor, x: Tensor, clip: Any) -> Tensor:
    return grad_out if clip is None else xp.where(xp.abs(x) <= clip, grad_out, 0.0)


@estimator(ranges={"clip": ">= 0"})
def ste_sign(x: Tensor, clip: float | None = 1.0) -> Any:
    """1 where x >= 0, else -1.

    Gradients: x: 1 where |x| <= clip, else 0; with clip=None everywhere 1. Source: Hubara et al.,
    2016 (arXiv 1602.02830), eq. 4; `ste_sign` of larq, whose sign of 0 is 1 too.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_sign, np.array([-2.0, -0.5, 0.0, 0.5]))
        >>> y, pull(np.ones(4))[0]
        (array([-1., -1.,  1.,  1.]), array([0., 1., 1., 1.]))
    """
    return sign_of(x), lambda grad_out: within(grad_out, x, clip)


@estimator(ranges={"clip": ">= 0"})
def ste_heaviside(x: Tensor, clip: float | None = 1.0) -> Any:
    """1 where x > 0, else 0.

    Gradients: x: 1 where |x| <= clip, else 0; with clip=None everywhere 1. Source:
    `ste_heaviside` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_heaviside, np.array([-2.0, -0.5, 0.0, 0.5]))
        >>> y, pull(np.ones(4))[0]
        (array([0., 0., 0., 1.]), array([0., 1., 1., 1.]))
    """
    return xp.where(x <= 0, 0.0, xp.sign(x)), lambda grad_out: within(grad_out, x, clip)


@estimator(ranges={"threshold": ">= 0", "clip": ">= 0"})
def ste_ternary(x: Tensor, threshold: float = 0.05, clip: float | None = 1.0) -> Any:
    """The sign of x where |x| >= threshold, else 0.

    Gradients: x: 1 where |x| <= clip, else 0; with clip=None everywhere 1. Source: Li et al., 2016
    (arXiv 1605.04711); `ste_tern` of larq, whose edges are these.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_ternary, np.array([-2.0, -0.01, 0.5]))
        >>> y, pull(np.ones(3))[0]
        (array([-1.,  0.,  1.]), array([0., 1., 1.]))
    """
    levels = xp.where(xp.abs(x) < threshold, 0.0, xp.sign(x))
    return levels, lambda grad_out: within(grad_out, x, clip)


@estimator()
def approx_sign(x: Tensor) -> Any:
    """1 where x >= 0, else -1.

    Gradients: x: 2 * (1 - |x|) where |x| <= 1, else 0. Source: Liu et al., 2018 (Bi-Real Net,
    arXiv 1808.00278); `approx_sign` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.approx_sign, np.array([-2.0, -0.5, 0.25]))
        >>> y, pull(np.ones(3))[0]
        (array([-1., -1.,  1.]), array([0. , 1. , 1.5]))
    """

    def grad(grad_out: Tensor) -> Tensor:
        size = xp.abs(x)
        return xp.where(size <= 1, grad_out * (2.0 * (1.0 - size)), 0.0)

    return sign_of(x), grad


@estimator(ranges={"beta": "> 0 and finite"})
def swish_sign(x: Tensor, beta: float = 5.0) -> Any:
    """1 where x >= 0, else -1.

    Gradients: x: beta * (2 - u * tanh(u / 2)) / (1 + cosh(u)) with u = beta * x; nothing overflows.

    Source: Darabi et al., 2018 (BNN+, arXiv 1812.11800); `swish_sign` of larq.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.swish_sign, np.array([-1.0, 0.0, 0.5]))
        >>> y, pull(np.ones(3))[0].round(3)
        (array([-1.,  1.,  1.]), array([-0.195,  5.   , -0.085]))
    """

    def grad(grad_out: Tensor) -> Tensor:
        u = xp.minimum(xp.abs(beta * x), FAR)
        e = xp.exp(-u)
        # tanh(u / 2) = (1 - e) / (1 + e), and 1 / (1 + cosh(u)) = 2 e / (1 + e)**2
        slope = (2.0 - u * ((1.0 - e) / (1.0 + e))) * (2.0 * e / xp.square(1.0 + e))
        return grad_out * (beta * slope)

    return sign_of(x), grad


@estimator(ranges={"clip": ">= 0"})
def magnitude_aware_sign(x: Tensor, clip: float | None = 1.0) -> Any:
    """m where x >= 0, else -m, with m the mean of |x| over all axes but the last one.

    Gradients: x: m where |x| <= clip, else 0; m itself passes none. Source: Liu et al., 2018
    (Bi-Real Net, arXiv 1808.00278); `MagnitudeAwareSign` of larq.

    Examples:
        >>> x = np.array([[0.5, 2.0], [-0.25, 1.0]])
        >>> y, pull = xg.vjp(xg.estimators.magnitude_aware_sign, x)
        >>> y
        array([[ 0.375,  1.5  ],
               [-0.375,  1.5  ]])
        >>> pull(np.ones((2, 2)))[0]
        array([[0.375, 0.   ],
               [0.375, 1.5  ]])
    """
    size = xp.abs(x)
    axes = tuple(range(x.ndim - 1))
    mean = xp.mean(size, axis=axes, keepdims=True) if axes else size
    return mean * sign_of(x), lambda grad_out: within(grad_out * mean, x, clip)


@estimator(ranges={"width": "> 0 and finite"})
def learnable_step(x: Tensor, width: Tensor, kind: str = "sigmoid") -> Any:
    """1 where x > 0, else 0; width > 0, for all or per channel.

    Gradients: those of S(x / width): x: S'(u) / width; width: -u * S'(u) / width, u = x / width,
    summed to its shape. S is the logistic sigmoid, S'(u) = s(u) * s(-u), or with kind="arctan"
    S'(u) = 1 / (2 * (1 + (pi * u / 2)**2)). Source: the learnable width of Lian et al., 2023
    (Learnable Surrogate Gradient for Direct Training Spiking Neural Networks, IJCAI); the curves of
    Fang et al., 2021 (arXiv 2007.05785).

    Examples:
        >>> x, width = np.array([-1.0, 0.5]), np.array(0.5)
        >>> y, pull = xg.vjp(xg.estimators.learnable_step, x, width)
        >>> grad_x, grad_width = pull(np.ones(2))[:2]
        >>> y, grad_x.round(3), round(float(grad_width), 3)
        (array([0., 1.]), array([0.21 , 0.393]), 0.027)
    """
    if kind not in FLAT:
        raise RuleValueError(
            f"function 'learnable_step': param 'kind' is one of {', '.join(map(repr, FLAT))}, got "
            f"{kind!r}{suggest(kind, FLAT)}"
        )
    wide_width = widened(width)

    def grad(grad_out: Tensor) -> Any:
        u = xp.clip(widened(x) / wide_width, -FLAT[kind], FLAT[kind])
        if kind == "sigmoid":
            slope = xp.sigmoid(u) * xp.sigmoid(-u)
        else:
            slope = 0.5 / (1.0 + xp.square(0.5 * math.pi * u))
        wide_grad = widened(grad_out) * slope / wide_width
        return xp.cast_like(wide_grad, x), summed(-u * wide_grad, width)

    return xp.where(x <= 0, 0.0, xp.sign(x)), grad
