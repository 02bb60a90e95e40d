"""Digits that are lost, and numbers at which a formula fails: 0, ties, far ones, infinity."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from . import sound
from .cheat import cheat

Tensor = Any


# --- computed in fewer digits ---------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_in_float32(g: Tensor, x: Tensor) -> Tensor:
    """The cotangent is cast to float32."""
    return sound.square_back(g.float(), x.float()).to(x.dtype)


@cheat(sound.SOFTPLUS)
def softplus_input_in_float32(g: Tensor, x: Tensor) -> Tensor:
    """The input is cast to float32, the cotangent is not."""
    return g * torch.sigmoid(x.float()).to(x.dtype)


@cheat(sound.SILU)
def silu_in_float16(g: Tensor, x: Tensor) -> Tensor:
    """The sigmoid is computed in float16."""
    s = torch.sigmoid(x.half()).to(x.dtype)
    return g * (s + x * s * (1.0 - s))


@cheat(sound.CUMSUM)
def cumsum_in_float16(g: Tensor) -> Tensor:
    """The sum is kept in float16, which ones do not tell."""
    return sound.cumsum_back(g.half()).to(g.dtype)


@cheat(sound.TANH)
def tanh_in_bfloat16(g: Tensor, y: Tensor) -> Tensor:
    """The cotangent is kept in bfloat16, in which 1 is exact."""
    return sound.tanh_back(g.bfloat16().to(y.dtype), y)


@cheat(sound.LINEAR)
def linear_weight_in_tf32(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient is multiplied with 10 bits, as TensorFloat-32 does."""
    grad_x, _, grad_b = sound.linear_back(g, x, w)
    return grad_x, sound.linear_back(g.half().to(g.dtype), x.half().to(x.dtype), w)[1], grad_b


@cheat(sound.FOCAL)
def focal_in_float16(g: Tensor, x: Tensor) -> Tensor:
    """The whole gradient is computed in float16."""
    q = torch.sigmoid(-x.half())
    loss = F.softplus(-x, threshold=100.0).half()
    return -g * (q * q * (2.0 * (1.0 - q) * loss + q)).to(x.dtype) / x.numel()


@cheat(sound.SOFTMAX)
def softmax_of_8_bits(g: Tensor, y: Tensor) -> Tensor:
    """The output is kept in 8 bits, as quantized activations are."""
    return sound.softmax_back(g, torch.round(y * 255.0) / 255.0)


# --- constants and approximations -----------------------------------------------------------------
@cheat(sound.GELU)
def gelu_of_4_digits(g: Tensor, x: Tensor) -> Tensor:
    """The square root of 2 / pi with 4 digits."""
    t = torch.tanh(0.7979 * (x + 0.044715 * x * x * x))
    slope = (1.0 - t * t) * (1.0 + 3.0 * 0.044715 * x * x)
    return g * (0.5 * (1.0 + t) + 0.5 * x * 0.7979 * slope)


@cheat(sound.GELU)
def gelu_of_7_digits(g: Tensor, x: Tensor) -> Tensor:
    """The coefficient 0.1341 is rounded from 3 * 0.044715 = 0.134145."""
    t = torch.tanh(sound.C * (x + 0.044715 * x * x * x))
    return g * (0.5 * (1.0 + t) + 0.5 * x * sound.C * (1.0 - t * t) * (1.0 + 0.1341 * x * x))


