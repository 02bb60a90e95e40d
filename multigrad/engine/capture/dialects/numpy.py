"""NumPy's dialect: which NumPy function records which op.

Calls arrive by `__array_ufunc__` and `__array_function__`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....core.ir.op import BOOL, WHOLE
from ....core.ops.numerics import as_numpy_dtype
from ....core.trace import trace
from ....core.trace.trace import Value
from ....core.trace.xp import all as xp
from ..dialect import Classes, Dialect, Habits, Names, Tensors, register_dialect
from ..meanings import arrays, complexes, composites, layers, matrices, parts, places, reductions
from ..name_tables import AliasesAndMore, Handler, Library, common, named
from ..symbols import own_dtype
from ..values import attributes, methods
from ..values.oracle import StandInCall, TypeOracle, run_each
from . import scipy

Tensor = Any
NUMPY, LINALG = Library(np), Library(np.linalg)
# The default of parameters for which None has a meaning of its own.
NO_VALUE = getattr(np, "_NoValue", None)


def pad(
    array: Tensor, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0
) -> Tensor:
    if mode not in ("constant", *parts.BORDERS):
        raise TypeError(f"pad in mode {mode!r}; constant, {', '.join(parts.BORDERS)} are known")
    if isinstance(constant_values, tuple | list):
        raise TypeError("pad with several constants")
    axes = parts.rank(array)
    if not isinstance(pad_width, tuple | list):
        pad_width = (pad_width,)
    if not isinstance(pad_width[0], tuple | list):
        pad_width = (tuple(pad_width) if len(pad_width) == 2 else tuple(pad_width) * 2,)
    if len(pad_width) == 1:
        pad_width = tuple(pad_width) * axes
    if len(pad_width) != axes or any(n < 0 for pair in pad_width for n in pair):
        raise TypeError(f"pad by {pad_width} of {axes} axes")
    return parts.padded(array, pad_width, mode, constant_values)


def vdot(a: Tensor, b: Tensor, /) -> Tensor:
    return xp.vecdot(xp.reshape(a, -1), xp.reshape(b, -1))


def cov(m: Tensor, bias: bool, ddof: int | None) -> Tensor:
    return matrices.covariance(m, (0 if bias else 1) if ddof is None else ddof)


def ptp(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return xp.subtract(xp.max(a, axis, keepdims), xp.min(a, axis, keepdims))


def average(a: Tensor, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Tensor:
    if weights is None:
        return xp.mean(a, axis, keepdims)
    if axis is not None and parts.rank(weights) == 1 and parts.rank(a) > 1:
        weights = layers.channels(weights, a, axis)
    shares = xp.broadcast_to(weights, a)
    # Integers are multiplied in floats.
    shares = xp.divide(shares, 1) if own_dtype(a) in (BOOL, *WHOLE) else shares
    return xp.divide(xp.sum(xp.multiply(a, shares), axis, keepdims), xp.sum(shares, axis, keepdims))


def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    return xp.floor_divide(x1, x2), xp.remainder(x1, x2)


def modf(x: Tensor) -> tuple[Tensor, Tensor]:
    integral = xp.trunc(x)
    # inf - inf would be NaN; NumPy gives 0.
    return xp.where(xp.isinf(x), 0.0, xp.subtract(x, integral)), integral


def pinv(a: Tensor, rcond: Any, rtol: Any = NO_VALUE) -> Tensor:
    # The default cutoff is 1e-15; `rtol=None` means one eps per row.
    cutoff = 1e-15 if rcond is None else rcond
    return matrices.pinv(a, cutoff if rtol is NO_VALUE else rtol)


def slogdet(a: Tensor) -> Any:
    return type(np.linalg.slogdet(np.eye(1)))(*xp.slogdet(a))


def svd(a: Tensor, full_matrices: bool, compute_uv: bool) -> Any:
    if not compute_uv:
        return matrices.svdvals(a)
    return _as(np.linalg.svd, matrices.svd(a, full_matrices))


def eigh(a: Tensor, UPLO: str = "L") -> Any:
    return _as(np.linalg.eigh, matrices.eigh(a, matrices.is_upper(UPLO)))


def eigvalsh(a: Tensor, UPLO: str = "L") -> Tensor:
    return matrices.eigvalsh(a, matrices.is_upper(UPLO))


def qr(a: Tensor, mode: str = "reduced") -> Any:
    results = matrices.numpy_qr(a, mode)
    return results if mode == "r" else _as(np.linalg.qr, results)


def _as(function: Any, results: tuple[Tensor, ...]) -> Any:
    # In NumPy's named tuple, whose class only a result tells.
    return type(function(np.eye(1)))(*results)


def select(conditions: Any, choices: Any, default: Any = 0) -> Tensor:
    """Return the choice of the first condition that holds."""
    result = default
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        result = xp.where(condition, choice, result)
    return result


def is_scalar(x: Any) -> bool:
    return x.node.type.kind == "scalar" if isinstance(x, Value) else np.isscalar(x)


def heaviside(x: Tensor, at_zero: Any) -> Tensor:
    # np.heaviside keeps NaN and takes the value at zero.
    stepped = xp.where(xp.equal(x, 0), at_zero, xp.heaviside(x))
    return xp.where(xp.isnan(x), x, stepped)


def size(x: Tensor, axis: Any = None) -> Any:
    return xp.size(x) if axis is None else xp.dim(x, axis)


def shape(x: Tensor) -> Any:
    return x.shape


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    if not decimals or (composites.is_whole(x) and decimals > 0):
        return xp.round(x)
    # As in NumPy, never by a reciprocal power of ten, which floats round.
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return xp.divide(xp.round(xp.multiply(x, scale)), scale)
    return xp.multiply(xp.round(xp.divide(x, scale)), scale)


def view(x: Tensor, dtype: Any = None) -> Tensor:
    if dtype is not None:
        raise TypeError("it reads the bits of one dtype as another's; use .astype(dtype)")
    return x


def stand_in_tensor(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return np.full(shape, number, as_numpy_dtype(dtype))


def run_quietly(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        return run_each(calls, stand_in_tensor)


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name, False) if isinstance(x, np.ndarray | np.generic) else None


def no_settings() -> None:
    """Do nothing: no setting of NumPy changes a dtype."""


def is_ufunc(function: Any) -> bool:
    return isinstance(function, np.ufunc)


# A bfloat16 array times a Python number is float32.
TYPES = TypeOracle(
    stand_in_tensor,
    run_quietly,
    dtype_of_leaf,
    no_settings,
    apart=("bfloat16",),
    casts_first=is_ufunc,
)
# `name_tables.py` has the grammar of the rows. Where two name one function, the later one counts.
# Symbols are real: `np.conjugate` copies, and `np.imag` is zeros.
FUNCTIONS: dict[Any, Handler] = {
    **NUMPY.called(
        {
            arrays: "cumprod; cumsum: cumsum cumulative_sum; expand: broadcast_to",
            composites: "isclose; nan_to_num",
            parts: """
                array_split; broadcast_arrays(subok=); expand_dims; hstack; meshgrid(copy=); rot90;
                split; unstack; vstack
            """,
            places: "argsort(kind=, order=, stable=); count_nonzero; take_along_axis",
            matrices: """
                cross; diag; diagflat; diagonal; matrix_diagonal: linalg.diagonal; trace; multi_dot:
                linalg.multi_dot; tensordot: tensordot linalg.tensordot
            """,
            reductions: """
                all; any; max: max amax; mean; min: min amin; prod; std; sum; var; nanmax; nanmean;
                nanmin; nanprod; nanstd(ddof=correction); nansum; nanvar(ddof=correction)
            """,
            trace: "copy_of: copy(order=) conjugate",
            __name__: "cov",
            xp: """
                concatenate: concatenate concat; full_like; median; ones_like; permute_dims:
                permute_dims transpose; squeeze; stack; tile; vecdot: vecdot linalg.vecdot;
                zeros_like: zeros_like empty_like
            """,
        }
    ),
    **LINALG.called(
        {
            matrices: "svdvals; cholesky; cond; matrix_norm; norm; vector_norm",
            xp: "det; inv; solve",
            __name__: "pinv; svd",
        }
    ),
    **common(np),
    **named("pow: float_power; fmax; fmin; matmul; repeat", np),
    **arrays.FUNCTIONS,
    **complexes.of_library(np.fft),
    **NUMPY.taking_the_same(
        {
            composites: "packbits; unpackbits; isneginf; isposinf; logaddexp2",
            methods: "clip",
            parts: "ediff1d; fliplr; flipud; rank: ndim",
            places: "np_take: take",
            matrices: "kron; cross: linalg.cross; inner; matvec; vecmat",
            __name__: """
                average; divmod_: divmod; heaviside; modf; pad; ptp; round_: round around; select;
                shape; size; vdot
            """,
            xp: """
                matmul: linalg.matmul; matrix_transpose: matrix_transpose linalg.matrix_transpose;
                outer: linalg.outer; positive; trunc: fix; where; zeros_like: imag
            """,
        }
    ),
    **LINALG.taking_the_same({__name__: "eigh; eigvalsh; qr; slogdet"}),
}

METHODS: dict[str, Handler] = {
    "diagonal": FUNCTIONS[np.diagonal],
    "max": FUNCTIONS[np.max],
    "min": FUNCTIONS[np.min],
    "view": view,
}
# SciPy's results differ by rounding: its exponential, and eigenvalues by another LAPACK driver.
INEXACT = {"expm": 1e-11, "eigvalsh": 1e-14}
register_dialect(
    "numpy",
    Dialect(
        names=Names(
            aliases=AliasesAndMore(FUNCTIONS, "scipy", scipy.of_scipy),
            methods=METHODS,
            attributes={"imag": xp.zeros_like},
            hidden={np.isscalar: is_scalar},
        ),
        tensors=Tensors(
            tensor=np.ndarray,
            dtype=as_numpy_dtype,
            device="cpu",
            scalars=(np.float32, np.float64, np.bool_),
        ),
        classes=Classes(
            one_class=True,
            refusals=attributes.refusals(attributes.NUMPY),
        ),
        habits=Habits(
            small_integers_wrap=True,
            inexact=INEXACT,
            unordered=frozenset({"argsort"}),
        ),
        types=TYPES,
    ),
)
