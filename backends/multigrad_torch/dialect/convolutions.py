"""Torch's dialect, convolutions and pooling; see `table.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.meanings import convolutions, places
from multigrad.capture.meanings.convolutions import first_largest, per_axis
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
    """What torch makes all of them of; it gives examples an axis where they have none."""
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


def conv(axes: int) -> Any:
    """Return the convolution over so many axes."""

    def record(
        input: Tensor,
        weight: Tensor,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        how = {"padding": padding, "dilation": dilation, "groups": groups}
        return convolution(input, weight, bias, per_axis(stride, axes), **how)

    record.__name__ = record.__qualname__ = f"conv{axes}d"
    return record


def backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias, which `torch.nn.grad` asks for."""
    if transposed:
        raise TypeError("the gradient of a transposed convolution")
    symbol = next(x for x in (grad_output, input, weight) if isinstance(x, Value))
    g, x, w = (
        each if isinstance(each, Value) else places.as_tensor(each, symbol)
        for each in (grad_output, input, weight)
    )
    axes = rank(g) - 2
    border = per_axis(padding, axes)
    whole = convolutions.bordered(x, tuple((n, n) for n in border))
    how = {
        "strides": per_axis(stride, axes),
        "dilations": per_axis(dilation, axes),
        "groups": groups,
    }
    of_x, of_weight, of_bias = output_mask
    inner = tuple(slice(n, -n or None) for n in border)
    return (
        xp.getitem(xp.conv_left(g, w, whole, **how), (..., *inner)) if of_x else None,
        xp.conv_right(whole, g, w, **how) if of_weight else None,
        xp.sum(g, (0, *range(2, axes + 2))) if of_bias else None,
    )


# --- pooling --------------------------------------------------------------------------------------
def steps(stride: Any, sizes: Any, axes: int) -> tuple[int, ...]:
    """The strides; where none are given, windows stand side by side."""
    return per_axis(sizes if stride is None or stride in ([], ()) else stride, axes)


def pooling_of(
    x: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, *, axes: int
) -> tuple[Any, Any, Any, Any]:
    """Return by axis the sizes of windows, their strides, the borders and the dilations."""
    sizes, strides = per_axis(size, axes), steps(stride, size, axes)
    dilations = per_axis(dilation, axes)
    border = tuple((n, n) for n in per_axis(padding, axes))
    if ceil_mode:
        more = convolutions.ceiling(x, sizes, strides, border, dilations)
        border = tuple((a, b + c) for (a, b), (_, c) in zip(border, more, strict=True))
    return sizes, strides, border, dilations


def max_pool(axes: int, has_places: bool) -> Any:
    """Return the largest of windows of the last axes, or these and their places."""

    def record(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices and not has_places:
            raise TypeError("return_indices given by position")
        given = (kernel_size, stride, padding, dilation, ceil_mode)
        pool = with_places if has_places else convolutions.max_pool
        return pool(input, *pooling_of(input, *given, axes=axes))

    record.__name__ = record.__qualname__ = f"max_pool{axes}d{'_with_indices' * has_places}"
    return record


def with_places(
    input: Tensor, sizes: Any, strides: Any, border: Any, dilations: Any
) -> tuple[Tensor, Tensor]:
    """Return the largest of windows, and their places: these count through the last axes as if
    they were one. Where all are -inf, it is the first that is no border.
    """
    axes, shape = len(sizes), shape_of(input)
    lead, lengths = shape[:-axes], shape[-axes:]
    if math.prod(lengths) > 2**24:  # float32 counts no further
        raise TypeError(f"places among {math.prod(lengths)} elements")
    numbers = torch.arange(math.prod(lengths)).reshape(lengths)
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
    found = xp.where(found < 0, inside, found)
    flat = [xp.reshape(x, (*lead, -1)) for x in (input, found)]
    return xp.reshape(xp.take_along(*flat, axis=-1), shape_of(found)), found


def avg_pool(axes: int) -> Any:
    """Return the mean over windows of the last axes."""

    def record(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Tensor:
        sizes, strides = per_axis(kernel_size, axes), steps(stride, kernel_size, axes)
        border, ones = tuple((n, n) for n in per_axis(padding, axes)), (1,) * axes
        beyond = convolutions.ceiling(input, sizes, strides, border, ones) if ceil_mode else ()
        if divisor_override is not None:
            seen = convolutions.bordered(convolutions.bordered(input, border), beyond)
            windows = xp.windows(seen, sizes, strides, ones)
            return xp.sum(windows, tuple(range(-axes, 0))) / divisor_override
        return convolutions.mean_pool(
            input, sizes, strides, border, beyond=beyond, counted=count_include_pad
        )

    record.__name__ = record.__qualname__ = f"avg_pool{axes}d"
    return record


def adaptive_pool(axes: int, kind: str, reduce: Any) -> Any:
    """Return a reduction of as many parts of the last axes as are asked for."""

    def record(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
        if return_indices:
            raise TypeError("pooling with return_indices; take its values alone")
        given = output_size if isinstance(output_size, list | tuple) else (output_size,) * axes
        return convolutions.adaptive(input, tuple(given), reduce)

    record.__name__ = record.__qualname__ = f"{kind}{axes}d"
    return record


def last_mean(x: Tensor) -> Tensor:
    return xp.mean(x, -1)


def table() -> dict[Any, Any]:
    """Return the functions, under all names that torch gives them."""
    found: dict[Any, Any] = {}
    for n in (1, 2, 3):
        rows = {
            f"conv{n}d": conv(n),
            f"max_pool{n}d": max_pool(n, has_places=False),
            f"avg_pool{n}d": avg_pool(n),
            f"adaptive_avg_pool{n}d": adaptive_pool(n, "adaptive_avg_pool", last_mean),
            f"adaptive_max_pool{n}d": adaptive_pool(n, "adaptive_max_pool", first_largest),
        }
        found[getattr(F, f"max_pool{n}d_with_indices")] = max_pool(n, has_places=True)
        for name, function in rows.items():
            for place in (F, torch):
                if hasattr(place, name):
                    found[getattr(place, name)] = function
    del found[torch.adaptive_max_pool1d]  # a pair, whatever it is asked for
    return found


ALIASES = table()
