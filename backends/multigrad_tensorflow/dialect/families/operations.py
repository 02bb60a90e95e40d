"""TensorFlow's dialect, the operations of its graphs: each is recorded by the row of the function
of the same meaning.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import tensorflow as tf

from multigrad.capture.meanings import parts
from multigrad.capture.meanings.parts import rank
from multigrad.trace.xp import all as xp

from . import linalg
from .parts import OPERATIONS
from .shapes import static

Tensor = Any
Handler = Callable[..., Any]
ROOMS = (tf, tf.math, tf.nn, tf.linalg, tf.bitwise)
# Functions, and the operations that mean them under another name, in brackets the parameters that
# are their inputs, and those that are attributes of another name; "" is dropped. Then operations
# named as the function is, and reductions.
ROWS = """
    argmax: ArgMax; argmin: ArgMin; cast: Cast(x DstT=dtype); concat: ConcatV2; gather:
    GatherV2(params indices axis); identity: Snapshot EnsureShape(input shape=); linalg.band_part:
    MatrixBandPart; linalg.det: MatrixDeterminant; linalg.diag_part: MatrixDiagPart
    MatrixDiagPartV3(input k padding_value); linalg.triangular_solve: MatrixTriangularSolve;
    math.reciprocal: Inv; math.top_k: TopKV2; matmul: MatMul
    BatchMatMul(a b adj_x=adjoint_a adj_y=adjoint_b)
    BatchMatMulV2(a b adj_x=adjoint_a adj_y=adjoint_b); nn.avg_pool2d: AvgPool; nn.avg_pool3d:
    AvgPool3D; nn.conv2d: Conv2D; nn.conv2d_transpose:
    Conv2DBackpropInput(output_shape filters input); nn.conv3d: Conv3D; nn.depthwise_conv2d:
    DepthwiseConv2dNative; nn.max_pool2d: MaxPool; nn.max_pool3d: MaxPool3D;
    nn.softmax_cross_entropy_with_logits: SoftmaxCrossEntropyWithLogits(logits labels);
    nn.sparse_softmax_cross_entropy_with_logits: SparseSoftmaxCrossEntropyWithLogits(logits labels);
    squeeze: Squeeze(input squeeze_dims=axis);
    stack: Pack; tensor_scatter_nd_add: TensorScatterAdd; tensor_scatter_nd_update:
    TensorScatterUpdate; truncatediv: TruncateDiv; truncatemod: Mod TruncateMod;
    math.reduce_euclidean_norm: EuclideanNorm(input_tensor axis keep_dims=keepdims)
"""
SAME = """
    AddN BiasAdd BitwiseAnd BitwiseOr BitwiseXor BroadcastTo Cholesky ClipByValue Cross Cumprod
    Cumsum CumulativeLogsumexp Equal ExpandDims Fill GatherNd Invert L2Loss LeftShift
    LogSoftmax NotEqual OneHot OnesLike Polygamma Reshape ReverseV2 RightShift Roll ScatterNd
    Slice Softmax StopGradient Tile Transpose UnsortedSegmentSum ZerosLike
