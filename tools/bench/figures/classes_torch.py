"""`torch.autograd.Function` classes as published, to be timed against themselves converted."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import Function

Tensor = Any


# --- quantizers -----------------------------------------------------------------------------------
class BinarySign(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x.ge(1)] = 0
        grad_input[x.le(-1)] = 0
        return grad_input


class ApproximateSign(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * (2 - 2 * x.abs()).clamp(min=0)


class RoundStraight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output.clone()


class RoundAwayFromZero(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output


class TowardsZero(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x) * torch.floor(torch.abs(x))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output


class ToSteps(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        n = float(2**bits - 1)
        return torch.round(x * n) / n

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return grad_output, None


class LearnedSteps(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, g: float, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x, alpha)
        ctx.other = g, low, high
        return (x / alpha).round().clamp(low, high) * alpha

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, alpha = ctx.saved_tensors
        g, low, high = ctx.other
        q = x / alpha
        small, big = (q < low).float(), (q > high).float()
        middle = 1.0 - small - big
        share = small * low + big * high + middle * (-q + q.round())
        grad_alpha = (share * grad_output * g).sum().unsqueeze(dim=0)
        return middle * grad_output, grad_alpha, None, None, None


class ClippedActivation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha)
        return torch.where(x < 0, torch.zeros_like(x), torch.where(x > alpha, alpha, x))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, alpha = ctx.saved_tensors
        inside = (x > 0) & (x < alpha)
        grad_alpha = torch.sum(grad_output * (x >= alpha).float()).view(-1)
        return grad_output * inside.float(), grad_alpha


class Ternary(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: float) -> Tensor:
        ctx.save_for_backward(x)
        return (x > threshold).float() - (x < -threshold).float()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 1).float(), None


# --- surrogates -----------------------------------------------------------------------------------
class Spike(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()


class FastSigmoidSpike(Spike):
    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output.clone() / (25.0 * torch.abs(x) + 1.0) ** 2


class ArctanSpike(Spike):
    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2.0 / 2 / (1 + (math.pi / 2 * 2.0 * x).pow_(2)) * grad_output


class SigmoidSpike(Spike):
    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4.0 * x)
        return grad_output * s * (1 - s) * 4.0


class TriangularSpike(Spike):
    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * torch.clamp(1 - x.abs(), min=0)


class GaussianSpike(Spike):
    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


# --- gradients changed ----------------------------------------------------------------------------
class Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return grad_output.neg() * ctx.alpha, None


class ClampWithGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.limits = low, high
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad_output * (grad_output * (x - x.clamp(*ctx.limits)) >= 0), None, None


class LowerBound(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(min=bound)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return ((x >= ctx.bound) | (grad_output < 0)).float() * grad_output, None


class LimitedGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output.clamp(-0.01, 0.01)


# --- activations ----------------------------------------------------------------------------------
class Swish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class Mish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.mul(torch.tanh(torch.nn.functional.softplus(x)))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        t = torch.nn.functional.softplus(x).tanh()
        return grad_output.mul(t + x * s * (1 - t * t))


class HardSwish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.hardswish(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        m = torch.ones_like(x) * (x >= 3.0)
        m = torch.where((x >= -3.0) & (x <= 3.0), x / 3.0 + 0.5, m)
        return grad_output * m


class Exponential(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return grad_output * result


class Legendre(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * (5 * x**3 - 3 * x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * x**2 - 1)


class CubeRoot(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sign(x) * torch.abs(x) ** (1 / 3)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output / (3 * torch.abs(x) ** (2 / 3) + 1e-6)


# --- along an axis --------------------------------------------------------------------------------
class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True))


class UnitLength(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, norm)
        return x / norm

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        x, norm = ctx.saved_tensors
        y = x / norm
        return (grad_output - y * (grad_output * y).sum(-1, keepdim=True)) / norm


class LargestNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.p = p
        return x.abs().pow(p).sum(-1).pow(1 / p).max()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        norms = x.abs().pow(ctx.p).sum(-1, keepdim=True).pow(1 / ctx.p)
        is_largest = (norms == norms.max()).float()
        share = x.sign() * (x.abs() / norms).pow(ctx.p - 1)
        return grad_output * is_largest * share, None


class NormMaximum(Function):
    """The maximum by a norm of high order, with that norm's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        norm = torch.norm(x, p, -1, keepdim=True)
        ctx.save_for_backward(x, norm)
        ctx.p = p
        return norm

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, norm = ctx.saved_tensors
        return grad_output * x * x.abs().pow(ctx.p - 2) / norm.pow(ctx.p - 1), None


# Each with what follows the tensor among its arguments; a tensor of one number is made of a float.
CLASSES: dict[type[Function], tuple[Any, ...]] = {
    **dict.fromkeys(
        (BinarySign, ApproximateSign, RoundStraight, RoundAwayFromZero, TowardsZero), ()
    ),
    ToSteps: (4,),
    LearnedSteps: (torch.tensor([0.3], requires_grad=True), 0.01, -8, 7),
    ClippedActivation: (torch.tensor([1.5], requires_grad=True),),
    Ternary: (0.5,),
    **dict.fromkeys((FastSigmoidSpike, ArctanSpike, SigmoidSpike, TriangularSpike), ()),
    GaussianSpike: (),
    Reversal: (0.5,),
    ClampWithGradient: (-1.0, 1.0),
    LowerBound: (0.1,),
    **dict.fromkeys((LimitedGradient, Swish, Mish, HardSwish, Exponential, Legendre, CubeRoot), ()),
    **dict.fromkeys((Softmax, UnitLength), ()),
    LargestNorm: (3.0,),
    NormMaximum: (8.0,),
}
