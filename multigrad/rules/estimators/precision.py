"""What declarations share: 16-bit tensors computed in float32, gradients in their argument's
shape.
"""

from __future__ import annotations

from typing import Any

from ...capture.dialects.xp import finfo, float32
from ...trace.xp import all as xp

Tensor = Any


def is_tensor(value: Any) -> bool:
    """Return whether an argument is a tensor: what stands for a number says that it is a float."""
    return not isinstance(value, int | float)


def widened(value: Any) -> Any:
    """Return a 16-bit tensor in float32, any other argument as it is."""
    if not is_tensor(value) or finfo(value).bits > 16:
        return value
    return xp.cast(value, float32)


def summed(gradient: Tensor, argument: Any) -> Tensor | None:
    """Return the gradient of an argument that was broadcast; None for a number."""
    if not is_tensor(argument):
        return None
    return xp.cast_like(xp.sum_to(gradient, argument), argument)
