"""NumPy's dialect, parts, diagonals, neighbors and products; see `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tracing import xp_all as xp
from . import bits, composites, diagonals, nans, neighbors, parts, products

Tensor = Any
Handler = Callable[..., Any]


def listed(function: Handler) -> Handler:
    """Return a function that gives a list where another gives a tuple."""

    def call(ary: Tensor, indices_or_sections: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
        return [*function(ary, indices_or_sections, *args, **kwargs)]

    call.__name__ = function.__name__
    return call


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    return parts.unstack(x, axis)


def isclose(
    a: Tensor, b: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Of integers and bools the second counts as floats: no limit wraps around."""
    return composites.isclose(a, xp.multiply(b, 1.0), rtol, atol, equal_nan)


def broadcast_arrays(*args: Tensor, subok: bool = False) -> tuple[Tensor, ...]:
    return parts.broadcast_arrays(*args)


def meshgrid(*xi: Tensor, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if sparse:
        raise TypeError("meshgrid with sparse=True; reshape each")
    return parts.meshgrid(*xi, indexing=indexing)


def append(arr: Tensor, values: Tensor, axis: int | None = None) -> Tensor:
    return parts.append(arr, values, axis)


def stacked(function: Handler) -> Handler:
    """Return a function of a sequence, which NumPy calls `tup`."""

    def call(tup: Sequence[Tensor]) -> Tensor:
        return function(tup)

    call.__name__ = function.__name__
    return call


def rot90(m: Tensor, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    return parts.rot90(m, k, axes)


def expand_dims(a: Tensor, axis: Any) -> Tensor:
    return parts.expand_dims(a, axis)


def rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    return parts.rollaxis(a, axis, start)


# --- diagonals ------------------------------------------------------------------------------------
def diag(v: Tensor, k: int = 0) -> Tensor:
    return diagonals.diag(v, k)


def diagflat(v: Tensor, k: int = 0) -> Tensor:
    return diagonals.diagflat(v, k)


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return diagonals.diagonal(a, offset, axis1, axis2)


def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return diagonals.trace(a, offset, axis1, axis2)


def linalg_diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    return diagonals.matrix_diagonal(x, offset)


def linalg_trace(x: Tensor, /, *, offset: int = 0) -> Tensor:
    return diagonals.matrix_trace(x, offset)


# --- neighbors ------------------------------------------------------------------------------------
def diff(a: Tensor, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    given = (None if end is np._NoValue else end for end in (prepend, append))  # type: ignore[attr-defined]
    return neighbors.diff(a, n, axis, *given)


def trapezoid(y: Tensor, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    return neighbors.trapezoid(y, x, dx, axis)


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


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    return xp.vecdot(x1, x2, axis)


def tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    return products.tensordot(a, b, axes)


def cross(a: Tensor, b: Tensor, axisa: int = -1, axisb: int = -1, axisc: int = -1,
          axis: int | None = None) -> Tensor:  # fmt: skip
    if (axisa, axisb, axisc) != (-1, -1, -1):
        raise TypeError("cross along other axes in each; give axis=")
    return products.cross(a, b, -1 if axis is None else axis)


def cov(m: Tensor, y: Any = None, rowvar: bool = True, bias: bool = False,
        ddof: int | None = None) -> Tensor:  # fmt: skip
    if y is not None or not rowvar:
        raise TypeError("cov with y or of columns; concatenate or transpose")
    return products.covariance(m, (0 if bias else 1) if ddof is None else ddof)


def matrix_power(a: Tensor, n: int) -> Tensor:
    return products.matrix_power(a, n)


def multi_dot(arrays: Sequence[Tensor]) -> Tensor:
    return products.multi_dot(arrays)


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
    return xp.divide(xp.sum(xp.multiply(a, whole), axis, keepdims), xp.sum(whole, axis, keepdims))


def leaving_nan(function: Handler) -> Handler:
    """Return a reduction as NumPy calls it."""

    def call(a: Tensor, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Tensor:
        n = {"correction": options.pop("ddof")} if "ddof" in options else {}
        if options:
            raise TypeError(f"it got {', '.join(options)}")
        return function(a, axis, keepdims, **n)

    call.__name__ = function.__name__
    return call


# --- elementwise ----------------------------------------------------------------------------------
def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    return xp.floor_divide(x1, x2), xp.remainder(x1, x2)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = xp.trunc(x)
    return xp.where(xp.isinf(x), 0.0, xp.subtract(x, whole)), whole


def isposinf(x: Tensor) -> Tensor:
    return xp.equal(x, np.inf)


def isneginf(x: Tensor) -> Tensor:
    return xp.equal(x, -np.inf)


def polyval(p: Any, x: Tensor) -> Tensor:
    """The polynomial of these coefficients, the highest first."""
    count = parts.length(p, 0) if hasattr(p, "ndim") else len(p)
    result: Any = 0.0
    for i in range(count):
        result = xp.add(xp.multiply(result, x), p[i])
    return result


def concat(arrays: Sequence[Tensor], /, axis: int | None = 0) -> Tensor:
    return xp.concatenate(arrays, axis)


def permute_dims(a: Tensor, axes: Any = None) -> Tensor:
    return xp.permute_dims(a, axes)


def cumulative_sum(x: Tensor, /, *, axis: int = -1) -> Tensor:
    return xp.cumsum(x, axis)


def real(val: Tensor) -> Tensor:
    """The tensors of a rule are real."""
    return val


JOINED = ("hstack", "vstack", "dstack", "column_stack")
WITHOUT_NAN = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin")
SPLITS = ("split", "array_split", "hsplit", "vsplit", "dsplit")
# Later versions of NumPy have these too.
NEWER: dict[str, Handler] = {
    "concat": concat, "cumulative_sum": cumulative_sum, "matrix_transpose": xp.matrix_transpose,
    "matvec": products.matvec, "permute_dims": permute_dims, "trapezoid": trapezoid,
    "unstack": unstack, "vecdot": vecdot, "vecmat": products.vecmat,
}  # fmt: skip
FUNCTIONS: dict[Any, Handler] = {
    **{getattr(np, name): listed(getattr(parts, name)) for name in SPLITS},
    **{getattr(np, name): stacked(getattr(parts, name)) for name in JOINED},
    **{getattr(np, name): leaving_nan(getattr(nans, name)) for name in WITHOUT_NAN},
    **{getattr(np, name): handler for name, handler in NEWER.items() if hasattr(np, name)},
    np.packbits: bits.packbits, np.unpackbits: bits.unpackbits,
    np.broadcast_arrays: broadcast_arrays, np.meshgrid: meshgrid, np.append: append,
    np.atleast_1d: parts.each(parts.atleast_1d), np.atleast_2d: parts.each(parts.atleast_2d),
    np.atleast_3d: parts.each(parts.atleast_3d), np.rot90: rot90, np.fliplr: parts.fliplr,
    np.flipud: parts.flipud, np.expand_dims: expand_dims, np.rollaxis: rollaxis, np.diag: diag,
    np.diagflat: diagflat, np.diagonal: diagonal, np.trace: trace, np.kron: diagonals.kron,
    np.diff: diff, np.ediff1d: neighbors.ediff1d, np.pad: pad, np.inner: products.inner,
    np.vdot: vdot, np.tensordot: tensordot, np.cross: cross, np.cov: cov, np.ptp: ptp,
    np.average: average, np.divmod: divmod_, np.modf: modf, np.isposinf: isposinf,
    np.isneginf: isneginf, np.fix: xp.trunc, np.polyval: polyval, np.real: real,
    np.logaddexp2: composites.logaddexp2,
    np.isclose: isclose,
    np.linalg.matrix_power: matrix_power, np.linalg.multi_dot: multi_dot,
}  # fmt: skip
LINALG: dict[str, Handler] = {
    "cross": products.cross, "diagonal": linalg_diagonal, "matmul": xp.matmul,
    "matrix_transpose": xp.matrix_transpose, "outer": xp.outer,
    "tensordot": tensordot, "trace": linalg_trace, "vecdot": vecdot,
}  # fmt: skip
FUNCTIONS.update({getattr(np.linalg, n): row for n, row in LINALG.items() if hasattr(np.linalg, n)})
METHODS: dict[str, Handler] = {"diagonal": diagonal}
