"""Ops over the shards of an array: what devices tell each other, and which part of it each has.

In NumPy an array has one shard. `names` are mesh axes or groups, None for every shard that there
is; of `of` only the placement is read. Each shard has a result of its own, and a cotangent of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.op import Op
from ..attributes import AXIS, GROUP_NAMES, NORM_ORDER, SPLIT
from ..numerics import Array
from ..properties import length, linear
from ..results import integer, kept, key
from ..table import Cotangents, op, zero

Names = tuple[str, ...] | None


def over_shards(name: str, args: str, numpy: Any, vjp: Any, doc: str, /, **more: Any) -> Op:
    """Declare an op whose result has the type of its first operand."""
    more = {"result": kept, "coerce": "raw", "composed": True, **more}
    return op(name, args, numpy=numpy, vjp=vjp, doc=doc, **more)


def all_sum(x: Array, of: Array, *, names: Names) -> Array:
    return x


def all_sum_vjp(xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names) -> Cotangents:
    """Every shard's result depends on this x."""
    return xp.all_sum(ct, names, of=of), None


def all_max(x: Array, of: Array, *, names: Names) -> Array:
    return x


def all_max_vjp(xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names) -> Cotangents:
    """Ties share the cotangent equally, as in max."""
    chosen = xp.equal(x, y) * 1.0
    number = xp.all_sum(chosen, names, of=of)
    return chosen * (xp.all_sum(ct, names, of=of) / number), None


def all_norm(x: Array, of: Array, *, names: Names, ord: float) -> Array:
    return x


def all_norm_vjp(
    xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names, ord: float
) -> Cotangents:
    """Of norms, which are not negative; zero where the whole norm is zero."""
    whole = xp.all_sum(ct, names, of=of)
    share = x / xp.where(xp.equal(y, 0), 1.0, y)
    return whole * (xp.sign(share) if ord == 1 else xp.pow(share, ord - 1)), None


def all_dim(x: Array, *, axis: int, names: Names) -> int:
    return np.shape(x)[axis]


def place_key(key: Any, like: Array, *, split: Any) -> Any:
    return key


def to_shard(x: Array) -> Array:
    return x


def to_shard_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (xp.from_shard(ct, x),)


def from_shard(x: Array, like: Array) -> Array:
    return x


def from_shard_vjp(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.to_shard(ct), None


TALKS = {"shape_only": (1,), "collective": True, "names": GROUP_NAMES}
ALL_SUM = over_shards(
    "all_sum",
    "x of",
    all_sum,
    all_sum_vjp,
    "The sum over the shards of `of`, element by element.",
    degree=linear,
    **TALKS,
)
ALL_MAX = over_shards(
    "all_max",
    "x of",
    all_max,
    all_max_vjp,
    "The largest over the shards of `of`, element by element.",
    **TALKS,
)
ALL_NORM = over_shards(
    "all_norm",
    "x of",
    all_norm,
    all_norm_vjp,
    "The norm of order `ord` of the norms x over the shards of `of`; 16-bit floats in float32.",
    **TALKS,
    ord=NORM_ORDER,
    xp="",
)
ALL_DIM = op(
    "all_dim", "x", axis=AXIS, names=GROUP_NAMES, coerce="raw", numpy=all_dim, vjp=zero,
    result=integer, doc="The length of one axis over all shards.", composed=True, shape_only=(0,),
    collective=True, bits=length, xp="",
)  # fmt: skip
PLACE_KEY = op(
    "place_key",
    "key like",
    split=SPLIT,
    coerce="raw",
    numpy=place_key,
    vjp=zero,
    result=key,
    doc="The key with which this shard draws its part of what is drawn for the whole array.",
    composed=True,
    shape_only=(1,),
    xp="",
)
TO_SHARD = over_shards(
    "to_shard",
    "x",
    to_shard,
    to_shard_vjp,
    "The shard in hand of an array that is one object over all shards.",
    degree=linear,
    in_vjps=True,
)
FROM_SHARD = over_shards(
    "from_shard",
    "x like",
    from_shard,
    from_shard_vjp,
    "The array of which each shard has its own part, placed as `like`.",
    degree=linear,
    shape_only=(1,),
    in_vjps=True,
)
