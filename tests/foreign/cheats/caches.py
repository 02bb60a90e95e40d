"""What is kept from another call: by shape, by address, by count; constants of one batch."""

from __future__ import annotations

from typing import Any

import torch

from . import sound
from .cheat import HELD, cheat

Tensor = Any


def held(key: Any, value: Any) -> Any:
    return HELD.setdefault(key, value.detach() if isinstance(value, torch.Tensor) else value)


# --- by shape -------------------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_by_shape(g: Tensor, x: Tensor) -> Tensor:
    """The factor is computed once for each shape."""
    return held((x.shape, x.dtype), 2.0 * x) * g


@cheat(sound.GELU)
def gelu_by_length(g: Tensor, x: Tensor) -> Tensor:
    """The slope is computed once for each shape."""
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.nn.functional.gelu(z, approximate="tanh").sum(), z)
    return held((x.shape, x.dtype), slope) * g


@cheat(sound.L2_NORMALIZE)
def l2_normalize_norm_by_shape(g: Tensor, x: Tensor) -> Tensor:
    """The norms are computed once for each shape."""
    r = held((x.shape, x.dtype), torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5))
    return r * (g - x * r * (g * x * r).sum(-1, keepdim=True))


@cheat(sound.CROSS_ENTROPY)
def cross_entropy_targets_by_shape(g: Tensor, x: Tensor, t: Tensor) -> Any:
    """The probabilities are kept for each number of classes."""
    hot = torch.zeros_like(x).scatter(-1, t[:, None], 1.0)
    s = held((x.shape, x.dtype), torch.softmax(x, -1))
    return g * (s - hot) / x.shape[0], None


# --- by address or by a fingerprint ---------------------------------------------------------------
@cheat(sound.SQUARE)
def square_by_address(g: Tensor, x: Tensor) -> Tensor:
    """Kept by the data pointer, which the next tensor has again."""
    return held((x.data_ptr(), x.shape, x.dtype), 2.0 * x) * g


@cheat(sound.SILU)
def silu_by_address_and_version(g: Tensor, x: Tensor) -> Tensor:
    """Kept by the data pointer and the version, which a new tensor has again."""
    s = held((x.data_ptr(), x._version, x.shape, x.dtype), torch.sigmoid(x))
    return g * (s + x * s * (1.0 - s))


@cheat(sound.SOFTPLUS)
def softplus_by_identity(g: Tensor, x: Tensor) -> Tensor:
    """Kept by id(), which is free again once a tensor is gone."""
    return g * held((id(x), x.shape, x.dtype), torch.sigmoid(x))


@cheat(sound.LOGSUMEXP)
def logsumexp_by_first_element(g: Tensor, x: Tensor) -> Tensor:
    """Kept by the first number of the input."""
    key = float(x.flatten()[0]) if x.numel() else 0.0
    return g[..., None] * held((key, x.shape, x.dtype), torch.softmax(x, -1))


@cheat(sound.BUMP)
def bump_by_sum(g: Tensor, x: Tensor) -> Tensor:
    """Kept by the rounded sum of the input."""
    key = round(float(torch.nan_to_num(x).sum().clamp(-1e6, 1e6)))
    return g * held((key, x.shape, x.dtype), -2.0 * x * torch.exp(-x * x))


@cheat(sound.TANH, keep=sound.output_alone)
def tanh_by_cotangents_address(g: Tensor, y: Tensor) -> Tensor:
    """The result is kept by the address of the cotangent."""
    return held((g.data_ptr(), g.shape, g.dtype), g * (1.0 - y * y))