"""
REDUCTIONS = "All Any Max Mean Min Prod Sum"


def called_as(function: Handler, words: Sequence[str], /, *inputs: Any, **attributes: Any) -> Any:
    """Call a row with inputs and attributes under the names that its function has for them."""
    renamed = dict(word.split("=") for word in words if "=" in word)
    given = {renamed.get(name, name): value for name, value in attributes.items()}
    given.pop("", None)
    names = [word for word in words if "=" not in word]
    if names:
        return function(**dict(zip(names, inputs, strict=True)), **given)
    return function(*inputs, **given)


def reduced(function: Handler, x: Tensor, axis: Any, keep_dims: bool = False) -> Tensor:
    """Along no axis, a reduction is nothing."""
    return x if static(axis) == [] else function(x, axis, keepdims=keep_dims)


def strided_slice(x: Tensor, *ends: Any, **masks: int) -> Tensor:
    """An index from begin, end and strides, whose masks say what each place is."""

    def place(i: int, start: int, stop: int, step: int) -> Any:
        marks = {name.removesuffix("_mask") for name, bits in masks.items() if bits & 1 << i}
        if "ellipsis" in marks:
            return ...
        if "new_axis" in marks:
            return None
        if "shrink_axis" in marks:
            return start
        return slice(None if "begin" in marks else start, None if "end" in marks else stop, step)

    rows = zip(*map(static, ends), strict=True)
    return x[tuple(place(i, *row) for i, row in enumerate(rows))]


def select(condition: Any, x: Any, y: Any) -> Tensor:
    """By a condition of the same shape, which does not choose rows."""
    if rank(condition) != rank(x):
        raise TypeError("Select of whole rows")
    return xp.where(condition, x, y)


def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    n, high, wide, channels = x.shape
    blocks = xp.reshape(x, (n, high, wide, block_size, block_size, channels // block_size**2))
    mixed = xp.permute_dims(blocks, (0, 1, 3, 2, 4, 5))
    return xp.reshape(mixed, (n, high * block_size, wide * block_size, -1))


def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    n, high, wide, channels = x.shape
    high, wide = high // block_size, wide // block_size
    blocks = xp.reshape(x, (n, high, block_size, wide, block_size, channels))
    return xp.reshape(xp.permute_dims(blocks, (0, 1, 3, 2, 4, 5)), (n, high, wide, -1))


def space_to_batch(x: Tensor, block_shape: Any, paddings: Any) -> Tensor:
    steps, count = static(block_shape), len(static(block_shape))
    x = xp.pad(x, ((0, 0), *map(tuple, static(paddings)), *((0, 0),) * (rank(x) - count - 1)))
    n, *lengths = x.shape
    pairs = zip(lengths, steps, strict=False)
    parts = [each for whole, step in pairs for each in (whole // step, step)]
    blocks = xp.reshape(x, (n, *parts, *lengths[count:]))
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count, 2)
    mixed = xp.permute_dims(blocks, (*inner, 0, *outer, *range(2 * count + 1, rank(blocks))))
    return xp.reshape(mixed, (-1, *parts[::2], *lengths[count:]))


def batch_to_space(x: Tensor, block_shape: Any, crops: Any) -> Tensor:
    steps, count = static(block_shape), len(static(block_shape))
    _, *lengths = x.shape
    blocks = xp.reshape(x, (*steps, -1, *lengths))
    pairs = (each for i in range(count) for each in (count + 1 + i, i))
    mixed = xp.permute_dims(blocks, (count, *pairs, *range(2 * count + 1, rank(blocks))))
    whole = [n * step for n, step in zip(lengths, steps, strict=False)]
    ends = zip(static(crops), whole, strict=True)
    inside = (slice(before, n - after) for (before, after), n in ends)
    return xp.reshape(mixed, (-1, *whole, *lengths[count:]))[(slice(None), *inside)]


def pieces(x: Tensor, lengths: Any, axis: int, num_split: int) -> tuple[Tensor, ...]:
    """Stretches of these lengths, of which one may be -1."""
    sizes = static(lengths)
    rest = parts.length(x, axis) - sum(sizes) - 1
    return parts.pieces(x, [rest if n == -1 else n for n in sizes], axis)


@functools.cache
def table() -> dict[str, tuple[Any, Sequence[str]]]:
    found = {}
    for entry in ROWS.split(";"):
        name, _, kinds = " ".join(entry.split()).partition(": ")
        for kind, words in re.findall(r"(\w+)(?:\(([^)]*)\))?", kinds):
            found[kind] = (attrgetter(name)(tf), tuple(words.split()))
    return found


OWN: dict[str, Handler] = {
    "BatchToSpaceND": batch_to_space,
    **linalg.OPERATIONS,
    **OPERATIONS,
    "Einsum": lambda inputs, equation: xp.einsum(equation, *inputs),
    "DepthToSpace": depth_to_space,
    "IdentityN": lambda inputs: inputs,
    "Select": select,
    "SpaceToBatchND": space_to_batch,
    "SpaceToDepth": space_to_depth,
    "Split": lambda axis, value, num_split: parts.split(value, num_split, axis),
    "SplitV": pieces,
    "StridedSlice": strided_slice,
    "Unpack": lambda value, axis=0, num=0: parts.unstack(value, axis),
}


def find_operation(kind: str, aliases: Mapping[Any, Handler]) -> Handler | None:
    """Return the handler of a graph's operation, None where there is none."""
    if kind in OWN:
        return OWN[kind]
    if kind in REDUCTIONS.split():
        return functools.partial(reduced, aliases[getattr(tf, f"reduce_{kind.lower()}")])
    if kind in table():
        function, words = table()[kind]
        return functools.partial(called_as, aliases[function], words)
    functions = [getattr(tf.raw_ops, kind, None)]
    if kind in SAME.split():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.removesuffix("V2")).lower()
        functions += [getattr(room, name, None) for room in ROOMS]
    return next((aliases[each] for each in functions if each in aliases), None)
