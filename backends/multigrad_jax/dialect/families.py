"""The meaning in ops of the functions of `jax.numpy`, `jax.nn`, `jax.lax` and `jax.scipy`.

`ALIASES`, at the end, is the table; above it are the functions whose arguments or results differ
from ours. Used for rules that call these functions, and for primitives of jaxprs that mean the
same.

At a kink some functions have another derivative than the op. Where no derivative of the captured
ops is taken (`is_differentiated`), the op itself is recorded, which is shorter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import linalg as jsp
from jax.scipy import special

from multigrad.core.ir.op import BOOL, INT32, T, is_float
from multigrad.core.trace import trace
from multigrad.core.trace.trace import Value, cast, known_shape
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialects import numpy as np_dialect
from multigrad.engine.capture.meanings import (
    arrays,
    complexes,
    composites,
    matrices,
    parts,
    places,
    reductions,
)
from multigrad.engine.capture.meanings.composites import is_whole, quotient
from multigrad.engine.capture.meanings.places import is_differentiated
from multigrad.engine.capture.name_tables import Library, common, named
from multigrad.engine.capture.symbols import is_bool
from multigrad.engine.capture.values import methods
from multigrad.engine.trace.xp import transposes
from multigrad.engine.trace.xp.shapes import from_front, is_inside

Tensor = Any


def softmax(x: Tensor, axis: Any = -1) -> Tensor:
    if is_whole(x):
        raise TypeError("integers, which jax subtracts before it casts")
    return xp.softmax(x, axis)


def sort(a: Tensor, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    if axis is None:
        return xp.sort(xp.reshape(a, -1), 0, descending)
    return xp.sort(a, axis, descending)


def outer(a: Tensor, b: Tensor) -> Tensor:
    # a number counts as a vector of one element
    if isinstance(a, int | float):
        return xp.reshape(a * b, (1, -1))
    if isinstance(b, int | float):
        return xp.reshape(a * b, (-1, 1))
    return arrays.np_outer(a, b)


# --- elementwise, activations, `jax.lax`: strict functions, all operands and axes given -----------
def floor_divide(x1: Any, x2: Any) -> Tensor:
    """Return the quotient; of integers by zero, XLA's: -1, less one where x1 is not zero."""
    if is_bool(x1) and is_bool(x2):  # jax divides them as integers
        x1, x2 = cast(x1, INT32), cast(x2, INT32)
    result = xp.floor_divide(x1, x2)
    may_be_zero = isinstance(x2, Value) or not np.all(x2)
    if not (is_whole(x1) and is_whole(x2) and may_be_zero):
        return result
    if result.node.type.dtype == "uint8":
        by_zero: Any = 255
    else:
        dtype = result.node.type.dtype
        by_zero = (
            cast(xp.where(xp.equal(x1, 0), -1, -2), dtype)
            if isinstance(x1, Value)
            else -1 - (x1 != 0)
        )
    return xp.where(True if isinstance(x2, int) else xp.equal(x2, 0), by_zero, result)


def fmod(x1: Any, x2: Any) -> Tensor:
    if is_bool(x1) and is_bool(x2):
        # XLA's remainder by False is x1, and by True zero
        return cast(xp.logical_and(x1, xp.logical_not(x2)), INT32)
    return xp.fmod(x1, x2)


def rem(x: Any, y: Any) -> Tensor:
    remainder = xp.fmod(x, y)
    # XLA's remainder of an integer by zero is x
    return xp.where(xp.equal(y, 0), x, remainder) if is_whole(x) and is_whole(y) else remainder


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if not isinstance(alpha, Value) and alpha == 0:  # 0 / 0 on the way
        return xp.maximum(x, 0.0) + alpha * xp.expm1(xp.minimum(x, 0.0) / alpha)
    return xp.celu(x, alpha)


def reduce_and(operand: Tensor, axes: Any) -> Tensor:
    return xp.all(as_logical(operand), axes)


def reduce_or(operand: Tensor, axes: Any) -> Tensor:
    return xp.any(as_logical(operand), axes)


