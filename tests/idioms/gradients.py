"""Functions that change the gradient alone, and those whose gradient is written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function


class GradReverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any) -> Any:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output.neg() * ctx.alpha, None


class RevGrad(Function):
    """pytorch-revgrad's, with alpha as a tensor that needs no gradient."""

    @staticmethod
    def forward(ctx: Any, input_: Any, alpha_: Any) -> Any:
        ctx.save_for_backward(input_, alpha_)
        return input_

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        grad_input = None
        _, alpha_ = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            grad_input = -grad_output * alpha_
        return grad_input, None


class ReversalByNewTensor(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, lambda_: Any) -> Any:
        ctx.lambda_ = lambda_
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grads: Any) -> Any:
        lambda_ = grads.new_tensor(ctx.lambda_)
        return -lambda_ * grads, None


class ClipGradByNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, limit: Any) -> Any:
        ctx.limit = limit
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        norm = grad.norm(2)
        return grad * torch.clamp(ctx.limit / (norm + 1e-6), max=1.0), None


class SetsAttributes(Function):
    """Notes something on the tensor itself."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        y.scale = 3
        ctx.save_for_backward(y)
        ctx.y = y
        return y.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.y.scale


class MemoryEfficientSwish(Function):
    @staticmethod
    def forward(ctx: Any, i: Any) -> Any:
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        i = ctx.saved_variables[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


@torch.jit.script
def mish_fwd(x: torch.Tensor) -> torch.Tensor:
    return x.mul(torch.tanh(F.softplus(x)))


@torch.jit.script
def mish_bwd(x: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    x_sigmoid = torch.sigmoid(x)
    x_tanh_sp = F.softplus(x).tanh()
    return grad_output.mul(x_tanh_sp + x * x_sigmoid * (1 - x_tanh_sp * x_tanh_sp))


class MishJit(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return mish_fwd(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return mish_bwd(ctx.saved_tensors[0], grad_output)


class GELU(Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        pdf = torch.exp(-0.5 * x.pow(2)) / math.sqrt(2.0 * math.pi)
        return grad * (cdf + x * pdf)


class LinearFunction(Function):
    """PyTorch's tutorial."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        ctx.save_for_backward(input, weight, bias)
        output = input.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        input, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(input)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class LayerNormByHand(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: Any = 1e-5) -> Any:
        mu = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        y = (x - mu) / (var + eps).sqrt()
        ctx.eps = eps
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1) * y + bias.view(1, -1)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        y, var, weight = ctx.saved_tensors
        g = grad_output * weight.view(1, -1)
        mean_g = g.mean(dim=-1, keepdim=True)
        mean_gy = (g * y).mean(dim=-1, keepdim=True)
        gx = 1.0 / torch.sqrt(var + ctx.eps) * (g - y * mean_gy - mean_g)
        return gx, (grad_output * y).sum(dim=0), grad_output.sum(dim=0), None


class Normalized(Function):
    """Of one sample, whose batch axis goes where it has one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        flat = x.flatten(1)
        norms = flat.pow(2).sum(1, keepdim=True).sqrt()
        ctx.save_for_backward(x, norms)
        return (flat / norms).squeeze(0).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, norms = ctx.saved_tensors
        return (grad.flatten(start_dim=1) / norms).squeeze(dim=0).view_as(x)


class PairwiseSquare(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        wide = x.unsqueeze(0).expand(2, -1, -1)
        ctx.save_for_backward(x)
        return (wide * wide).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        column = grad.sum(1, keepdim=True).expand(-1, x.size(1))
        return 4 * x * grad + 0 * column


class InvolutiveFlip(Function):
    """Its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.flip(0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return InvolutiveFlip.apply(grad)


class LeakyReLUBackward(Function):
    @staticmethod
    def forward(ctx: Any, grad_output: Any, out: Any, slope: Any) -> Any:
        ctx.save_for_backward(out)
        ctx.slope = slope
        return torch.where(out > 0, grad_output, grad_output * slope)

    @staticmethod
    def backward(ctx: Any, gradgrad: Any) -> Any:
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, gradgrad, gradgrad * ctx.slope), None, None


class FusedLeakyReLU(Function):
    """StyleGAN's: a class whose backward is another class."""

    @staticmethod
    def forward(ctx: Any, input: Any, bias: Any, slope: Any) -> Any:
        ctx.slope = slope
        out = F.leaky_relu(input + bias.view(1, -1), slope)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (out,) = ctx.saved_tensors
        grad_input = LeakyReLUBackward.apply(grad_output.contiguous(), out, ctx.slope)
        return grad_input, grad_input.sum(0), None


