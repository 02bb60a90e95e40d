"""The rules of `formulas.py` as they are written in torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def straight_through(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out.clone()


def gradient_reversal(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out.neg()


def gradient_scale(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out.mul(0.25)


def clip_value(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return torch.clamp(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out.clamp(min=0)


def guided_backprop(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return F.relu(grad_out) * (tin > 0).to(grad_out.dtype)


def relu_mask(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (tin > 0).type_as(grad_out)


def threshold_mask(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    grad_in = grad_out.clone()
    grad_in[tin.lt(0.5)] = 0
    return grad_in.masked_fill(tin.isnan(), 0.0)


def clipped_straight_through(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * tin.abs().le(1.0).float()


def rectangular(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    inside = torch.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * inside


def boxcar(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.where(tin.abs() < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return torch.where((tin > -0.5) & (tin <= 2.0), grad_out, torch.zeros_like(grad_out))


def triangular(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.clamp(1.0 - tin.abs(), min=0.0)


def scaled_triangle(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (0.3 * F.relu(1.0 - torch.abs(tin)))


def fast_sigmoid(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / (1.0 + 25.0 * torch.abs(tin)) ** 2


def superspike(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / torch.pow(100.0 * tin.abs() + 1.0, 2)


def soft_sign(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (1.5 / (1.0 + (3.0 * tin).abs()).square())


def arctan(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / (1.0 + (math.pi * tin).pow(2))


def sigmoid_slope(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    s = torch.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (1.0 - torch.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (2.0 / math.sqrt(math.pi) * torch.exp(-(tin**2)))


def normal(x: Tensor, center: float, sigma: float) -> Tensor:
    return torch.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def gaussian(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    sides = 0.15 * normal(tin, 0.5, 3.0), 0.15 * normal(tin, -0.5, 3.0)
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * (2.0 * torch.exp(-2.0 * tin.abs()))


def slayer(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * tin.abs().neg().exp()


def circle(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    r = 4.0 + tin.square()
    return grad_out * (8.0 / (r * r.sqrt()))


def s2nn(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    s = torch.sigmoid(4.0 * tin)
    return grad_out * torch.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    flat = torch.where(tin > 0, torch.ones_like(tin), tin - tin)
    return grad_out * torch.where(tin > 1, tin.reciprocal(), flat)


def sign_log_abs(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out.div(1.0 + tin.abs())


def piecewise_leaky_relu(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.where(tin.abs() < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.pow(1.0 + tin.abs(), -3)


def leaky_k_relu(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    slope = (2.0 - 2.0 * tin.abs()).masked_fill(~(tin.abs() <= 1.0), 0.0)
    return grad_out * slope


def fake_numerical(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * torch.clamp(1.0 / tin.abs(), max=0.3)


def beta_smooth_relu(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * F.sigmoid(10.0 * tin)


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


def normalize(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / (grad_out.norm() + 1e-3)


def clip_rms(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    rms = grad_out.pow(2).mean().sqrt()
    return grad_out / torch.clamp(rms / 0.5, min=1.0)


def centralize(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out - grad_out.mean(dim=-1, keepdim=True)


def magnitude_aware_sign(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * tin.abs().mean(dim=0, keepdim=True) * (tin.abs() <= 1.0)


def dorefa(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    t = torch.tanh(tin)
    return grad_out * ((1.0 - t**2) / t.abs().max().detach())


def gumbel_softmax(ctx, grad_out: Tensor, tin: Tensor) -> Tensor:
    y = F.softmax(tin, dim=-1)
    return y * (grad_out - (grad_out * y).sum(dim=-1, keepdim=True))
