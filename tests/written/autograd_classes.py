"""`torch.autograd.Function` classes as people write them: each must be captured as it stands.

Applied on torch by themselves, they are their own oracle (see test_from_autograd_function.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ClippedReLU(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Any, limit: Any) -> Any:
        limit = float(limit)
        ctx.save_for_backward(inputs)
        ctx.limit = limit
        return inputs.clamp(min=0, max=limit)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (inputs,) = ctx.saved_tensors
        inside = (inputs > 0) & (inputs < ctx.limit)
        return grad_output * inside.float(), None


class IncorrectClippedReLU(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Any, limit: Any) -> Any:
        ctx.save_for_backward(inputs)
        ctx.limit = float(limit)
        return inputs.clamp(min=0, max=ctx.limit)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output.clone(), None  # the mask is forgotten


class ReplaceGrad(Function):
    @staticmethod
    def forward(ctx: Any, shown: Any, differentiated: Any) -> Any:
        ctx.shape = differentiated.shape
        return shown

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return None, grad_output.sum_to_size(ctx.shape)


class ClampWithGrad(Function):
    """The gradient passes where it is not negative along the way back: a mask in the place of a
    product.
    """

    @staticmethod
    def forward(ctx: Any, input: Any, min: Any, max: Any) -> Any:
        ctx.min, ctx.max = min, max
        ctx.save_for_backward(input)
        return input.clamp(min, max)

    @staticmethod
    def backward(ctx: Any, grad_in: Any) -> Any:
        (input,) = ctx.saved_tensors
        return grad_in * (grad_in * (input - input.clamp(ctx.min, ctx.max)) >= 0), None, None


class ClampThatLetsGradientsBack(Function):
    """The same by masked assignment, on a copy."""

    @staticmethod
    def forward(ctx: Any, input: Any, low: float, high: float) -> Any:
        ctx.save_for_backward(input)
        ctx.bounds = (low, high)
        return torch.clamp(input, low, high)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (input,) = ctx.saved_tensors
        low, high = ctx.bounds
        grad_input = grad_output.clone()
        grad_input[(input < low) & (grad_output > 0)] = 0
        grad_input[(input > high) & (grad_output < 0)] = 0
        return grad_input, None, None


class NoisySquare(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, sigma: float = 0.1) -> Any:
        ctx.save_for_backward(x)
        ctx.sigma = sigma
        return x**2

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (x,) = ctx.saved_tensors
        noise = ctx.sigma * torch.randn_like(x)
        return grad_output * (2 * x) + noise, None


class JammedSquare(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output * torch.rand_like(ctx.saved_tensors[0])


class SortedScale(Function):
    """Two outputs, one of integers; context from `setup_context`; an argument that is a word."""

    @staticmethod
    def forward(x: Any, factor: float, mode: str = "plain") -> Any:
        scaled = x * factor if mode == "plain" else x / factor
        return scaled, (scaled > 1).to(torch.int32)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, factor, mode = inputs
        _, counts = output
        ctx.mark_non_differentiable(counts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.factor = factor if mode == "plain" else 1 / factor

    @staticmethod
    def backward(ctx: Any, grad_output: Any, _: Any) -> Any:
        return grad_output * ctx.factor, None, None


class SavedOutput(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


class OnceOnly(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        norm = x.norm()
        ctx.save_for_backward(x, norm)
        return x / norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Any) -> Any:
        x, norm = ctx.saved_tensors
        grad_output = grad_output / norm
        return grad_output.sub_(x * (x * grad_output).sum() / norm**2)


class TwoOutputs(Function):
    """A float output without a gradient, and a number among the outputs."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        largest = x.abs().max()
        ctx.mark_non_differentiable(largest)
        return x * w, largest, 3

    @staticmethod
    def backward(ctx: Any, grad_output: Any, grad_largest: Any, grad_number: Any) -> Any:
        x, w = ctx.saved_tensors
        return grad_output * w, (grad_output * x).sum_to_size(w.shape)


class StraightThrough(Function):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class RoundStraightThrough(StraightThrough):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.round(x)


round_straight_through = RoundStraightThrough.apply


class Quantize(Function):
    """A class that applies another one, by its own name and by an alias."""

    @staticmethod
    def forward(ctx: Any, x: Any, step: float) -> Any:
        ctx.step = step
        return RoundStraightThrough.apply(x / step) * step

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return round_straight_through(grad_output), None


class BranchesOnValues(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad_output * 2 if float(x.sum()) > 0 else grad_output


class TooFewGradients(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output


class AddBias(Function):
    """What was repeated along the way, and its dtype, is left to torch's engine."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any) -> Any:
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output, grad_output


class ForgetsToSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        return x * w.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output, grad_output


class ChangesItsInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        (x,) = ctx.saved_tensors
        return x.mul_(grad_output)


# --- quantizers that go through int8, uint8, int16 or float8 --------------------------------------
class FakeInt8(StraightThrough):
    """The scale of the largest magnitude; int8 and back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        scale = x.abs().max() / 127
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        return q.to(x.dtype) * scale


class Affine(Function):
    """A zero point, uint8, and a mask of what was not clipped."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float, zero_point: int) -> Any:
        unbounded = torch.round(x / scale) + zero_point
        q = unbounded.clamp(0, 255).byte()
        ctx.save_for_backward((unbounded == q).to(torch.uint8))
        return (q.int() - zero_point) * scale

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None


class Wrapping(StraightThrough):
    """What is beyond int8 wraps around, as torch casts it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return (x * 100).to(torch.int8).float() + (x * 100).type(torch.uint8).float()


class Packed4Bit(StraightThrough):
    """Two numbers of four bits in a byte, packed and unpacked."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        q = (x * 2).round().clamp(-8, 7).char() + 8
        q = q.to(torch.uint8)
        packed = q[:, ::2] << 4 | q[:, 1::2]
        whole = torch.stack([packed >> 4, packed & 15], dim=-1).reshape(x.shape)
        return (whole.to(torch.int8) - 8).to(x.dtype) / 2


class Short(StraightThrough):
    """Fixed point of 16 bits, with an arithmetic shift."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        q = (x * 4096).short()
        return (q >> 4).float() / 256 + q.sum() / 4096


class Float8(Function):
    """float8_e4m3fn forward, float8_e5m2 for the gradient, as in training in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return (x * 256).to(torch.float8_e4m3fn).to(x.dtype) / 256

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (grad * 8192).to(torch.float8_e5m2).to(grad.dtype) / 8192
