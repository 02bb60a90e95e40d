"""The meaning in ops of TensorFlow's convolutions, poolings and resizing of images.

TensorFlow has channels last, or first if `data_format` says so; ours are first. An option has a
number for each axis, of which those for examples and channels must be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture.meanings import layers
from multigrad.capture.meanings.layers import channels_first, channels_last
from multigrad.capture.meanings.parts import length, rank
from multigrad.trace.trace import cast

from .arrays import static

Tensor = Any
Handler = Callable[..., Any]


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
        between = slice(1, -1) if is_last else slice(2, None)
        for name, each in options.items():
            if (each[0], each[-1 if is_last else 1]) != (1, 1):
                raise TypeError(f"{name} of {each} over examples or channels")
        numbers = {name: tuple(each[between]) for name, each in options.items()}
        pairs = tuple(zip(explicit_paddings[::2], explicit_paddings[1::2], strict=True))
        if position:  # the result's shape is the first input
            operands[0] = static(operands[0])[between]
        if is_last:
            operands[position] = channels_first(operands[position])
        numbers.setdefault("dilations", (1,) * (rank(operands[position]) - 2))
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


def convolution_transpose(
    wanted: Any, filters: Tensor, x: Tensor, *, border: Any, strides: Any, dilations: Any
) -> Tensor:
    """Return the gradient of a convolution by its input, whose wanted lengths are given."""
    kernels = layers.out_channels_first(filters)  # (channels of x, out channels, *sizes)
    spans = layers.reach(layers.lengths(kernels, len(strides)), dilations)
    pairs = []
    for i, n in enumerate(layers.lengths(x, len(strides))):
        # So many elements of the full result are cut off, those before as the border says.
        surplus = (n - 1) * strides[i] + spans[i] - wanted[i]
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
# By the operation of a graph.
OPERATIONS: dict[str, Handler] = {
    **dict.fromkeys(("AvgPool", "AvgPool3D"), on_images(mean_pool)),
    **dict.fromkeys(("Conv2D", "Conv3D"), on_images(convolution)),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), on_images(convolution_transpose, 2)
    ),
    "DepthwiseConv2dNative": on_images(depthwise),
    **dict.fromkeys(("MaxPool", "MaxPool3D"), on_images(max_pool)),
}
