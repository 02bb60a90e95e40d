"""Ops on tensors that are at hand: computed at once, on the backend that owns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from ...errors import UnsupportedOp
from ...graph import ops
from ...graph.ir.op import Op
from ...graph.ir.types import dtype_name
from ...graph.passes.scalars import on_numbers, symbol_function
from ..contract import Backend
from ..finding.discovery import backend_among
from .values import ARRAYS, in_one_framework

# The float dtype of the call whose code runs as written: a mask has none of its own.
_of_call: ContextVar[Any] = ContextVar("_of_call", default=None)
OF_MASKS = (ops.MEAN, ops.STD, ops.VAR, ops.NORM, ops.COUNT_NONZERO)  # their results are floats


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
    if op is ops.WHERE and all(type(o) in (int, float) for o in operands[1:]):
        operands = _filled(operands, backend)
    elif op.coerce in ("float", "where"):
        operands = _agree(op, operands, backend)
    reasons = kernels.unsupported.get(op)
    if isinstance(reasons, Mapping):
        _refuse_dtype(op, operands, backend, reasons)
    return native(*operands, **attrs)


def within_call(run: Callable[..., Any], leaves: Iterable[Any]) -> Callable[..., Any]:
    """Return a function whose numbers take the float dtype of a call's tensors, where these have
    one: `where(mask, 1e-6, -1e-6)` is of that, as capture has it.
    """
    dtypes = {leaf.dtype for leaf in leaves if "float" in str(getattr(leaf, "dtype", ""))}
    if len(dtypes) != 1:
        return run
    (dtype,) = dtypes

    def within(*args: Any, **kwargs: Any) -> Any:
        token = _of_call.set(dtype)
        try:
            return run(*args, **kwargs)
        finally:
            _of_call.reset(token)

    return within


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
    """Give the first of two numbers that a mask chooses between the dtype of the call, if any."""
    mask, first, second = operands
    dtype = _of_call.get()
    if dtype is None:
        return operands
    return mask, backend.kernels.rows[ops.FULL_LIKE](mask, first, dtype=dtype), second


def _agree(op: Op, operands: tuple[Any, ...], backend: Backend) -> tuple[Any, ...]:
    """Give numbers, masks and integers the dtype of the float tensors, as capture does."""
    cast, weak = backend.kernels.rows[ops.CAST], backend.tensors.weak
    kept = operands[:1] if op is ops.WHERE else ()  # the condition
    values = operands[len(kept) :]
    dtypes = [str(getattr(value, "dtype", "bool")) for value in values]
    like = next((v for v, name in zip(values, dtypes, strict=True) if "float" in name), None)
    if like is None and op in OF_MASKS and "bool" in dtypes[0]:
        like_dtype = backend.tensors.dtype("float32")
        return tuple(cast(value, dtype=like_dtype) for value in operands)
    if like is None:  # integers among themselves, and with numbers: as the framework has it
        return operands
    agreed: list[Any] = []
    for value, name in zip(values, dtypes, strict=True):
        if isinstance(value, bool | int | float):
            agreed.append(value if weak is None else weak(value, like.dtype))
        else:
            is_cast = "float" not in name
            agreed.append(cast(value, dtype=like.dtype) if is_cast else value)
    return (*kept, *agreed)
