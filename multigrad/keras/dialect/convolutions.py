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


def convolution_by(arranged: Callable[[Tensor], Tensor], name: str) -> Handler:
    """Return the convolution by kernels that are arranged as ours first."""

    def record(
        inputs: Tensor,
        kernel: Tensor,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
    ) -> Tensor:
        kernels = arranged(kernel)
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

    record.__name__ = record.__qualname__ = name
    return record


conv = convolution_by(convolutions.out_channels_first, "conv")
depthwise_conv = convolution_by(convolutions.by_channel, "depthwise_conv")


def separable_conv(
    inputs: Tensor,
    depthwise_kernel: Tensor,
    pointwise_kernel: Tensor,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Tensor:
    each = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
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


def pool(is_mean: bool, name: str) -> Handler:
    """Return the mean of windows, or their largest."""

    def record(
        inputs: Tensor,
        pool_size: Any,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
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

    record.__name__ = record.__qualname__ = name
    return record


max_pool, average_pool = pool(False, "max_pool"), pool(True, "average_pool")
OPS: dict[str, Handler] = handlers(
    {__name__: "average_pool; conv; conv_transpose; depthwise_conv; max_pool; separable_conv"}
)
