"""Random draws as pure functions of a key, which is an operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.ir.op import Op, count, drawn, dtype_name, key
from ...core.ops.numerics import Array, is_16_bit
from ...core.ops.table import op, zero
from .. import random


def draw(name: str, operands: str, numpy: Any, doc: str, **fields: Any) -> Op:
    fields |= {"random": True, "composed": True, "shape_only": (1,)}
    return op(name, operands, coerce="raw", numpy=numpy, vjp=zero, result=drawn, doc=doc, **fields)


def uniform_wide(key: Any, x: Array) -> Array:
    # 16-bit dtypes draw in float32, so that a function of the uniforms rounds once.
    return random.uniform(key, np.shape(x), np.float32 if is_16_bit(x) else x.dtype)


def bernoulli_like(key: Any, x: Array, p: Any) -> Array:
    # p rounds to x's dtype first, as in `bernoulli` below.
    return (random.uniform_like(key, x) < np.asarray(p).astype(x.dtype)).astype(x.dtype)


def rademacher_like(key: Any, x: Array) -> Array:
    half, one = x.dtype.type(0.5), x.dtype.type(1)
    return np.where(random.uniform_like(key, x) < half, one, -one)


def exponential_like(key: Any, x: Array) -> Array:
    return (-np.log1p(-uniform_wide(key, x))).astype(x.dtype)


def gumbel_like(key: Any, x: Array) -> Array:
    uniform = uniform_wide(key, x)
    # A uniform may be 0, whose logarithm is infinite.
    positive = np.maximum(uniform, np.finfo(uniform.dtype).tiny)
    return (-np.log(-np.log(positive))).astype(x.dtype)


# The next four are `made_of`: backends lower these forms and need no kernels for them.
def bernoulli(xp: Any, key: Any, x: Any, p: Any) -> Any:
    return xp.astype(xp.rand_like(key, x) < xp.full_like(x, p, dtype=None), dtype=x.dtype)


def rademacher(xp: Any, key: Any, x: Any) -> Any:
    return 2 * xp.astype(xp.rand_like(key, x) < 0.5, dtype=x.dtype) - 1


def exponential(xp: Any, key: Any, x: Any) -> Any:
    return -xp.log1p(-xp.rand_like(key, x))


def gumbel(xp: Any, key: Any, x: Any) -> Any:
    tiny = float(np.finfo(dtype_name(x.dtype)).tiny)
    return -xp.log(-xp.log(xp.maximum(xp.rand_like(key, x), tiny)))


FOLD_IN = op(
    "fold_in",
    "key",
    n=count(1, 2),
    coerce="raw",
    numpy=random.fold_in,
    vjp=zero,
    result=key,
    doc="The n-th key derived from a key.",
    xp="",
    composed=True,
)
UNIFORM_LIKE = draw(
    "uniform_like",
    "key x",
    random.uniform_like,
    "Uniform on [0, 1), of x's shape and dtype.",
    xp="rand_like",
)
NORMAL_LIKE = draw(
    "normal_like",
    "key x",
    random.normal_like,
    "Standard normal, of x's shape and dtype.",
    xp="randn_like",
)
BERNOULLI_LIKE = draw(
    "bernoulli_like",
    "key x p",
    bernoulli_like,
    "1 with probability p, else 0.",
    made_of=bernoulli,
    rounds=False,
)
RADEMACHER_LIKE = draw(
    "rademacher_like", "key x", rademacher_like, "1 or -1.", made_of=rademacher, rounds=False
)
EXPONENTIAL_LIKE = draw(
    "exponential_like", "key x", exponential_like, "Exponential with mean 1.", made_of=exponential
)
GUMBEL_LIKE = draw("gumbel_like", "key x", gumbel_like, "Standard Gumbel.", made_of=gumbel)
