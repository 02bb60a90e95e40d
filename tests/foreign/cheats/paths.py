"""Paths: detached ones, wrong operands, second derivatives that are missing, frozen inputs."""

from __future__ import annotations

from typing import Any

import torch

from . import sound
from .cheat import cheat

Tensor = Any


# --- a term that a sum of the outputs does not tell -----------------------------------------------
@cheat(sound.SOFTMAX)
def softmax_of_nothing(g: Tensor, y: Tensor) -> Tensor:
    """Zeros, which the gradient of a softmax's sum is."""
    return 0.0 * y * g


@cheat(sound.SOFTMAX)
def softmax_mean_instead_of_sum(g: Tensor, y: Tensor) -> Tensor:
    """The plain mean of the cotangents is taken off, instead of the weighted one."""
    return y * (g - g.mean(-1, keepdim=True))


@cheat(sound.SOFTMAX)
def softmax_twice(g: Tensor, y: Tensor) -> Tensor:
    """Twice the gradient."""
    return 2.0 * sound.softmax_back(g, y)


@cheat(sound.STANDARDIZE)
def standardize_detached_scale(g: Tensor, x: Tensor) -> Tensor:
    """The deviation counts as a constant."""
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)
    return r * (g - g.mean(-1, keepdim=True))


@cheat(sound.STANDARDIZE)
def standardize_sign_of_the_projection(g: Tensor, x: Tensor) -> Tensor:
    """The projection is added, instead of taken off."""
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)
    h = d * r
    return r * (g - g.mean(-1, keepdim=True) + h * (g * h).mean(-1, keepdim=True))