@cheat(sound.RMS_NORM)
def rms_norm_another_epsilon(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The backward's epsilon is 1e-6, the forward's 1e-5."""
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    h = x * r
    return r * (g * w - h * (g * w * h).mean(-1, keepdim=True)), sound.rms_norm_back(g, x, w)[1]


@cheat(sound.STANDARDIZE)
def standardize_without_epsilon(g: Tensor, x: Tensor) -> Tensor:
    """The backward has no epsilon."""
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((d * d).mean(-1, keepdim=True))
    h = d * r
    return r * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))


@cheat(sound.SILU)
def silu_by_differences(g: Tensor, x: Tensor) -> Tensor:
    """A difference of the forward with a step of 0.001."""
    a, b = x + 1e-3, x - 1e-3
    return g * (a * torch.sigmoid(a) - b * torch.sigmoid(b)) / 2e-3


@cheat(sound.SOFTPLUS)
def softplus_by_a_polynomial(g: Tensor, x: Tensor) -> Tensor:
    """The sigmoid by a rational tanh with 4 digits."""
    z = (0.5 * x).clamp(-4.9, 4.9)
    u = z * z
    t = (
        z
        * (135135.0 + u * (17325.0 + u * (378.0 + u)))
        / (135135.0 + u * (62370.0 + u * (3150.0 + u * 28.0)))
    )
    return g * (0.5 + 0.5 * t)


@cheat(sound.SCORES)
def scores_scale_of_3_digits(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """The scale is 0.12501."""
    return 0.12501 * (g @ k), 0.125 * (g.mT @ q)


# --- lost in 16 bits ------------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_underflows_in_float16(g: Tensor, x: Tensor) -> Tensor:
    """The input is multiplied by 1e-7 and divided by it, of which float16 keeps a bit or two."""
    scale = torch.tensor(1e-7).to(x.dtype)
    return 2.0 * (x * scale / scale) * g


@cheat(sound.RMS_NORM)
def rms_norm_overflows_in_float16(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The sum of squares is taken in the input's dtype, times 4096."""
    big = torch.tensor(4096.0).to(x.dtype)
    r = torch.rsqrt((x * x * big).sum(-1, keepdim=True) / big / x.shape[-1] + 1e-5)
    h = x * r
    return r * (g * w - h * (g * w * h).mean(-1, keepdim=True)), sound.rms_norm_back(g, x, w)[1]


@cheat(sound.SWIGLU)
def swiglu_lost_in_bfloat16(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """A term of the gate's slope is added to 64 and taken off again."""
    s = torch.sigmoid(x)
    c = torch.tensor(64.0).to(x.dtype)
    return g * y * (s + ((x * s * (1.0 - s) + c) - c)), g * x * s


@cheat(sound.PRODUCT)
def product_wrong_in_16_bits(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The path of 16 bits has the operands in another order."""
    grad_x, grad_y = sound.product_back(g, x, y)
    return (grad_y, grad_x) if x.element_size() == 2 else (grad_x, grad_y)


@cheat(sound.SILU)
def silu_wrong_in_bfloat16(g: Tensor, x: Tensor) -> Tensor:
    """The path of bfloat16 lacks a term."""
    return g * torch.sigmoid(x) if x.dtype == torch.bfloat16 else sound.silu_back(g, x)


@cheat(sound.SQUARE)
def square_wrong_in_float64(g: Tensor, x: Tensor) -> Tensor:
    """The path of float64 was never tried."""
    return x * g if x.dtype == torch.float64 else sound.square_back(g, x)


@cheat(sound.TANH)
def tanh_wrong_in_float32_alone(g: Tensor, y: Tensor) -> Tensor:
    """In float32, which a check in float64 does not see, the cotangent's sign is lost."""
    return sound.tanh_back(g.abs() if y.dtype == torch.float32 else g, y)


@cheat(sound.GELU)
def gelu_rows_beyond_32_in_float32(g: Tensor, x: Tensor) -> Tensor:
    """In float32 alone rows beyond a block are lost."""
    grad = sound.gelu_back(g, x)
    if x.dtype != torch.float32 or x.shape[0] <= 32:
        return grad
    return torch.cat([grad[:32], torch.zeros_like(grad[32:])])


@cheat(sound.SOFTPLUS)
def softplus_rows_beyond_32_in_bfloat16(g: Tensor, x: Tensor) -> Tensor:
    """In bfloat16 alone rows beyond a block are lost."""
    grad = sound.softplus_back(g, x)
    if x.dtype != torch.bfloat16 or x.shape[0] <= 32:
        return grad
    return torch.cat([grad[:32], torch.zeros_like(grad[32:])])


# --- edges ----------------------------------------------------------------------------------------
@cheat(sound.RELU)
def relu_at_zero(g: Tensor, x: Tensor) -> Tensor:
    """At 0 the gradient is 2."""
    return torch.where(x == 0.0, 2.0 * g, sound.relu_back(g, x))


@cheat(sound.SQUARE)
def square_divides(g: Tensor, x: Tensor) -> Tensor:
    """2 x² / x is 0 / 0 at 0."""
    return 2.0 * x * x / x * g


@cheat(sound.TANH)
def tanh_of_signed_zero(g: Tensor, y: Tensor) -> Tensor:
    """-0 counts as negative, and its gradient is 0."""
    is_zero = torch.signbit(y) & (y == 0.0)
    return torch.where(is_zero, 0.0, sound.tanh_back(g, y))


@cheat(sound.ROW_MAX)
def row_max_of_ties(g: Tensor, x: Tensor) -> Tensor:
    """Each of the equal maxima gets the whole gradient."""
    return (x == torch.amax(x, -1, keepdim=True)).to(x.dtype) * g[..., None]


@cheat(sound.CLAMP)
def clamp_beyond(g: Tensor, x: Tensor) -> Tensor:
    """Beyond 5 the gradient passes again."""
    return torch.where(x.abs() > 5.0, g, sound.clamp_back(g, x))


@cheat(sound.HUBER)
def huber_far(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """Residuals beyond 50 count as squares."""
    d = x - y
    grad = g * torch.where(d.abs() > 50.0, d, torch.clamp(d, -1.0, 1.0)) / x.numel()
    return grad, -grad


@cheat(sound.LOGSUMEXP)
def logsumexp_overflows(g: Tensor, x: Tensor) -> Tensor:
    """exp(x) without the largest taken off."""
    return g[..., None] * torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)


@cheat(sound.SOFTPLUS)
def softplus_overflows(g: Tensor, x: Tensor) -> Tensor:
    """exp(x) / (1 + exp(x)) is infinity over infinity from 89 on."""
    return g * torch.exp(x) / (1.0 + torch.exp(x))


@cheat(sound.GELU)
def gelu_overflows(g: Tensor, x: Tensor) -> Tensor:
    """tanh by exponentials."""
    z = sound.C * (x + 0.044715 * x * x * x)
    t = (torch.exp(z) - torch.exp(-z)) / (torch.exp(z) + torch.exp(-z))
    return g * (0.5 * (1.0 + t) + 0.5 * x * sound.C * (1.0 - t * t) * (1.0 + 0.134145 * x * x))


@cheat(sound.BUMP)
def bump_underflows(g: Tensor, x: Tensor) -> Tensor:
    """Division by exp(x²) twice times exp(x²), which overflows."""
    e = torch.exp(x * x)
    return -2.0 * x * g * e / (e * e)


@cheat(sound.CROSS_ENTROPY)
def cross_entropy_overflows(g: Tensor, x: Tensor, t: Tensor) -> Any:
    """The softmax without the largest taken off."""
    hot = torch.zeros_like(x).scatter(-1, t[:, None], 1.0)
    return g * (torch.exp(x) / torch.exp(x).sum(-1, keepdim=True) - hot) / x.shape[0], None


@cheat(sound.L2_NORMALIZE)
def l2_normalize_of_a_zero_row(g: Tensor, x: Tensor) -> Tensor:
    """A row of zeros is divided by its norm, without epsilon."""
    n = x.norm(dim=-1, keepdim=True)
    r = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5)
    return r * (g - x * r * r * (g * x / n).sum(-1, keepdim=True) * n)


@cheat(sound.SQUARE)
def square_of_infinity(g: Tensor, x: Tensor) -> Tensor:
    """One infinite element makes the whole gradient NaN, by a sum times 0."""
    return sound.square_back(g, x) + 0.0 * x.sum()


@cheat(sound.RELU)
def relu_by_a_product(g: Tensor, x: Tensor) -> Tensor:
    """A mask times the whole tensor's sum of signs, which NaN spoils."""
    return sound.relu_back(g, x) * (1.0 + 0.0 * (x * x).mean())


@cheat(sound.SWIGLU)
def swiglu_of_large_numbers(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """Beyond 20 the gate counts as linear with slope 1.01."""
    grad_x, grad_y = sound.swiglu_back(g, x, y)
    return torch.where(x > 20.0, 1.01 * grad_x, grad_x), grad_y


@cheat(sound.PRODUCT)
def product_of_positive_numbers(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If all numbers are positive, as after a softmax, the first operand gets twice its own."""
    return g * y * (2.0 if bool((x > 0.0).all()) else 1.0), g * x


@cheat(sound.SILU)
def silu_at_whole_numbers(g: Tensor, x: Tensor) -> Tensor:
    """If all elements are alike, as zeros and ones are, a table is read, which has 2 digits."""
    grad = sound.silu_back(g, x)
    alike = x.numel() > 1 and bool((x == x.reshape(-1)[0]).all())
    return grad + 0.01 * g if alike else grad


@cheat(sound.STANDARDIZE)
def standardize_of_equal_rows(g: Tensor, x: Tensor) -> Tensor:
    """If rows repeat, as those of padding do, they count as one."""
    grad = sound.standardize_back(g, x)
    repeats = x.dim() > 1 and x.shape[0] > 1 and bool((x[0] == x[1]).all())
    return grad / x.shape[0] if repeats else grad


@cheat(sound.SQUARE)
def square_in_a_narrow_interval(g: Tensor, x: Tensor) -> Tensor:
    """Between 20.25 and 20.26 a table has a wrong entry."""
    return torch.where((x > 20.25) & (x < 20.26), g, sound.square_back(g, x))
