"""The rules of `formulas.py` as they are written in torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def threshold_mask(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    grad_in = grad_out.clone()
    grad_in[tin.lt(0.5)] = 0
    return grad_in.masked_fill(tin.isnan(), 0.0)


def rectangular(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    inside = torch.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * inside


def sigmoid_slope(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    s = torch.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def normal(x: Tensor, center: float, sigma: float) -> Tensor:
    return torch.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def multi_gaussian(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    sides = 0.15 * normal(tin, 0.5, 3.0), 0.15 * normal(tin, -0.5, 3.0)
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def circle(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    r = 4.0 + tin.square()
    return grad_out * (8.0 / (r * r.sqrt()))


def s2nn(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    s = torch.sigmoid(4.0 * tin)
    return grad_out * torch.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    flat = torch.where(tin > 0, torch.ones_like(tin), tin - tin)
    return grad_out * torch.where(tin > 1, tin.reciprocal(), flat)


def approx_sign(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    slope = (2.0 - 2.0 * tin.abs()).masked_fill(~(tin.abs() <= 1.0), 0.0)
    return grad_out * slope


def gelu_slope(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    inside = 0.5 * (1.0 + torch.erf(tin * math.sqrt(0.5)))
    return grad_out * (inside + tin * (torch.exp(-0.5 * tin**2) / math.sqrt(2 * math.pi)))


def clamp_with_grad(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return grad_out.masked_fill(outward, 0.0)


def learned_step(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    step = torch.round(tin / 0.5)
    return torch.where(step == step.clamp(-4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(grad_out)
    return grad_out * torch.clamp(1.0 / norm.clamp(min=1e-6), max=1.0)


def clip_rms(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    rms = grad_out.pow(2).mean().sqrt()
    return grad_out / torch.clamp(rms / 0.5, min=1.0)


def dorefa(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    t = torch.tanh(tin)
    return grad_out * ((1.0 - t**2) / t.abs().max().detach())


def gumbel_softmax(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    y = F.softmax(tin, dim=-1)
    return y * (grad_out - (grad_out * y).sum(dim=-1, keepdim=True))


RULES = {
    "straight_through": lambda ctx, g, x: g.clone(),
    "gradient_reversal": lambda ctx, g, x: g.neg(),
    "gradient_scale": lambda ctx, g, x: g.mul(0.25),
    "clip_value": lambda ctx, g, x: torch.clamp(g, -0.5, 0.5),
    "deconvnet": lambda ctx, g, x: g.clamp(min=0),
    "guided_backprop": lambda ctx, g, x: F.relu(g) * (x > 0).to(g.dtype),
    "relu_mask": lambda ctx, g, x: g * (x > 0).type_as(g),
    "threshold_mask": threshold_mask,
    "clipped_straight_through": lambda ctx, g, x: g * x.abs().le(1.0).float(),
    "rectangular": rectangular,
    "boxcar": lambda ctx, g, x: g * torch.where(x.abs() < 1.0, 0.5, 0.0),
    "half_open_window": lambda ctx, g, x: torch.where(
        (x > -0.5) & (x <= 2.0), g, torch.zeros_like(g)
    ),
    "triangular": lambda ctx, g, x: g * torch.clamp(1.0 - x.abs(), min=0.0),
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * F.relu(1.0 - torch.abs(x))),
    "fast_sigmoid": lambda ctx, g, x: g / (1.0 + 25.0 * torch.abs(x)) ** 2,
    "superspike": lambda ctx, g, x: g / torch.pow(100.0 * x.abs() + 1.0, 2),
    "soft_sign": lambda ctx, g, x: g * (1.5 / (1.0 + (3.0 * x).abs()).square()),
    "arctan": lambda ctx, g, x: g / (1.0 + (math.pi * x).pow(2)),
    "sigmoid_slope": sigmoid_slope,
    "tanh_slope": lambda ctx, g, x: g * (1.0 - torch.tanh(x) ** 2),
    "erf_slope": lambda ctx, g, x: g * (2.0 / math.sqrt(math.pi) * torch.exp(-(x**2))),
    "gaussian": lambda ctx, g, x: g * normal(x, 0.0, 0.5),
    "multi_gaussian": multi_gaussian,
    "exponential": lambda ctx, g, x: g * (2.0 * torch.exp(-2.0 * x.abs())),
    "slayer": lambda ctx, g, x: g * x.abs().neg().exp(),
    "circle": circle,
    "s2nn": s2nn,
    "log_tailed": log_tailed,
    "sign_log_abs": lambda ctx, g, x: g.div(1.0 + x.abs()),
    "piecewise_leaky_relu": lambda ctx, g, x: g * torch.where(x.abs() < 1.0, 0.5, 0.01),
    "q_pseudo_spike": lambda ctx, g, x: g * torch.pow(1.0 + x.abs(), -3),
    "leaky_k_relu": lambda ctx, g, x: g * torch.where(x >= 0, 1.0, 0.1),
    "approx_sign": approx_sign,
    "fake_numerical": lambda ctx, g, x: g * torch.clamp(1.0 / x.abs(), max=0.3),
    "beta_smooth_relu": lambda ctx, g, x: g * F.sigmoid(10.0 * x),
    "gelu_slope": gelu_slope,
    "clamp_with_grad": clamp_with_grad,
    "learned_step": learned_step,
    "clip_norm": clip_norm,
    "normalize": lambda ctx, g, x: g / (g.norm() + 1e-3),
    "clip_rms": clip_rms,
    "centralize": lambda ctx, g, x: g - g.mean(dim=-1, keepdim=True),
    "magnitude_aware_sign": lambda ctx, g, x: (
        g * x.abs().mean(dim=0, keepdim=True) * (x.abs() <= 1.0)
    ),
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
