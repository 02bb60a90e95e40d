"""Functions of `xg.xp` that are more than one op: whole arrays, random draws, products, along an
axis, over shards, on elements, bits of integers; see `all.py`.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from ...backend.discovery import backend_of
from ...backend.values import key_for, key_pair
from ...errors import RuleError, RuleValueError
from ...graph import ops
from ...graph.ir.types import BOOL, WHOLE, T
from ...graph.passes.simplify import constant
from ...graph.random import REPLAYED, key_from_int
from ...graph.support.params import read_names
from ..axes import Axis, axes_of, known_shape, one_axis
from ..coercion import is_exact
from ..trace import Value, apply, are_bools, cast, copy_of, dtype_name, lift, native_dtype, pow
from .ops import cumprod, cumsum, digamma, equal, isnan, maximum, mean, minimum, sum, var, where

Tensor = Any

__all__ = [
    "all_gather", "all_max", "all_sum", "all_to_all", "astype", "bernoulli_like", "bitwise_and",
    "bitwise_invert", "bitwise_or", "bitwise_xor", "broadcast_to", "cast", "cast_like", "clip",
    "cumulative_prod", "cumulative_sum", "dim", "einsum", "exponential_like", "full_like",
    "gumbel_like", "nan_to_num", "norm", "ones_like", "outer", "polygamma", "positive", "pow",
    "ppermute", "quantile", "rademacher_like", "rand_like", "randn_like", "reduce_scatter", "size",
    "standardize", "tensordot", "top_k_mask", "vecdot", "zeros_like",
]  # fmt: skip


def norm(x: Tensor, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of order `ord`: 1, 2, inf or any above 0, by default over all axes; of vectors.

    Examples:
        >>> float(xp.norm(np.array([3.0, 4.0])))
        5.0
        >>> xp.norm(np.array([[3.0, -4.0], [1.0, 0.0]]), axis=1, ord=1)
        array([7., 1.])
    """
    if not (isinstance(ord, int | float) and ord > 0):
        raise TypeError(f"norm has an order above 0, as 1, 2 or inf, not {ord!r}")
    order = int(ord) if ord in (1, 2) else float(ord)
    return apply(ops.NORM, x, axis=axes_of(x, axis), keepdims=bool(keepdims), ord=order)


def standardize(x: Tensor, axis: Axis = -1, epsilon: float = 1e-5) -> Tensor:
    """x shifted to mean 0 and scaled to variance 1; `epsilon` is added to the variance.

    Examples:
        >>> np.round(xp.standardize(np.array([1.0, 2.0, 3.0])), 3)
        array([-1.225,  0.   ,  1.225])
    """
    centered = x - mean(x, axis, keepdims=True)
    return centered * apply(ops.RSQRT, var(x, axis, keepdims=True) + epsilon)


def broadcast_to(x: Tensor, like: Any) -> Tensor:
    """x repeated to the shape of `like`: a tensor, or a tuple of ints.

    Examples:
        >>> xp.broadcast_to(np.array([1.0, 2.0]), (2, 2))
        array([[1., 2.],
               [1., 2.]])
    """
    # A symbolic number is no tensor that an op could repeat: it fills one of that shape.
    if isinstance(x, Value) and x.node.type.kind == "scalar":
        if isinstance(like, tuple | list):
            if not like:
                return x
            like = broadcast_to(x.trace.value(lift(x.trace, np.zeros(1))), like)
        return apply(ops.FULL_LIKE, like, x, dtype=T)
    if isinstance(like, tuple | list):
        return apply(ops.BROADCAST_TO_SHAPE, x, shape=tuple(map(index, like)))
    return apply(ops.BROADCAST_TO, x, like)


def dim(x: Tensor, axis: int) -> Any:
    """The length of one axis, known at run time.

    Examples:
        >>> int(xp.dim(np.zeros((2, 3)), 1))
        3
    """
    known = known_shape(x)
    return apply(ops.DIM, x, axis=axis) if known is None else x.trace.value(constant(known[axis]))


def size(x: Tensor) -> Any:
    """The number of elements, known at run time.

    Examples:
        >>> int(xp.size(np.zeros((2, 3))))
        6
    """
    known = known_shape(x)
    return apply(ops.SIZE, x) if known is None else x.trace.value(constant(math.prod(known)))


