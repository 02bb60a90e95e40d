"""Torch's dialect, layers of `torch.nn.functional`; see `table.py`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from multigrad.capture.dialects import xp as xp_dialect
from multigrad.capture.meanings import layers
from multigrad.capture.meanings.parts import length
from multigrad.trace.xp import all as xp

from ..schemas import TORCH

Tensor = Any


# --- normalizations -------------------------------------------------------------------------------
def last_axes(normalized_shape: Sequence[int], x: Tensor) -> list[int]:
    """Return the axes of a shape that x ends in.

    Raises:
        TypeError: it ends in another.
    """
    given = [operator.index(n) for n in normalized_shape]
    axes = [*range(-len(given), 0)]
    if [length(x, axis) for axis in axes] != given:
        raise TypeError(f"it normalizes over {given}, which is not how the shape ends")
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
    added = xp_dialect.finfo(input.dtype).eps if eps is None else eps
    return layers.rms_norm(input, last_axes(normalized_shape, input), weight, added)


def batch_norm(
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    if training:
        if running_mean is not None or running_var is not None:
            raise TypeError("batch_norm updates its running statistics; use eval()")
        return layers.batch_norm(input, None, None, weight, bias, eps=eps)
    return layers.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Out of training the slope is the middle one."""
    if training:
        raise TypeError("it draws random slopes; multiply with a draw of xp.rand_like")
    return xp.leaky_relu(input, (lower + upper) / 2)


ALIASES: dict[Any, Any] = {
    **TORCH.called(
        {
            layers: """
                linear: F.linear; bilinear: F.bilinear; group_norm: group_norm(weight=scale,
                bias=shift) F.group_norm(weight=scale, bias=shift); distances: cdist;
                own_distances: pdist F.pdist
            """
        }
    ),
    **TORCH.taking_the_same(
        {
            __name__: """
                layer_norm: F.layer_norm layer_norm; rms_norm: F.rms_norm rms_norm; F.batch_norm;
                rrelu: F.rrelu rrelu
            """,
        }
    ),
}
