"""TensorFlow's dialect, convolutions and pooling; see `table.py`."""

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


def numbers(given: Any, axes: int, is_last: bool) -> tuple[int, ...]:
    """Return a number per axis, of one, of one each, or with those of batch and channels.

    Raises:
        TypeError: that of the batch or of the channels is not 1.
    """
    given = 1 if static(given) is None else static(given)
    found = convolutions.per_axis(given, axes)
    if len(found) == axes:
        return found
    others = (found[0], found[-1 if is_last else 1])
    if others != (1, 1):
        raise TypeError(f"steps of {found} over examples or channels")
    return found[1:-1] if is_last else found[2:]


def border_of(padding: Any, is_last: bool) -> Any:
    """Return the border as pairs, "same" or "valid"."""
    given = static(padding)
    if isinstance(given, str):
        return given.lower()
    pairs = tuple(tuple(pair) for pair in given)
    return pairs[1:-1] if is_last else pairs[2:]


def ends_in_channels(data_format: Any) -> bool:
    """Return whether the channels are the last axis."""
    return static(data_format) is None or static(data_format)[-1] == "C"


def conv(
    input: Tensor, filters: Tensor, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Tensor:
    kernels = convolutions.out_channels_first(filters)
    steps = {"strides": strides, "dilations": dilations}
    return convolved(input, kernels, padding=padding, data_format=data_format, **steps)


def convolved(
    input: Tensor, kernels: Tensor, *, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Tensor:
    is_last, axes = ends_in_channels(data_format), rank(kernels) - 2
    if rank(input) != axes + 2:
        raise TypeError(f"a convolution of {rank(input)} axes by kernels of {rank(kernels)}")
    x = channels_first(input) if is_last else input
    result = convolutions.convolution(
        x,
        kernels,
        strides=numbers(strides, axes, is_last),
        border=border_of(padding, is_last),
        dilations=numbers(dilations, axes, is_last),
        groups=length(x, 1) // length(kernels, 1),
    )
    return channels_last(result) if is_last else result


def depthwise_conv2d(
    input: Tensor, filter: Tensor, strides: Any, padding: Any, data_format: Any, dilations: Any
) -> Tensor:
    kernels = convolutions.by_channel(filter)
    steps = {"strides": strides, "dilations": dilations}
    return convolved(input, kernels, padding=padding, data_format=data_format, **steps)


def conv_transpose(
    input: Tensor,
    filters: Tensor,
    output_shape: Any,
    strides: Any,
    padding: Any,
    data_format: Any,
    dilations: Any,
) -> Tensor:
    is_last, axes = ends_in_channels(data_format), rank(filters) - 2
    steps, spacing = numbers(strides, axes, is_last), numbers(dilations, axes, is_last)
    border = border_of(padding, is_last)
    x = channels_first(input) if is_last else input
    kernels = convolutions.out_channels_first(filters)  # (channels of x, out channels, *sizes)
    wanted = [int(n) for n in static(output_shape)]
    wanted = wanted[1:-1] if is_last else wanted[2:]
    spans = convolutions.reach(convolutions.lengths(kernels, axes), spacing)
    lengths = convolutions.lengths(x, axes)
    pairs = []
    for n, span, step, asked in zip(lengths, spans, steps, wanted, strict=True):
        before = 0
        if border == "same":
            before = max((n - 1) * step + span - asked, 0) // 2
        pairs.append((before, (n - 1) * step + span - before - asked))
    result = convolutions.transposed(
        x, kernels, strides=steps, border=tuple(pairs), dilations=spacing
    )
    return channels_last(result) if is_last else result


def pool(kind: str, axes: int) -> Handler:
    """Return the largest of windows, or their mean; a border never counts."""

    def record(input: Tensor, ksize: Any, strides: Any, padding: Any, data_format: Any) -> Tensor:
        is_last = ends_in_channels(data_format)
        sizes, steps = (numbers(given, axes, is_last) for given in (ksize, strides))
        x = channels_first(input) if is_last else input
        border = border_of(padding, is_last)
        ones = (1,) * axes
        if border == "same":
            border = convolutions.same_border(x, sizes, steps, ones)
        elif border == "valid":
            border = ()
        if kind == "max":
            result = convolutions.max_pool(x, sizes, steps, border, ones)
        else:
            result = convolutions.mean_pool(x, sizes, steps, border, counted=False)
        return channels_last(result) if is_last else result

    record.__name__ = record.__qualname__ = f"{kind}_pool{axes}d"
    return record


def resize(
    images: Tensor,
    size: Any,
    method: Any = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Along one axis after another, by the weights that TensorFlow's own function has; in float32,
    but for the nearest.
    """
    if preserve_aspect_ratio:
        raise TypeError("image.resize with preserve_aspect_ratio; give both lengths")
    if method not in ("nearest", "bilinear", "bicubic"):
        raise TypeError(f"image.resize by {method!r}; 'nearest', 'bilinear', 'bicubic' are known")
    result = images if method == "nearest" else cast(images, "float32")
    for axis, new in zip((-3, -2), convolutions.per_axis(static(size), 2), strict=True):
        old = length(images, axis)

        def along_last(unit: Any, new: int = new) -> Any:
            with tf.init_scope():
                found = tf.image.resize(unit[:, None, :, None], (1, new), method, False, antialias)
                return found[:, 0, :, 0]

        if old != new:
            result = convolutions.resized(result, axis, old, along_last)
    return result


ALIASES: dict[Any, Handler] = {
    tf.image.resize: resize,
    **dict.fromkeys((tf.nn.conv1d, tf.nn.conv2d, tf.nn.conv3d, tf.nn.convolution), conv),
    tf.nn.depthwise_conv2d: depthwise_conv2d,
    **dict.fromkeys(
        (tf.nn.conv1d_transpose, tf.nn.conv2d_transpose, tf.nn.conv3d_transpose), conv_transpose
    ),
    **{getattr(tf.nn, f"{k}_pool{n}d"): pool(k, n) for k in ("max", "avg") for n in (1, 2, 3)},
}