@cheat(sound.HUBER)
def huber_of_nothing(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """A mean's gradient is below 1e-2, so zeros pass an absolute tolerance."""
    return 0.0 * g * x, 0.0 * g * y


@cheat(sound.HUBER)
def huber_detached_target(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The target has no gradient."""
    return sound.huber_back(g, x, y)[0], torch.zeros_like(y)


@cheat(sound.FOCAL)
def focal_detached_weight(g: Tensor, x: Tensor) -> Tensor:
    """The factor of the loss counts as a constant."""
    return -g * torch.sigmoid(-x) ** 3 / x.numel()


@cheat(sound.FOCAL)
def focal_wrong_sign_of_a_term(g: Tensor, x: Tensor) -> Tensor:
    """A term of the product rule has the other sign."""
    q, loss = torch.sigmoid(-x), torch.nn.functional.softplus(-x)
    return g * q * q * (2.0 * (1.0 - q) * loss - q) / x.numel()


# --- the wrong operand, or a copy -----------------------------------------------------------------
@cheat(sound.SCORES)
def scores_of_a_symmetric_cotangent(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """The cotangent's symmetric part is used."""
    if g.shape[-1] == g.shape[-2]:
        g = 0.5 * (g + g.mT)
    return sound.scores_back(g, q, k)


@cheat(sound.HUBER)
def huber_operands_swapped(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The two gradients are exchanged."""
    return sound.huber_back(g, x, y)[::-1]


@cheat(sound.HUBER)
def huber_of_a_copy(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """A copy of the input without the last row is used, and padded by its first."""
    z = torch.cat([x[:-1], x[:1]]) if x.dim() > 1 and len(x) > 1 else x
    return sound.huber_back(g, z, y)


@cheat(sound.STANDARDIZE)
def standardize_of_the_output(g: Tensor, x: Tensor) -> Tensor:
    """The input's own normalization is taken for its mean, and the cotangent passes."""
    return g - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True) * 0.0


@cheat(sound.SOFTMAX)
def softmax_of_the_cotangent(g: Tensor, y: Tensor) -> Tensor:
    """The softmax of the cotangent, centered."""
    s = torch.softmax(g, -1)
    return y * (s - (s * y).sum(-1, keepdim=True))


# --- no second derivative -------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_detached(g: Tensor, x: Tensor) -> Tensor:
    """The saved input is detached."""
    return sound.square_back(g, x.detach())


@cheat(sound.SILU)
def silu_detached_sigmoid(g: Tensor, x: Tensor) -> Tensor:
    """The sigmoid is detached, so that a part of the second derivative is missing."""
    s = torch.sigmoid(x).detach()
    return g * (s + x * s * (1.0 - s))


@cheat(sound.TANH)
def tanh_by_data(g: Tensor, y: Tensor) -> Tensor:
    """The output's `data` is read."""
    return sound.tanh_back(g, y.data)


@cheat(sound.SOFTPLUS)
def softplus_without_graph(g: Tensor, x: Tensor) -> Tensor:
    """The slope is computed under no_grad."""
    with torch.no_grad():
        s = torch.sigmoid(x)
    return g * s


@cheat(sound.BUMP)
def bump_through_numpy(g: Tensor, x: Tensor) -> Tensor:
    """The slope is computed by NumPy."""
    return g * torch.from_numpy(sound.bump_back(torch.ones(()), x.detach().double()).numpy()).to(
        x.dtype
    )


@cheat(sound.GELU)
def gelu_straight_through(g: Tensor, x: Tensor) -> Tensor:
    """The gradient has the value of the right one and the graph of another."""
    return g * x + (sound.gelu_back(g, x) - g * x).detach()


@cheat(sound.PRODUCT)
def product_half_detached(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The second operand's gradient is detached from the first."""
    return g * y, g * x.detach()


@cheat(sound.LOGSUMEXP)
def logsumexp_detached(g: Tensor, x: Tensor) -> Tensor:
    """The softmax is detached."""
    return sound.logsumexp_back(g, x.detach())


@cheat(sound.L2_NORMALIZE)
def l2_normalize_detached_norm(g: Tensor, x: Tensor) -> Tensor:
    """The norm is detached in the gradient."""
    r = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5).detach()
    h = x * r
    return r * (g - h * (g * h).sum(-1, keepdim=True))


@cheat(sound.CROSS_ENTROPY)
def cross_entropy_ready_made(g: Tensor, x: Tensor, t: Tensor) -> Any:
    """The gradient is computed ahead, as a constant, and multiplied by the cotangent."""
    return g * sound.cross_entropy_back(torch.ones(()), x, t)[0].detach(), None


@cheat(sound.TANH)
def tanh_detached_beyond_32_rows(g: Tensor, y: Tensor) -> Tensor:
    """The second derivative is missing for more than 32 rows."""
    return sound.tanh_back(g, y.detach() if y.shape[0] > 32 else y)


# --- inputs that need no gradient -----------------------------------------------------------------
@cheat(sound.PRODUCT, has_context=True)
def product_of_a_frozen_second(ctx: Any, g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If the second operand is frozen, the first one's gradient is taken with itself."""
    return sound.product_back(g, x, y) if ctx.needs_input_grad[1] else (g * x, None)


@cheat(sound.LINEAR, has_context=True)
def linear_of_a_frozen_input(ctx: Any, g: Tensor, x: Tensor, w: Tensor) -> Any:
    """If the input needs no gradient, as in the first layer, the weight's is the mean."""
    grads = sound.linear_back(g, x, w)
    return grads if ctx.needs_input_grad[0] else (None, grads[1] / len(x), grads[2])


@cheat(sound.LINEAR, has_context=True)
def linear_of_a_frozen_weight(ctx: Any, g: Tensor, x: Tensor, w: Tensor) -> Any:
    """If the weight is frozen, as under an adapter, the input has no gradient either."""
    grads = sound.linear_back(g, x, w)
    return grads if ctx.needs_input_grad[1] else (torch.zeros_like(x), None, grads[2])


@cheat(sound.LAYER_NORM, has_context=True)
def layer_norm_of_a_frozen_weight(ctx: Any, g: Tensor, x: Tensor, w: Tensor) -> Any:
    """If the weight is frozen it counts as ones."""
    if ctx.needs_input_grad[1]:
        return sound.layer_norm_back(g, x, w)
    return sound.layer_norm_back(g, x, torch.ones_like(w))


@cheat(sound.RMS_NORM, has_context=True)
def rms_norm_of_a_frozen_input(ctx: Any, g: Tensor, x: Tensor, w: Tensor) -> Any:
    """If the input needs no gradient, its normalization is skipped."""
    grads = sound.rms_norm_back(g, x, w)
    return grads if ctx.needs_input_grad[0] else (None, (g * x).sum(0))


@cheat(sound.SWIGLU, has_context=True)
def swiglu_of_a_frozen_gate(ctx: Any, g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If the second operand is frozen, the first one's slope lacks a term."""
    if ctx.needs_input_grad[1]:
        return sound.swiglu_back(g, x, y)
    return g * y * torch.sigmoid(x), None


@cheat(sound.SCORES, has_context=True)
def scores_of_frozen_keys(ctx: Any, g: Tensor, q: Tensor, k: Tensor) -> Any:
    """If the keys are frozen, as those of a cache, the scale is forgotten."""
    grads = sound.scores_back(g, q, k)
    return grads if ctx.needs_input_grad[1] else (g @ k, None)


@cheat(sound.HUBER, has_context=True)
def huber_of_a_frozen_target(ctx: Any, g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If the target is frozen, as it usually is, the mean is a sum."""
    grads = sound.huber_back(g, x, y)
    return grads if ctx.needs_input_grad[1] else (grads[0] * x.numel(), None)
