"""The operations of TensorFlow's graphs, in ops: `find_operation` gives the handler of each type.

An operation has, in this order, a handler of its own (OWN); that of a reduction; that of a function
of another name, with its parameters renamed (ROWS); or that of the function of the same name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import tensorflow as tf

from multigrad.core.trace.trace import cast
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import layers, parts
from multigrad.engine.capture.meanings.layers import channels_first, channels_last
from multigrad.engine.capture.meanings.parts import length, rank
from multigrad.engine.capture.name_tables import parse

from . import linalg
from .arrays import static

Tensor = Any
Handler = Callable[..., Any]

ROOMS = (tf, tf.math, tf.nn, tf.linalg, tf.bitwise)
# Functions with the operations of other names that mean the same. In brackets: the parameters that
# are an operation's inputs, and its attributes of other names, `attribute=parameter`; an attribute
# without a parameter is dropped.
ROWS = """
    argmax: ArgMax; argmin: ArgMin; equal: Equal(x y incompatible_shape_error=); not_equal:
    NotEqual(x y incompatible_shape_error=); cast: Cast(x DstT=dtype); concat: ConcatV2; gather:
    GatherV2(params indices axis); identity: Snapshot EnsureShape(input shape=); linalg.band_part:
    MatrixBandPart; linalg.det: MatrixDeterminant; linalg.diag_part: MatrixDiagPart
    MatrixDiagPartV3(input k padding_value); linalg.triangular_solve: MatrixTriangularSolve;
    math.reciprocal: Inv; math.top_k: TopKV2; matmul: MatMul
    BatchMatMul(a b adj_x=adjoint_a adj_y=adjoint_b)
    BatchMatMulV2(a b adj_x=adjoint_a adj_y=adjoint_b);
    nn.softmax_cross_entropy_with_logits: SoftmaxCrossEntropyWithLogits(logits labels);
    nn.sparse_softmax_cross_entropy_with_logits: SparseSoftmaxCrossEntropyWithLogits(logits labels);
    squeeze: Squeeze(input squeeze_dims=axis);
    stack: Pack; tensor_scatter_nd_add: TensorScatterAdd; tensor_scatter_nd_update:
    TensorScatterUpdate; truncatediv: TruncateDiv;
    math.reduce_euclidean_norm: EuclideanNorm(input_tensor axis keep_dims=keepdims)
"""
# Operations that are named as their functions are, `ExpandDims` for `expand_dims`.
NAMED_ALIKE = """
    AddN BiasAdd BroadcastTo Cholesky ClipByValue Cross Cumprod Cumsum CumulativeLogsumexp
    ExpandDims Fill GatherNd L2Loss LogSoftmax OneHot OnesLike Polygamma Reshape ReverseV2 ScatterNd
    Slice Softmax Tile Transpose UnsortedSegmentSum ZerosLike
"""
REDUCTIONS = "All Any Max Mean Min Prod Sum"  # `tf.reduce_all` and so on
BY_OPERATION: dict[str, tuple[Any, Sequence[str]]] = {
    operation.name: (attrgetter(entry.head.name)(tf), operation.brackets.split())
    for entry in parse(ROWS, "operations of TensorFlow's graphs")
    for operation in entry.names
}


def find_operation(kind: str, aliases: Mapping[Any, Handler]) -> Handler | None:
    """Return the handler of a graph's operation, if there is one."""
    if kind in OWN:
        return OWN[kind]
    if kind in REDUCTIONS.split():
        return functools.partial(reduce, aliases[getattr(tf, f"reduce_{kind.lower()}")])
    if kind in BY_OPERATION:
        function, parameters = BY_OPERATION[kind]
        return functools.partial(call_by_names, aliases[function], parameters)
    functions = [getattr(tf.raw_ops, kind, None)]
    if kind in NAMED_ALIKE.split():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.removesuffix("V2")).lower()
        functions += [getattr(room, name, None) for room in ROOMS]
    return next((aliases[each] for each in functions if each in aliases), None)


def call_by_names(
    function: Handler, parameters: Sequence[str], /, *inputs: Any, **attributes: Any
) -> Any:
    """Call a function's handler for an operation, given the words in its row's brackets."""
    renamed = dict(word.split("=") for word in parameters if "=" in word)
    options = {renamed.get(name, name): value for name, value in attributes.items()}
    options.pop("", None)
    names = [word for word in parameters if "=" not in word]
    if names:
        return function(**dict(zip(names, inputs, strict=True)), **options)
    return function(*inputs, **options)


