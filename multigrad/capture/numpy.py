"""NumPy's dialect: which NumPy function means which op. Reached by `__array_ufunc__` and `__array_function__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import neutral
from ..ir.meaning import as_numpy_dtype
from ..ir.record import Value, cast
from . import arrays, elementwise, methods
from .attributes import NUMPY, refusals
from .dialect import Dialect, register_dialect

Tensor = Any


def convert(x: Tensor, dtype: Any, like: Any = None) -> Tensor:
    return cast(x, dtype) if dtype is not None else x


def clip(x: Tensor, a_min: Any = None, a_max: Any = None, *, min: Any = None,
         max: Any = None) -> Tensor:  # fmt: skip
    return neutral.clip(x, a_min if min is None else min, a_max if max is None else max)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return neutral.where(condition, a, b)


def sum_(x: Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
    return convert(neutral.sum(x, axis, keepdims), dtype)


def mean(x: Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Tensor:
    return convert(neutral.mean(x, axis, keepdims), dtype)


def max_(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.max(x, axis, keepdims)


def min_(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.min(x, axis, keepdims)


def any_(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.any(x, axis, keepdims)


def all_(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    return neutral.all(x, axis, keepdims)


def var(x: Tensor, axis: Any = None, *, ddof: float = 0, correction: float | None = None,
        keepdims: bool = False) -> Tensor:  # fmt: skip
    return neutral.var(x, axis, ddof if correction is None else correction, keepdims)


def std(x: Tensor, axis: Any = None, *, ddof: float = 0, correction: float | None = None,
        keepdims: bool = False) -> Tensor:  # fmt: skip
    return neutral.std(x, axis, ddof if correction is None else correction, keepdims)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    return neutral.zeros_like(x, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    return neutral.ones_like(x, dtype)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return neutral.full_like(x, fill_value, dtype)


def select(conditions: Any, choices: Any, default: Any = 0) -> Tensor:
    """The choice of the first condition that holds."""
    result = default
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        result = neutral.where(condition, choice, result)
    return result


def nan_to_num(x: Tensor, copy: bool = True, nan: Any = 0.0, posinf: Any = None,
               neginf: Any = None) -> Tensor:  # fmt: skip
    if not copy:
        raise TypeError("nan_to_num with copy=False; take the result")
    return neutral.nan_to_num(x, nan, posinf, neginf)


def is_scalar(x: Any) -> bool:
    return x.node.type.kind == "scalar" if isinstance(x, Value) else np.isscalar(x)


def heaviside(x: Tensor, at_zero: Any) -> Tensor:
    """np.heaviside keeps NaN and takes the value at zero."""
    step = neutral.where(neutral.equal(x, 0), at_zero, neutral.heaviside(x))
    return neutral.where(neutral.isnan(x), x, step)


def size(x: Tensor, axis: Any = None) -> Any:
    return neutral.size(x) if axis is None else neutral.dim(x, axis)


def shape(x: Tensor) -> Any:
    return x.shape


def ndim(x: Tensor) -> int:
    return x.ndim


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    if decimals:
        raise TypeError("round with decimals")
    return neutral.round(x)


def expand_dims(x: Tensor, axis: int) -> Tensor:
    return neutral.expand_dims(x, axis)


def view(x: Tensor, dtype: Any = None) -> Tensor:
    if dtype is not None:
        raise TypeError("it reads the bits of one dtype as another's; use .astype(dtype)")
    return x


UFUNCS = {
    np.add: neutral.add, np.subtract: neutral.subtract, np.multiply: neutral.multiply,
    np.divide: neutral.divide, np.negative: neutral.negative, np.positive: neutral.positive,
    np.power: neutral.pow, np.float_power: neutral.pow, np.absolute: neutral.abs,
    np.fabs: neutral.abs, np.sign: neutral.sign, np.maximum: neutral.maximum,
    np.minimum: neutral.minimum, np.square: neutral.square, np.sqrt: neutral.sqrt,
    np.reciprocal: neutral.reciprocal, np.floor: neutral.floor, np.ceil: neutral.ceil,
    np.rint: neutral.round, np.trunc: neutral.trunc, np.exp: neutral.exp, np.expm1: neutral.expm1,
    np.log: neutral.log, np.log1p: neutral.log1p, np.sin: neutral.sin, np.cos: neutral.cos,
    np.arctan: neutral.atan, np.tanh: neutral.tanh, np.less: neutral.less,
    np.less_equal: neutral.less_equal, np.greater: neutral.greater,
    np.greater_equal: neutral.greater_equal, np.equal: neutral.equal,
    np.not_equal: neutral.not_equal, np.logical_and: neutral.logical_and,
    np.logical_or: neutral.logical_or, np.logical_xor: neutral.logical_xor,
    np.logical_not: neutral.logical_not, np.isnan: neutral.isnan, np.isinf: neutral.isinf,
    np.isfinite: neutral.isfinite, np.heaviside: heaviside,
    **elementwise.UFUNCS,
}  # fmt: skip

FUNCTIONS = {
    **arrays.FUNCTIONS,
    np.where: where, np.clip: clip, np.sum: sum_, np.mean: mean, np.max: max_, np.amax: max_,
    np.min: min_, np.amin: min_, np.any: any_, np.all: all_, np.var: var, np.std: std,
    np.zeros_like: zeros_like, np.ones_like: ones_like,
    np.full_like: full_like, np.size: size, np.shape: shape, np.ndim: ndim, np.round: round_,
    np.around: round_, np.expand_dims: expand_dims, np.copy: methods.clone, np.select: select,
    np.empty_like: zeros_like, np.nan_to_num: nan_to_num,
}  # fmt: skip

register_dialect(
    "numpy",
    Dialect(
        elementwise.WithSciPy({**UFUNCS, **FUNCTIONS}),
        np.ndarray,
        as_numpy_dtype,
        "cpu",
        methods={"max": max_, "min": min_, "view": view},
        hidden={np.isscalar: is_scalar},
        one_class=True,
        refusals=refusals(NUMPY),
        scalars=(np.float32, np.float64, np.bool_),
    ),
)
