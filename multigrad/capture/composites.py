"""Functions that array libraries share and the op table lacks, composed from its ops.

They read as functions of a tensor, so that every dialect and the tensor methods can point at them.
"""

from __future__ import annotations

from typing import Any

from ..tracing import xp_all as xp

Tensor = Any


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.multiply(value, xp.multiply(a, b)))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.multiply(value, xp.divide(a, b)))


def bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    """1 with probability x, else 0."""
    _refuse_generator(generator)
    return xp.cast_like(xp.rand_like(x) < x, x)


def uniform(x: Tensor, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    draw = xp.rand_like(x)
    return low + (high - low) * draw


def normal(x: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    return mean + std * xp.randn_like(x)


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise TypeError("a generator; draws follow the key of xg.use(..., key=...)")
