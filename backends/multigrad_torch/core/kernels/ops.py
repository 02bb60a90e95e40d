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


def dims_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def overdims_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the kernel for a reduction of torch over several axes."""

    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        if axis is None and not keepdims:
            return function(x)
        return function(x, dims_of(x, axis), keepdims)

    return reduce


def norm(x: Tensor, *, axis: Axis, keepdims: bool, ord: float) -> Tensor:
    if axis is None and keepdims:  # onnxscript (0.7.2) ignores keepdims without axes
        axis = tuple(range(x.ndim))
    if ord == 2 or x.numel() == 0:
        return torch.linalg.vector_norm(x, 2, axis, keepdims)
    return torch.linalg.vector_norm(x, ord, axis, keepdims)


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


def broadcast_to_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return torch.broadcast_to(x, shape)


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
    ops.SUM: overdims_of(torch.sum),
    ops.MEAN: overdims_of(torch.mean),
    ops.MAX: overdims_of(torch.amax),
    ops.MIN: overdims_of(torch.amin),
    ops.ANY: overdims_of(torch.any),
    ops.ALL: overdims_of(torch.all),
}
OPS = composing(
    OWN,
    late_value("multigrad_torch.kernels.other_ops:OPS"),
    elementwise.widened,
    draws=late_value("multigrad_torch.kernels.random:OPS"),
)
UNSUPPORTED: dict[Op, str] = {}
