"""Rounding with the gradient of the identity."""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from .declared import estimator

Tensor = Any


def pass_on(grad_out: Tensor) -> Tensor:
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
    return xp.round(x), pass_on


@estimator()
def ste_floor(x: Tensor) -> Any:
    """The largest integer that is at most x.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `FloorSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_floor, np.array([-0.6, 0.5]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  0.]), array([1., 1.]))
    """
    return xp.floor(x), pass_on


@estimator()
def ste_ceil(x: Tensor) -> Any:
    """The smallest integer that is at least x.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `CeilSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_ceil, np.array([-1.6, 0.5]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  1.]), array([1., 1.]))
    """
    return xp.ceil(x), pass_on


@estimator()
def ste_trunc(x: Tensor) -> Any:
    """x without its fraction, rounded toward zero.

    Gradients: x: 1. Source: Bengio et al., 2013 (arXiv 1308.3432); `RoundToZeroSteFn` of brevitas.

    Examples:
        >>> y, pull = xg.vjp(xg.estimators.ste_trunc, np.array([-1.6, 1.6]))
        >>> y, pull(np.ones(2))[0]
        (array([-1.,  1.]), array([1., 1.]))
    """
    return xp.trunc(x), pass_on