def reduce(function: Handler, x: Tensor, axis: Any, keep_dims: bool = False) -> Tensor:
    # TensorFlow reduces nothing for an empty list
    return x if static(axis) == [] else function(x, axis, keepdims=keep_dims)


def normalize_locally(
    x: Tensor, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
) -> Tensor:
    # over channels on each side, as in AlexNet (section 3.3)
    widths = ((0, 0),) * (rank(x) - 1) + ((depth_radius, depth_radius),)
    windows = xp.windows(xp.pad(x * x, widths), (2 * depth_radius + 1,), (1,), (1,))
    return x / xp.pow(bias + alpha * xp.sum(windows, -1), beta)


def pad(x: Tensor, pairs: Any, fill: Any = 0.0, *, mode: str = "constant") -> Tensor:
    return parts.padded(x, static(pairs), mode.lower(), fill)


def strided_slice(x: Tensor, *ends: Any, **masks: int) -> Tensor:
    """Return an index by begin, end and strides, whose bit masks give the kind of each place."""

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
    # a condition of one axis would choose rows
    if rank(condition) != rank(x):
        raise TypeError("Select of whole rows")
    return xp.where(condition, x, y)


def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    n, height, width, channels = x.shape
    blocks = xp.reshape(x, (n, height, width, block_size, block_size, channels // block_size**2))
    grid = xp.permute_dims(blocks, (0, 1, 3, 2, 4, 5))
    return xp.reshape(grid, (n, height * block_size, width * block_size, -1))


def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    n, height, width, channels = x.shape
    height, width = height // block_size, width // block_size
    blocks = xp.reshape(x, (n, height, block_size, width, block_size, channels))
    return xp.reshape(xp.permute_dims(blocks, (0, 1, 3, 2, 4, 5)), (n, height, width, -1))


def space_to_batch(x: Tensor, block_shape: Any, paddings: Any) -> Tensor:
    steps, count = static(block_shape), len(static(block_shape))
    x = xp.pad(x, ((0, 0), *map(tuple, static(paddings)), *((0, 0),) * (rank(x) - count - 1)))
    n, *lengths = x.shape
    pairs = zip(lengths, steps, strict=False)
    sizes = [each for total, step in pairs for each in (total // step, step)]
    blocks = xp.reshape(x, (n, *sizes, *lengths[count:]))
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count, 2)
    grid = xp.permute_dims(blocks, (*inner, 0, *outer, *range(2 * count + 1, rank(blocks))))
    return xp.reshape(grid, (-1, *sizes[::2], *lengths[count:]))


def batch_to_space(x: Tensor, block_shape: Any, crops: Any) -> Tensor:
    steps, count = static(block_shape), len(static(block_shape))
    _, *lengths = x.shape
    blocks = xp.reshape(x, (*steps, -1, *lengths))
    pairs = (each for i in range(count) for each in (count + 1 + i, i))
    grid = xp.permute_dims(blocks, (count, *pairs, *range(2 * count + 1, rank(blocks))))
    totals = [n * step for n, step in zip(lengths, steps, strict=False)]
    ends = zip(static(crops), totals, strict=True)
    window = (slice(before, n - after) for (before, after), n in ends)
    return xp.reshape(grid, (-1, *totals, *lengths[count:]))[(slice(None), *window)]


def split_by_lengths(x: Tensor, lengths: Any, axis: int, num_split: int) -> tuple[Tensor, ...]:
    """Return stretches of these lengths, of which one may be -1."""
    sizes = static(lengths)
    remainder = length(x, axis) - sum(sizes) - 1
    return parts.pieces(x, [remainder if n == -1 else n for n in sizes], axis)


# --- convolutions, poolings, resizing of images ---------------------------------------------------
# TensorFlow has channels last, or first if `data_format` says so; ours are first. An option has a
# number for each axis, of which those for examples and channels must be 1.
def on_images(compute: Handler, position: int = 0) -> Handler:
    """Return the handler of an operation on images, which are the input at `position`.

    Args:
        compute: takes images with channels first; each option's numbers for the axes between
            examples and channels; and `border`: "same", "valid", or the (before, after) of each.
    """

    def record(
        *inputs: Any,
        padding: str,
        explicit_paddings: Any = (),
        data_format: str = "C",
        **options: Any,
    ) -> Tensor:
        operands, is_last = list(inputs), data_format[-1] == "C"
        axes = slice(1, -1) if is_last else slice(2, None)
        for name, each in options.items():
            if (each[0], each[-1 if is_last else 1]) != (1, 1):
                raise TypeError(f"{name} of {each} over examples or channels")
        numbers = {name: tuple(each[axes]) for name, each in options.items()}
        pairs = tuple(zip(explicit_paddings[::2], explicit_paddings[1::2], strict=True))
        if position:  # the result's shape is the first input
            operands[0] = static(operands[0])[axes]
        if is_last:
            operands[position] = channels_first(operands[position])
        numbers.setdefault("dilations", (1,) * (rank(operands[position]) - 2))
        result = compute(*operands, border=pairs[axes] or padding.lower(), **numbers)
        return channels_last(result) if is_last else result

    return record


def convolution(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, layers.out_channels_first(filters), **options)


def depthwise(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, layers.by_channel(filters), **options)


def by_kernels(x: Tensor, kernels: Tensor, **options: Any) -> Tensor:
    groups = length(x, 1) // length(kernels, 1)
    return layers.convolution(x, kernels, groups=groups, **options)


def convolution_transpose(
    lengths: Any, filters: Tensor, x: Tensor, *, border: Any, strides: Any, dilations: Any
) -> Tensor:
    """Return the gradient of a convolution by its input, whose wanted lengths are given."""
    kernels = layers.out_channels_first(filters)  # (channels of x, out channels, *sizes)
    spans = layers.reach(layers.lengths(kernels, len(strides)), dilations)
    pairs = []
    for i, n in enumerate(layers.lengths(x, len(strides))):
        # So many elements of the full result are cut off, those before as the border says.
        surplus = (n - 1) * strides[i] + spans[i] - lengths[i]
        if isinstance(border, str):
            before = max(surplus, 0) // 2 if border == "same" else 0
        else:
            before = border[i][0]
        pairs.append((before, surplus - before))
    steps = {"strides": strides, "dilations": dilations}
    return layers.transposed(x, kernels, border=tuple(pairs), **steps)


def max_pool(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_pairs(x, ksize, strides, border)
    return layers.max_pool(x, ksize, strides, pairs, dilations)


def mean_pool(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_pairs(x, ksize, strides, border)
    # TensorFlow divides by the number of elements that are not border
    return layers.mean_pool(x, ksize, strides, pairs, counted=False)


def border_pairs(x: Tensor, sizes: Any, strides: Any, border: Any) -> Any:
    """Return the (before, after) of each axis; () for no border."""
    if border == "same":
        return layers.same_border(x, sizes, strides, (1,) * len(sizes))
    return () if border == "valid" else border


def resize(
    images: Tensor,
    size: Any,
    method: Any = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> Tensor:
    if preserve_aspect_ratio:
        raise TypeError("image.resize with preserve_aspect_ratio; give both lengths")
    if method not in ("nearest", "bilinear", "bicubic"):
        raise TypeError(f"image.resize by {method!r}; 'nearest', 'bilinear', 'bicubic' are known")
    # TensorFlow returns float32 for all but the nearest
    result = images if method == "nearest" else cast(images, "float32")
    for axis, new in zip((-3, -2), layers.per_axis(static(size), 2), strict=True):
        old = length(images, axis)

        # the weights along an axis are TensorFlow's own results for unit vectors
        def along_last(unit: Any, new: int = new) -> Any:
            with tf.init_scope():
                weights = tf.image.resize(
                    unit[:, None, :, None], (1, new), method, False, antialias
                )
                return weights[:, 0, :, 0]

        if old != new:
            result = layers.resized(result, axis, old, along_last)
    return result


ALIASES: dict[Any, Handler] = {tf.image.resize: resize}
OWN: dict[str, Handler] = {
    **linalg.OPERATIONS,
    **dict.fromkeys(("AvgPool", "AvgPool3D"), on_images(mean_pool)),
    "BatchToSpaceND": batch_to_space,
    **dict.fromkeys(("Conv2D", "Conv3D"), on_images(convolution)),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), on_images(convolution_transpose, 2)
    ),
    "DepthToSpace": depth_to_space,
    "DepthwiseConv2dNative": on_images(depthwise),
    "Einsum": lambda inputs, equation: xp.einsum(equation, *inputs),
    "IdentityN": lambda inputs: inputs,
    "LRN": normalize_locally,
    **dict.fromkeys(("MaxPool", "MaxPool3D"), on_images(max_pool)),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), pad),
    "Select": select,
    "SpaceToBatchND": space_to_batch,
    "SpaceToDepth": space_to_depth,
    "Split": lambda axis, value, num_split: parts.split(value, num_split, axis),
    "SplitV": split_by_lengths,
    "StridedSlice": strided_slice,
    "Unpack": lambda value, axis=0, num=0: parts.unstack(value, axis),
}