# --- random draws --------------------------------------------------------------------------------
def rand_like(x: Tensor, key: Any = None) -> Tensor:
    """Uniform on [0, 1), of x's shape and dtype; in a rule each draw takes the next key.

    Examples:
        >>> @xg.register("dropped")
        ... def dropped(ctx, grad_out, tin, p=0.5):
        ...     return xp.where(xp.rand_like(grad_out) < p, 0.0, grad_out)
        >>> drawn = dropped(None, np.ones(100), None, key=7)
        >>> bool((dropped(None, np.ones(100), None, key=7) == drawn).all())
        True
    """
    return apply(ops.UNIFORM_LIKE, _draw_key("rand_like", x, key), x)


def randn_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard normal, of x's shape and dtype; in a rule each draw takes the next key.

    Examples:
        >>> xp.randn_like(np.zeros(3), key=np.array([0, 7], np.uint32)).shape
        (3,)
    """
    return apply(ops.NORMAL_LIKE, _draw_key("randn_like", x, key), x)


def bernoulli_like(x: Tensor, p: Any = 0.5, key: Any = None) -> Tensor:
    """1 with probability p (a number or a tensor), else 0, of x's shape and dtype.

    Examples:
        >>> xp.bernoulli_like(np.zeros(2), np.array([0.0, 1.0]), key=np.array([0, 7], np.uint32))
        array([0., 1.])
    """
    return apply(ops.BERNOULLI_LIKE, _draw_key("bernoulli_like", x, key), x, p)


def rademacher_like(x: Tensor, key: Any = None) -> Tensor:
    """1 or -1, equally likely, of x's shape and dtype.

    Examples:
        >>> xp.abs(xp.rademacher_like(np.zeros(3), key=np.array([0, 7], np.uint32)))
        array([1., 1., 1.])
    """
    return apply(ops.RADEMACHER_LIKE, _draw_key("rademacher_like", x, key), x)


def exponential_like(x: Tensor, key: Any = None) -> Tensor:
    """Exponential with mean 1, of x's shape and dtype.

    Examples:
        >>> bool((xp.exponential_like(np.zeros(3), key=np.array([0, 7], np.uint32)) >= 0).all())
        True
    """
    return apply(ops.EXPONENTIAL_LIKE, _draw_key("exponential_like", x, key), x)


def gumbel_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard Gumbel, of x's shape and dtype.

    Examples:
        >>> xp.gumbel_like(np.zeros(3), key=np.array([0, 7], np.uint32)).shape
        (3,)
    """
    return apply(ops.GUMBEL_LIKE, _draw_key("gumbel_like", x, key), x)


def _draw_key(name: str, x: Tensor, key: Any) -> Any:
    """Return the key of a draw: in a rule or a Function the next, for a tensor the given key.

    Raises:
        RuleError: a bare tensor has no key.
        TraceError: the key is a constant of the captured code.
    """
    if isinstance(key, Value):
        return key
    if isinstance(x, Value):
        if key is None:
            return x.trace.next_key()
        raise x.trace.error(
            f"draws by xp.{name} with a fixed key, so that each call would draw the same. Leave "
            "key= out and give the key to the call: xg.use(rule, key=...), function.keyed(...)"
        )
    if key is None:
        replayed = REPLAYED.get()
        if replayed is None:
            raise RuleError(
                f"xp.{name} of a tensor needs a key: give key=..., an int, a jax key or two "
                "uint32. In a rule and in a Function each draw takes the next key by itself"
            )
        return next(replayed)
    if isinstance(key, int) and not isinstance(key, bool):
        return key_from_int(key)
    return key_for(backend_of(x), key_pair(key))


# --- products ----------------------------------------------------------------------------------


def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """A sum of products over named axes: `einsum("ij,jk->ik", a, b)`; letters once in a term.

    Examples:
        >>> xp.einsum("ij,j->i", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0]))
        array([-1., -1.])
    """
    return apply(ops.EINSUM, *arrays, subscripts=_with_result(subscripts.replace(" ", "")))


def _with_result(subscripts: str) -> str:
    # If the result is not named, it has the letters that occur once, in order, as in NumPy.
    if "->" in subscripts:
        return subscripts
    letters = subscripts.replace(",", "").replace("...", "")
    once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return f"{subscripts}->{'...' if '...' in subscripts else ''}{once}"


