"""torch's kernel table, op to callable, with the kernels of reductions, shapes and constant arrays.
Symbols that are left out are written infix; functions are named after ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import composing, rows_of
from multigrad.core.ir.graph import find_array
from multigrad.core.ir.op import Op
from multigrad.core.support.lazy_modules import late_value

from .. import dynamo
from ..state import count_modes, transforms_active
from . import elementwise

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


def wide(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a result rounds once."""
    return x.float() if x.dtype.itemsize == 2 else x


def _dims(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def over_dims(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the kernel for a reduction of torch over several axes."""

    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        if axis is None and not keepdims:
            return function(x)
        return function(x, _dims(x, axis), keepdims)

    return reduce


def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if axis is None and not keepdims:
        return torch.prod(x)
    axes = [range(max(x.ndim, 1))[i] for i in _dims(x, axis)]  # raises IndexError for a wrong axis
    # torch.prod takes one axis; from the last one back, the remaining positions stay valid.
    for position in sorted(axes, reverse=True):
        x = torch.prod(x, position, keepdims)
    return x


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.sum(x != 0, _dims(x, axis), keepdims).to(x.dtype)


def norm(x: Tensor, *, axis: Axis, keepdims: bool, ord: float) -> Tensor:
    if axis is None and keepdims:  # onnxscript (0.7.2) ignores keepdims without axes
        axis = tuple(range(x.ndim))
    if ord == 2 or x.numel() == 0:
        return torch.linalg.vector_norm(x, 2, axis, keepdims)
    return torch.linalg.vector_norm(x, ord, axis, keepdims)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.logsumexp(x, _dims(x, axis), keepdims) if x.ndim else x.clone()


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the kernel for a function of one axis; several axes are merged into one."""

    def apply(x: Tensor, *, axis: Axis) -> Tensor:
        if isinstance(axis, int):
            return function(x, axis)
        if axis is None or x.ndim == 0:
            return function(x.reshape(-1), 0).reshape(x.shape)
        last_axes = tuple(range(-len(axis), 0))
        moved = torch.movedim(x, axis, last_axes)
        rows = moved.reshape((*moved.shape[: x.ndim - len(axis)], -1))
        return torch.movedim(function(rows, -1).reshape(moved.shape), last_axes, axis)

    return apply


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.var(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.std(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    # The same kernel; but the sum of a 0-d tensor would turn -0 into 0.
    return x.sum_to_size(like.shape) if like.ndim or not x.ndim else x.sum()


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return x.expand(like.shape)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return x.unsqueeze(axis)


def size(x: Tensor) -> int:
    return x.numel()


# --- shapes and constants -------------------------------------------------------------------------
def squeeze(x: Tensor, *, axis: Axis) -> Tensor:
    if axis is None:
        return x.squeeze()
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(x.shape[i] != 1 for i in axes):  # torch silently keeps longer axes
        raise ValueError(f"axis {axis} of a tensor of shape {tuple(x.shape)} is not of length 1")
    return x.squeeze(axes)


def broadcast_to_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return torch.broadcast_to(x, shape)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return torch.reshape(x, like.shape)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


# Not assume_constant_result: a result that Dynamo takes as a constant can be used only once.
@dynamo.allow_in_graph
def cpu_array(serial: int) -> Tensor:
    """Return the values of a constant array, in float64 or as bools."""
    value = find_array(serial)
    return torch.tensor(value.as_numpy("bool" if value.dtype == "bool" else "float64"))


def array(like: Tensor, *, dtype: torch.dtype, value: Any) -> Tensor:
    """Return a constant array, cached by device and dtype; in a trace, a constant of its graph."""
    if torch.compiler.is_compiling() or count_modes():
        return cpu_array(value.serial).to(dtype).to(like.device)
    key = "torch", like.device, dtype
    tensor = value.native.get(key)
    if tensor is None:
        tensor = cpu_array(value.serial).to(dtype).to(like.device)
        # Tensors of a transform, a mode or inference mode are not for other calls.
        if type(tensor) is Tensor and not (transforms_active() or tensor.is_inference()):
            value.native[key] = tensor
    return tensor


OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **rows_of(vars(), ops.CORE_OPS),
    ops.SUM: over_dims(torch.sum),
    ops.MEAN: over_dims(torch.mean),
    ops.MAX: over_dims(torch.amax),
    ops.MIN: over_dims(torch.amin),
    ops.ANY: over_dims(torch.any),
    ops.ALL: over_dims(torch.all),
    ops.SOFTMAX: over_axes(torch.softmax),
    ops.LOG_SOFTMAX: over_axes(torch.log_softmax),
    ops.RESHAPE: torch.reshape,
}
# Computed in float32 for 16-bit floats and rounded once, as torch's kernels either lack 16 bits or
# round more than once (torch 2.13, CPU: log_softmax up to 0.9 eps, a product of 1001 numbers 47).
WIDE = (*(ops.CBRT, ops.HARD_SHRINK, ops.LOG_SOFTMAX, ops.LOGSUMEXP, ops.PROD),)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}

OPS = composing(
    OWN,
    late_value("multigrad_torch.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_torch.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
