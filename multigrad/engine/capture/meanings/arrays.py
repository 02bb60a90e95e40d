"""Whole-array functions under other libraries' names: tensor methods and NumPy's functions.

If a name has two meanings (`x.transpose(0, 1)`, `x.repeat(2)`), the dialect of the code decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....core.trace.trace import Value, copy_of, made_in_memory, mark_view
from ....core.trace.xp import all as xp
from ..dialect import Habits, habits_of
from ..name_tables import Handler, handlers_by_name, handlers_by_signature, ops_by_name
from ..symbols import SymbolicShape, in_dtype
from ..user_code.libraries import library_for
from . import parts, places
from .creation import is_dtype
from .parts import cut
from .places import Extremes

Tensor = Any


def habits_for(x: Tensor, name: str) -> Habits:
    """Return the habits of the library whose code uses x; they decide what `name` means."""
    if not library_for(x.trace, name):
        raise TypeError(f"{name} means another thing in torch than in NumPy; write it with xg.xp")
    return habits_of(x.trace)


def numbers(values: tuple[Any, ...]) -> Any:
    """Return numbers passed one by one, or as one sequence, as a sequence."""
    return values[0] if len(values) == 1 and not isinstance(values[0], int | Value) else values


def softmax(x: Tensor, dim: Any = None, dtype: Any = None, *, axis: Any = None) -> Tensor:
    return in_dtype(xp.softmax(x, dim if axis is None else axis), dtype)


def log_softmax(x: Tensor, dim: Any = None, dtype: Any = None, *, axis: Any = None) -> Tensor:
    return in_dtype(xp.log_softmax(x, dim if axis is None else axis), dtype)


def cumsum(x: Tensor, dim: Any = None, *, axis: Any = None, dtype: Any = None) -> Tensor:
    return _cumulative(xp.cumsum, x, dim if axis is None else axis, dtype)


def cumprod(x: Tensor, dim: Any = None, *, axis: Any = None, dtype: Any = None) -> Tensor:
    return _cumulative(xp.cumprod, x, dim if axis is None else axis, dtype)


def _cumulative(function: Handler, x: Tensor, axis: Any, dtype: Any) -> Tensor:
    # Without an axis, NumPy flattens x first; bools count as integers.
    x = places.counted(x)
    return in_dtype(function(xp.reshape(x, -1), 0) if axis is None else function(x, axis), dtype)


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Extremes:
    # torch's method returns a new tensor; NumPy's sorts in place and returns nothing.
    if not habits_for(x, "sort").sorts_anew:
        raise TypeError("it sorts in place; use np.sort(x)")
    return places.sort(x, dim, descending)


def quantile(
    x: Tensor, q: float, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    if interpolation != "linear":
        raise TypeError(f"quantile with interpolation {interpolation!r}; 'linear' is known")
    return xp.quantile(x, q, dim, keepdim)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    lengths = numbers(shape)
    # A symbolic shape keeps the graph free of fixed lengths.
    if isinstance(lengths, SymbolicShape):
        is_same_shape = lengths.value.node.type.shape == x.node.type.shape == "x"
        return renamed(x) if is_same_shape else xp.reshape_like(x, lengths.value)
    if x.node.type.kind == "scalar" and not tuple(lengths):
        return x
    if isinstance(x.shape, tuple) and tuple(lengths) == x.shape:
        return renamed(x)
    return xp.reshape(x, tuple(lengths))


def view(x: Tensor, *shape: Any, dtype: Any = None) -> Tensor:
    if dtype is not None or any(is_dtype(n) or type(n).__name__ == "dtype" for n in shape):
        raise TypeError(
            "it reads the bits of one dtype as another's, which no op does. A conversion is "
            ".to(dtype) or .astype(dtype), the sign bit alone signbit(x)"
        )
    return reshape(x, *shape) if shape else x  # without a shape it is NumPy's


def view_as(x: Tensor, other: Tensor) -> Tensor:
    x = places.as_tensor(x, other)
    is_same_shape = other.node.type.shape == x.node.type.shape == "x"
    return renamed(x) if is_same_shape else xp.reshape_like(x, other)


def renamed(x: Tensor) -> Tensor:
    """Return a view of x in the same memory; attributes set on x are not copied to it."""
    alias = copy_of(x)
    mark_view(alias, x, True)
    return alias


def ravel(x: Tensor, order: str = "C") -> Tensor:
    if order != "C" or not isinstance(x, Value):
        return np_reshape(x, -1, order)
    flat = xp.reshape(made_in_memory(x, "contiguous C"), -1)
    flat.is_certain = True  # of what is in order
    return flat


def flatten(x: Tensor, order: str = "C") -> Tensor:
    # A copy in NumPy; in torch it may share memory, so an in-place update may reach both.
    flat = copy_of(np_reshape(x, -1, order))
    if x.trace.dialect != "numpy":
        mark_view(flat, x, False)
    return flat


def transpose(x: Tensor, *axes: Any) -> Tensor:
    # torch exchanges two axes; NumPy takes a permutation of all of them.
    if axes and habits_for(x, "transpose").exchanges_two:
        return xp.swapaxes(x, *axes)
    return xp.permute_dims(x, numbers(axes) if axes and axes != (None,) else None)


def permute(x: Tensor, *dims: Any) -> Tensor:
    return xp.permute_dims(x, numbers(dims))


def squeeze(x: Tensor, dim: Any = None, *, axis: Any = None) -> Tensor:
    return xp.squeeze(x, dim if axis is None else axis)


def expand(x: Tensor, *sizes: Any) -> Tensor:
    lengths = numbers(sizes)
    if isinstance(lengths, SymbolicShape):
        return xp.broadcast_to(x, lengths.value)
    if -1 in (shape := tuple(lengths)):
        raise TypeError(f"expand to {shape}; name every length, or use xp.broadcast_to(x, like)")
    return xp.broadcast_to(x, shape)


def flip(x: Tensor, *dims: Any) -> Tensor:
    return xp.flip(x, numbers(dims))


def tile(x: Tensor, *dims: Any) -> Tensor:
    return xp.tile(x, numbers(dims))


def repeat(x: Tensor, *repeats: Any, axis: int | None = None) -> Tensor:
    # torch repeats the whole tensor, NumPy each element.
    if habits_for(x, "repeat").repeats_whole:
        counts = numbers(repeats)
        if parts.rank(x) > (len(counts) if isinstance(counts, tuple | list) else 1):
            raise TypeError(f"repeat takes a number for each of {parts.rank(x)} axes, not {counts}")
        return xp.tile(x, counts)
    return xp.repeat(x, *(repeats if axis is None else (*repeats, axis)))


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    if isinstance(start, int) and start < 0:
        start += parts.length(x, dim)
    parts.check_range(x, dim, start, length)
    return cut(x, dim, start, start + length)


METHODS: dict[str, Handler] = {
    **places.METHODS,
    **ops_by_name("""
        matmul: bmm matmul mm mv; swapaxes: swapaxes swapdims; moveaxis: moveaxis movedim
    """),
    **handlers_by_signature(
        {
            places: "count_nonzero(x, dim=None): count_nonzero",
            parts: "select(x, dim, index): at",
            xp: """
                logsumexp(x, dim, keepdim=False): logsumexp; roll(x, shifts, dims=None): roll;
                repeat_interleave(x, repeats, dim=None): repeat; t(x): permute_dims; tril(x,
                diagonal=0): tril(diagonal=k); triu(x, diagonal=0): triu(diagonal=k)
            """,
        }
    ),
    **handlers_by_name(
        {
            places: "topk",
            xp: "outer",
            __name__: """
                cumprod; cumsum; expand: expand broadcast_to; flatten; flip;
                log_softmax; narrow; permute; quantile; ravel; repeat; reshape; softmax;
                sort; squeeze; tile; transpose; view; view_as: view_as reshape_as
            """,
        }
    ),
}


# --- NumPy ----------------------------------------------------------------------------------------
def np_sort(x: Tensor, axis: int | None = -1, kind: Any = None, *, stable: Any = None) -> Tensor:
    return xp.sort(xp.reshape(x, -1), 0) if axis is None else xp.sort(x, axis)


def np_quantile(
    x: Tensor, q: float, axis: Any = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    if method != "linear":
        raise TypeError(f"quantile with method {method!r}; 'linear' is known")
    # NumPy would interpolate in bfloat16, with another result than the ops give.
    if x.trace.types is not None and x.trace.facts.has_dtype("bfloat16"):
        raise TypeError("NumPy interpolates in bfloat16 there; cast to float32 first")
    return xp.quantile(x, q, axis, keepdims)


def np_percentile(
    x: Tensor, q: float, axis: Any = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    return np_quantile(x, q / 100, axis, method=method, keepdims=keepdims)


def np_reshape(x: Tensor, shape: Any, order: str = "C") -> Tensor:
    if order != "C":
        raise TypeError(f"reshape in the order {order!r}; 'C' is known")
    return reshape(x, shape)


def np_dot(a: Tensor, b: Tensor) -> Tensor:
    if np.ndim(b) > 2:
        raise TypeError("dot by more than two axes; use np.matmul or np.einsum")
    return xp.matmul(a, b)


def np_outer(a: Tensor, b: Tensor) -> Tensor:
    # NumPy flattens operands of any rank.
    return xp.outer(xp.reshape(a, -1), xp.reshape(b, -1))


def np_einsum(subscripts: str, *arrays: Tensor, optimize: Any = False) -> Tensor:
    return xp.einsum(subscripts, *arrays)


FUNCTIONS: dict[Any, Handler] = {
    **places.FUNCTIONS,
    np.dot: np_dot,
    np.einsum: np_einsum,
    np.outer: np_outer,
    np.percentile: np_percentile,
    np.quantile: np_quantile,
    np.ravel: ravel,
    np.reshape: np_reshape,
    np.sort: np_sort,
}
