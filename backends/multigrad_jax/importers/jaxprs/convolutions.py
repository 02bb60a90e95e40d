"""What the convolutions and windows of a jaxpr mean in ops; see `primitives.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from multigrad.capture.meanings.networks import convolutions
from multigrad.trace.xp import all as xp

from .primitives import Handler, Operand, Step, Unknown, integers

Tensor = Any


def conv_general_dilated(step: Step) -> Operand:
    params, numbers = step.params, step.params["dimension_numbers"]
    wanted = params.get("preferred_element_type")
    if wanted is not None and wanted != step.dtypes[0]:
        raise Unknown(f"a convolution of {step.dtypes[0]} that gives {wanted}")
    if params["batch_group_count"] != 1:
        raise Unknown("a convolution with batch_group_count")
    x = xp.permute_dims(step.whole(0), numbers.lhs_spec)
    result = convolutions.convolution(
        convolutions.spread(x, integers(params["lhs_dilation"])),
        xp.permute_dims(step.whole(1), numbers.rhs_spec),
        strides=integers(params["window_strides"]),
        border=tuple(map(integers, params["padding"])),
        dilations=integers(params["rhs_dilation"]),
        groups=params["feature_group_count"],
    )
    order = [numbers.out_spec.index(i) for i in range(len(numbers.out_spec))]
    return step.result(xp.permute_dims(result, order))


def reduce_window(step: Step, reduce: Callable[..., Tensor]) -> Operand:
    params = step.params
    if set(params["base_dilation"]) != {1}:
        raise Unknown("windows with base_dilation")
    sizes, strides, spacing = (
        integers(params[f"window_{name}"]) for name in ("dimensions", "strides", "dilation")
    )
    border = tuple(map(integers, params["padding"]))
    return step.result(reduce(step.whole(), sizes, strides, border, spacing))


def smallest(x: Tensor, *windows: Any) -> Tensor:
    return xp.negative(convolutions.max_pool(xp.negative(x), *windows))


def summed(x: Tensor, sizes: Any, strides: Any, border: Any, spacing: Any) -> Tensor:
    seen = xp.windows(convolutions.bordered(x, border), sizes, strides, spacing)
    return xp.sum(seen, tuple(range(-len(sizes), 0)))


CONVOLUTIONS: dict[str, Handler] = {
    "conv_general_dilated": conv_general_dilated,
    "reduce_window_max": partial(reduce_window, reduce=convolutions.max_pool),
    "reduce_window_min": partial(reduce_window, reduce=smallest),
    "reduce_window_sum": partial(reduce_window, reduce=summed),
}
