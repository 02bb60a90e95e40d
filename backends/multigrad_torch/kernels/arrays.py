"""Torch's rows of the array family: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.graph import find_array
from multigrad.graph.ir.op import Op
from multigrad.graph.ops.arrays.products import as_matrix

from .. import dynamo
from . import convolutions, indices, linalg, ordering, random, shapes
from .ordering import factor

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active
count_modes = torch._C._len_torch_dispatch_stack
Axis = int | tuple[int, ...] | None


def _dims(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def over_dims(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction of torch as a row."""

    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        if axis is None and not keepdims:
            return function(x)
        return function(x, _dims(x, axis), keepdims)

    return reduce


def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if axis is None and not keepdims:
        return torch.prod(x)
    axes = [range(max(x.ndim, 1))[i] for i in _dims(x, axis)]  # an IndexError where there is none
    for position in sorted(axes, reverse=True):
        x = torch.prod(x, position, keepdims)
    return x


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.sum(x != 0, _dims(x, axis), keepdims).to(x.dtype)


def norm(x: Tensor, *, axis: Axis, keepdims: bool, ord: float) -> Tensor:
    if axis is None and keepdims:  # onnxscript (0.7.2) keeps no axes where none is named
        axis = tuple(range(x.ndim))
    if ord == 2 or x.numel() == 0:
        return torch.linalg.vector_norm(x, 2, axis, keepdims)
    return torch.linalg.vector_norm(x, ord, axis, keepdims)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.logsumexp(x, _dims(x, axis), keepdims) if x.ndim else x.clone()


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    return over_axes(torch.softmax, x, axis)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    return over_axes(torch.log_softmax, x, axis)


def over_axes(function: Callable[..., Tensor], x: Tensor, axis: Axis) -> Tensor:
    """Apply a function of one axis over several, merged into one."""
    if isinstance(axis, int):
        return function(x, axis)
    if axis is None or x.ndim == 0:
        return function(x.reshape(-1), 0).reshape(x.shape)
    back = tuple(range(-len(axis), 0))
    last = torch.movedim(x, axis, back)
    rows = last.reshape((*last.shape[: x.ndim - len(axis)], -1))
    return torch.movedim(function(rows, -1).reshape(last.shape), back, axis)


def glu(x: Tensor, *, axis: int) -> Tensor:
    return torch.nn.functional.glu(x, axis)


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.var(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.std(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    # The same kernel; of a tensor without dimensions the sum of one number would lose a -0.
    return x.sum_to_size(like.shape) if like.ndim or not x.ndim else x.sum()


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return x.expand(like.shape)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return x.unsqueeze(axis)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.numel()


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(factor(cotangent), like, b)
    columns = factor(b) if b.ndim > 1 else factor(b)[:, None]
    result = product @ columns.transpose(-1, -2)
    result = result if like.ndim > 1 else result[..., 0, :]
    return result.sum_to_size(like.shape).to(cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(factor(cotangent), a, like)
    rows = factor(a) if a.ndim > 1 else factor(a)[None]
    result = rows.transpose(-1, -2) @ product
    result = result if like.ndim > 1 else result[..., 0]
    return result.sum_to_size(like.shape).to(cotangent.dtype)


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    if len(arrays) == 2:
        return torch.einsum(subscripts, *arrays)
    return torch.einsum(subscripts, *map(factor, arrays)).to(arrays[0].dtype)


@dynamo.allow_in_graph  # a result that Dynamo took as a constant could be used only once
def cpu_array(serial: int) -> Tensor:
    """The values of a constant array, in float64 or as bools."""
    value = find_array(serial)
    return torch.tensor(value.as_numpy("bool" if value.dtype == "bool" else "float64"))


def array(like: Tensor, *, dtype: torch.dtype, value: Any) -> Tensor:
    """One tensor for each device and dtype; a constant of the graph where torch traces."""
    if torch.compiler.is_compiling() or count_modes():
        return cpu_array(value.serial).to(dtype).to(like.device)
    place = "torch", like.device, dtype
    tensor = value.native.get(place)
    if tensor is None:
        tensor = cpu_array(value.serial).to(dtype).to(like.device)
        # A transform, a mode or inference around this call has tensors of its own.
        if type(tensor) is Tensor and not (transforms_active() or tensor.is_inference()):
            value.native[place] = tensor
    return tensor


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.SUM: over_dims(torch.sum),
    ops.MEAN: over_dims(torch.mean),
    ops.MAX: over_dims(torch.amax),
    ops.MIN: over_dims(torch.amin),
    ops.ANY: over_dims(torch.any),
    ops.ALL: over_dims(torch.all),
    ops.MATMUL: torch.matmul,  # 16-bit products accumulate in float32 (2.13, CPU: 0.5 eps)
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **convolutions.OPS,
    **indices.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
NAMES = "matmul: bmm dot linalg.matmul matmul mm mv Tensor.dot Tensor.__matmul__"