def as_logical(x: Tensor) -> Tensor:
    if not is_bool(x):
        raise TypeError("a reduction by the bits of integers; bools are known")
    return x


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    if isinstance(dtype, int | float):
        raise TypeError(f"full_like with dtype={dtype}, a number")
    return xp.full_like(x, fill_value, dtype)


def div(x: Tensor, y: Tensor) -> Tensor:
    are_whole = is_whole(x) and is_whole(y)
    return quotient(x, y, floor_divide) if are_whole else xp.divide(x, y)


# --- functions with another derivative at a kink --------------------------------------------------
def absolute(x: Tensor) -> Tensor:
    if not is_differentiated(x):
        return xp.abs(x)
    # jax's slope at 0 is 1
    return xp.where(xp.equal(x, 0), x + 0.0, xp.abs(x))


def rounded(x: Tensor, digits: int | None = None) -> Tensor:
    """Return an array rounded as by the builtin `round`: to integers if no digits are given."""
    if digits is None:
        raise x.trace.error("rounds an array by round(), to integers of JAX's. Write jnp.round")
    return x.round(digits)


def clip(arr: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if not is_differentiated(arr):
        return xp.clip(arr, min, max)
    # at a limit jax gives x half the gradient, as for equal operands of a maximum
    larger = arr if min is None else xp.maximum(arr, min)
    return larger if max is None else xp.minimum(larger, max)


def clamp(min: Any, x: Tensor, max: Any) -> Tensor:
    if is_bool(x):
        return xp.logical_and(xp.logical_or(x, min), max)
    if not is_differentiated(x):
        return xp.clip(x, min, max)
    # at a limit neither x nor the limit gets a gradient
    is_between = xp.logical_and(xp.greater(x, min), xp.less(x, max))
    inner = xp.where(is_between, x, xp.stop_gradient(x))
    low = min
    if isinstance(min, Value) or isinstance(max, Value):  # of crossed limits neither gets one
        high = xp.stop_gradient(max) if isinstance(max, Value) else max
        low = xp.where(xp.less(min, max), min, high)
    limited = xp.where(xp.less(x, min), low, inner)
    return xp.where(xp.greater(limited if low is min else x, max), max, limited)


def hard_tanh(x: Tensor) -> Tensor:
    if not is_differentiated(x):
        return xp.hard_tanh(x)
    # jax's slope at -1 and 1 is 1
    return xp.where(xp.less(x, -1.0), -1.0, xp.where(xp.greater(x, 1.0), 1.0, x))


def pinv(a: Tensor, rtol: Any = None, *, rcond: Any = None) -> Tensor:
    return matrices.pinv(a, rcond if rtol is None else rtol, 10.0)


def take(
    a: Tensor, indices: Any, axis: Any = None, mode: Any = None, fill_value: Any = None
) -> Tensor:
    if axis is None:
        a, axis = xp.reshape(a, -1), 0
    if mode not in (None, "fill", "clip", "wrap"):
        raise TypeError(f"take in the mode {mode!r}")
    if lies_inside(a, indices, axis, mode):
        return xp.take(a, indices, axis)
    if mode in ("clip", "wrap"):
        return places.take_in_mode(a, indices, axis, mode)
    positions = places.as_places(a, indices)
    positions, axis = from_front(positions, a, axis), axis % a.ndim
    mask = parts.beside_axes(is_inside(positions, xp.dim(a, axis)), a.ndim - 1 - axis)
    return xp.where(mask, transposes.take_inside(a, positions, axis=axis), filling(a, fill_value))


def lies_inside(x: Tensor, indices: Any, axis: int, mode: Any) -> bool:
    """Return whether indices are constants that are inside, as far as lengths are known."""
    if isinstance(indices, Value) or np.ndim(indices) > 1:
        return False
    shape, numbers = known_shape(x), np.asarray(indices)
    if not numbers.size or numbers.dtype.kind not in "iu":
        return True
    # an open length: only negative indices can be judged
    length = np.inf if shape is None else shape[axis]
    lowest = 0 if mode in ("clip", "wrap") else -length
    return bool(lowest <= numbers.min() and numbers.max() < length)


def filling(x: Tensor, fill_value: Any) -> Any:
    """Return the number for elements outside: by default NaN, True, or the integer farthest from
    zero.
    """
    dtype = x.node.type.dtype
    if fill_value is not None or is_float(x.node.type):
        return math.nan if fill_value is None else fill_value
    if dtype == BOOL:
        return True
    limits = jnp.iinfo(dtype)
    return int(limits.min) or int(limits.max)


def top_k(operand: Tensor, k: int, axis: int) -> list[Tensor]:
    return list(places.topk(operand, k, axis))


def one_hot(x: Tensor, num_classes: Any, *, dtype: Any = None, axis: int = -1) -> Tensor:
    rows = xp.one_hot(x, operator.index(num_classes), axis)
    return cast(rows, T if dtype is None else dtype)


AXES = ("axes", "dimensions", "permutation")
JAX = Library(jnp, {"lax": lax, "nn": jax.nn, "special": special}, values={"keepdims": bool})
LINALG = Library(jnp.linalg)
ALIASES: dict[Any, Callable[..., Any]] = {
    **common(jnp, lax, jax.nn, special),
    **named("pow: float_power; maximum: lax.max; minimum: lax.min", jnp, lax=lax),
    jax.device_put: methods.identity,  # a graph has no marks of placement
    **Library(lax, values=dict.fromkeys(AXES, tuple)).called(
        {
            xp: """
                concatenate; exp; expm1; flip: rev; log;
                logcumsumexp: cumlogsumexp; matmul: batch_matmul; max: reduce_max; min: reduce_min;
                permute_dims: transpose; pow: integer_pow; prod: reduce_prod; sigmoid: logistic;
                sort; squeeze; sum: reduce_sum; tanh
            """,
            __name__: "reduce_and; reduce_or",
        }
    ),
    **complexes.of_library(jnp.fft),
    lax.complex: complexes.Complex,
    **LINALG.called({matrices: "svdvals; norm", xp: "det; inv; solve", __name__: "pinv"}),
    **Library(jsp).called({xp: "expm(max_squarings=)"}),
    **JAX.called(
        {
            arrays: """
                cumprod; cumsum; expand: broadcast_to; np_dot: dot; np_percentile: percentile;
                np_quantile: quantile; np_reshape: reshape; ravel
            """,
            composites: "where: lax.select(pred=condition, on_true=x, on_false=y)",
            np_dialect: "ptp; round_: round around; vdot",
            parts: "expand_dims; fliplr; flipud; split",
            places: "argmax; argmin; argsort; count_nonzero",
            reductions: """
                all; any; max: max amax; mean; min: min amin; nanmean; nansum; prod; std; sum; var
            """,
            trace: "cast: astype(copy=) lax.convert_element_type(operand=x); copy_of: copy(order=)",
            __name__: """
                softmax: nn.softmax special.softmax; top_k: lax.top_k;
                take(unique_indices=, indices_are_sorted=)
            """,
            xp: """
                concatenate: concatenate concat; einsum(optimize=); full_like; gelu: nn.gelu; glu:
                nn.glu; log_ndtr: special.log_ndtr(series_order=); log_softmax: nn.log_softmax
                special.log_softmax; logsumexp: nn.logsumexp special.logsumexp; matmul: matmul
                linalg.matmul; median; nan_to_num(copy=); ones_like; permute_dims: transpose
                permute_dims; repeat; signbit; squeeze; stack; tile; vecdot: vecdot linalg.vecdot;
                zeros_like: zeros_like empty_like
            """,
        }
    ),
    **JAX.taking_the_same(
        {
            composites: """
                digamma: lax.digamma special.digamma; entr: special.entr; isneginf; isposinf;
                packbits; unpackbits; where
            """,
            np_dialect: "heaviside; select; shape; size",
            parts: "rank: ndim",
            __name__: """
                absolute: abs absolute fabs lax.abs; clip; floor_divide; fmod; lax.clamp; lax.div;
                lax.full_like; lax.rem; nn.celu; nn.hard_tanh; nn.one_hot; outer; sort
            """,
            methods: """
                identity: positive conj conjugate real nn.identity lax.optimization_barrier
            """,
            xp: "matrix_transpose",
        }
    ),
}
