"""NumPy's dialect, parts, diagonals, neighbors and products; see `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.ir.types import BOOL, WHOLE
from ...trace.xp import all as xp
from ..code.binding import Library
from ..meanings import bits, composites, diagonals, neighbors, parts, products, reductions
from ..symbols.dtypes import own_dtype

Tensor = Any
Handler = Callable[..., Any]


def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.split(ary, indices_or_sections, axis)]


def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return [*parts.array_split(ary, indices_or_sections, axis)]


def isclose(
    a: Tensor, b: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Of integers and bools the second counts as floats: no limit wraps around."""
    return composites.isclose(a, xp.multiply(b, 1.0), rtol, atol, equal_nan)


def meshgrid(*xi: Tensor, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if sparse:
        raise TypeError("meshgrid with sparse=True; reshape each")
    return parts.meshgrid(*xi, indexing=indexing)


# --- neighbors ------------------------------------------------------------------------------------
def pad(
    array: Tensor, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0
) -> Tensor:
    """A border, of one width or in pairs; of a constant, or by the array's own elements."""
    if mode not in ("constant", *neighbors.BORDERS):
        raise TypeError(f"pad in mode {mode!r}; constant, {', '.join(neighbors.BORDERS)} are known")
    if isinstance(constant_values, tuple | list):
        raise TypeError("pad with several constants")
    axes = parts.rank(array)
    if not isinstance(pad_width, tuple | list):
        pad_width = ((pad_width, pad_width),) * axes
    elif not isinstance(pad_width[0], tuple | list):
        pair = tuple(pad_width) if len(pad_width) == 2 else tuple(pad_width) * 2
        pad_width = (pair,) * axes
    elif len(pad_width) == 1:
        pad_width = tuple(pad_width) * axes
    if len(pad_width) != axes or any(n < 0 for pair in pad_width for n in pair):
        raise TypeError(f"pad by {pad_width} of {axes} axes")
    return neighbors.padded(array, pad_width, mode, constant_values)


# --- products -------------------------------------------------------------------------------------
def vdot(a: Tensor, b: Tensor, /) -> Tensor:
    return xp.vecdot(xp.reshape(a, -1), xp.reshape(b, -1))


def cross(
    a: Tensor, b: Tensor, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    if (axisa, axisb, axisc) != (-1, -1, -1):
        raise TypeError("cross along other axes in each; give axis=")
    return products.cross(a, b, -1 if axis is None else axis)


def cov(
    m: Tensor, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None
) -> Tensor:
    if y is not None or not rowvar:
        raise TypeError("cov with y or of columns; concatenate or transpose")
    return products.covariance(m, (0 if bias else 1) if ddof is None else ddof)


# --- reductions -----------------------------------------------------------------------------------
def ptp(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """The largest less the smallest."""
    return xp.subtract(xp.max(a, axis, keepdims), xp.min(a, axis, keepdims))


def average(a: Tensor, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Tensor:
    if weights is None:
        return xp.mean(a, axis, keepdims)
    if axis is not None and parts.rank(weights) == 1 and parts.rank(a) > 1:
        after = parts.rank(a) - 1 - axis % parts.rank(a)
        weights = xp.reshape(weights, (-1, *(1,) * after))
    whole = xp.broadcast_to(weights, a)
    whole = xp.divide(whole, 1) if own_dtype(a) in (BOOL, *WHOLE) else whole  # in floats
    return xp.divide(xp.sum(xp.multiply(a, whole), axis, keepdims), xp.sum(whole, axis, keepdims))


# --- elementwise ----------------------------------------------------------------------------------
def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    return xp.floor_divide(x1, x2), xp.remainder(x1, x2)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = xp.trunc(x)
    return xp.where(xp.isinf(x), 0.0, xp.subtract(x, whole)), whole


def polyval(p: Any, x: Tensor) -> Tensor:
    """The polynomial of these coefficients, the highest first."""
    count = parts.length(p, 0) if hasattr(p, "ndim") else len(p)
    result: Any = 0.0
    for i in range(count):
        result = xp.add(xp.multiply(result, x), p[i])
    return result


def cumulative_sum(x: Tensor, /, *, axis: int = -1) -> Tensor:
    return xp.cumsum(x, axis)


# --- complex words of real tensors ----------------------------------------------------------------


def angle(z: Tensor, deg: bool = False) -> Tensor:
    radians = xp.atan2(0.0, z)
    return xp.multiply(radians, 180 / np.pi) if deg else radians


NUMPY = Library(np)
FUNCTIONS: dict[Any, Handler] = {
    **NUMPY.called(
        {
            diagonals: """
                diag; diagflat; diagonal; matrix_diagonal: linalg.diagonal; trace
            """,
            neighbors: "diff; trapezoid",
            parts: """
                append; broadcast_arrays(subok=); dstack; expand_dims; hstack; rot90; unstack;
                vstack
            """,
            products: "multi_dot: linalg.multi_dot; tensordot: tensordot linalg.tensordot",
            reductions: """
                nanmax; nanmean; nanmin; nanprod; nanstd(ddof=correction); nansum;
                nanvar(ddof=correction)
            """,
            xp: "concatenate: concatenate concat; permute_dims; vecdot: vecdot linalg.vecdot",
        }
    ),
    **NUMPY.taking_the_same(
        {
            bits: "packbits; unpackbits",
            composites: "isneginf; isposinf; logaddexp2",
            diagonals: "kron",
            neighbors: "ediff1d",
            parts: "fliplr; flipud",
            products: "cross: linalg.cross; inner; matvec; vecmat",
            __name__: """
                angle; array_split; average; cov; cross; cumulative_sum; divmod_: divmod; isclose;
                meshgrid; modf; pad; polyval; ptp; split; vdot
            """,
            xp: """
                matmul: linalg.matmul; matrix_transpose: matrix_transpose linalg.matrix_transpose;
                outer: linalg.outer; trunc: fix; zeros_like: imag
            """,
        }
    ),
}
METHODS: dict[str, Handler] = {"diagonal": FUNCTIONS[np.diagonal]}
