"""Functions that array libraries share and the op table lacks, composed from its ops.

They read as functions of a tensor, so that every dialect and the tensor methods can point at them.
"""

from __future__ import annotations

import math
from typing import Any

from ..ir import neutral
from ..ir.record import NeedFact, cast
from ..ir.types import T

Tensor = Any


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return neutral.add(x, neutral.multiply(value, neutral.multiply(a, b)))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return neutral.add(x, neutral.multiply(value, neutral.divide(a, b)))


def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return neutral.add(x, neutral.multiply(weight, neutral.subtract(end, x)))


def frac(x: Tensor) -> Tensor:
    return neutral.subtract(x, neutral.trunc(x))


def exp2(x: Tensor) -> Tensor:
    return neutral.pow(2.0, x)


def cosh(x: Tensor) -> Tensor:
    """Half the square of exp(|x| / 2), which does not overflow before cosh does."""
    root = neutral.exp(0.5 * neutral.abs(x))
    return (0.5 * root) * root + 0.5 / (root * root)


def sinh(x: Tensor) -> Tensor:
    """As cosh; below 1 by expm1, which is accurate there."""
    root = neutral.exp(0.5 * neutral.abs(x))
    far = (0.5 * root) * root - 0.5 / (root * root)
    small = neutral.expm1(neutral.minimum(neutral.abs(x), 1.0))
    near = 0.5 * (small + small / (small + 1.0))
    return neutral.sign(x) * neutral.where(neutral.abs(x) < 1.0, near, far)


def softmax(x: Tensor, dim: Any = None, dtype: Any = None, *, axis: Any = None) -> Tensor:
    over = axis if dim is None else dim
    shifted = neutral.exp(neutral.subtract(x, neutral.max(x, axis=over, keepdims=True)))
    result = neutral.divide(shifted, neutral.sum(shifted, axis=over, keepdims=True))
    return result if dtype is None else cast(result, dtype)


def nan_to_num(x: Tensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
    if posinf is None or neginf is None:
        if "dtype" not in x.trace.facts:
            raise NeedFact("dtype")
        largest = largest_number(x.trace.facts["dtype"])
        posinf = largest if posinf is None else posinf
        neginf = -largest if neginf is None else neginf
    finite = neutral.where(neutral.isnan(x), nan, x)
    finite = neutral.where(neutral.equal(finite, math.inf), posinf, finite)
    return neutral.where(neutral.equal(finite, -math.inf), neginf, finite)


def largest_number(dtype: str) -> Any:
    """Return the largest finite number of a float dtype."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)


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
