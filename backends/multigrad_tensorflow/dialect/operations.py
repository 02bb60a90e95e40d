"""TensorFlow's convolutions, linear algebra, diagonals, and the operations of its graphs, in ops.

An operation of a graph is recorded by the handler of the function that means the same.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, index
from typing import Any

import tensorflow as tf

from multigrad.capture.dialect import find_dialect
from multigrad.capture.meanings import complexes, layers, matrices, parts
from multigrad.capture.meanings.layers import channels_first, channels_last
from multigrad.capture.meanings.parts import length, rank
from multigrad.capture.name_tables import parse
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .arrays import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


# --- convolutions and pooling, and image resizing -------------------------------------------------
def of_pictures(compute: Handler, at: int = 0) -> Handler:
    """Return the handler of an operation on images, which are input number `at`.

    Args:
        compute: takes images with channels first, each option's numbers for the axes between, and
            the border: "same", "valid", or pairs.
    """

    def record(
        *inputs: Any,
        padding: str,
        explicit_paddings: Any = (),
        data_format: str = "C",
        **options: Any,
    ) -> Tensor:
        operands, is_last = list(inputs), data_format[-1] == "C"
        between = slice(1, -1) if is_last else slice(2, None)
        for name, each in options.items():
            if (each[0], each[-1 if is_last else 1]) != (1, 1):
                raise TypeError(f"{name} of {each} over examples or channels")
        numbers = {name: tuple(each[between]) for name, each in options.items()}
        pairs = tuple(zip(explicit_paddings[::2], explicit_paddings[1::2], strict=True))
        if at:  # the result's shape is the first input
            operands[0] = static(operands[0])[between]
        if is_last:
            operands[at] = channels_first(operands[at])
        numbers.setdefault("dilations", (1,) * (rank(operands[at]) - 2))
        result = compute(*operands, border=pairs[between] or padding.lower(), **numbers)
        return channels_last(result) if is_last else result

    return record


def convolution(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, layers.out_channels_first(filters), **options)


def depthwise(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, layers.by_channel(filters), **options)


def by_kernels(x: Tensor, kernels: Tensor, **options: Any) -> Tensor:
    groups = length(x, 1) // length(kernels, 1)
    return layers.convolution(x, kernels, groups=groups, **options)


def transposed(
    wanted: Any, filters: Tensor, x: Tensor, *, border: Any, strides: Any, dilations: Any
) -> Tensor:
    """Return the gradient of a convolution by its input, whose lengths are given."""
    kernels = layers.out_channels_first(filters)  # (channels of x, out channels, *sizes)
    spans = layers.reach(layers.lengths(kernels, len(strides)), dilations)
    pairs = []
    for i, n in enumerate(layers.lengths(x, len(strides))):
        beyond = (n - 1) * strides[i] + spans[i] - wanted[i]
        before = max(beyond, 0) // 2 if border == "same" else 0
        before = before if isinstance(border, str) else border[i][0]
        pairs.append((before, beyond - before))
    steps = {"strides": strides, "dilations": dilations}
    return layers.transposed(x, kernels, border=tuple(pairs), **steps)


def largest(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_of(x, ksize, strides, border)
    return layers.max_pool(x, ksize, strides, pairs, dilations)


def mean(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_of(x, ksize, strides, border)
    # TensorFlow divides by the number of elements that are not border
    return layers.mean_pool(x, ksize, strides, pairs, counted=False)


def border_of(x: Tensor, sizes: Any, strides: Any, border: Any) -> Any:
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
                resized = tf.image.resize(
                    unit[:, None, :, None], (1, new), method, False, antialias
                )
                return resized[:, 0, :, 0]

        if old != new:
            result = layers.resized(result, axis, old, along_last)
    return result


# --- linear algebra -------------------------------------------------------------------------------
def solve(matrix: Tensor, rhs: Tensor, adjoint: bool = False) -> Tensor:
    return xp.solve(matrices.turned(matrix, adjoint), rhs)


def inv(input: Tensor, adjoint: bool = False) -> Tensor:
    return xp.inv(matrices.turned(input, adjoint))


def lu(input: Tensor) -> tuple[Tensor, Tensor]:
    packed, places = matrices.lu_permuted(input)
    return packed, xp.cast(places, "int32")


def svd(input: Tensor, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Tensor, ...]:
    if not compute_uv:
        return (matrices.svdvals(input),)
    u, s, vh = matrices.svd(input, full_matrices)
    return s, u, xp.matrix_transpose(vh)


def eigh(input: Tensor, compute_v: bool = True) -> tuple[Tensor, ...]:
    """Return the values and vectors of the lower triangle."""
    # TensorFlow's gradient reaches only the lower triangle
    symmetric = xp.add(xp.tril(input), xp.matrix_transpose(xp.tril(input, -1)))
    return matrices.eigh(symmetric)[: 2 if compute_v else 1]


# --- diagonals, borders ---------------------------------------------------------------------------


def only(k: Any) -> int:
    diagonal = static(k)
    if isinstance(diagonal, list | tuple):
        raise TypeError(f"a band of diagonals {diagonal}; give one")
    return index(diagonal)


def diag_part(input: Tensor, k: Any, padding_value: Any, align: Any) -> Tensor:
    return matrices.matrix_diagonal(input, only(k))


def diag(
    diagonal: Tensor, k: Any, rows: Any, columns: Any, padding: Any, align: str = ""
) -> Tensor:
    if (rows, columns, padding) != (-1, -1, 0):
        raise TypeError("diag of another size than its diagonal's, or with a padding")
    return matrices.embedded(diagonal, only(k))


def set_diag(input: Tensor, diagonal: Tensor, k: Any, align: str = "") -> Tensor:
    if only(k):
        raise TypeError(f"set_diag of the diagonal {k}; the main one is known")
    return matrices.with_diagonal(input, diagonal)


def tensor_diag(diagonal: Tensor) -> Tensor:
    return xp.reshape(matrices.embedded(xp.reshape(diagonal, -1)), (*diagonal.shape,) * 2)


def tensor_diag_part(input: Tensor) -> Tensor:
    lengths = (*input.shape,)[: rank(input) // 2]
    n = math.prod(lengths)
    return xp.reshape(matrices.diagonal(xp.reshape(input, (n, n))), lengths)


def normalize_locally(
    x: Tensor, depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
) -> Tensor:
    # over channels on each side, as in AlexNet (section 3.3)
    around = ((0, 0),) * (rank(x) - 1) + ((depth_radius, depth_radius),)
    seen = xp.windows(xp.pad(x * x, around), (2 * depth_radius + 1,), (1,), (1,))
    return x / xp.pow(bias + alpha * xp.sum(seen, -1), beta)


def pad(x: Tensor, pairs: Any, fill: Any = 0.0, *, mode: str = "constant") -> Tensor:
    return parts.padded(x, static(pairs), mode.lower(), fill)


def of_keras(function: Any) -> Handler:
    """Return the handler of a function of Keras, as in `tf.keras.losses`, if Keras is imported."""
    keras = find_dialect("keras")
    if keras is None:
        raise KeyError(function)
    return keras.names.aliases[function]


# --- operations of graphs -------------------------------------------------------------------------
ROOMS = (tf, tf.math, tf.nn, tf.linalg, tf.bitwise)
# Functions with the operations of other names that mean the same. In brackets: the parameters that
# are their inputs, and attributes of other names; "" is dropped. Then operations of the functions'
# names, and reductions.
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
    TensorScatterUpdate; truncatediv: TruncateDiv; truncatemod: Mod TruncateMod;
    math.reduce_euclidean_norm: EuclideanNorm(input_tensor axis keep_dims=keepdims)
"""
SAME = """
    AddN BiasAdd BitwiseAnd BitwiseOr BitwiseXor BroadcastTo Cholesky ClipByValue Cross Cumprod
    Cumsum CumulativeLogsumexp ExpandDims Fill GatherNd Invert L2Loss LeftShift
    LogSoftmax OneHot OnesLike Polygamma Reshape ReverseV2 RightShift Roll ScatterNd
    Slice Softmax StopGradient Tile Transpose UnsortedSegmentSum ZerosLike
"""
REDUCTIONS = "All Any Max Mean Min Prod Sum"


