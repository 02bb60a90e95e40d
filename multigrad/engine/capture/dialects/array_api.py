"""What makes `xg.xp` an Array API namespace: dtypes, `finfo`, `asarray`, arrays made from a shape,
`linalg`, and control flow.

An array made here is a constant, whose floats take the dtype of the tensors that they meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from ....core.ir.op import BOOL, FLOAT8, FLOATS, INT32, INT64, SMALL, WHOLE, T
from ....core.support.lazy_modules import missing_name_error
from ....core.trace.trace import NeedsConcrete, dtype_name
from ....core.trace.xp import all as xp
from ..meanings import creation
from ..meanings.control_flow import associative_scan, cond, fori_loop, scan
from ..symbols import SymbolicDType, SymbolicShape

Tensor = Any

bool, int32, int64 = SymbolicDType(BOOL), SymbolicDType(INT32), SymbolicDType(INT64)
int8, uint8, int16 = (SymbolicDType(name) for name in SMALL)
float8_e4m3fn, float8_e5m2 = (SymbolicDType(name) for name in FLOAT8)
float16, bfloat16, float32, float64 = (SymbolicDType(name) for name in FLOATS)
newaxis = None


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The limits of a float dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    tiny: float
    dtype: Any


def finfo(type: Any) -> FloatInfo:
    """The limits of a float dtype, or of a tensor's dtype; a rule is captured for each dtype.

    Examples:
        >>> xp.finfo(xp.float32).eps
        1.1920928955078125e-07
    """
    import ml_dtypes

    is_dtype = isinstance(type, SymbolicDType | np.dtype)
    dtype: Any = type if is_dtype or not hasattr(type, "shape") else type.dtype
    name = dtype_name(dtype)
    if name == T:
        raise NeedsConcrete("dtype")
    if name not in FLOATS:
        raise TypeError(f"finfo of {name}; expected one of {', '.join(FLOATS)}")
    limits = ml_dtypes.finfo(name)
    tiny = float(limits.smallest_normal)
    return FloatInfo(
        bits=limits.bits,
        eps=float(limits.eps),
        max=float(limits.max),
        min=float(limits.min),
        smallest_normal=tiny,
        tiny=tiny,
        dtype=dtype,
    )


def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """A tensor or a number as it is, nested lists of numbers as a constant; in a dtype, if given.

    Examples:
        >>> xp.asarray([1.0, 2.0])
        array([1., 2.])
    """
    array = np.asarray(obj) if isinstance(obj, list | tuple) else obj
    if dtype is None:
        return array
    if isinstance(array, int | float):  # a number stays one, of the kind of the dtype
        name = dtype_name(dtype)
        return int(array) if name in WHOLE else array != 0 if name == BOOL else float(array)
    return _of_kind(array, dtype) if isinstance(array, np.ndarray) else xp.cast(array, dtype)


def _of_kind(array: Any, dtype: Any) -> Any:
    """Return a constant of the kind of a dtype: integers and bools have it, floats take that of the
    tensors that they meet.
    """
    name = "" if dtype is None else dtype_name(dtype)
    if name in (BOOL, *WHOLE):
        return array.astype(name)
    return array.astype(np.result_type(array, np.float32)) if name else array


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one number: of x.shape, or of a static shape.

    Examples:
        >>> xp.full((2,), 7.0)
        array([7., 7.])
    """
    if isinstance(shape, SymbolicShape):
        made = creation.full(shape.value, fill_value, dtype)
        is_whole = dtype is not None and dtype_name(dtype) in WHOLE
        return xp.cast(made, dtype) if is_whole else made
    return _of_kind(np.full(shape, fill_value), dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones, a constant; as `full`.

    Examples:
        >>> xp.ones((2,))
        array([1., 1.])
    """
    return full(shape, 1.0, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros, a constant; as `full`.

    Examples:
        >>> xp.zeros((2,))
        array([0., 0.])
    """
    return full(shape, 0.0, dtype=dtype)


def empty_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros of the shape of x.

    Examples:
        >>> xp.empty_like(np.ones(3)).shape
        (3,)
    """
    return xp.zeros_like(x, dtype)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    """Evenly spaced numbers, a constant.

    Examples:
        >>> xp.arange(0, 6, 2)
        array([0, 2, 4])
    """
    bounds = (0, start, step) if stop is None else (start, stop, step)
    return _of_kind(np.arange(*map(creation.length, bounds)), dtype)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: Any = True,
) -> Any:
    """Numbers from start to stop, a constant.

    Examples:
        >>> xp.linspace(0.0, 1.0, 3)
        array([0. , 0.5, 1. ])
    """
    return _of_kind(np.linspace(start, stop, creation.length(num), endpoint=endpoint), dtype)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Any:
    """Ones on the k-th diagonal, a constant.

    Examples:
        >>> xp.eye(2)
        array([[1., 0.],
               [0., 1.]])
    """
    columns = None if n_cols is None else creation.length(n_cols)
    return _of_kind(np.eye(creation.length(n_rows), columns, k), dtype)


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether a dtype is of a kind: "bool", "integral", "real floating", "numeric", a dtype, or one
    of several.

    Examples:
        >>> xp.isdtype(xp.float32, "real floating")
        True
    """
    if isinstance(kind, tuple):
        return next((True for each in kind if isdtype(dtype, each)), False)
    if not isinstance(kind, str):
        return dtype == kind
    name = dtype_name(dtype)
    if name in WHOLE:
        sign = "unsigned" if name.startswith("u") else "signed"
        return kind in ("integral", f"{sign} integer", "numeric")
    return kind in (("bool",) if name == BOOL else ("real floating", "numeric"))


def vector_norm(x: Tensor, *, axis: Any = None, keepdims: Any = False, ord: Any = 2) -> Tensor:
    """The norm over axes, of any order."""
    return xp.norm(x, axis, keepdims, ord)


linalg = SimpleNamespace(
    matmul=xp.matmul,
    matrix_transpose=xp.matrix_transpose,
    vecdot=xp.vecdot,
    vector_norm=vector_norm,
)

__all__ = [
    "arange",
    "asarray",
    "associative_scan",
    "bfloat16",
    "bool",
    "cond",
    "empty_like",
    "eye",
    "finfo",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "fori_loop",
    "full",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "linalg",
    "linspace",
    "newaxis",
    "ones",
    "scan",
    "uint8",
    "zeros",
]


def find(name: str) -> Any:
    """Return a name of `xg.xp` that is none of the core's functions, or its `__all__`."""
    if name == "__all__":
        return [*__all__, *xp.__all__]
    if name in __all__:
        return globals()[name]
    if name in xp.__all__:
        return getattr(xp, name)
    raise missing_name_error("multigrad.xp", name, sorted([*__all__, *xp.__all__]))
