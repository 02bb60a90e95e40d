"""Ops over the shards of an array: sums, gathers and permutations between devices.

In NumPy an array has one shard. `names` are mesh axes or groups; None means all shards. Of the
operand `of` only the placement is read. Each shard has its own result and its own cotangent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.ir.op import AXIS, Attr, Op, are_integers, integer, is_order, kept, key, reshaped
from ...core.ops.numerics import Array
from ...core.ops.properties import linear
from ...core.ops.shapes import places
from ...core.ops.table import Cotangents, moved_by, op, zero
from ...errors import RuleValueError

Names = tuple[str, ...] | None


def over_shards(name: str, args: str, vjp: Any, doc: str, /, **fields: Any) -> Op:
    """Declare an op over shards; by default its result has the type of x, and is x in NumPy."""
    fields = {"result": kept, "coerce": "raw", "composed": True, "numpy": alone(name), **fields}
    return op(name, args, vjp=vjp, doc=doc, **fields)


def alone(name: str) -> Callable[..., Any]:
    """Return the NumPy function of an op of this name: with one shard, it returns x itself."""

    def call(x: Any, *others: Any, **attrs: Any) -> Any:
        if "axis" in attrs:
            # An axis that x lacks is refused here as it is on several shards.
            of_one_shard(np.shape(x), **attrs)
        return x

    call.__name__ = call.__qualname__ = name
    return call


def all_max_vjp(xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names) -> Cotangents:
    # Ties share the cotangent equally, as in max.
    ties = xp.equal(x, y) * 1.0
    count = xp.all_sum(ties, names, of=of)
    return ties * (xp.all_sum(ct, names, of=of) / count), None


def all_norm_vjp(
    xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names, ord: float
) -> Cotangents:
    total = xp.all_sum(ct, names, of=of)
    # The norms x are not negative; where the whole norm y is zero, so is the gradient.
    share = x / xp.where(xp.equal(y, 0), 1.0, y)
    return total * (xp.sign(share) if ord == 1 else xp.pow(share, ord - 1)), None


def of_one_shard(x: tuple[int, ...], *others: Any, **attrs: Any) -> tuple[int, ...]:
    """Return the shape of x, or raise AxisError if it has no such axis."""
    # `concat` is the second axis of all_to_all.
    for name in ("axis", "concat"):
        if name in attrs:
            places(attrs[name], len(x))
    return x


def ppermute(x: Array, of: Array, *, names: Names, pairs: tuple[tuple[int, int], ...]) -> Array:
    check_pairs(pairs, 1)
    return x if pairs else np.zeros_like(x)


def ppermute_vjp(
    xp: Any, ct: Any, y: Any, x: Any, of: Any, *, names: Names, pairs: Any
) -> Cotangents:
    # The pairs reversed; an x that no shard received gets a gradient of zeros.
    reversed_pairs = tuple((target, source) for source, target in pairs)
    return xp.ppermute(ct, reversed_pairs, names, of=of), None


def are_pairs(value: object) -> bool:
    """Return whether a value is pairs (source, target) of shards, none twice on one side."""
    if not isinstance(value, tuple):
        return False
    if not all(are_integers(pair) and len(pair) == 2 and min(pair) >= 0 for pair in value):
        return False
    sources, targets = ({pair[i] for pair in value} for i in (0, 1))
    return len(sources) == len(targets) == len(value)


def check_pairs(pairs: tuple[tuple[int, int], ...], number: int) -> None:
    """Raise RuleValueError if a pair names a shard that does not exist."""
    last = max([0, *[shard for pair in pairs for shard in pair]])
    if last >= number:
        shards = "1 shard" if number == 1 else f"{number} shards"
        raise RuleValueError(
            f"ppermute of {pairs} names shard {last}, and there {'is' if number == 1 else 'are'} "
            f"{shards} here, counted from 0: run it where there are as many, or give it pairs of "
            "shards that there are"
        )


def all_dim(x: Array, *, axis: int, names: Names) -> int:
    return np.shape(x)[axis]


def are_names(value: object) -> bool:
    """Return whether a value is a tuple of names of mesh axes or groups, or None."""
    return value is None or (
        isinstance(value, tuple)
        and len(value) > 0
        and all(isinstance(name, str) and 0 < len(name) <= 100 for name in value)
    )


GROUP_NAMES = Attr(are_names, (None,), None)
# For all ops that communicate: of operand 1, `of`, only the placement is read.
TALKS = {"shape_only": (1,), "collective": True, "names": GROUP_NAMES}
# Every shard's result depends on this x, so the cotangents of all shards add up.
ALL_SUM = over_shards(
    "all_sum",
    "x of",
    "xp.all_sum(ct, names, of=of), None",
    "The sum over the shards of `of`, element by element.",
    degree=linear,
    **TALKS,
)
ALL_MAX = over_shards(
    "all_max",
    "x of",
    all_max_vjp,
    "The largest over the shards of `of`, element by element.",
    **TALKS,
)
# For ops that change the length of an axis, unless there is one shard.
RESIZES = {**TALKS, "result": reshaped, "shape_of": of_one_shard, "degree": linear}
# Every shard's result holds this x: it gets its part of the sum of all cotangents.
ALL_GATHER = over_shards(
    "all_gather",
    "x of",
    "xp.reduce_scatter(ct, names, axis, of=of), None",
    "The x of all shards of `of`, joined along an axis.",
    **RESIZES,
    axis=AXIS,
)
# Each part of x is in the result of another shard.
REDUCE_SCATTER = over_shards(
    "reduce_scatter",
    "x of",
    "xp.all_gather(ct, names, axis, of=of), None",
    "The sum of x over the shards of `of`, of which each gets its own part along an axis.",
    **RESIZES,
    axis=AXIS,
)
ALL_TO_ALL = over_shards(
    "all_to_all",
    "x of",
    "xp.all_to_all(ct, names, concat, axis, of=of), None",
    "x cut along an axis, a part for each shard of `of`; those received joined along `concat`.",
    **RESIZES,
    axis=AXIS,
    concat=AXIS,
)
PPERMUTE = over_shards(
    "ppermute",
    "x of",
    ppermute_vjp,
    "For pairs (source, target) of shards of `of`, the source's x; zeros where none sends.",
    numpy=ppermute,
    **TALKS,
    degree=linear,
    pairs=Attr(are_pairs, (((0, 0),), ())),
)
ALL_NORM = over_shards(
    "all_norm",
    "x of",
    all_norm_vjp,
    "The norm of order `ord` of the norms x over the shards of `of`; 16-bit floats in float32.",
    **TALKS,
    ord=Attr(is_order, (2, 1, 3, 0.5)),
    xp="",
)
ALL_DIM = op(
    "all_dim", "x", axis=AXIS, names=GROUP_NAMES, coerce="raw", numpy=all_dim, vjp=zero,
    result=integer, doc="The length of one axis over all shards.", composed=True, shape_only=(0,),
    collective=True, xp="",
)  # fmt: skip


def is_split(value: object) -> bool:
    """Return whether a value tells for each axis over which names it is split; (): all shards."""
    if not isinstance(value, tuple):
        return False
    return all(names is None or names == () or are_names(names) for names in value)


PLACE_KEY = op(
    "place_key",
    "key like",
    split=Attr(is_split, (((),), (None, ()))),
    coerce="raw",
    numpy=alone("place_key"),
    vjp=zero,
    result=key,
    doc="The key with which this shard draws its part of the draws for the entire array.",
    composed=True,
    shape_only=(1,),
    xp="",
)
TO_SHARD = over_shards(
    "to_shard",
    "x",
    moved_by("from_shard", 0),
    "The local shard of an array that is one object over all shards.",
    degree=linear,
    in_vjps=True,
)
FROM_SHARD = over_shards(
    "from_shard",
    "x like",
    moved_by("to_shard"),
    "The array of which each shard has its own part, placed as `like`.",
    degree=linear,
    shape_only=(1,),
    in_vjps=True,
)
