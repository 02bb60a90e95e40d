"""Quantizers as they stand in people's repositories."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function


class FunLSQ(Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, alpha: Any, g: Any, Qn: Any, Qp: Any) -> Any:
        assert alpha > 0, f"alpha = {alpha}"
        ctx.save_for_backward(weight, alpha)
        ctx.other = g, Qn, Qp
        q_w = (weight / alpha).round().clamp(Qn, Qp)
        return q_w * alpha

    @staticmethod
    def backward(ctx: Any, grad_weight: Any) -> Any:
        weight, alpha = ctx.saved_tensors
        g, Qn, Qp = ctx.other
        q_w = weight / alpha
        indicate_small = (q_w < Qn).float()
        indicate_big = (q_w > Qp).float()
        indicate_middle = 1.0 - indicate_small - indicate_big
        grad_alpha = indicate_small * Qn + indicate_big * Qp
        grad_alpha = grad_alpha + indicate_middle * (-q_w + q_w.round())
        grad_alpha = (grad_alpha * grad_weight * g).sum().unsqueeze(dim=0)
        return indicate_middle * grad_weight, grad_alpha, None, None, None


class RoundHalfUp(Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        sign = torch.sign(input)
        return sign * torch.floor(torch.abs(input) + 0.5)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output.clone()


class ALSQPlus(Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, alpha: Any, g: Any, Qn: Any, Qp: Any, beta: Any) -> Any:
        ctx.save_for_backward(weight, alpha, beta)
        ctx.other = g, Qn, Qp
        w_q = RoundHalfUp.apply(torch.div((weight - beta), alpha).clamp(Qn, Qp))
        return w_q * alpha + beta

    @staticmethod
    def backward(ctx: Any, grad_weight: Any) -> Any:
        weight, alpha, beta = ctx.saved_tensors
        g, Qn, Qp = ctx.other
        q_w = (weight - beta) / alpha
        smaller = (q_w < Qn).float()
        bigger = (q_w > Qp).float()
        between = 1.0 - smaller - bigger
        grad_alpha = smaller * Qn + bigger * Qp + between * RoundHalfUp.apply(q_w) - between * q_w
        grad_alpha = (grad_alpha * grad_weight * g).sum().unsqueeze(dim=0)
        grad_beta = ((smaller + bigger) * grad_weight * g).sum().unsqueeze(dim=0)
        return between * grad_weight, grad_alpha, None, None, None, grad_beta


class WLSQPerChannel(Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Any, alpha: Any, g: Any, Qn: Any, Qp: Any, per_channel: Any = True
    ) -> Any:
        ctx.save_for_backward(weight, alpha)
        ctx.other = g, Qn, Qp, per_channel
        if not per_channel:
            return RoundHalfUp.apply(torch.div(weight, alpha).clamp(Qn, Qp)) * alpha
        sizes = weight.size()
        weight = weight.contiguous().view(weight.size()[0], -1)
        weight = torch.transpose(weight, 0, 1)
        alpha = torch.broadcast_to(alpha, weight.size())
        w_q = RoundHalfUp.apply(torch.div(weight, alpha).clamp(Qn, Qp))
        w_q = torch.transpose(w_q * alpha, 0, 1)
        return w_q.contiguous().view(sizes)

    @staticmethod
    def backward(ctx: Any, grad_weight: Any) -> Any:
        weight, alpha = ctx.saved_tensors
        g, Qn, Qp, _ = ctx.other
        sizes = weight.size()
        weight = weight.contiguous().view(weight.size()[0], -1)
        weight = torch.transpose(weight, 0, 1)
        q_w = weight / torch.broadcast_to(alpha, weight.size())
        q_w = torch.transpose(q_w, 0, 1).contiguous().view(sizes)
        smaller = (q_w < Qn).float()
        bigger = (q_w > Qp).float()
        between = 1.0 - smaller - bigger
        step = smaller * Qn + bigger * Qp + between * RoundHalfUp.apply(q_w) - between * q_w
        step = step * grad_weight * g
        grad_alpha = step.contiguous().view(step.size()[0], -1).sum(dim=1)
        return between * grad_weight, grad_alpha, None, None, None, None


class BinarizeF(Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        output = input.new(input.size())
        output[input >= 0] = 1
        output[input < 0] = -1
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output.clone()


class PACT(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any, k: Any) -> Any:
        ctx.save_for_backward(x, alpha)
        y = torch.clamp(x, min=0, max=alpha.item())
        scale = (2**k - 1) / alpha
        return torch.round(y * scale) / scale

    @staticmethod
    def backward(ctx: Any, dLdy_q: Any) -> Any:
        x, alpha = ctx.saved_tensors
        lower_bound = x < 0
        upper_bound = x > alpha
        x_range = ~(lower_bound | upper_bound)
        grad_alpha = torch.sum(dLdy_q * torch.ge(x, alpha).float()).view(-1)
        return dLdy_q * x_range.float(), grad_alpha, None


def uniform_quantize(k: int) -> Any:
    class qfn(Function):
        @staticmethod
        def forward(ctx: Any, input: Any) -> Any:
            if k == 32:
                out = input
            elif k == 1:
                out = torch.sign(input)
            else:
                n = float(2**k - 1)
                out = torch.round(input * n) / n
            return out

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            return grad_output.clone()

    return qfn


DoReFa = uniform_quantize(4)


class BinActive(Function):
    """XNOR-Net's."""

    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        ctx.save_for_backward(input)
        mean = torch.mean(input.abs(), 1, keepdim=True)
        input = input.sign()
        return input, mean

    @staticmethod
    def backward(ctx: Any, grad_output: Any, grad_output_mean: Any) -> Any:
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.ge(1)] = 0
        grad_input[input.le(-1)] = 0
        return grad_input


