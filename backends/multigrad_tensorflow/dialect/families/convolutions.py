"""TensorFlow's dialect, convolutions, pooling and fake quantization; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.capture.meanings import convolutions
from multigrad.capture.meanings.convolutions import channels_first, channels_last
from multigrad.capture.meanings.parts import length, rank
from multigrad.graph.ir.types import T
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

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


# --- fake quantization: to integers of a few bits between two numbers, and back -------------------
# Both ends are nudged so that zero is one of the numbers. The gradient passes between them, that of
# an end is what lies beyond it, and neither knows of the nudging.


def by_vars(
    inputs: Tensor,
    min: Any,
    max: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: Any = None,
) -> Tensor:
    """Zero, and the gradient as it is, between zero and zero."""
    ends = _as_tensor(inputs, min), _as_tensor(inputs, max)
    low, high, scale, inverse = map(xp.stop_gradient, _nudge(*ends, num_bits, narrow_range))
    x = xp.stop_gradient(inputs)
    steps = (xp.maximum(xp.minimum(x, high), low) - low) * inverse
    zero = xp.floor(-low * inverse + 0.5)
    quantized = xp.floor(steps - zero + 0.5) * scale
    # What follows adds zero, and the gradient.
    lower, upper = (
        value + (end - xp.stop_gradient(end)) for value, end in zip((low, high), ends, strict=True)
    )
    is_inside = xp.logical_and(xp.greater_equal(x, low), xp.less_equal(x, high))
    # Where the ends cross, both get the gradient of what is between them.
    passing = xp.where(is_inside, inputs, 0.0)
    passing = passing + xp.where(xp.less(x, low), lower, 0.0)
    passing = passing + xp.where(xp.greater(x, high), upper, 0.0)
    result = quantized + (passing - xp.stop_gradient(passing))
    is_nothing = _is_nothing(*ends)
    return xp.where(is_nothing, inputs - x, result)


def gradient_by_args(
    gradients: Tensor,
    inputs: Tensor,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: Any = None,
) -> Tensor:
    return gradient_by_vars(
        gradients, inputs, min, max, num_bits=num_bits, narrow_range=narrow_range
    )[0]


def gradients_by(is_by_channel: bool) -> Handler:
    """Return the gradients of the inputs and of both ends, those of a channel each or one."""

    def record(
        gradients: Tensor,
        inputs: Tensor,
        min: Any,
        max: Any,
        num_bits: int = 8,
        narrow_range: bool = False,
        name: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inside, below, above = _shares(gradients, inputs, (min, max), num_bits, narrow_range)
        over = tuple(range(inputs.ndim - 1)) if is_by_channel else None
        return inside, xp.sum(below, over), xp.sum(above, over)

    return record


gradient_by_vars = gradients_by(False)


def _shares(
    gradients: Tensor, inputs: Tensor, given: tuple[Any, Any], num_bits: int, narrow_range: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what of the gradient is between the ends, below and above; as in TensorFlow, these
    have no derivative.
    """
    gradients = xp.stop_gradient(gradients)
    ends = _as_tensor(inputs, given[0]), _as_tensor(inputs, given[1])
    low, high, *_ = _nudge(*ends, num_bits, narrow_range)
    is_nothing = _is_nothing(*ends)
    below, above = xp.less(inputs, low), xp.greater(inputs, high)
    inside = xp.greater_equal(inputs, low) & xp.less_equal(inputs, high)
    beyond = xp.where(is_nothing, 0.0, gradients)
    return gradients * (inside | is_nothing), beyond * below, beyond * above


def _as_tensor(inputs: Tensor, end: Any) -> Any:
    """Return an end as a tensor, so that it is nudged in the dtype of the inputs."""
    if isinstance(inputs, list | tuple):
        raise TypeError("its inputs are a list, which TensorFlow turns into float32: stack them")
    if isinstance(end, Value) and end.node.type.kind == "tensor":
        return cast(end, T)
    if not isinstance(end, Value) and np.ndim(end):
        return xp.zeros_like(inputs) + np.asarray(end)
    return xp.full_like(xp.sum(xp.zeros_like(xp.stop_gradient(inputs))), end)


def _nudge(low: Any, high: Any, num_bits: int, narrow_range: bool) -> tuple[Any, ...]:
    """Return the ends between which zero is a number, the step and the steps to one."""
    first, last = float(narrow_range), float(2**num_bits - 1)
    span = xp.where(xp.equal(high - low, 0), last - first, high - low)
    scale, inverse = span / (last - first), (last - first) / span  # each rounded once, as theirs
    zero = first - low / scale
    whole = xp.trunc(zero)
    nearest = whole + xp.where(zero - whole >= 0.5, 1.0, 0.0)  # ties away from zero
    zero = xp.where(zero < first, first, xp.where(zero > last, last, nearest))
    return (first - zero) * scale, (last - zero) * scale, scale, inverse


def _is_nothing(low: Any, high: Any) -> Any:
    return xp.equal(low, 0) & xp.equal(high, 0)


ALIASES: dict[Any, Handler] = {
    tf.quantization.fake_quant_with_min_max_args: by_vars,
    tf.quantization.fake_quant_with_min_max_vars: by_vars,
    tf.quantization.fake_quant_with_min_max_vars_per_channel: by_vars,
    tf.quantization.fake_quant_with_min_max_args_gradient: gradient_by_args,
    tf.quantization.fake_quant_with_min_max_vars_gradient: gradient_by_vars,
    tf.quantization.fake_quant_with_min_max_vars_per_channel_gradient: gradients_by(True),
    tf.image.resize: resize,
    **dict.fromkeys((tf.nn.conv1d, tf.nn.conv2d, tf.nn.conv3d, tf.nn.convolution), conv),
    tf.nn.depthwise_conv2d: depthwise_conv2d,
    **dict.fromkeys(
        (tf.nn.conv1d_transpose, tf.nn.conv2d_transpose, tf.nn.conv3d_transpose), conv_transpose
    ),
    **{getattr(tf.nn, f"{k}_pool{n}d"): pool(k, n) for k in ("max", "avg") for n in (1, 2, 3)},
}
