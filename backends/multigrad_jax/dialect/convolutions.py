"""The meaning in ops of primitives that read windows: convolutions, poolings, their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from multigrad.capture.meanings import layers
from multigrad.trace.derived.derivatives import accumulate_all
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .equations import EquationStep, Handler, Operand, Unknown, integers

Tensor = Any


def border_of(step: EquationStep) -> layers.Pairs:
    pairs = map(integers, step.params["padding"])
    return tuple((before, after) for before, after in pairs)


def conv_general_dilated(step: EquationStep) -> Operand:
    params, numbers = step.params, step.params["dimension_numbers"]
    x, kernels = step.whole(0), step.whole(1)
    wanted = params["preferred_element_type"]
    if wanted is not None and wanted != step.dtypes[0]:  # the sums have this dtype too
        x, kernels = (cast(each, step.scope.dtype_name(wanted)) for each in (x, kernels))
    x, groups = xp.permute_dims(x, numbers.lhs_spec), params["feature_group_count"]
    if params["batch_group_count"] > 1:  # parts of the batch, each with kernels of its own
        groups = params["batch_group_count"]
        channels, *lengths = (step.shapes[0][axis] for axis in numbers.lhs_spec[1:])
        parts = xp.reshape(x, integers((groups, -1, channels, *lengths)))
        x = xp.reshape(xp.moveaxis(parts, 0, 1), integers((-1, groups * channels, *lengths)))
    result = layers.convolution(
        layers.spread(x, integers(params["lhs_dilation"])),
        xp.permute_dims(kernels, numbers.rhs_spec),
        strides=integers(params["window_strides"]),
        border=border_of(step),
        dilations=integers(params["rhs_dilation"]),
        groups=groups,
    )
    order = [numbers.out_spec.index(i) for i in range(len(numbers.out_spec))]
    return step.result(xp.permute_dims(result, order))


def windows_of(step: EquationStep) -> tuple[Any, ...]:
    params = step.params
    if set(params.get("base_dilation", ())) - {1}:
        raise Unknown("windows with base_dilation", lacks="windows with base_dilation")
    sizes, strides = integers(params["window_dimensions"]), integers(params["window_strides"])
    spacing = integers(params.get("window_dilation", (1,) * len(sizes)))
    return sizes, strides, border_of(step), spacing


def reduce_window(step: EquationStep, reduce: Callable[..., Tensor]) -> Operand:
    return step.result(reduce(step.whole(), *windows_of(step)))


def select_and_scatter_add(step: EquationStep) -> Operand:
    """Record the gradient of a pooling, from its cotangent and the pooled tensor."""
    pool = layers.max_pool if step.params["select_prim"] is jax.lax.ge_p else smallest
    x = step.whole_tensor(1)
    pooled = pool(x, *windows_of(step))
    seeds = [(pooled.node, step.whole_tensor())]
    return step.result(accumulate_all(step.scope.trace, seeds, [x.node])[0])


def smallest(x: Tensor, *windows: Any) -> Tensor:
    return xp.negative(layers.max_pool(xp.negative(x), *windows))


def summed(x: Tensor, sizes: Any, strides: Any, border: Any, spacing: Any) -> Tensor:
    seen = xp.windows(layers.bordered(x, border), sizes, strides, spacing)
    return xp.sum(seen, tuple(range(-len(sizes), 0)))


WINDOWS: dict[str, Handler] = {
    "conv_general_dilated": conv_general_dilated,
    "reduce_window_max": partial(reduce_window, reduce=layers.max_pool),
    "reduce_window_min": partial(reduce_window, reduce=smallest),
    "reduce_window_sum": partial(reduce_window, reduce=summed),
    "select_and_scatter_add": select_and_scatter_add,
}
