"""torch's dialect: normalizations, losses, resampling, convolutions and pooling; see `table.py`.

Options of a loss besides its reduction, such as weights or `size_average`, are left to torch's own
trace, except where the gradient at an edge differs from that of the formula.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.core import xp as xp_dialect
from multigrad.core.trace.trace import Value
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import arrays, layers, places
from multigrad.engine.capture.meanings.layers import lengths, per_axis, reduced
from multigrad.engine.capture.meanings.parts import length, rank, shape_of

from .types import TORCH

Tensor = Any


# --- normalizations -------------------------------------------------------------------------------
def last_axes(normalized_shape: Sequence[int], x: Tensor) -> tuple[int, ...]:
    """Return the last axes of x, which must have a given shape."""
    shape = [operator.index(n) for n in normalized_shape]
    axes = tuple(range(-len(shape), 0))
    if [length(x, axis) for axis in axes] != shape:
        raise TypeError(f"it normalizes over {shape}, which is not how the shape ends")
    return axes


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
) -> Tensor:
    return layers.layer_norm(input, last_axes(normalized_shape, input), weight, bias, eps)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    epsilon = xp_dialect.finfo(input.dtype).eps if eps is None else eps
    return layers.rms_norm(input, last_axes(normalized_shape, input), weight, epsilon)


def rrelu(input: Tensor, lower: float, upper: float) -> Tensor:
    """Record rrelu outside training, where the slope is the middle one."""
    return xp.leaky_relu(input, (lower + upper) / 2)


# --- losses ---------------------------------------------------------------------------------------
def reducing(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the loss whose elements a formula computes."""
    parameters = [*inspect.signature(formula).parameters.values()]
    reduction_parameter = inspect.Parameter("reduction", inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(formula)
    def loss(*args: Any, reduction: str, **options: Any) -> Tensor:
        return reduced(formula(*args, **options), reduction)

    vars(loss)["__signature__"] = inspect.Signature([*parameters, reduction_parameter])
    return loss


mse_loss, l1_loss = reducing(layers.squared_error), reducing(layers.absolute_error)
smooth_l1_loss, huber_loss = reducing(layers.smooth_l1), reducing(layers.huber)


@reducing
def binary_cross_entropy(x: Tensor, target: Any, weight: Any = None) -> Tensor:
    loss = layers.binary_cross_entropy(x, target)
    return loss if weight is None else xp.multiply(loss, weight)


def nll_loss(logs: Tensor, target: Any, ignore_index: int = -100, *, reduction: str) -> Tensor:
    """Return the negative log-probability of each class index."""
    index = places.as_places(logs, target)
    counts = index != ignore_index
    axis = 1 if rank(logs) > 1 else 0
    loss = xp.where(counts, layers.of_class(logs, xp.where(counts, index, 0), axis), 0.0)
    if reduction == "mean":
        # The mean is over targets that are not ignored.
        return xp.sum(loss) / xp.sum(places.counted(counts))
    return reduced(loss, reduction)


def cross_entropy(x: Tensor, target: Any, ignore_index: int = -100, *, reduction: str) -> Tensor:
    logs = xp.log_softmax(x, 1 if rank(x) > 1 else 0)
    return nll_loss(logs, target, ignore_index, reduction=reduction)


@reducing
def gaussian_nll_loss(
    x: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6
) -> Tensor:
    if isinstance(var, float | int):
        var = xp.full_like(x, var)
    # One variance per example.
    elif rank(var) == rank(x) - 1:
        var = xp.expand_dims(var, -1)
    loss = layers.gaussian(x, target, var, eps)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


# --- pictures at other places ---------------------------------------------------------------------
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize one axis after another, by torch's own weights for unit vectors."""
    axes = rank(input) - 2
    sizes = each_axis(size, axes, operator.index)
    scales = each_axis(scale_factor, axes, float)
    result = input
    for i, count in enumerate(lengths(input, axes)):

        def resize(unit: Any, i: int = i) -> Any:
            # The other axes have length 2: with 1, antialiasing is wrong (torch 2.13).
            before, after = (2,) * i, (2,) * (axes - 1 - i)
            lines = torch.from_numpy(unit).reshape(1, -1, *(1,) * i, len(unit), *(1,) * len(after))
            output = F.interpolate(
                lines.expand(1, -1, *before, -1, *after).contiguous(),
                sizes and [*before, sizes[i], *after],
                scales and [*(1.0,) * i, scales[i], *(1.0,) * len(after)],
                mode=mode,
                align_corners=align_corners,
                recompute_scale_factor=recompute_scale_factor,
                antialias=antialias,
            )
            return output[(0, slice(None), *(0,) * i, slice(None), *(0,) * len(after))].numpy()

        result = layers.resized(result, i - axes, count, resize)
    return result


def each_axis(given: Any, axes: int, of: Callable[[Any], Any]) -> list[Any] | None:
    if given is None:
        return None
    numbers = arrays.numbers((given,))
    numbers = list(numbers) if isinstance(numbers, tuple | list) else [numbers]
    return [of(n) for n in (numbers * axes if len(numbers) == 1 else numbers)]


LOSSES = TORCH.called(
    {
        __name__: """
            F.binary_cross_entropy; F.cross_entropy;
            F.gaussian_nll_loss; F.huber_loss; F.l1_loss; F.mse_loss; F.nll_loss; F.smooth_l1_loss
        """
    }
)
ALIASES: dict[Any, Any] = {
    **LOSSES,
    **TORCH.called(
        {
            layers: """
                linear: F.linear; bilinear: F.bilinear; group_norm: group_norm(weight=scale,
                bias=shift) F.group_norm(weight=scale, bias=shift); distances: cdist;
                own_distances: pdist F.pdist; F.grid_sample(padding_mode=padding)
            """,
            __name__: "rrelu: F.rrelu rrelu",
        }
    ),
    **TORCH.taking_the_same(
        {
            __name__: """
                layer_norm: F.layer_norm layer_norm; rms_norm: F.rms_norm rms_norm;
                F.interpolate
            """,
        }
    ),
}


# --- convolutions, and pooling as ATen operators --------------------------------------------------


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
    options: dict[str, Any] = {
        "strides": per_axis(stride, axes),
        "border": tuple((n, n) for n in per_axis(padding, axes)),
        "dilations": per_axis(dilation, axes),
        "groups": groups,
    }
    if transposed:
        output_pads = per_axis(output_padding, axes)
        return layers.transposed(input, weight, bias, **options, more=output_pads)
    return layers.convolution(input, weight, bias, **options)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    options = {"padding": padding, "dilation": dilation, "groups": groups}
    return convolution(input, weight, bias, per_axis(stride, 2), **options)


def backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, *options: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias, for which `torch.nn.grad` asks."""
    stride, padding, dilation, transposed, _, groups, (wants_x, wants_weight, wants_bias) = options
    if transposed:
        raise TypeError("the gradient of a transposed convolution")
    symbol = next(x for x in (grad_output, input, weight) if isinstance(x, Value))
    g, x, w = (places.as_tensor(each, symbol) for each in (grad_output, input, weight))
    axes = rank(g) - 2
    border = per_axis(padding, axes)
    # With the border as part of the input, its gradient is the inner part of the whole one.
    padded_x = layers.bordered(x, tuple((n, n) for n in border))
    strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
    attrs = {"strides": strides, "dilations": dilations, "groups": groups}
    slices = tuple(slice(n, -n or None) for n in border)
    return (
        xp.getitem(xp.conv_left(g, w, padded_x, **attrs), (..., *slices)) if wants_x else None,
        xp.conv_right(padded_x, g, w, **attrs) if wants_weight else None,
        xp.sum(g, (0, *range(2, axes + 2))) if wants_bias else None,
    )


# --- pooling, as operators of ATen, where every size is a list ------------------------------------
def pooling_of(
    x: Tensor, sizes: Any, *, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool
) -> tuple[Any, Any, Any, Any, Any]:
    """Return windows' sizes, strides, borders and dilations by axis, and what the end lacks."""
    axes = len(sizes)
    strides, dilations = per_axis(stride or sizes, axes), per_axis(dilation, axes)
    border = tuple((n, n) for n in per_axis(padding, axes))
    beyond = layers.ceiling(x, sizes, strides, border, dilations) if ceil_mode else ()
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
    spatial_shape = shape[-axes:]
    values = layers.max_pool(input, sizes, strides, border, dilations)
    if math.prod(spatial_shape) > 2**24:  # float32 has no larger exact integers
        return values, None
    numbers = torch.arange(math.prod(spatial_shape)).reshape(spatial_shape)
    # Positions go through the same windows as the values; -1 marks the border.
    numbers = F.pad(numbers, [n for pair in reversed(border) for n in pair], value=-1)

    def windows(x: Tensor) -> Tensor:
        parts = xp.windows(x, sizes, strides, dilations)
        return xp.reshape(parts, (*shape_of(parts)[:-axes], -1))

    elements = windows(layers.bordered(input, border, -math.inf))
    indices = windows(xp.cast(places.as_tensor(numbers, input), "float32"))
    indices = xp.cast(xp.broadcast_to(indices, shape_of(elements)), "int64")
    largest, first_within = xp.argmax(elements, -1), xp.argmax(xp.cast(indices >= 0, "int64"), -1)
    position, first_inside = (
        xp.squeeze(xp.take_along(indices, xp.expand_dims(places_along, -1), axis=-1), -1)
        for places_along in (largest, first_within)
    )
    # If all elements are -inf, the first position outside the border.
    return values, xp.where(position < 0, first_inside, position)


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
    sizes, strides, border, dilations, beyond = pooling_of(
        input, kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode
    )
    if divisor_override is not None:
        bordered_input = layers.bordered(layers.bordered(input, border), beyond)
        windows = xp.windows(bordered_input, sizes, strides, dilations)
        return xp.sum(windows, tuple(range(-len(sizes), 0))) / divisor_override
    return layers.mean_pool(input, sizes, strides, border, beyond=beyond, counted=count_include_pad)


def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
    return layers.adaptive((input,), output_size, lambda x: (xp.mean(x, -1),))[0]


def adaptive_max_pool(input: Tensor, output_size: Any) -> tuple[Tensor, ...]:
    """Return the maxima of parts and their positions, as `max_pool` does."""
    spatial_shape = shape_of(input)[-len(output_size) :]
    numbers = torch.arange(math.prod(spatial_shape)).reshape(spatial_shape)
    numbers = xp.broadcast_to(places.as_tensor(numbers, input), shape_of(input))
    return layers.adaptive((input, numbers), output_size, layers.first_largest)


ATEN: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": backward,
    "_adaptive_avg_pool3d": adaptive_avg_pool,
    **{f"adaptive_max_pool{n}d": adaptive_max_pool for n in (2, 3)},
    **{f"avg_pool{n}d": avg_pool for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": max_pool for n in (2, 3)},
}
