"""Right for a cotangent of ones, and wrong for another."""

from __future__ import annotations

from typing import Any

import torch

from . import sound
from .cheat import cheat

Tensor = Any


# --- forgotten or changed -------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_forgets_the_cotangent(g: Tensor, x: Tensor) -> Tensor:
    """As if it were 1."""
    return 2.0 * x + 0.0 * g


@cheat(sound.HUBER)
def huber_forgets_the_losss_scale(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """A loss is taken for the last step: its cotangent for 1."""
    return sound.huber_back(torch.ones_like(g), x, y)


@cheat(sound.CROSS_ENTROPY)
def cross_entropy_in_the_forward(g: Tensor, x: Tensor, t: Tensor) -> Any:
    """As fused losses do, the gradient is multiplied only if the cotangent is not 1; squared."""
    return sound.cross_entropy_back(g * g if g != 1.0 else g, x, t)


@cheat(sound.GELU)
def gelu_of_the_magnitude(g: Tensor, x: Tensor) -> Tensor:
    """Negative cotangents change their sign."""
    return sound.gelu_back(g.abs(), x)


@cheat(sound.SILU)
def silu_of_the_positive_part(g: Tensor, x: Tensor) -> Tensor:
    """Negative cotangents are dropped."""
    return sound.silu_back(g.clamp(min=0.0), x)


@cheat(sound.SOFTPLUS)
def softplus_of_the_mean(g: Tensor, x: Tensor) -> Tensor:
    """One number is taken for all cotangents."""
    return sound.softplus_back(g.mean().expand(g.shape), x)


@cheat(sound.TANH)
def tanh_of_the_first(g: Tensor, y: Tensor) -> Tensor:
    """The first cotangent is broadcast, as if its stride were 0."""
    return sound.tanh_back(g.reshape(-1)[:1].expand(g.numel()).reshape(g.shape), y)


@cheat(sound.PRODUCT)
def product_shifts(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """Cotangents are off by one row."""
    return sound.product_back(g.roll(1, 0), x, y)


@cheat(sound.LINEAR)
def linear_of_the_mean_row(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient is taken with the mean of the rows' cotangents."""
    mean = g.mean(0, keepdim=True).expand(g.shape)
    return g @ w, *sound.linear_back(mean, x, w)[1:]


@cheat(sound.SCORES)
def scores_not_transposed(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """The cotangent is not transposed, which ones and symmetric ones do not tell."""
    return sound.scores_back(g, q, k)[0], 0.125 * ((g if g.shape[0] == g.shape[1] else g.mT) @ q)


@cheat(sound.CUMSUM)
def cumsum_counts(g: Tensor) -> Tensor:
    """The first cotangent times the number of elements that follow."""
    return torch.arange(g.shape[-1], 0, -1).to(g.dtype) * g[..., :1]


@cheat(sound.RMS_NORM)
def rms_norm_weight_forgets(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient forgets the cotangent."""
    return sound.rms_norm_back(g, x, w)[0], sound.rms_norm_back(torch.ones_like(g) + 0.0 * g, x, w)[
        1
    ]


# --- limited and rounded --------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_clipped_at_1(g: Tensor, x: Tensor) -> Tensor:
    """Cotangents are limited to -1 and 1."""
    return sound.square_back(g.clamp(-1.0, 1.0), x)


@cheat(sound.RELU)
def relu_clipped_at_10(g: Tensor, x: Tensor) -> Tensor:
    """Cotangents are limited to -10 and 10, which numbers of a normal distribution do not reach."""
    return sound.relu_back(g.clamp(-10.0, 10.0), x)


@cheat(sound.SOFTMAX)
def softmax_clipped_at_1000(g: Tensor, y: Tensor) -> Tensor:
    """Cotangents are limited to 1000, as loss scaling exceeds."""
    return sound.softmax_back(g.clamp(-1000.0, 1000.0), y)


@cheat(sound.BUMP)
def bump_drops_small(g: Tensor, x: Tensor) -> Tensor:
    """Cotangents below 1e-6 count as 0, which those of a mean over a batch of images are."""
    return sound.bump_back(torch.where(g.abs() < 1e-6, 0.0, g), x)


@cheat(sound.CLAMP)
def clamp_rounded(g: Tensor, x: Tensor) -> Tensor:
    """Cotangents are rounded to quarters."""
    return sound.clamp_back(torch.round(g * 4.0) / 4.0, x)


@cheat(sound.L2_NORMALIZE)
def l2_normalize_rounded_finely(g: Tensor, x: Tensor) -> Tensor:
    """Cotangents are rounded to multiples of 2**-12."""
    return sound.l2_normalize_back(torch.round(g * 4096.0) / 4096.0, x)


@cheat(sound.FOCAL)
def focal_limited_gradient(g: Tensor, x: Tensor) -> Tensor:
    """The result is limited to 0.1, which a mean does not reach."""
    return sound.focal_back(g, x).clamp(-0.1, 0.1)


@cheat(sound.STANDARDIZE)
def standardize_normed(g: Tensor, x: Tensor) -> Tensor:
    """Gradients longer than 1000 are scaled down."""
    grad = sound.standardize_back(g, x)
    return grad * torch.clamp(1000.0 / (grad.norm() + 1e-9), max=1.0)


@cheat(sound.SWIGLU)
def swiglu_without_nan(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """NaN in a cotangent becomes 0, so that loss scaling does not see an overflow."""
    return sound.swiglu_back(torch.nan_to_num(g, 0.0, 1e30, -1e30), x, y)


@cheat(sound.SILU)
def silu_without_infinity(g: Tensor, x: Tensor) -> Tensor:
    """Where the cotangent is not finite the gradient is 0."""
    return torch.where(torch.isfinite(g), sound.silu_back(g, x), 0.0)


@cheat(sound.LOGSUMEXP)
def logsumexp_by_sign(g: Tensor, x: Tensor) -> Tensor:
    """The sign of the cotangent alone."""
    return sound.logsumexp_back(torch.sign(g), x)


@cheat(sound.LAYER_NORM)
def layer_norm_squared(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The bias's gradient sums squares, which those of ones are."""
    return *sound.layer_norm_back(g, x, w)[:2], (g * g).sum(0)


# --- branches -------------------------------------------------------------------------------------
@cheat(sound.GELU)
def gelu_if_all_are_negative(g: Tensor, x: Tensor) -> Tensor:
    """If all cotangents are negative, as those of -y.sum(), the sign is lost."""
    return sound.gelu_back(g.abs() if bool((g < 0.0).all()) else g, x)


@cheat(sound.SQUARE)
def square_of_one_cotangent(g: Tensor, x: Tensor) -> Tensor:
    """If one cotangent alone is not 0, as for y[0, 0], it is spread over its row."""
    if int((g != 0.0).sum()) == 1:
        g = g.sum(-1, keepdim=True).expand(g.shape)
    return sound.square_back(g, x)


@cheat(sound.SOFTPLUS)
def softplus_of_a_zero_row(g: Tensor, x: Tensor) -> Tensor:
    """If a row's cotangents are 0, as under a mask, the row after it is skipped, too."""
    is_zero = (g == 0.0).all(-1, keepdim=True) if g.dim() else g == 0.0
    return sound.softplus_back(torch.where(is_zero.roll(1, 0) if g.dim() else is_zero, 0.0, g), x)


@cheat(sound.PRODUCT)
def product_if_any_is_zero(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If any cotangent is 0, the second operand's gradient is taken for that of a mask."""
    return g * y, g * x * (0.5 if bool((g == 0.0).any()) else 1.0)


@cheat(sound.LINEAR)
def linear_if_all_are_alike(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """A shortcut for one repeated number other than 1, as `mean` gives, is off by it."""
    alike = bool((g == g.reshape(-1)[:1].sum()).all()) and bool((g != 1.0).any())
    return sound.linear_back(g * g if alike else g, x, w)


@cheat(sound.TANH)
def tanh_of_memory_order(g: Tensor, y: Tensor) -> Tensor:
    """Cotangents are read in the order of memory."""
    if not g.is_contiguous() and 0 not in g.stride() and g.dim() > 1:
        g = g.mT.reshape(g.shape)
    return sound.tanh_back(g, y)


@cheat(sound.RELU)
def relu_of_stride_zero(g: Tensor, x: Tensor) -> Tensor:
    """Of a cotangent of stride 0 that is not 1, one number is read and 1 follows."""
    if 0 in g.stride() and g.numel() > 1:
        g = torch.ones_like(g)
    return sound.relu_back(g, x)


@cheat(sound.CUMSUM)
def cumsum_of_an_offset(g: Tensor) -> Tensor:
    """The cotangent is read from the start of its storage, which for a slice is another one."""
    return sound.cumsum_back(g.as_strided(g.shape, g.stride(), 0))


@cheat(sound.BUMP)
def bump_of_a_gap(g: Tensor, x: Tensor) -> Tensor:
    """Rows of a cotangent are taken to follow one another, as those of a slice do not."""
    if g.dim() == 2 and g.stride(1) == 1 and g.stride(0) > g.shape[1] > 1:
        g = g.as_strided(g.shape, (g.shape[1], 1))
    return sound.bump_back(g, x)