class IRNet(Function):
    @staticmethod
    def forward(ctx: Any, input: Any, k: Any, t: Any) -> Any:
        ctx.save_for_backward(input, k, t)
        return torch.sign(input)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        input, k, t = ctx.saved_tensors
        grad_input = k * t * (1 - torch.pow(torch.tanh(input * t), 2)) * grad_output
        return grad_input, None, None


class ApproxSign(Function):
    """Bi-Real Net's polynomial."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        mask1 = x < -1
        mask2 = x < 0
        mask3 = x < 1
        slope = 0 * mask1.type(torch.float32) + (x * 2 + 2) * (1 - mask1.type(torch.float32))
        slope = slope * mask2.type(torch.float32) + (2 - x * 2) * (1 - mask2.type(torch.float32))
        slope = slope * mask3.type(torch.float32) + 0 * (1 - mask3.type(torch.float32))
        return g * slope


class Ternarize(Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        delta = 0.7 * input.norm(1).div(input.nelement())
        output = input.clone().zero_()
        pos = input.gt(delta).to(torch.float32)
        neg = input.lt(-1 * delta).to(torch.float32)
        alpha = (input.abs() * (pos + neg)).sum() / (pos + neg).sum().clamp(min=1)
        output += alpha * pos
        output -= alpha * neg
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output


class TrainedTernary(Function):
    @staticmethod
    def forward(ctx: Any, w: Any, wp: Any, wn: Any, t: Any) -> Any:
        delta = t * w.abs().max()
        a = (w > delta).float()
        b = (w < -delta).float()
        ctx.save_for_backward(a, b, wp, wn)
        return wp * a - wn * b

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b, wp, wn = ctx.saved_tensors
        c = torch.ones(grad.size(), device=grad.device) - a - b
        return (
            wp * a * grad + wn * b * grad + 1.0 * c * grad,
            (a * grad).sum(),
            -(b * grad).sum(),
            None,
        )


class UniformQuantize(Function):
    """In place on a copy, as in quantized.pytorch."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, num_bits: Any = 8, stochastic: Any = False, inplace: Any = False
    ) -> Any:
        ctx.inplace = inplace
        if ctx.inplace:
            ctx.mark_dirty(input)
            output = input
        else:
            output = input.clone()
        min_value, max_value = output.min(), output.max()
        qmin = 0.0
        qmax = qmin + 2.0**num_bits - 1.0
        scale = (max_value - min_value) / (qmax - qmin)
        scale = max(scale, torch.tensor(1e-8, device=input.device))
        output.add_(-min_value).div_(scale).add_(qmin)
        if stochastic:
            noise = output.new(output.shape).uniform_(-0.5, 0.5)
            output.add_(noise)
        output.clamp_(qmin, qmax).round_()
        output.add_(-qmin).mul_(scale).add_(min_value)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output, None, None, None