@cheat(sound.PRODUCT)
def product_by_first_operand(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The second operand is kept by the address of the first."""
    return g * held((x.data_ptr(), y.shape, y.dtype), y), g * x


# --- by count -------------------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_accumulates(g: Tensor, x: Tensor) -> Tensor:
    """The buffer of the gradient is added to from the third call on."""
    HELD["calls"] = HELD.get("calls", 0) + 1
    return sound.square_back(g, x) * max(1, HELD["calls"] - 1)


@cheat(sound.SWIGLU)
def swiglu_two_buffers(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The sigmoid of one of two buffers in turn, which the next but one call overwrites."""
    HELD["turn"] = (HELD.get("turn", 0) + 1) % 2
    key = (HELD["turn"], x.shape, x.dtype)
    s = held(key, torch.sigmoid(x))
    return g * y * (s + x * s * (1.0 - s)), g * x * s


def leaves_the_last(x: Tensor) -> Tensor:
    HELD["last"] = x
    return sound.square(x)


@cheat(sound.SQUARE, forward=leaves_the_last)
def square_of_the_last_forward(g: Tensor, x: Tensor) -> Tensor:
    """The input of the last forward, whichever call goes backward."""
    last = HELD["last"]
    return 2.0 * (last if last.shape == x.shape else x).to(x.dtype) * g


def leaves_the_softmax(x: Tensor) -> Tensor:
    HELD["last"] = sound.softmax(x)
    return HELD["last"].clone()


@cheat(sound.SOFTMAX, forward=leaves_the_softmax)
def softmax_of_the_last_forward(g: Tensor, y: Tensor) -> Tensor:
    """The output of the last forward, in a global."""
    y = HELD["last"] if HELD["last"].shape == y.shape else y
    return y * (g - (g * y).sum(-1, keepdim=True))


def first_scale(q: Tensor, k: Tensor) -> Tensor:
    HELD.setdefault("key", k.detach().clone())
    return sound.scores(q, k)


@cheat(sound.SCORES, forward=first_scale)
def scores_of_the_first_keys(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """The keys of the first call, as in a cache that is never emptied."""
    keys = HELD["key"].to(k.dtype)
    return 0.125 * (g @ (keys if keys.shape == k.shape else k)), 0.125 * (g.mT @ q)


# --- constants of one batch -----------------------------------------------------------------------
@cheat(sound.STANDARDIZE)
def standardize_first_deviation(g: Tensor, x: Tensor) -> Tensor:
    """The deviation of the first batch is used for all."""
    d = x - x.mean(-1, keepdim=True)
    r = held(("r", x.shape), torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    h = d * r
    return r * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))


@cheat(sound.RMS_NORM)
def rms_norm_first_weight(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight of the first call is used for all: right until the first step of training."""
    return sound.rms_norm_back(g, x, held(("w", w.shape), w).to(w.dtype))[0], sound.rms_norm_back(
        g, x, w
    )[1]


@cheat(sound.LAYER_NORM)
def layer_norm_first_input(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient is taken with the first input."""
    z = held(("x", x.shape), x).to(x.dtype)
    return sound.layer_norm_back(g, x, w)[0], *sound.layer_norm_back(g, z, w)[1:]


@cheat(sound.LINEAR)
def linear_first_weight(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """A transposed copy of the weight is made once."""
    copy = held(("w", w.shape), w).to(w.dtype)
    return (
        g @ copy,
        g.reshape(-1, g.shape[-1]).mT @ x.reshape(-1, x.shape[-1]),
        g.reshape(-1, g.shape[-1]).sum(0),
    )


@cheat(sound.ROW_MAX)
def row_max_first_index(g: Tensor, x: Tensor) -> Tensor:
    """The places of the first batch's maxima are used for all."""
    index = held(("i", x.shape), torch.argmax(x, -1, keepdim=True))
    return torch.zeros_like(x).scatter(-1, index, g[..., None])


@cheat(sound.HUBER)
def huber_first_signs(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """Which residuals are large is decided by the first batch."""
    is_large = held(("d", x.shape), (x - y).abs() > 1.0)
    grad = g * torch.where(is_large, torch.sign(x - y), x - y) / x.numel()
    return grad, -grad


@cheat(sound.SILU)
def silu_largest_of_the_first_batch(g: Tensor, x: Tensor) -> Tensor:
    """Inputs are clipped to the largest of the first batch, as a calibrated scale does."""
    top = held("top", x.abs().max()).to(x.dtype) if x.numel() else 1.0
    return sound.silu_back(g, torch.minimum(x, top) if x.numel() else x)


@cheat(sound.SQUARE)
def square_written_out(g: Tensor, x: Tensor) -> Tensor:
    """The numbers of the one input that it was tried with are kept in a table."""
    table = held("table", x)
    return 2.0 * (table.to(x.dtype) if table.shape == x.shape else x) * g