class BisectBase(Function):
    @classmethod
    def _gp(cls, x: Any, alpha: Any) -> Any:
        return x ** (alpha - 1)

    @classmethod
    def _p(cls, x: Any, alpha: Any) -> Any:
        return torch.clamp(x, min=0) ** (1 / (alpha - 1))

    @classmethod
    def forward(cls, ctx: Any, X: Any, alpha: Any = 1.5, n_iter: Any = 12) -> Any:
        ctx.alpha = alpha
        X = X * (alpha - 1)
        tau_lo = X.max(dim=-1, keepdim=True)[0] - cls._gp(1.0, alpha)
        dm = cls._gp(1.0, alpha) - cls._gp(1.0 / X.shape[-1], alpha)
        f_lo = cls._p(X - tau_lo, alpha).sum(-1, keepdim=True) - 1
        for _ in range(n_iter):
            dm = dm / 2
            tau_m = tau_lo + dm
            f_m = cls._p(X - tau_m, alpha).sum(-1, keepdim=True) - 1
            tau_lo = torch.where((f_m * f_lo) >= 0, tau_m, tau_lo)
        p_m = cls._p(X - tau_lo, alpha)
        p_m = p_m / p_m.sum(dim=-1).unsqueeze(dim=-1)
        ctx.save_for_backward(p_m)
        return p_m

    @classmethod
    def backward(cls, ctx: Any, dY: Any) -> Any:
        (Y,) = ctx.saved_tensors
        gppr = torch.where(Y > 0, Y ** (2 - ctx.alpha), Y.new_zeros(1))
        dX = dY * gppr
        q = (dX.sum(-1) / gppr.sum(-1)).unsqueeze(-1)
        return dX - q * gppr, None, None


class SparsemaxBisect(BisectBase):
    """entmax's: a class that calls the one above it."""

    @classmethod
    def _gp(cls, x: Any, alpha: Any) -> Any:
        return x

    @classmethod
    def _p(cls, x: Any, alpha: Any) -> Any:
        return torch.clamp(x, min=0)

    @classmethod
    def forward(cls, ctx: Any, X: Any, n_iter: Any = 12) -> Any:
        return super().forward(ctx, X, alpha=2, n_iter=n_iter)

    @classmethod
    def backward(cls, ctx: Any, dY: Any) -> Any:
        (Y,) = ctx.saved_tensors
        gppr = (Y > 0).to(dtype=dY.dtype)
        dX = dY * gppr
        q = dX.sum(-1) / gppr.sum(-1)
        return dX - q.unsqueeze(-1) * gppr, None


class HardArgmax(Function):
    """The straight-through half of Gumbel softmax, by comparison."""

    @staticmethod
    def forward(ctx: Any, logits: Any, tau: Any) -> Any:
        y = F.softmax(logits / tau, dim=-1)
        ctx.save_for_backward(y)
        ctx.tau = tau
        return (y == y.max(dim=-1, keepdim=True)[0]).float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        inner = (grad * y).sum(-1, keepdim=True)
        return y * (grad - inner) / ctx.tau, None


class GumbelSoftmaxSTE(Function):
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        gumbels = -torch.empty_like(logits).uniform_(1e-6, 1.0).log().neg().log()
        y = ((logits + gumbels) / 0.5).softmax(dim=-1)
        return (y == y.amax(dim=-1, keepdim=True)).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class FocalLoss(Function):
    """By modules that the class holds."""

    logsigmoid = nn.LogSigmoid()

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, gamma: Any = 2.0) -> Any:
        p = torch.sigmoid(logits)
        ctx.save_for_backward(p, target)
        ctx.gamma = gamma
        log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
        loss = -target * (1 - p).pow(gamma) * log_p - (1 - target) * p.pow(gamma) * log_q
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        p, target = ctx.saved_tensors
        return grad_output * (p - target) / p.numel(), None, None


class CReLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.cat((x.clamp(min=0), (-x).clamp(min=0)), 1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        n = x.shape[1]
        return grad[:, :n] * (x > 0) - grad[:, n:] * (x < 0)


class SaturatesInPlace(Function):
    """A masked write into the gradient."""

    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        ctx.save_for_backward(input)
        return input.data.clone().sign_()

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[torch.abs(input) > 1.001] = 0
        return grad_input


class AppliesACallable(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, options: Any, fn: Any = torch.tanh) -> Any:
        ctx.slope = options["slope"]
        with torch.no_grad():
            return fn(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.slope, None, None


class OnlyTheNeeded(Function):
    """No gradient where nobody asks for one."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(a, b)
        else:
            ctx.save_for_backward(b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if not ctx.needs_input_grad[1]:
            (b,) = ctx.saved_tensors
            return grad * b, None
        a, b = ctx.saved_tensors
        return grad * b, grad * a


class ExpSavesItsResult(Function):
    @staticmethod
    def forward(ctx: Any, i: Any) -> Any:
        result = i.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (result,) = ctx.saved_tensors
        return grad_output * result


class WithSetupContext(Function):
    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return x * weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight = inputs
        ctx.save_for_backward(x, weight)
        ctx.shape = weight.shape

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0).reshape(ctx.shape)


class RowByRow(Function):
    """A loop over rows, and rows by name."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        first, *others = x
        return torch.stack([first, *(row.cumsum(0) for row in others)])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows = [g.flip(0).cumsum(0).flip(0) if i else g for i, g in enumerate(grad)]
        return torch.stack(rows)


class LowerTriangle(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        mask = torch.tril(torch.ones(x.shape[0], x.shape[1], dtype=torch.bool))
        return x.masked_fill(~mask, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.tril(grad)
