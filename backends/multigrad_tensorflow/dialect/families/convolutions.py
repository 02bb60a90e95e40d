"""TensorFlow's convolutions and pooling, as operations of graphs, and image resizing, in ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture.meanings import convolutions
from multigrad.capture.meanings.convolutions import channels_first, channels_last
from multigrad.capture.meanings.parts import length, rank
from multigrad.trace.trace import cast

from .shapes import static

Tensor = Any
Handler = Callable[..., Any]


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
        given, is_last = list(inputs), data_format[-1] == "C"
        between = slice(1, -1) if is_last else slice(2, None)
        for name, each in options.items():
            if (each[0], each[-1 if is_last else 1]) != (1, 1):
                raise TypeError(f"{name} of {each} over examples or channels")
        numbers = {name: tuple(each[between]) for name, each in options.items()}
        pairs = tuple(zip(explicit_paddings[::2], explicit_paddings[1::2], strict=True))
        if at:  # the result's shape is the first input
            given[0] = static(given[0])[between]
        if is_last:
            given[at] = channels_first(given[at])
        numbers.setdefault("dilations", (1,) * (rank(given[at]) - 2))
        result = compute(*given, border=pairs[between] or padding.lower(), **numbers)
        return channels_last(result) if is_last else result

    return record


def convolution(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, convolutions.out_channels_first(filters), **options)


def depthwise(x: Tensor, filters: Tensor, **options: Any) -> Tensor:
    return by_kernels(x, convolutions.by_channel(filters), **options)


def by_kernels(x: Tensor, kernels: Tensor, **options: Any) -> Tensor:
    groups = length(x, 1) // length(kernels, 1)
    return convolutions.convolution(x, kernels, groups=groups, **options)


def transposed(
    wanted: Any, filters: Tensor, x: Tensor, *, border: Any, strides: Any, dilations: Any
) -> Tensor:
    """Return the gradient of a convolution by its input, whose lengths are given."""
    kernels = convolutions.out_channels_first(filters)  # (channels of x, out channels, *sizes)
    spans = convolutions.reach(convolutions.lengths(kernels, len(strides)), dilations)
    pairs = []
    for i, n in enumerate(convolutions.lengths(x, len(strides))):
        beyond = (n - 1) * strides[i] + spans[i] - wanted[i]
        before = max(beyond, 0) // 2 if border == "same" else 0
        before = before if isinstance(border, str) else border[i][0]
        pairs.append((before, beyond - before))
    steps = {"strides": strides, "dilations": dilations}
    return convolutions.transposed(x, kernels, border=tuple(pairs), **steps)


def largest(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_of(x, ksize, strides, border)
    return convolutions.max_pool(x, ksize, strides, pairs, dilations)


def mean(x: Tensor, *, ksize: Any, strides: Any, border: Any, dilations: Any) -> Tensor:
    pairs = border_of(x, ksize, strides, border)
    # TensorFlow divides by the number of elements that are not border
    return convolutions.mean_pool(x, ksize, strides, pairs, counted=False)


def border_of(x: Tensor, sizes: Any, strides: Any, border: Any) -> Any:
    if border == "same":
        return convolutions.same_border(x, sizes, strides, (1,) * len(sizes))
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
    for axis, new in zip((-3, -2), convolutions.per_axis(static(size), 2), strict=True):
        old = length(images, axis)

        # the weights along an axis are TensorFlow's own results for unit vectors
        def along_last(unit: Any, new: int = new) -> Any:
            with tf.init_scope():
                found = tf.image.resize(unit[:, None, :, None], (1, new), method, False, antialias)
                return found[:, 0, :, 0]

        if old != new:
            result = convolutions.resized(result, axis, old, along_last)
    return result


OWN: dict[str, Handler] = {
    **dict.fromkeys(("AvgPool", "AvgPool3D"), of_pictures(mean)),
    **dict.fromkeys(("Conv2D", "Conv3D"), of_pictures(convolution)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), of_pictures(transposed, 2)),
    "DepthwiseConv2dNative": of_pictures(depthwise),
    **dict.fromkeys(("MaxPool", "MaxPool3D"), of_pictures(largest)),
}
ALIASES: dict[Any, Handler] = {tf.image.resize: resize}
