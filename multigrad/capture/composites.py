"""Functions that array libraries share and the op table lacks, composed from its ops.

They read as functions of a tensor, so that every dialect and the tensor methods can point at them.
"""

from __future__ import annotations

from typing import Any

from ..ir import neutral
from ..ir.record import cast
from ..ir.types import T

Tensor = Any


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return neutral.add(x, neutral.multiply(value, neutral.multiply(a, b)))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return neutral.add(x, neutral.multiply(value, neutral.divide(a, b)))


def bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    """1 with probability x, else 0."""
    _refuse_generator(generator)
    return cast(neutral.rand_like(x) < x, T)


def uniform(x: Tensor, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    draw = neutral.rand_like(x)
    return low + (high - low) * draw


def normal(x: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    return mean + std * neutral.randn_like(x)


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise TypeError("a generator; draws follow the key of xg.use(..., key=...)")
