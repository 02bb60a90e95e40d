"""NumPy's dialect: which NumPy function means which op.

Reached by `__array_ufunc__` and `__array_function__`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.ops.numerics import as_numpy_dtype
from ...trace import trace
from ...trace.trace import Value, copy_of
from ...trace.xp import all as xp
from ..code.binding import Handler
from ..code.names import AliasesAndMore, named
from ..code.table import Dialect, Habits, register_dialect
from ..meanings import arrays, complexes, places, reductions
from ..types.oracle import StandInCall, TypeOracle, run_each
from ..values import elementwise
from ..values.attributes import NUMPY, refusals
from . import numpy_linalg, numpy_parts

Tensor = Any


def clip(
    x: Tensor, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Tensor:
    return xp.clip(x, a_min if min is None else min, a_max if max is None else max)


def select(conditions: Any, choices: Any, default: Any = 0) -> Tensor:
    """The choice of the first condition that holds."""
    result = default
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        result = xp.where(condition, choice, result)
    return result


def nan_to_num(
    x: Tensor, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Tensor:
    if not copy:
        raise TypeError("nan_to_num with copy=False; take the result")
    if elementwise.is_whole(x):
        return copy_of(x)
    return xp.nan_to_num(x, nan, posinf, neginf)


def is_scalar(x: Any) -> bool:
    return x.node.type.kind == "scalar" if isinstance(x, Value) else np.isscalar(x)


def heaviside(x: Tensor, at_zero: Any) -> Tensor:
    """np.heaviside keeps NaN and takes the value at zero."""
    step = xp.where(xp.equal(x, 0), at_zero, xp.heaviside(x))
    return xp.where(xp.isnan(x), x, step)


def size(x: Tensor, axis: Any = None) -> Any:
    return xp.size(x) if axis is None else xp.dim(x, axis)


def shape(x: Tensor) -> Any:
    return x.shape


def ndim(x: Tensor) -> int:
    return x.ndim


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    if not decimals or (elementwise.is_whole(x) and decimals > 0):
        return xp.round(x)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return xp.divide(xp.round(xp.multiply(x, scale)), scale)
    return xp.multiply(xp.round(xp.divide(x, scale)), scale)


def view(x: Tensor, dtype: Any = None) -> Tensor:
    if dtype is not None:
        raise TypeError("it reads the bits of one dtype as another's; use .astype(dtype)")
    return x


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return np.full(shape, number, as_numpy_dtype(dtype))


def run_quietly(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        return run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name, False) if isinstance(x, np.ndarray | np.generic) else None


def nothing() -> None:
    """Nothing that NumPy is set to changes a dtype."""


def is_ufunc(function: Any) -> bool:
    """Return whether a function is one loop over elements of one dtype."""
    return isinstance(function, np.ufunc)


# A bfloat16 array times a Python number is float32.
TYPES = TypeOracle(tiny, run_quietly, read, nothing, apart=("bfloat16",), casts_first=is_ufunc)
NAMES = """
    add; sub: subtract; mul: multiply; div: divide; neg: negative; pow: power float_power; square;
    sqrt; reciprocal; cbrt; maximum; minimum; fmax; fmin; abs: absolute fabs; sign; copysign; floor;
    ceil; round: rint; trunc; floor_divide; remainder; fmod; hypot; atan2: arctan2; exp; expm1;
    exp2; log; log1p; log2; log10; logaddexp; sin; cos; tan; asin: arcsin; acos: arccos;
    atan: arctan; deg2rad: deg2rad radians; rad2deg: rad2deg degrees; sinh; cosh; tanh;
    asinh: arcsinh; acosh: arccosh; atanh: arctanh; sinc; lt: less; le: less_equal; gt: greater;
    ge: greater_equal; eq: equal; ne: not_equal; and: logical_and; or: logical_or; xor: logical_xor;
    not: logical_not; isnan; isinf; isfinite; signbit; bitwise_and; bitwise_or; bitwise_xor;
    bitwise_invert: invert; bitwise_left_shift: left_shift; bitwise_right_shift: right_shift;
    nextafter; matmul; swapaxes; moveaxis; flip; roll; tril; triu; repeat
"""

FUNCTIONS: dict[Any, Handler] = {
    **numpy_parts.NUMPY.called(
        {
            arrays: "cumprod; cumsum; expand: broadcast_to",
            places: """
                argsort(kind=, order=, stable=); count_nonzero; take_along_axis
            """,
            reductions: "all; any; max: max amax; mean; min: min amin; prod; std; sum; var",
            trace: "copy_of: copy(order=) conjugate",
            xp: """
                full_like; median; ones_like; permute_dims: transpose; squeeze; stack; tile;
                zeros_like: zeros_like empty_like
            """,
        }
    ),
    **named(NAMES, np),
    **arrays.FUNCTIONS,
    **numpy_parts.FUNCTIONS,
    **numpy_linalg.FUNCTIONS,
    **complexes.of_library(np.fft),
    **numpy_parts.NUMPY.taking_the_same(
        {
            places: "np_take: take",
            __name__: """
                clip; heaviside; nan_to_num; ndim; round_: round around; select; shape; size
            """,
            xp: "positive; where",
        }
    ),
}

METHODS: dict[str, Handler] = {"max": FUNCTIONS[np.max], "min": FUNCTIONS[np.min], "view": view}
# SciPy's: its exponential, and eigenvalues by another of LAPACK's drivers.
INEXACT = {"expm": 1e-11, "eigvalsh": 1e-14}
register_dialect(
    "numpy",
    Dialect(
        AliasesAndMore(FUNCTIONS, elementwise.of_scipy),
        np.ndarray,
        as_numpy_dtype,
        "cpu",
        methods={**METHODS, **numpy_parts.METHODS},
        attributes={"imag": xp.zeros_like},
        hidden={np.isscalar: is_scalar},
        one_class=True,
        refusals=refusals(NUMPY),
        scalars=(np.float32, np.float64, np.bool_),
        habits=Habits(
            small_integers_wrap=True,
            inexact=INEXACT,
            unordered=frozenset({"argsort"}),
        ),
        types=TYPES,
    ),
)