def vecdot(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """The sum of products along an axis.

    Examples:
        >>> float(xp.vecdot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
        11.0
    """
    products = apply(ops.MUL, a, b)
    total = sum(products, axis=axis)
    of_bools = isinstance(products, Value) and products.node.type.dtype == BOOL
    return apply(ops.NE, total, 0) if of_bools else total


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Every product of an element of one vector and one of another.

    Examples:
        >>> xp.outer(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        array([[3., 4.],
               [6., 8.]])
    """
    return einsum("i,j->ij", a, b)


def tensordot(a: Tensor, b: Tensor, axes: int = 2) -> Tensor:
    """The product summed over the last `axes` axes of a and first of b; asks for ranks.

    Examples:
        >>> xp.tensordot(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), axes=1)
        array([[11.]])
    """
    if not isinstance(axes, int):
        raise TypeError("tensordot takes a number of axes; write xp.einsum for others")
    names = "abcdefghijklmnopqrstuvwxyz"
    left, right = names[: a.ndim], names[a.ndim - axes : a.ndim - axes + b.ndim]
    return einsum(f"{left},{right}->{left[: a.ndim - axes]}{right[axes:]}", a, b)


# --- along an axis -----------------------------------------------------------------------------
def cumulative_sum(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumsum`.

    Examples:
        >>> xp.cumulative_sum(np.array([1.0, 2.0, 3.0]))
        array([1., 3., 6.])
    """
    return cumsum(x, axis)


def cumulative_prod(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumprod`.

    Examples:
        >>> xp.cumulative_prod(np.array([1.0, 2.0, 3.0]))
        array([1., 2., 6.])
    """
    return cumprod(x, axis)


def top_k_mask(x: Tensor, k: int, axis: int = -1) -> Tensor:
    """A mask, True at the k largest elements along an axis (ties: the lower index first).

    All of it is True where the axis has fewer than k elements.

    Examples:
        >>> xp.top_k_mask(np.array([3.0, 1.0, 2.0]), 2)
        array([ True, False,  True])
    """
    count = index(k)
    if count < 0:
        raise TypeError(f"top_k_mask marks k elements, at least 0, not {count}")
    return apply(ops.TOP_K_MASK, x, axis=one_axis(x, axis), k=count)


def quantile(x: Tensor, q: float, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The q-quantile, 0 <= q <= 1, linear between neighbors.

    Examples:
        >>> float(xp.quantile(np.array([1.0, 2.0, 4.0]), 0.75))
        3.0
    """
    if not (isinstance(q, int | float) and 0 <= q <= 1):
        raise TypeError(f"quantile takes a number from 0 to 1, not {q!r}")
    return apply(ops.QUANTILE, x, axis=axes_of(x, axis), keepdims=bool(keepdims), q=float(q))


# --- over shards -------------------------------------------------------------------------------
def all_sum(x: Tensor, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """The sum of x over shards, element by element; each shard gets it.

    Examples:
        >>> @xg.register("unit_norm")
        ... def unit_norm(ctx, grad_out, tin):
        ...     return grad_out / xp.sqrt(xp.all_sum(xp.sum(grad_out * grad_out)))
        >>> unit_norm(None, np.array([3.0, 4.0]), None)  # of one device: its own sum
        array([0.6, 0.8])

    Args:
        axis_name: mesh axes or a group: a name of jax's or of a torch mesh's dimension, a tuple of
            them, or a torch process group. None: every shard (torch: the default group; jax: the
            mapped axes over which the array differs; TensorFlow: all replicas). An array that is
            one object over all devices, as under jax's automatic sharding or as a torch DTensor,
            has one shard.
        of: the array that is split, where it is not x: what was computed from it may be a number.
    """
    return apply(ops.ALL_SUM, x, x if of is None else of, names=_names(axis_name))


def all_max(x: Tensor, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """The largest x over shards, element by element; as `all_sum`.

    Examples:
        >>> @xg.register("unit_max")
        ... def unit_max(ctx, grad_out, tin):
        ...     return grad_out / xp.all_max(xp.max(xp.abs(grad_out)))
        >>> unit_max(None, np.array([3.0, -4.0]), None)
        array([ 0.75, -1.  ])
    """
    return apply(ops.ALL_MAX, x, x if of is None else of, names=_names(axis_name))


def all_gather(x: Tensor, axis_name: Any = None, axis: int = 0, *, of: Tensor = None) -> Tensor:
    """The parts of all shards, joined along an axis in the order of shards; each gets all of them.

    Like `jax.lax.all_gather(..., tiled=True)`. As in every exchange between shards, each shard's
    result has its own cotangent, and the gradient is that of the sum of all shards' losses, JAX's
    convention: here `reduce_scatter` of the cotangents. If every shard computes the same loss,
    divide it by their number. NaN goes where its element goes.

    Examples:
        >>> x = np.array([[1.0, 2.0]])
        >>> xp.all_gather(x, axis=1)  # of one device: its own part
        array([[1., 2.]])

    Args:
        axis_name: as of `all_sum`.
        axis: along which the parts are joined; they have one shape.
        of: as of `all_sum`.

    Raises:
        TraceError: the result's shape is asked for while a rule or a Function is captured: its
            graph is one for any number of shards.
    """
    names, axis = _names(axis_name), one_axis(x, axis)
    return apply(ops.ALL_GATHER, x, x if of is None else of, names=names, axis=axis)


def reduce_scatter(x: Tensor, axis_name: Any = None, axis: int = 0, *, of: Tensor = None) -> Tensor:
    """The sum of x over shards, of which each shard gets its own part along an axis.

    As `jax.lax.psum_scatter(..., tiled=True)`; as many parts as shards, of one length. Its gradient
    is `all_gather` of the cotangents, see there; 16-bit floats are added in float32.

    Examples:
        >>> xp.reduce_scatter(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    names, axis = _names(axis_name), one_axis(x, axis)
    return apply(ops.REDUCE_SCATTER, x, x if of is None else of, names=names, axis=axis)


def all_to_all(
    x: Tensor, axis_name: Any = None, axis: int = 0, concat: int = 0, *, of: Tensor = None
) -> Tensor:
    """x cut along an axis into a part for each shard; those received, joined along `concat`.

    As `jax.lax.all_to_all(x, axis_name, axis, concat, tiled=True)`. Its gradient is the same of the
    cotangents with the axes swapped, see `all_gather`.

    Examples:
        >>> xp.all_to_all(np.array([[1.0, 2.0]]), axis=1, concat=0)
        array([[1., 2.]])
    """
    names, axis, concat = _names(axis_name), one_axis(x, axis), one_axis(x, concat)
    of = x if of is None else of
    return apply(ops.ALL_TO_ALL, x, of, names=names, axis=axis, concat=concat)


def ppermute(x: Tensor, pairs: Any, axis_name: Any = None, *, of: Tensor = None) -> Tensor:
    """For pairs (source, target), the source's x at the target; zeros where none sends.

    As `jax.lax.ppermute`. Its gradient is the way back, by the inverse permutation, see
    `all_gather`: an x that is sent to nobody has gradient 0.

    Examples:
        >>> xp.ppermute(np.array([1.0, 2.0]), [(0, 0)])
        array([1., 2.])

    Args:
        pairs: of numbers of shards, from 0 in the order of the axis or group; each at most once as
            source and once as target.

    Raises:
        RuleValueError: they are not, or name a shard that is not there.
    """
    given = tuple(tuple(map(index, pair)) for pair in pairs)
    if not ops.PPERMUTE.attrs["pairs"].legal(given):
        raise RuleValueError(
            f"ppermute takes pairs (source, target) of shards, each at most once on each side, as "
            f"[(0, 1), (1, 0)], not {pairs!r:.80}"
        )
    names = _names(axis_name)
    return apply(ops.PPERMUTE, x, x if of is None else of, names=names, pairs=given)


def _names(axis_name: Any) -> Any:
    return None if axis_name is None else read_names(axis_name)


# --- on elements ---------------------------------------------------------------------------------


def positive(x: Tensor) -> Tensor:
    """x as it is.

    Examples:
        >>> xp.positive(np.array([-1.0, 2.0]))
        array([-1.,  2.])
    """
    return copy_of(x)


def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """x limited to [min, max]; None leaves a side open; NaN propagates; max where min > max.

    Examples:
        >>> xp.clip(np.array([-1.0, 0.5, 3.0]), 0.0, 1.0)
        array([0. , 0.5, 1. ])
        >>> xp.clip(np.array([-1.0, 0.5, 3.0]), max=1.0)
        array([-1. ,  0.5,  1. ])
    """
    if min is None:
        return copy_of(x) if max is None else minimum(x, max)
    return maximum(x, min) if max is None else apply(ops.CLIP, x, min, max)


def astype(x: Tensor, dtype: Any) -> Tensor:
    """x in another dtype.

    Examples:
        >>> xp.astype(np.array([1.7, -1.7]), "int32")
        array([ 1, -1], dtype=int32)
    """
    return cast(x, dtype)


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """x in the dtype of `like`.

    Examples:
        >>> xp.cast_like(np.array([1.0]), np.zeros(2, np.float32)).dtype
        dtype('float32')
    """
    return cast(x, like.node.type.dtype if isinstance(like, Value) else like.dtype)


def full_like(x: Tensor, value: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of x's shape filled with a number.

    dtype may be bool; others count only for tensors, and in captures whose types are known.

    Examples:
        >>> xp.full_like(np.zeros(2), 7.0)
        array([7., 7.])
    """
    if not isinstance(x, Value):
        given = None if dtype is None else native_dtype(x, dtype)
        return apply(ops.FULL_LIKE, x, value, dtype=given)
    if dtype is None:
        name = x.node.type.dtype if x.node.type.kind == "tensor" else T
    elif is_exact(x.trace):
        name = x.trace.types.normal(dtype_name(dtype))
    else:
        # A rule has two dtypes, bool and its input's; only a capture with known types has others.
        name = BOOL if dtype is bool or "bool" in str(dtype) else T
    if name in (BOOL, *WHOLE) and not isinstance(value, Value):
        value = bool(value) if name == BOOL else int(value)
    return apply(ops.FULL_LIKE, x, value, dtype=name)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of zeros, of the shape of x.

    Examples:
        >>> xp.zeros_like(np.ones(2))
        array([0., 0.])
    """
    return full_like(x, 0.0, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of ones, of the shape of x.

    Examples:
        >>> xp.ones_like(np.zeros(2))
        array([1., 1.])
    """
    return full_like(x, 1.0, dtype)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma; for n above zero NaN where x is negative.

    Examples:
        >>> np.round(xp.polygamma(1, np.array([1.0, 2.0])), 4)
        array([1.6449, 0.6449])
    """
    return apply(ops.POLYGAMMA, x, n=int(n)) if n else digamma(x)


def nan_to_num(
    x: Tensor, nan: Tensor = 0.0, posinf: Tensor | None = None, neginf: Tensor | None = None
) -> Tensor:
    """x with NaN and infinities replaced; None: by the largest number of the dtype.

    Examples:
        >>> xp.nan_to_num(np.array([np.nan, np.inf, 1.0]), posinf=9.0)
        array([0., 9., 1.])
    """
    if not any(isinstance(value, Value) for value in (nan, posinf, neginf)):
        given = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = {name: None if v is None else float(v) for name, v in given.items()}
        return apply(ops.NAN_TO_NUM, x, **numbers)
    # A symbolic replacement cannot be an attribute of the op.
    finite = apply(ops.NAN_TO_NUM, x, nan=0.0, posinf=None, neginf=None)
    above = finite if posinf is None else where(equal(x, math.inf), posinf, finite)
    below = above if neginf is None else where(equal(x, -math.inf), neginf, above)
    return where(isnan(x), nan, below)


# --- integers ------------------------------------------------------------------------------------
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in both; of bools, both.

    Examples:
        >>> xp.bitwise_and(np.array([6, 5]), np.array([3, 3]))
        array([2, 1])
    """
    return apply(ops.AND if are_bools(a, b) else ops.BITWISE_AND, a, b)


def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in at least one; of bools, at least one.

    Examples:
        >>> xp.bitwise_or(np.array([6, 5]), np.array([3, 3]))
        array([7, 7])
    """
    return apply(ops.OR if are_bools(a, b) else ops.BITWISE_OR, a, b)


def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in exactly one; of bools, exactly one.

    Examples:
        >>> xp.bitwise_xor(np.array([6, 5]), np.array([3, 3]))
        array([5, 6])
    """
    return apply(ops.XOR if are_bools(a, b) else ops.BITWISE_XOR, a, b)


def bitwise_invert(x: Tensor) -> Tensor:
    """The bits not set; of a bool, its negation.

    Examples:
        >>> xp.bitwise_invert(np.array([0, 5]))
        array([-1, -6])
    """
    return apply(ops.NOT if are_bools(x) else ops.BITWISE_INVERT, x)