def called_as(function: Handler, words: Sequence[str], /, *inputs: Any, **attributes: Any) -> Any:
    """Call a handler by its function's parameter names, given an operation's."""
    renamed = dict(word.split("=") for word in words if "=" in word)
    options = {renamed.get(name, name): value for name, value in attributes.items()}
    options.pop("", None)
    names = [word for word in words if "=" not in word]
    if names:
        return function(**dict(zip(names, inputs, strict=True)), **options)
    return function(*inputs, **options)


def reduced(function: Handler, x: Tensor, axis: Any, keep_dims: bool = False) -> Tensor:
    # TensorFlow reduces nothing for an empty list
    return x if static(axis) == [] else function(x, axis, keepdims=keep_dims)


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
    """Return stretches of these lengths, of which one may be -1."""
    sizes = static(lengths)
    rest = parts.length(x, axis) - sum(sizes) - 1
    return parts.pieces(x, [rest if n == -1 else n for n in sizes], axis)


BY_OPERATION: dict[str, tuple[Any, Sequence[str]]] = {
    operation.name: (attrgetter(entry.head.name)(tf), operation.brackets.split())
    for entry in parse(ROWS, "operations of TensorFlow's graphs")
    for operation in entry.names
}
NAMED = TENSORFLOW.called(
    {
        matrices: "tensordot; cross: linalg.cross",
        xp: """
            cholesky: linalg.cholesky; det: linalg.det; expm: linalg.expm;
            solve_triangular: linalg.triangular_solve(adjoint=transposed)
        """,
    }
)
ALIASES: dict[Any, Handler] = {
    **TENSORFLOW.taking_the_same({__name__: "linalg.diag_part"}),
    **{getattr(tf.signal, kind): row for kind, row in complexes.TRANSFORMS_2D.items()},
    tf.complex: complexes.Complex,
    tf.image.resize: resize,
}
OWN: dict[str, Handler] = {
    **dict.fromkeys(("AvgPool", "AvgPool3D"), of_pictures(mean)),
    **dict.fromkeys(("Conv2D", "Conv3D"), of_pictures(convolution)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), of_pictures(transposed, 2)),
    "DepthwiseConv2dNative": of_pictures(depthwise),
    **dict.fromkeys(("MaxPool", "MaxPool3D"), of_pictures(largest)),
    "BatchToSpaceND": batch_to_space,
    "DepthToSpace": depth_to_space,
    "Diag": tensor_diag,
    "DiagPart": tensor_diag_part,
    "Einsum": lambda inputs, equation: xp.einsum(equation, *inputs),
    "IdentityN": lambda inputs: inputs,
    "LRN": normalize_locally,
    "LogMatrixDeterminant": xp.slogdet,
    "Lu": lu,
    "MatrixDiag": matrices.embedded,
    "MatrixDiagV3": diag,
    "MatrixInverse": inv,
    "MatrixSetDiag": matrices.with_diagonal,
    "MatrixSetDiagV3": set_diag,
    "MatrixSolve": solve,
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), pad),
    "Qr": lambda input, full_matrices=False: matrices.qr(input, full_matrices),
    "Select": select,
    "SelfAdjointEigV2": eigh,
    "SpaceToBatchND": space_to_batch,
    "SpaceToDepth": space_to_depth,
    "Split": lambda axis, value, num_split: parts.split(value, num_split, axis),
    "SplitV": pieces,
    "StridedSlice": strided_slice,
    "Svd": svd,
    "Unpack": lambda value, axis=0, num=0: parts.unstack(value, axis),
}


def find_operation(kind: str, aliases: Mapping[Any, Handler]) -> Handler | None:
    """Return the handler of a graph's operation, if there is one."""
    if kind in OWN:
        return OWN[kind]
    if kind in REDUCTIONS.split():
        return functools.partial(reduced, aliases[getattr(tf, f"reduce_{kind.lower()}")])
    if kind in BY_OPERATION:
        function, words = BY_OPERATION[kind]
        return functools.partial(called_as, aliases[function], words)
    functions = [getattr(tf.raw_ops, kind, None)]
    if kind in SAME.split():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.removesuffix("V2")).lower()
        functions += [getattr(room, name, None) for room in ROOMS]
    return next((aliases[each] for each in functions if each in aliases), None)