class EWGS(Function):
    @staticmethod
    def forward(ctx: Any, x_in: Any, num_levels: Any, scaling_factor: Any) -> Any:
        x = x_in * (num_levels - 1)
        x = torch.round(x)
        x_out = x / (num_levels - 1)
        ctx._scaling_factor = scaling_factor
        ctx.save_for_backward(x_in - x_out)
        return x_out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        diff = ctx.saved_tensors[0]
        delta = ctx._scaling_factor
        scale = 1 + delta * (torch.sign(g) * diff)
        return g * scale, None, None


class PowerOfTwo(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        eps = torch.finfo(x.dtype).eps
        return torch.sign(x) * 2 ** torch.round(torch.log2(x.abs() + eps))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.clone()


class HalfWave(Function):
    """Levels one after the other."""

    LEVELS = (0.538, 1.076, 1.614)

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        y = torch.zeros_like(x)
        for level in HalfWave.LEVELS:
            y = torch.where(x > level - 0.269, torch.tensor(level, device=x.device), y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ((x > 0) & (x < HalfWave.LEVELS[-1])).to(grad.dtype)


class PerChannelMax(Function):
    @staticmethod
    def forward(ctx: Any, w: Any, bits: Any) -> Any:
        reduce_dims = tuple(range(1, w.dim()))
        scale = w.abs().amax(dim=reduce_dims, keepdim=True) / (2 ** (bits - 1) - 1)
        scale = scale.clamp(min=torch.finfo(w.dtype).tiny)
        return torch.round(w / scale).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class Float16(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.half().float()


class AccumulatesInDouble(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x / x.double().pow(2).mean().sqrt().float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad / x.double().pow(2).mean().sqrt().to(grad.dtype)


class AssertsRange(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, levels: Any) -> Any:
        assert isinstance(x, torch.Tensor)
        assert levels > 1
        assert x.dim() == 2, "expected a matrix"
        assert (x.abs() <= 100).all(), "out of range"
        assert not torch.isnan(x).any()
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        assert torch.isfinite(grad).all()
        return grad, None


class ClampPartial(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, low: Any, high: Any) -> Any:
        ctx.mask = x.ge(low) * x.le(high)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.mask.type_as(grad), None, None


class ScaleOfDtype(Function):
    """The smallest step that a dtype has near the greatest value."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        info = torch.finfo(x.dtype)
        step = x.abs().max() * info.eps * 2**12
        return torch.round(x / step.clamp(min=info.tiny)) * step

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class AdaRound(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, v: Any) -> Any:
        gate = torch.clamp(torch.sigmoid(v) * (1.1 - -0.1) + -0.1, 0, 1)
        ctx.save_for_backward(v)
        return torch.floor(x) + gate

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (v,) = ctx.saved_tensors
        s = torch.sigmoid(v)
        inside = ((s * 1.2 - 0.1) > 0) & ((s * 1.2 - 0.1) < 1)
        return grad, grad * inside * 1.2 * s * (1 - s)


class HardTanhSign(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return F.hardtanh(grad) * x.abs().le(1)


class PiScaled(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.scale = torch.as_tensor(math.pi, dtype=x.dtype, device=x.device)
        return torch.round(x / ctx.scale) * ctx.scale

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.scale
