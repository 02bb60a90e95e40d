"""torch's kernels of array ops and linear algebra; each function is named after its op."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine.backend.array_rows import namesakes, orderings
from multigrad.engine.ops.indexing import along, as_index, as_pairs, from_front
from multigrad.engine.ops.products import as_matrix

from ..core.kernels.elementwise import fitting
from ..core.state import count_modes, tracing_state, transforms_active

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


Ints = tuple[int, ...]
BY_AXES = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def wide(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a result rounds once."""
    return x.float() if x.dtype.itemsize == 2 else x


def factor(x: Tensor) -> Tensor:
    """Return an operand of a product that is summed further; devices are faster in 16 bits."""
    return wide(x) if x.device.type == "cpu" else x


def accumulating(x: Tensor) -> Tensor:
    """Return x as a running sum takes it: a CPU rounds 16 bits once (torch 2.13: 0.5 eps)."""
    return x if x.device.type == "cpu" else wide(x)


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for axis, (length, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        x = x.unfold(first + axis, dilation * (length - 1) + 1, stride)[..., ::dilation]
    return x


def unwindows(x: Tensor, like: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first, sums = like.ndim - len(sizes), wide(x)
    # From the last axis back: the window axis to be summed is always the last one.
    for axis in range(len(sizes) - 1, -1, -1):
        length, dilation = sizes[axis], dilations[axis]
        reach = dilation * (length - 1) + 1
        if dilation > 1:
            with_gaps = sums.new_zeros((*sums.shape[:-1], reach))
            with_gaps[..., ::dilation] = sums
            sums = with_gaps
        shape = list(sums.shape[:-1])
        shape[first + axis] = like.shape[first + axis]
        if transforms_active():
            sums = unfold_backward(sums, shape, first + axis, strides[axis])
        else:
            sums = torch.ops.aten.unfold_backward(sums, shape, first + axis, reach, strides[axis])
    return sums.to(x.dtype)


def unfold_backward(x: Tensor, shape: Sequence[int], axis: int, stride: int) -> Tensor:
    """Add windows up as torch's op does, in its order: it has no batching rule (torch 2.15)."""
    reach, windows = x.shape[-1], x.shape[axis]
    count = -(-reach // stride)  # blocks of `stride` elements in a window
    blocks = F.pad(x, (0, count * stride - reach)).unflatten(-1, (count, stride))
    rows = max(windows + count - 1, -(-shape[axis] // stride))
    sums = x.new_zeros((*shape[:axis], rows, stride, *shape[axis + 1 :]))
    for i in reversed(range(count)):
        sums.narrow(axis, i, windows).add_(blocks.select(-2, i).movedim(-1, axis + 1))
    return sums.flatten(axis, axis + 1).narrow(axis, 0, shape[axis])


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    # Padding is an op of its own, hence 0.
    result = BY_AXES[len(strides)](factor(x), factor(w), None, strides, 0, dilations, groups)
    return result.to(x.dtype)


def conv_left(cotangent: Tensor, w: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    grad, kernels = factor(cotangent), factor(w)
    # Only the shape of x is read, so an expanded scalar stands for it.
    result = backward(grad, grad.new_empty(()).expand(like.shape), kernels, (True, False), attrs)
    return result[0].to(cotangent.dtype)


def conv_right(x: Tensor, cotangent: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    wide_x, grad = factor(x), factor(cotangent)
    result = backward(grad, wide_x, grad.new_empty(()).expand(like.shape), (False, True), attrs)
    return result[1].to(cotangent.dtype)


def backward(
    cotangent: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool], attrs: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Return the cotangents of x and w, each if wanted; of the other, only the shape is read."""
    zeros, output_mask = [0] * (x.ndim - 2), [*wanted, False]
    strides, dilations = list(attrs["strides"]), list(attrs["dilations"])
    return torch.ops.aten.convolution_backward(
        cotangent, x, w, None, strides, zeros, dilations, False, zeros, attrs["groups"], output_mask
    )


# --- places ---------------------------------------------------------------------------------------
def check_memory(x: Tensor, indices: Tensor) -> None:
    """Refuse indices without values on a real tensor: torch would read arbitrary memory."""
    if indices.is_meta and not x.is_meta:
        raise RuntimeError(f"indices on {indices.device} of a tensor on {x.device}")


def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    return torch.gather(x, axis, indices)


def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    values = wide(x)
    return torch.scatter_add(values.new_zeros(like.shape), axis, indices, values).to(x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    if indices.ndim == 1:
        return torch.index_select(x, axis, indices)
    axis = axis % x.ndim
    elements = torch.index_select(x, axis, indices.reshape(-1))
    return elements.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    axis, values = axis % like.ndim, wide(x)
    if indices.ndim != 1:
        shape = (*like.shape[:axis], indices.numel(), *like.shape[axis + 1 :])
        values, indices = values.reshape(shape), indices.reshape(-1)
    return values.new_zeros(like.shape).index_add(axis, indices, values).to(x.dtype)


def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    # The highest position wins wherever several indices agree; -1 means that none was put.
    last = torch.full(like.shape, -1, dtype=torch.int64, device=indices.device)
    sources = positions(indices, axis).expand(indices.shape)
    return torch.scatter_reduce(last, axis, indices, sources, "amax")


# --- linear algebra -------------------------------------------------------------------------------
def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    a, upper = (a.mT, lower) if transposed else (a, not lower)
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit)


def solve(a: Tensor, b: Tensor) -> Tensor:
    # torch takes b with one axis less than a as a batch of vectors; here it is a matrix.
    if a.ndim > b.ndim:
        b = b[(None,) * (a.ndim - b.ndim)]
    return torch.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * torch.finfo(x.dtype).eps)
    # torch.linalg.pinv scales v instead of u, so it rounds differently from NumPy and JAX. x + 0 *
    # x turns infinities into NaN, for which svd raises an error.
    u, s, vh = torch.linalg.svd(x + 0 * x, full_matrices=False)
    inverse = torch.where(s > cutoff * s[..., :1], 1 / s, 0)
    return vh.mT @ (inverse[..., None] * u.mT)


# --- factors --------------------------------------------------------------------------------------
def lu(x: Tensor) -> Tensor:
    return torch.linalg.lu_factor_ex(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return torch.linalg.lu_factor_ex(wide(x))[1].long() - 1


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    *batch, count = indices.shape
    # lu_unpack reads only the shape of the factors, and counts pivots from 1.
    factors = torch.empty((*batch, like.shape[-2], count), device=indices.device)
    permutation = torch.lu_unpack(factors, (indices + 1).int(), unpack_data=False)[0]
    rows = torch.arange(like.shape[-2], dtype=permutation.dtype, device=permutation.device)
    return (permutation.mT @ rows).long()


def svd(x: Tensor) -> Tensor:
    # As in pinv: NaN instead of infinities, so that an error is raised.
    u, s, vh = torch.linalg.svd(x + 0 * x, full_matrices=False)
    return torch.cat((s[..., None, :], u, vh.mT), -2)


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = torch.linalg.eigh(x, "L" if lower else "U")
    return torch.cat((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return torch.linalg.eigvalsh(x, UPLO="L" if lower else "U")


def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    complex_x, dims = torch.view_as_complex(x.contiguous()), [axis + 1 for axis in axes]
    if inverse:
        return torch.view_as_real(torch.fft.ifftn(complex_x, dim=dims, norm="forward"))
    return torch.view_as_real(torch.fft.fftn(complex_x, dim=dims))


# --- shapes ---------------------------------------------------------------------------------------
def permute_dims(x: Tensor, *, axes: Any) -> Tensor:
    return x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes)


def swapaxes(x: Tensor, *, axis1: int, axis2: int) -> Tensor:
    return x.transpose(axis1, axis2)


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    axes = tuple(range(x.ndim)) if axis is None or x.ndim == 0 else axis
    return torch.flip(x, axes if isinstance(axes, tuple) else (axes,))


def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
    return torch.roll(x, shift, () if axis is None else axis) if x.ndim else x


@functools.lru_cache(maxsize=1024)
def as_torch_index(index: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """Return the index, and whether every slice has a positive step, which torch requires."""
    steps = [item[2] for item in index if isinstance(item, tuple)]
    return as_index(index), all(step is None or step > 0 for step in steps)


def places(x: Tensor, index: tuple[Any, ...]) -> Tensor:
    """Return the flat positions of the elements that an index with a negative step takes."""
    import numpy as np

    # A copy, as torch refuses negative strides, also of one element.
    flat = np.arange(math.prod(x.shape)).reshape(x.shape)[index].copy()
    return torch.as_tensor(flat, device=x.device)


def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item, is_simple = as_torch_index(index)
    return x[item] if is_simple else torch.take(x, places(x, item))


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item, is_simple = as_torch_index(index)
    zeros = x.new_zeros(like.shape)
    if is_simple:
        zeros[item] = x
        return zeros
    flat_positions = places(like, item).reshape(-1)
    return zeros.reshape(-1).index_add(0, flat_positions, x.reshape(-1)).reshape(like.shape)


def put(x: Tensor, value: Any, *, index: tuple[Any, ...]) -> Tensor:
    if transforms_active() and isinstance(value, Tensor):
        # A copy that has the batches of both, as `vmap` writes into no tensor that lacks one.
        copy = torch.where(x.new_ones((), dtype=torch.bool), x, value.new_zeros(()))
        return put_over(copy, value, index=index)
    return put_over(x.clone(), value, index=index)


def put_over(x: Tensor, value: Any, *, index: tuple[Any, ...]) -> Tensor:
    """Write a value where the index points, over x itself."""
    item, is_simple = as_torch_index(index)
    value = fitting(value, x.dtype)
    if is_simple:
        x[item] = value
        return x
    flat_positions = places(x, item)
    values = value if isinstance(value, Tensor) else x.new_full((), value)
    return x.put_(flat_positions, values.expand(flat_positions.shape))


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return torch.index_select(x, axis, positive(x, indices, axis))


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    front_indices = from_front(indices, x.shape[axis])
    return torch.tensor(front_indices, dtype=torch.int64, device=x.device)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    values = wide(x)
    zeros = values.new_zeros(like.shape)
    return zeros.index_add(axis, positive(like, indices, axis), values).to(x.dtype)


def repeat(x: Tensor, *, repeats: int, axis: int) -> Tensor:
    return torch.repeat_interleave(x, repeats, axis)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    pairs = as_pairs(widths, x.ndim)
    # torch lists the sides of the last axis first.
    sides = [n for pair in reversed(pairs) for n in pair]
    return torch.nn.functional.pad(x, sides, value=fill)


def concatenate(*arrays: Tensor, axis: int) -> Tensor:
    return torch.cat(arrays, axis)


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return x.narrow(axis, start, like.shape[axis])


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    zeros = x.new_zeros(like.shape)
    zeros[along(x, start, x.shape[axis], axis)] = x
    return zeros


# --- reductions and products ----------------------------------------------------------------------
def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    # Vectors become matrices, so that one product serves all ranks.
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
    # Several products: intermediate results of 16 bits would each round.
    return torch.einsum(subscripts, *map(factor, arrays)).to(arrays[0].dtype)


# --- sorting and running reductions ---------------------------------------------------------------
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.cumsum(accumulating(x), axis).to(x.dtype)
    return torch.cumsum(accumulating(x).flip(axis), axis).flip(axis).to(x.dtype)


def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumprod(accumulating(x), axis).to(x.dtype)


def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not reverse or x.ndim == 0:
        return torch.logcumsumexp(x, axis)
    return torch.logcumsumexp(x.flip(axis), axis).flip(axis)


def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    """Return running discounted sums, by adding neighbors at twice the distance in each step."""
    if values.ndim == 0:
        return values.clone()
    sums, y = (values.flip(axis), y.flip(axis)) if reverse else (values, y)
    shift, length = 1, values.shape[axis]
    while shift < length:
        later, earlier = (y.narrow(axis, offset, length - shift) for offset in (shift, 0))
        # Equal infinities differ by NaN, hence the comparison first.
        share = torch.where(later == earlier, 1.0, torch.exp((later - earlier).clamp(max=0.0)))
        later_sums = sums.narrow(axis, shift, length - shift) + share * sums.narrow(
            axis, 0, length - shift
        )
        sums, shift = torch.cat([sums.narrow(axis, 0, shift), later_sums], axis), shift * 2
    return sums.flip(axis) if reverse else sums


def cummax(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummax(x, axis).values


def cummin(x: Tensor, *, axis: int) -> Tensor:
    return torch.cummin(x, axis).values


def positions(x: Tensor, axis: int) -> Tensor:
    """Return the index of each element along an axis, in a shape that broadcasts."""
    axis = axis % max(x.ndim, 1)
    indices = torch.arange(x.shape[axis] if x.ndim else 1, device=x.device)
    return indices.reshape((-1,) + (1,) * (x.ndim - 1 - axis)) if x.ndim else indices[0]


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(x.detach(), stable=True, dim=axis, descending=descending).indices


def sort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return torch.sort(x, stable=True, dim=axis, descending=descending).values


def gathered(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return the elements of x at positions along an axis, different ones for each row."""
    return torch.gather(x, axis, places)


# --- masks as bits, eight to a byte, the first in the highest bit ---------------------------------
# Eight bools in memory are one int64, whose product with MAGIC has them in its highest byte:
# 1,000,000 bools take 0.06 ms, a weighted sum of eight columns 0.65.
MAGIC = 0x8040201008040201 - (1 << 64)  # bit 9k for each k
ONES, PLACES = 0x0101010101010101, 0x0102040810204080  # a byte eight times; another bit of each
LITTLE = sys.byteorder == "little"
BITS = [128, 64, 32, 16, 8, 4, 2, 1]


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor's memory may be read as that of another dtype."""
    if torch.compiler.is_compiling() or tracing_state() is not None:
        return False
    return type(x) is Tensor and LITTLE and not (transforms_active() or count_modes())


def pack(mask: Tensor) -> Tensor:
    flat = mask.reshape(-1)
    size = flat.shape[0]
    missing = -size % 8
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    if is_plain(mask) and flat.data_ptr() % 8 == 0:
        words = flat.view(torch.int64) * MAGIC
        return words.view(torch.uint8)[7::8].clone()
    columns = flat.reshape(-1, 8).to(torch.uint8)
    weights = torch.tensor(BITS, dtype=torch.uint8, device=mask.device)
    return (columns * weights).sum(-1, dtype=torch.uint8)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    """Return the mask that was packed, in the shape of a tensor."""
    size = like.numel()
    if is_plain(bits):
        words = (bits.to(torch.int64) * ONES).bitwise_and_(PLACES)
        flat = words.view(torch.uint8) != 0
    else:
        places = torch.tensor(BITS, dtype=torch.uint8, device=bits.device)
        flat = ((bits.unsqueeze(-1) & places) != 0).reshape(-1)
    return flat[:size].reshape(like.shape)


OPS: dict[Op, Callable[..., Any]] = {
    **orderings(order, gathered),
    **namesakes(torch),
    **rows_of(vars()),
    ops.MATMUL: torch.matmul,  # 16-bit products accumulate in float32 (2.13, CPU: 0.5 eps)
    ops.ARGMAX: torch.argmax,
    ops.ARGMIN: torch.argmin,
    ops.ARGSORT: order,
    ops.CHOLESKY: torch.linalg.cholesky,
    ops.INV: torch.linalg.inv,
    ops.DET: torch.linalg.det,
    ops.EXPM: torch.linalg.matrix_exp,
    ops.SVDVALS: torch.linalg.svdvals,
    ops.MOVEAXIS: torch.movedim,
}
# By op, what writes over its operand, as in `fast.py`.
IN_PLACE = {ops.PUT: (put_over, None)}
