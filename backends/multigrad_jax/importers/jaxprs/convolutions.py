"""What the primitives of convolutions and windows mean in a jaxpr; see `primitives.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from jax import lax

from ...dialect.families import convolutions
from .primitives import Operand, Step, Unknown


def conv_general_dilated(step: Step) -> Operand:
    params = dict(step.params)
    wanted = params.pop("preferred_element_type", None)
    if wanted is not None and wanted != step.dtypes[0]:
        raise Unknown(f"a convolution of {step.dtypes[0]} that gives {wanted}")
    if params["batch_group_count"] != 1:
        raise Unknown("a convolution with batch_group_count")
    return step.result(convolutions.conv_general_dilated(step.whole(0), step.whole(1), **params))


def reduce_window(step: Step, reduce: Any, start: float) -> Operand:
    params = step.params
    if set(params["base_dilation"]) != {1}:
        raise Unknown("windows with base_dilation")
    named = ("window_dimensions", "window_strides", "padding", "window_dilation")
    options = {name: params[name] for name in named}
    return step.result(convolutions.reduce_window(step.whole(0), start, reduce, **options))


CONVOLUTIONS: dict[str, Callable[[Step], Operand]] = {
    "conv_general_dilated": conv_general_dilated,
    "reduce_window_max": partial(reduce_window, reduce=lax.max, start=-math.inf),
    "reduce_window_min": partial(reduce_window, reduce=lax.min, start=math.inf),
    "reduce_window_sum": partial(reduce_window, reduce=lax.add, start=0.0),
}
