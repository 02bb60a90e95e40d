"""Rounding with the gradient of the identity, clamps, and gradient reversal.

Each function returns its result and its backward; see `declared.py`. Tests:
`tests/rules/library/test_estimators.py`.
"""

from __future__ import annotations

from typing import Any

from ..core.support.trees import Tensor
from ..core.trace.xp import all as xp
from .declared import estimator


def straight_through(grad_out: Tensor) -> Tensor:
    return grad_out


@estimator()
def ste_round(x: Tensor) -> Any:
    """x rounded to the nearest integer, ties to even.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `RoundSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_round, np.array([-0.6, 0.5, 1.5]))
        >>> y, pull(np.ones(3))[0]
        (array([-1.,  0.,  2.]), array([1., 1., 1.]))
    """
    return xp.round(x), straight_through


@estimator()
def ste_floor(x: Tensor) -> Any:
    """The largest integer that is at most x.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `FloorSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_floor, np.array([-0.6, 0.5]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  0.]), array([1., 1.]))
    """
    return xp.floor(x), straight_through


@estimator()
def ste_ceil(x: Tensor) -> Any:
    """The smallest integer that is at least x.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `CeilSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_ceil, np.array([-1.6, 0.5]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  1.]), array([1., 1.]))
    """
    return xp.ceil(x), straight_through


@estimator()
def ste_trunc(x: Tensor) -> Any:
    """x without its fraction, rounded toward zero.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `RoundToZeroSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_trunc, np.array([-1.6, 1.6]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  1.]), array([1., 1.]))
    """
    return xp.trunc(x), straight_through


@estimator(ranges={"min": "<= max"})
def clamp_with_grad(x: Tensor, min: float = -1.0, max: float = 1.0) -> Any:
    """x limited to [min, max].

    Gradients: x: g where g * (x - clamp(x)) >= 0, else 0: outside the range a gradient passes
    if descent along it leads back; min and max: none. Source: `ClampWithGrad` of VQGAN+CLIP
    (Crowson, 2021).

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.clamp_with_grad, np.array([-2.0, 0.5, 2.0]))
        >>> y, pull(np.ones(3))[0]  # at -2 the gradient would lead further away
        (array([-1. ,  0.5,  1. ]), array([0., 1., 1.]))
    """
    clipped = xp.clip(x, min, max)

    def grad(grad_out: Tensor) -> Tensor:
        # The signs alone: the product may overflow, or vanish.
        excess_sign = xp.sign(x - clipped)
        return xp.where(grad_out * excess_sign >= 0, grad_out, 0.0)

    return xp.cast_like(clipped, x), grad


@estimator(ranges={"c": "> 0"})
def clipped_relu(x: Tensor, c: float = 1.0) -> Any:
    """x limited to [0, c].

    Gradients: x: 1 where 0 < x < c, else 0; c: none. Source: the window of Hannun et al., 2014
    (Deep Speech, arXiv 1412.5567), section 2, open at both ends.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.clipped_relu, np.array([-1.0, 0.5, 3.0]), 2.0)
        >>> y, pull(np.ones(3))[0]
        (array([0. , 0.5, 2. ]), array([0., 1., 0.]))
    """
    clipped = xp.cast_like(xp.clip(x, 0.0, c), x)
    return clipped, lambda grad_out: xp.where((x > 0) & (x < c), grad_out, 0.0)


@estimator(ranges={"alpha": "finite"})
def gradient_reversal(x: Tensor, alpha: float = 1.0) -> Any:
    """x, exactly.

    Gradients: x: -alpha; alpha: none. Source: Ganin and Lempitsky, 2015 (arXiv 1409.7495), eq. 9.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.gradient_reversal, np.array([1.0, 2.0]), 0.5)
        >>> y, pull(np.ones(2))[0]
        (array([1., 2.]), array([-0.5, -0.5]))
    """
    return x, lambda grad_out: grad_out * -alpha
