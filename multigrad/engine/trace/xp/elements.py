"""Functions of `xg.xp` on elements and along an axis that no rule of the library needs; see
`all.py`.
"""

from __future__ import annotations

import math
from typing import Any

from ....core import ops
from ....core.trace.trace import Axis, Value, apply, are_bools, axes_of, copy_of
from ....core.trace.xp.ops import equal, isnan, mean, var, where

Tensor = Any

__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "nan_to_num", "positive",
    "quantile", "standardize",
]  # fmt: skip


def standardize(x: Tensor, axis: Axis = -1, epsilon: float = 1e-5) -> Tensor:
    """x shifted to mean 0 and scaled to variance 1; `epsilon` is added to the variance.

    Examples:
        >>> np.round(xp.standardize(np.array([1.0, 2.0, 3.0])), 3)
        array([-1.225,  0.   ,  1.225])
    """
    centered = x - mean(x, axis, keepdims=True)
    # By the op: NumPy's sum of a bfloat16 and a number is a float32.
    spread = apply(ops.ADD, var(x, axis, keepdims=True), epsilon)
    return centered * apply(ops.RSQRT, spread)


def quantile(x: Tensor, q: float, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The q-quantile, 0 <= q <= 1, linear between neighbors.

    Examples:
        >>> float(xp.quantile(np.array([1.0, 2.0, 4.0]), 0.75))
        3.0
    """
    if not (isinstance(q, int | float) and 0 <= q <= 1):
        raise TypeError(f"quantile takes a number from 0 to 1, not {q!r}")
    return apply(ops.QUANTILE, x, axis=axes_of(x, axis), keepdims=bool(keepdims), q=float(q))


def positive(x: Tensor) -> Tensor:
    """x as it is.

    Examples:
        >>> xp.positive(np.array([-1.0, 2.0]))
        array([-1.,  2.])
    """
    return copy_of(x)


def nan_to_num(
    x: Tensor, nan: Tensor = 0.0, posinf: Tensor | None = None, neginf: Tensor | None = None
) -> Tensor:
    """x with NaN and infinities replaced; None: by the largest number of the dtype.

    Examples:
        >>> xp.nan_to_num(np.array([np.nan, np.inf, 1.0]), posinf=9.0)
        array([0., 9., 1.])
    """
    if not any(isinstance(value, Value) for value in (nan, posinf, neginf)):
        replacements = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = {name: None if v is None else float(v) for name, v in replacements.items()}
        return apply(ops.NAN_TO_NUM, x, **numbers)
    # A symbolic replacement cannot be an attribute of the op.
    finite = apply(ops.NAN_TO_NUM, x, nan=0.0, posinf=None, neginf=None)
    upper = finite if posinf is None else where(equal(x, math.inf), posinf, finite)
    lower = upper if neginf is None else where(equal(x, -math.inf), neginf, upper)
    return where(isnan(x), nan, lower)


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
