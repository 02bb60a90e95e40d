"""The neutral dialect, array family; see `neutral.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextvars import ContextVar
from operator import index
from typing import Any

from . import ops
from .record import Value, apply, constant, known_shape
from .types import BOOL, INPUT_SHAPE

Axis = int | tuple[int, ...] | list[int] | None
Tensor = Any
# The keys that draws on arrays take one after the other, where code runs beside its graph.
REPLAYED: ContextVar[Iterator[Any] | None] = ContextVar("multigrad_replayed", default=None)

__all__ = [
    "all", "any", "bernoulli_like", "broadcast_to", "count_nonzero", "dim", "einsum",
    "expand_dims", "exponential_like", "glu", "gumbel_like", "log_softmax", "logsumexp", "matmul",
    "max", "mean", "min", "norm", "outer", "prod", "rademacher_like", "rand_like", "randn_like",
    "size", "softmax", "standardize", "std", "sum", "sum_to", "tensordot", "var", "vecdot",
]  # fmt: skip


def axes_of(x: Tensor, axis: Axis) -> int | tuple[int, ...] | None:
    """Return the attribute for an axis, checked where this capture knows the rank."""
    if axis is None:
        return None
    if isinstance(axis, tuple | list):
        return tuple(one_axis(x, i) for i in axis)
    return one_axis(x, axis)


def one_axis(x: Tensor, axis: Any) -> int:
    """Return one axis as an int.

    Raises:
        TypeError: it is no integer.
        TraceError: x is symbolic, of a rank known here, and has no such axis.
    """
    axis = index(axis)
    if isinstance(x, Value) and x.node.type.shape == INPUT_SHAPE:
        shape = x.trace.facts.get("shape")
        rank = x.trace.facts.get("ndim") if shape is None else len(shape)
        if rank and not -rank <= axis < rank:
            raise x.trace.error(
                f"names axis {axis} of a tensor that has {rank}: {-rank} to {rank - 1}"
            )
    return axis


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.SUM, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MEAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MAX, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MIN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ANY, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ALL, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def prod(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.PROD, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def count_nonzero(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0, as a float of x's dtype."""
    return apply(ops.COUNT_NONZERO, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def norm(x: Tensor, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of order `ord`, 1, 2, inf or any above 0, over all axes by default; vectors, not matrices."""
    if not (isinstance(ord, int | float) and ord > 0):
        raise TypeError(f"norm has an order above 0, as 1, 2 or inf, not {ord!r}")
    order = int(ord) if ord in (1, 2) else float(ord)
    return apply(ops.NORM, x, axis=axes_of(x, axis), keepdims=bool(keepdims), ord=order)


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.LOGSUMEXP, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    return apply(ops.SOFTMAX, x, axis=axes_of(x, axis))


def log_softmax(x: Tensor, axis: Axis = -1) -> Tensor:
    return apply(ops.LOG_SOFTMAX, x, axis=axes_of(x, axis))


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half along an axis times the sigmoid of the second."""
    return apply(ops.GLU, x, axis=one_axis(x, axis))


def standardize(x: Tensor, axis: Axis = -1, epsilon: float = 1e-5) -> Tensor:
    """x shifted to mean 0 and scaled to variance 1; `epsilon` is added to the variance."""
    centered = x - mean(x, axis, keepdims=True)
    return centered * apply(ops.RSQRT, var(x, axis, keepdims=True) + epsilon)


def var(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.VAR, x, axis=axes_of(x, axis), keepdims=bool(keepdims), correction=correction)


def std(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.STD, x, axis=axes_of(x, axis), keepdims=bool(keepdims), correction=correction)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`: undoes broadcasting."""
    return apply(ops.SUM_TO, x, like)


def broadcast_to(x: Tensor, like: Any) -> Tensor:
    """x repeated to the shape of `like`: a tensor, or a tuple of ints."""
    if isinstance(like, tuple | list):
        return apply(ops.BROADCAST_TO_SHAPE, x, shape=tuple(map(index, like)))
    return apply(ops.BROADCAST_TO, x, like)


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    return apply(ops.EXPAND_DIMS, x, axis=axis)


def dim(x: Tensor, axis: int) -> Any:
    """The length of one axis, known at run time."""
    known = known_shape(x)
    return apply(ops.DIM, x, axis=axis) if known is None else x.trace.value(constant(known[axis]))


def size(x: Tensor) -> Any:
    """The number of elements, known at run time."""
    known = known_shape(x)
    return apply(ops.SIZE, x) if known is None else x.trace.value(constant(math.prod(known)))


def rand_like(x: Tensor, key: Any = None) -> Tensor:
    """Uniform on [0, 1), of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.UNIFORM_LIKE, _draw_key(x, key), x)


def randn_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard normal, of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.NORMAL_LIKE, _draw_key(x, key), x)


def bernoulli_like(x: Tensor, p: Any = 0.5, key: Any = None) -> Tensor:
    """1 with probability p (a number or a tensor), else 0, of x's shape and dtype."""
    return apply(ops.BERNOULLI_LIKE, _draw_key(x, key), x, p)


def rademacher_like(x: Tensor, key: Any = None) -> Tensor:
    """1 or -1, equally likely, of x's shape and dtype."""
    return apply(ops.RADEMACHER_LIKE, _draw_key(x, key), x)


def exponential_like(x: Tensor, key: Any = None) -> Tensor:
    """Exponential with mean 1, of x's shape and dtype."""
    return apply(ops.EXPONENTIAL_LIKE, _draw_key(x, key), x)


def gumbel_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard Gumbel, of x's shape and dtype."""
    return apply(ops.GUMBEL_LIKE, _draw_key(x, key), x)


def _draw_key(x: Tensor, key: Any) -> Any:
    if key is not None:
        return key
    if isinstance(x, Value):
        return x.trace.next_key()
    replayed = REPLAYED.get()
    return None if replayed is None else next(replayed)


# --- products ------------------------------------------------------------------------------------
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices in the last two axes; a vector is taken as a row or a column."""
    return apply(ops.MATMUL, a, b)


def einsum(subscripts: str, *arrays: Tensor) -> Tensor:
    """A sum of products over named axes: `einsum("ij,jk->ik", a, b)`; a letter stands once in a term."""
    return apply(ops.EINSUM, *arrays, subscripts=_with_result(subscripts.replace(" ", "")))


def _with_result(subscripts: str) -> str:
    """Name the result where it is left out: the letters that stand once, in order."""
    if "->" in subscripts:
        return subscripts
    letters = subscripts.replace(",", "").replace("...", "")
    once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return f"{subscripts}->{'...' if '...' in subscripts else ''}{once}"


def vecdot(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """The sum of products along an axis."""
    products = apply(ops.MUL, a, b)
    total = sum(products, axis=axis)
    of_bools = isinstance(products, Value) and products.node.type.dtype == BOOL
    return apply(ops.NE, total, 0) if of_bools else total


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Every product of an element of one vector and one of another."""
    return einsum("i,j->ij", a, b)


def tensordot(a: Tensor, b: Tensor, axes: int = 2) -> Tensor:
    """The product summed over the last `axes` axes of a and the first of b; asks for their ranks."""
    if not isinstance(axes, int):
        raise TypeError("tensordot takes a number of axes; write xp.einsum for others")
    names = "abcdefghijklmnopqrstuvwxyz"
    left, right = names[: a.ndim], names[a.ndim - axes : a.ndim - axes + b.ndim]
    return einsum(f"{left},{right}->{left[: a.ndim - axes]}{right[axes:]}", a, b)
