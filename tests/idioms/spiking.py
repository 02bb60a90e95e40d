"""Neurons and their surrogates as they stand in people's repositories."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.autograd import Function

thresh, lens, decay = 0.5, 0.5, 0.2
gamma = torch.tensor(0.5)
LEVELS = torch.tensor([-0.5, 0.0, 0.5])


class SuperSpike(Function):
    scale = 100.0

    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        ctx.save_for_backward(input)
        out = torch.zeros_like(input)
        out[input > 0] = 1.0
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        return grad_input / (SuperSpike.scale * torch.abs(input) + 1.0) ** 2


class ATan(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any) -> Any:
        if x.requires_grad:
            ctx.save_for_backward(x)
            ctx.alpha = alpha
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        grad_x = None
        if ctx.needs_input_grad[0]:
            x = ctx.saved_tensors[0]
            grad_x = ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * x).pow_(2)) * grad_output
        return grad_x, None


class ActFun(Function):
    """STBP's, of numbers of the module."""

    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        ctx.save_for_backward(input)
        return input.gt(thresh).float()

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        temp = abs(input - thresh) < lens
        return grad_input * temp.float()


def gaussian(x: Any, mu: float = 0.0, sigma: float = 0.5) -> Any:
    density = torch.exp(-((x - mu) ** 2) / (2 * sigma**2))
    return density / torch.sqrt(2 * torch.tensor(math.pi)) / sigma


class ActFunAdp(Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        ctx.save_for_backward(input)
        return input.gt(0).float()

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (input,) = ctx.saved_tensors
        scale, hight = 6.0, 0.15
        temp = gaussian(input, mu=0.0, sigma=lens) * (1.0 + hight)
        temp = temp - gaussian(input, mu=lens, sigma=scale * lens) * hight
        temp = temp - gaussian(input, mu=-lens, sigma=scale * lens) * hight
        return grad_output.clone() * temp.float() * gamma


class NearestLevel(Function):
    """A table of the module, by broadcasting."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        distances = (x.unsqueeze(-1) - LEVELS.to(x.device)).abs()
        nearest = distances == distances.min(dim=-1, keepdim=True)[0]
        return (nearest * LEVELS).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class LIFParameters(NamedTuple):
    tau_mem_inv: Any = torch.as_tensor(1.0 / 1e-2)
    v_th: Any = torch.as_tensor(0.6)
    alpha: float = 100.0


DEFAULTS = LIFParameters()


class LIFStep(Function):
    @staticmethod
    def forward(ctx: Any, i: Any, v: Any, p: Any = DEFAULTS, dt: Any = 0.001) -> Any:
        dv = dt * p.tau_mem_inv * (i - v)
        v_decayed = v + dv
        z = torch.gt(v_decayed - p.v_th, torch.as_tensor(0.0)).to(v.dtype)
        ctx.save_for_backward(v_decayed)
        ctx.p, ctx.dt = p, dt
        return z, (1 - z) * v_decayed

    @staticmethod
    def backward(ctx: Any, dz: Any, dv: Any) -> Any:
        (v,) = ctx.saved_tensors
        surrogate = 1.0 / (ctx.p.alpha * (v - ctx.p.v_th).abs() + 1.0).pow(2)
        back = dz * surrogate + dv
        rate = ctx.dt * ctx.p.tau_mem_inv
        return back * rate, back * (1 - rate), None, None


class NorseHeaviside(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, k: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        return torch.heaviside(x, torch.as_tensor(0.0).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return dy / (ctx.k * x.abs() + 1.0).pow(2), None


class Triangle(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.gt(0).type(torch.FloatTensor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * torch.max(torch.zeros(1, device=x.device), 1 - torch.abs(x))


class LeakyIntegrator(Function):
    """Steps through time, in buffers of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, beta: Any) -> Any:
        ctx.beta = beta
        mem = torch.zeros(x.shape[1], device=x.device, dtype=x.dtype)
        out = torch.zeros(x.size(), device=x.device, dtype=x.dtype)
        for t in range(x.shape[0]):
            mem = beta * mem + x[t]
            out[t] = mem
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        result = torch.empty_like(grad)
        carry = grad.new_zeros(grad.size(1))
        for t in reversed(range(grad.size(0))):
            carry = grad[t] + ctx.beta * carry
            result[t] = carry
        return result, None


class BernoulliSpike(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.bernoulli(torch.sigmoid(x))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class EscapeSpike(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, slope: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.slope = slope
        p = torch.sigmoid(slope * x)
        return (torch.rand(x.shape, device=x.device, dtype=x.dtype) < p).float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        p = torch.sigmoid(ctx.slope * x)
        return grad * ctx.slope * p * (1 - p), None


class LeakySpike(Function):
    """snnTorch's LSO."""

    @staticmethod
    def forward(ctx: Any, input_: Any, slope: Any = 0.1) -> Any:
        out = (input_ > 0).float()
        ctx.save_for_backward(out)
        ctx.slope = slope
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (out,) = ctx.saved_tensors
        return ((1 - out) * ctx.slope + out) * grad_output.clone(), None


@torch.jit.script
def fast_sigmoid_grad(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return 1.0 / (alpha * x.abs() + 1.0).pow(2)


class ScriptedSurrogate(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * fast_sigmoid_grad(x, ctx.alpha), None


class LearnableThreshold(Function):
    """Saves what needs a gradient only."""

    @staticmethod
    def forward(ctx: Any, mem: Any, thr: Any) -> Any:
        ctx.save_for_backward(mem, thr)
        return (mem > thr).type(mem.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mem, thr = ctx.saved_tensors
        grad_mem = grad_thr = None
        near = torch.exp(-(mem - thr).abs())
        if ctx.needs_input_grad[0]:
            grad_mem = grad * near
        if ctx.needs_input_grad[1]:
            grad_thr = -(grad * near).sum_to_size(thr.size())
        return grad_mem, grad_thr


class SpikeByReset(Function):
    """Two outputs, the second of which carries no gradient."""

    @staticmethod
    def forward(ctx: Any, v: Any) -> Any:
        ctx.set_materialize_grads(False)
        spike = (v >= thresh).to(v.dtype)
        reset = torch.where(spike.bool(), torch.zeros_like(v), v).detach()
        ctx.mark_non_differentiable(reset)
        ctx.save_for_backward(v)
        return spike, reset

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (v,) = ctx.saved_variables
        if grad is None:
            return None
        return grad * decay * torch.clamp(1 - (v - thresh).abs(), min=0)


class PiecewiseExp(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any) -> Any:
        if x.requires_grad:
            if isinstance(alpha, torch.Tensor):
                ctx.save_for_backward(x, alpha)
            else:
                ctx.save_for_backward(x)
                ctx.alpha = alpha
        return x.ge(0.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        x, alpha = ctx.saved_tensors[0], ctx.alpha
        return alpha / 2 * (-alpha * x.abs()).exp_() * grad_output, None


class AnnealedSurrogate(Function):
    """By a NumPy number, as schedules give it."""

    @staticmethod
    def forward(ctx: Any, x: Any, width: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < ctx.width).float() / (2 * ctx.width), None


class OnItsDevice(Function):
    @staticmethod
    def forward(ctx: Any, v: Any) -> Any:
        v_th = torch.tensor(0.5).to(v.device)
        one = torch.ones(v.shape).to(v)
        ctx.save_for_backward(v - v_th)
        return one * (v > v_th)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (over,) = ctx.saved_tensors
        half = torch.full(over.size(), 0.5, device=over.device, dtype=over.dtype)
        return grad * torch.where(over.abs() < half, 1.0, 0.0)
