"""Keras's dialect, convolutions and pooling of `keras.ops`; see `table.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.code.names import handlers

from ...capture.meanings.networks import convolutions
from ...capture.meanings.networks.convolutions import channels_first, channels_last, per_axis
from ...capture.meanings.parts import length, rank

Tensor = Any
Handler = Callable[..., Any]


def is_last(data_format: str | None) -> bool:
    """Return whether the channels are the last axis."""
    return (data_format or keras.config.image_data_format()) == "channels_last"


def conv(
    inputs: Tensor,
    kernel: Tensor,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    kernels = convolutions.out_channels_first(kernel)
    steps = {"strides": strides, "dilation_rate": dilation_rate}
    return convolved(inputs, kernels, padding=padding, data_format=data_format, **steps)


def convolved(
    inputs: Tensor,
    kernels: Tensor,
    *,
    strides: Any,
    padding: str,
    data_format: str | None,
    dilation_rate: Any,
) -> Tensor:
    last, axes = is_last(data_format), rank(kernels) - 2
    x = channels_first(inputs) if last else inputs
    result = convolutions.convolution(
        x,
        kernels,
        strides=per_axis(strides, axes),
        border=padding.lower(),
        dilations=per_axis(dilation_rate, axes),
        groups=length(x, 1) // length(kernels, 1),
    )
    return channels_last(result) if last else result


def depthwise_conv(
    inputs: Tensor,
    kernel: Tensor,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    kernels = convolutions.by_channel(kernel)
    steps = {"strides": strides, "dilation_rate": dilation_rate}
    return convolved(inputs, kernels, padding=padding, data_format=data_format, **steps)


def separable_conv(
    inputs: Tensor,
    depthwise_kernel: Tensor,
    pointwise_kernel: Tensor,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    steps = {"strides": strides, "dilation_rate": dilation_rate}
    each = depthwise_conv(
        inputs, depthwise_kernel, padding=padding, data_format=data_format, **steps
    )
    return conv(each, pointwise_kernel, 1, "valid", data_format)


def conv_transpose(
    inputs: Tensor,
    kernel: Tensor,
    strides: Any = 1,
    padding: str = "valid",
    output_padding: Any = None,
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    if output_padding is not None:
        raise TypeError("conv_transpose with output_padding")
    last, axes = is_last(data_format), rank(kernel) - 2
    x = channels_first(inputs) if last else inputs
    kernels = convolutions.out_channels_first(kernel)
    steps, spacing = per_axis(strides, axes), per_axis(dilation_rate, axes)
    spans = convolutions.reach(convolutions.lengths(kernels, axes), spacing)
    pairs = []
    for span, step in zip(spans, steps, strict=True):
        before = max(span - step, 0) // 2 if padding == "same" else 0
        after = span - step - before if padding == "same" else min(span - step, 0)
        pairs.append((before, after))
    result = convolutions.transposed(
        x, kernels, strides=steps, border=tuple(pairs), dilations=spacing
    )
    return channels_last(result) if last else result


def max_pool(
    inputs: Tensor,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    return pooled(inputs, pool_size, strides, padding, data_format, is_mean=False)


def average_pool(
    inputs: Tensor,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    return pooled(inputs, pool_size, strides, padding, data_format, is_mean=True)


def pooled(
    inputs: Tensor,
    pool_size: Any,
    strides: Any,
    padding: str,
    data_format: str | None,
    *,
    is_mean: bool,
) -> Tensor:
    last, axes = is_last(data_format), rank(inputs) - 2
    x = channels_first(inputs) if last else inputs
    sizes, ones = per_axis(pool_size, axes), (1,) * axes
    steps = sizes if strides is None else per_axis(strides, axes)
    border = convolutions.same_border(x, sizes, steps, ones) if padding == "same" else ()
    if is_mean:
        if any(before != after for before, after in border):
            raise TypeError(
                "average_pool with a 'same' border that is wider at one end, which Keras's "
                "backends count otherwise"
            )
        result = convolutions.mean_pool(x, sizes, steps, border, counted=False)
    else:
        result = convolutions.max_pool(x, sizes, steps, border, ones)
    return channels_last(result) if last else result


OPS: dict[str, Handler] = {
    **handlers(
        {
            __name__: """
                average_pool; conv; conv_transpose; depthwise_conv; max_pool; separable_conv
            """,
        }
    ),
}
