"""Torch's dialect, layers of `torch.nn.functional`; see `table.py`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.dialects import xp as xp_dialect
from multigrad.capture.meanings.networks import layers
from multigrad.capture.meanings.parts import length, rank
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

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


def instance_norm(
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    if running_mean is not None or running_var is not None:
        raise TypeError("instance_norm updates its running statistics; use eval()")
    return layers.instance_norm(input, weight, bias, eps)


# --- distances ------------------------------------------------------------------------------------
# --- attention, activations -----------------------------------------------------------------------
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p or enable_gqa:
        raise TypeError("attention with dropout_p or enable_gqa")
    return layers.attention(query, key, value, mask=attn_mask, is_causal=is_causal, scale=scale)


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Out of training the slope is the middle one."""
    if training:
        raise TypeError("rrelu in training; multiply with a draw")
    return xp.leaky_relu(input, (lower + upper) / 2)


DROPPING = (F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


def no_dropout(input: Tensor, p: float, training: bool) -> Tensor:
    if training:
        raise TypeError("this dropout in training; multiply with a draw, or use F.dropout")
    return input


# --- pictures -------------------------------------------------------------------------------------
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels made into finer rows and columns."""
    *lead, channels, rows, columns = (length(input, i) for i in range(rank(input)))
    r, n = upscale_factor, len(lead)
    blocks = xp.reshape(input, (*lead, channels // r**2, r, r, rows, columns))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    shape = (*lead, channels // r**2, rows * r, columns * r)
    return xp.reshape(xp.permute_dims(blocks, order), shape)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Finer rows and columns made into channels."""
    *lead, channels, rows, columns = (length(input, i) for i in range(rank(input)))
    r, n = downscale_factor, len(lead)
    blocks = xp.reshape(input, (*lead, channels, rows // r, r, columns // r, r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return xp.reshape(
        xp.permute_dims(blocks, order), (*lead, channels * r**2, rows // r, columns // r)
    )


OF_TENSORS = TENSOR.called({layers: "prelu"})
METHODS: dict[str, Any] = {"prelu": OF_TENSORS[torch.Tensor.prelu]}
ALIASES: dict[Any, Any] = {
    **OF_TENSORS,
    **TORCH.called(
        {
            layers: """
                linear: F.linear; bilinear: F.bilinear; prelu: prelu F.prelu; group_norm:
                group_norm(weight=scale, bias=shift) F.group_norm(weight=scale, bias=shift);
                cosine_similarity: cosine_similarity F.cosine_similarity; pairwise_distance:
                pairwise_distance F.pairwise_distance; distances: cdist; own_distances: pdist
                F.pdist
            """
        }
    ),
    **TORCH.taking_the_same(
        {
            __name__: """
                layer_norm: F.layer_norm layer_norm; rms_norm: F.rms_norm rms_norm; F.batch_norm;
                F.instance_norm; attention: F.scaled_dot_product_attention; rrelu: F.rrelu rrelu
            """,
        }
    ),
    **{f: TORCH.bound(f, no_dropout, {}) for f in DROPPING},
    **TORCH.taking_the_same(
        {
            __name__: """
                pixel_shuffle: F.pixel_shuffle pixel_shuffle; pixel_unshuffle: F.pixel_unshuffle
                pixel_unshuffle
            """,
        }
    ),
}
