"""Functions on tensors of any framework: their numbers, keys and memory, and single ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from ...errors import BackendNotFound, UnsupportedOp
from .. import ops
from ..ir.op import BOOL, FLOATS, WHOLE, Op, dtype_name
from ..passes.simplify import on_numbers, symbol_function
from .contract import Backend
from .discovery import backend_among, backend_of

ARRAYS = (np.ndarray, np.generic)  # Dynamo reads no union of them
# No backend is asked about values of these types.
NO_TENSORS = (bool, int, float, str, bytes, type(None), list, tuple, dict)


def owner_of(value: Any) -> Backend | None:
    """Return the backend of a tensor, or None if a value is no tensor."""
    is_number = isinstance(value, np.number)  # np.float64 is a Python float too
    if isinstance(value, NO_TENSORS) and not is_number:
        return None
    try:
        return backend_of(value)
    except BackendNotFound:
        return None


def is_float_tensor(value: Any) -> bool:
    return owner_of(value) is not None and dtype_name(value.dtype) in FLOATS


def framework_of(values: Sequence[Any]) -> Backend | None:
    """Return the backend of the tensors among values, of arrays where there is no other tensor;
    None: there is neither.

    Raises:
        MultigradError: tensors of two frameworks are there.
    """
    tensors = [value for value in values if owner_of(value) is not None]
    return backend_among(tensors) if tensors else None


def in_one_framework(values: Sequence[Any]) -> list[Any]:
    """Return values, with NumPy's arrays as constants of the other tensors' framework.

    Raises:
        MultigradError: next to an array there are tensors of two frameworks.
    """
    if not any(isinstance(value, ARRAYS) for value in values):
        return list(values)
    backend = framework_of(values)
    if backend is None or issubclass(np.ndarray, backend.tensors.types):
        return list(values)
    tensors = [value for value in values if owner_of(value) is backend]

    def own(value: Any) -> Any:
        is_array = isinstance(value, ARRAYS)
        # Arrays of objects or strings, and complex ones, are left alone.
        if not is_array or dtype_name(value.dtype) not in (*FLOATS, *WHOLE, BOOL):
            return value
        # In the native byte order, as frameworks take it.
        array = np.asarray(value, value.dtype.newbyteorder("="))
        constant = backend.tensors.constant
        return backend.tensors.from_numpy(array) if constant is None else constant(array, tensors)

    return [own(value) for value in values]


def concrete_number(value: Any) -> float | None:
    """Return a 0-d tensor's number, or None where it is known at run time only."""
    tensors = backend_of(value).tensors
    return None if tensors.is_traced(value) else float(tensors.to_numpy(value))


# The float dtype of the call whose code runs as written, set by `within_call` while it runs: a mask
# has none of its own.
OF_CALL: ContextVar[Any] = ContextVar("of_call", default=None)
OF_MASKS = ("mean", "std", "var", "norm", "count_nonzero")  # their results are floats


def compute(op: Op, operands: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Compute one op at once, on the backend that owns its operands."""
    if operands and all(isinstance(o, bool | int | float) for o in operands):
        return on_numbers(op, operands, dict(attrs))
    backend = backend_among(operands)
    if any(isinstance(x, ARRAYS) for x in operands):
        operands = tuple(in_one_framework(operands))
    kernels = backend.kernels
    native = kernels.rows.get(op) or symbol_function(op)
    if native is None:
        reason = kernels.unsupported.get(op, "it has no row for it")
        raise UnsupportedOp(f"{op.name} is not available on {backend.name}: {reason}")
    # A mask and two numbers: nothing here has a float dtype.
    if op is ops.WHERE and all(type(o) in (int, float) for o in operands[1:]):
        operands = _filled(operands, backend)
    elif op.coerce in ("float", "where"):
        operands = _agree(op, operands, backend)
    reasons = kernels.unsupported.get(op)
    if isinstance(reasons, Mapping):
        _refuse_dtype(op, operands, backend, reasons)
    return native(*operands, **attrs)


def _refuse_dtype(
    op: Op, operands: tuple[Any, ...], backend: Backend, reasons: Mapping[str, str]
) -> None:
    for dtype in (dtype_name(o.dtype) for o in operands if hasattr(o, "dtype")):
        if dtype in reasons:
            raise UnsupportedOp(
                f"{op.name} is not available on {backend.name} for {dtype}: {reasons[dtype]}. "
                f"Cast to another float dtype before it and back after it"
            )


def _filled(operands: tuple[Any, ...], backend: Backend) -> tuple[Any, ...]:
    mask, x, y = operands
    dtype = OF_CALL.get()
    # Without a call the framework decides.
    if dtype is None:
        return operands
    return mask, backend.kernels.rows[ops.FULL_LIKE](mask, x, dtype=dtype), y


def _agree(op: Op, operands: tuple[Any, ...], backend: Backend) -> tuple[Any, ...]:
    # All take the dtype of the widest float tensor, as in a capture: torch itself would not count
    # one without axes among others. Two kinds of 16 bits are left to the framework.
    cast, weak = backend.kernels.rows[ops.CAST], backend.tensors.weak
    condition = operands[:1] if op is ops.WHERE else ()
    values = operands[len(condition) :]
    dtypes = [dtype_name(value.dtype) if hasattr(value, "dtype") else "bool" for value in values]
    floats = {name: v for v, name in zip(values, dtypes, strict=True) if "float" in name}
    widest = max(floats, key=lambda name: name.endswith("32") + 2 * name.endswith("64"), default="")
    like = floats.get(widest)
    if like is None and op.name in OF_MASKS and "bool" in dtypes[0]:
        like_dtype = backend.tensors.dtype("float32")
        return tuple(cast(value, dtype=like_dtype) for value in operands)
    if like is None:  # integers among themselves, and with numbers: as the framework has it
        return operands
    results: list[Any] = []
    for value, name in zip(values, dtypes, strict=True):
        if isinstance(value, bool | int | float):
            results.append(value if weak is None else weak(value, like.dtype))
        else:
            is_cast = "float" not in name or (name != widest and widest[-2:] in ("32", "64"))
            results.append(cast(value, dtype=like.dtype) if is_cast else value)
    return (*condition, *results)
