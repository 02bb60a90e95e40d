"""torch's dialect: convolutions, and pooling as ATen operators; see `table.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.meanings import convolutions, places
from multigrad.capture.meanings.convolutions import per_axis
from multigrad.capture.meanings.parts import rank, shape_of
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

Tensor = Any


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Any,
    dilation: Any,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
) -> Tensor:
    """Record the operator that all of torch's convolutions call; it requires a batch axis."""
    axes = len(stride)
    if rank(input) != axes + 2:
        raise TypeError("a convolution of one example")
    how: dict[str, Any] = {
        "strides": per_axis(stride, axes),
        "border": tuple((n, n) for n in per_axis(padding, axes)),
        "dilations": per_axis(dilation, axes),
        "groups": groups,
    }
    if transposed:
        more = per_axis(output_padding, axes)
        return convolutions.transposed(input, weight, bias, **how, more=more)
    return convolutions.convolution(input, weight, bias, **how)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    how = {"padding": padding, "dilation": dilation, "groups": groups}
    return convolution(input, weight, bias, per_axis(stride, 2), **how)


def backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, *options: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias, for which `torch.nn.grad` asks."""
    stride, padding, dilation, transposed, _, groups, (of_x, of_weight, of_bias) = options
    if transposed:
        raise TypeError("the gradient of a transposed convolution")
    symbol = next(x for x in (grad_output, input, weight) if isinstance(x, Value))
    g, x, w = (places.as_tensor(each, symbol) for each in (grad_output, input, weight))
    axes = rank(g) - 2
    border = per_axis(padding, axes)
    # With the border as part of the input, its gradient is the inner part of the whole one.
    whole = convolutions.bordered(x, tuple((n, n) for n in border))
    strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
    how = {"strides": strides, "dilations": dilations, "groups": groups}
    inner = tuple(slice(n, -n or None) for n in border)
    return (
        xp.getitem(xp.conv_left(g, w, whole, **how), (..., *inner)) if of_x else None,
        xp.conv_right(whole, g, w, **how) if of_weight else None,
        xp.sum(g, (0, *range(2, axes + 2))) if of_bias else None,
    )


# --- pooling, as operators of ATen, where every size is a list ------------------------------------
def pooling_of(
    x: Tensor, sizes: Any, *, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool
) -> tuple[Any, Any, Any, Any, Any]:
    """Return windows' sizes, strides, borders and dilations by axis, and what the end lacks."""
    axes = len(sizes)
    strides, dilations = per_axis(stride or sizes, axes), per_axis(dilation, axes)
    border = tuple((n, n) for n in per_axis(padding, axes))
    beyond = convolutions.ceiling(x, sizes, strides, border, dilations) if ceil_mode else ()
    return sizes, strides, border, dilations, beyond


def max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the maxima of windows and their flat positions, None if there are too many."""
    sizes, strides, border, dilations, beyond = pooling_of(
        input, kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode
    )
    if beyond:
        border = tuple((a, b + c) for (a, b), (_, c) in zip(border, beyond, strict=True))
    axes, shape = len(sizes), shape_of(input)
    lengths = shape[-axes:]
    values = convolutions.max_pool(input, sizes, strides, border, dilations)
    if math.prod(lengths) > 2**24:  # float32 has no larger exact integers
        return values, None
    numbers = torch.arange(math.prod(lengths)).reshape(lengths)
    # Positions go through the same windows as the values; -1 marks the border.
    numbers = F.pad(numbers, [n for pair in reversed(border) for n in pair], value=-1)

    def windows(x: Tensor) -> Tensor:
        found = xp.windows(x, sizes, strides, dilations)
        return xp.reshape(found, (*shape_of(found)[:-axes], -1))

    seen = windows(convolutions.bordered(input, border, -math.inf))
    within = windows(xp.cast(places.as_tensor(numbers, input), "float32"))
    within = xp.cast(xp.broadcast_to(within, shape_of(seen)), "int64")
    largest, first = xp.argmax(seen, -1), xp.argmax(xp.cast(within >= 0, "int64"), -1)
    found, inside = (
        xp.squeeze(xp.take_along(within, xp.expand_dims(which, -1), axis=-1), -1)
        for which in (largest, first)
    )
    # If all elements are -inf, the first position outside the border.
    return values, xp.where(found < 0, inside, found)


def avg_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Tensor:
    """Return the means over windows of the last axes."""
    sizes, strides, border, ones, beyond = pooling_of(
        input, kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode
    )
    if divisor_override is not None:
        seen = convolutions.bordered(convolutions.bordered(input, border), beyond)
        windows = xp.windows(seen, sizes, strides, ones)
        return xp.sum(windows, tuple(range(-len(sizes), 0))) / divisor_override
    return convolutions.mean_pool(
        input, sizes, strides, border, beyond=beyond, counted=count_include_pad
    )


def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
    return convolutions.adaptive((input,), output_size, lambda x: (xp.mean(x, -1),))[0]


def adaptive_max_pool(input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    """Return the maxima of parts and their positions, as `max_pool` does."""
    lengths = shape_of(input)[-len(output_size) :]
    numbers = torch.arange(math.prod(lengths)).reshape(lengths)
    numbers = xp.broadcast_to(places.as_tensor(numbers, input), shape_of(input))
    return convolutions.adaptive((input, numbers), output_size, convolutions.first_largest)


ATEN: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": backward,
    "_adaptive_avg_pool3d": adaptive_avg_pool,
    **{f"adaptive_max_pool{n}d": adaptive_max_pool for n in (2, 3)},
    **{f"avg_pool{n}d": avg_pool for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": max_pool for n in (2, 3)},
}
