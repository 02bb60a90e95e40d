"""Hand-written rivals in PyTorch: `torch.autograd.Function` in its old style, which is the cheapest
to call.

`plain` is what a careful person writes first. `hand-written` is the fastest that keeps every answer
of the rule, also at NaN and infinity, and stays differentiable twice. `shortcut` gives one of these
up, or the check for torch.func that `Function.apply` makes, for less time. Parameters are
arguments, as a rule's are.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch.autograd import Function

Tensor: TypeAlias = torch.Tensor

FEW = 4096
"""Up to this many elements a call costs more than its work, so fewer calls win over faster ones."""

# A tensor without dimensions costs a call 1 us less than a Python number, and changes no dtype or
# device.
ZERO, ONE = torch.zeros(()), torch.ones(())


def move(device: torch.device) -> None:
    """Put the constants where the tensors are."""
    global ZERO, ONE
    ZERO, ONE = ZERO.to(device), ONE.to(device)


leaky_relu_backward = torch.ops.aten.leaky_relu_backward.default
hardtanh_backward = torch.ops.aten.hardtanh_backward
threshold_backward = torch.ops.aten.threshold_backward


class PlainTriangular(Function):
    """Keeps x; each step of the formula makes a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad_out * (1 - x.abs() / ctx.width).clamp(min=0), None


class PlainArctan(Function):
    """Keeps x; each step of the formula makes a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        alpha = ctx.alpha
        return grad_out * (alpha / 2 / (1 + (math.pi / 2 * alpha * x) ** 2)), None


class PlainRectangular(Function):
    """Keeps x and asks for the window in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.window = a, b
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        a, b = ctx.window
        return grad_out * ((x >= a) & (x <= b)).to(grad_out.dtype), None, None


class PlainStepRectangular(PlainRectangular):
    """The same window under a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.window = a, b
        return (x > 0).to(x.dtype)


class PlainReLU(Function):
    """Keeps x; the mask becomes floats before the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_out * (x > 0).to(grad_out.dtype)


class PlainClipNorm(Function):
    """Keeps nothing; the factor stays a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, max_norm: float, eps: float) -> Tensor:
        ctx.bounds = max_norm, eps
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        max_norm, eps = ctx.bounds
        return grad_out * (max_norm / grad_out.norm().clamp(min=eps)).clamp(max=1), None, None


def step(x: Tensor) -> Tensor:
    """Compare straight into floats: seven times as fast as a comparison and a cast."""
    return torch.gt(x, ZERO, out=torch.empty_like(x))


def find_window(x: Tensor, a: float, b: float) -> Tensor:
    """Return the mask as bytes by way of floats: comparisons into bool are not vectorized."""
    clamped = torch.clamp(x, a, b)
    if x.numel() <= FEW:
        return torch.eq(clamped, x).view(torch.int8)
    return torch.eq(clamped, x, out=clamped).to(torch.int8)


def mask(grad_out: Tensor, kept: Tensor) -> Tensor:
    """Multiply by a mask of bytes; a large one is cheaper as floats, in place."""
    if kept.numel() <= FEW or torch.is_grad_enabled():
        return grad_out * kept
    return kept.to(grad_out.dtype).mul_(grad_out)


class Triangular(Function):
    """Works in place on its one temporary; create_graph=True needs the old values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.width = width
        return step(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        factor = x.abs()
        if torch.is_grad_enabled():
            return grad_out * torch.add(ONE, factor, alpha=-1 / ctx.width).relu(), None
        torch.add(ONE, factor, alpha=-1 / ctx.width, out=factor)
        return factor.relu_().mul_(grad_out), None


class Arctan(Function):
    """Two kernels at the default alpha, whose alpha / 2 is 1: sum and square are one addcmul."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return step(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        alpha = ctx.alpha
        divisor = torch.addcmul(ONE, x, x, value=(math.pi / 2 * alpha) ** 2)
        if torch.is_grad_enabled():
            return grad_out * (alpha / 2) / divisor, None
        grad_in = torch.div(grad_out, divisor, out=divisor)
        return (grad_in if alpha == 2 else grad_in.mul_(alpha / 2)), None


class Rectangular(Function):
    """Keeps a byte per element, made from the floats of one clamp and one comparison."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(find_window(x, a, b))
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return mask(grad_out, kept), None, None


class StepRectangular(Rectangular):
    """The same window under a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(find_window(x, a, b))
        return step(x)


class ReLU(Function):
    """Keeps its output; leaky_relu's backward kernel with a slope of 0 multiplies by the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = torch.relu(x)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return leaky_relu_backward(grad_out, output, 0.0, False)


class ClipNorm(Function):
    """Takes the norm as a number, which saves three calls; create_graph=True needs a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, max_norm: float, eps: float) -> Tensor:
        ctx.bounds = max_norm, eps
        return x

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        max_norm, eps = ctx.bounds
        norm = torch.linalg.vector_norm(grad_out)
        if torch.is_grad_enabled():
            return grad_out * (max_norm / norm.clamp(min=eps)).clamp(max=1), None, None
        return grad_out * min(max_norm / max(norm.item(), eps), 1.0), None, None


class FusedTriangular(Triangular):
    """grad_out - grad_out * |clamped x| / width in three kernels: wrong at an infinite grad_out."""

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        distance = x.clamp(-ctx.width, ctx.width).abs_()
        return torch.addcmul(grad_out, grad_out, distance, value=-1 / ctx.width), None


class FusedRectangular(Function):
    """hardtanh's backward, whose window is open: takes the next numbers; lets NaN through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.window = a, b
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        a, b = ctx.window
        return hardtanh_backward(grad_out, x, a, b), None, None


class FusedStepRectangular(FusedRectangular):
    """The same window under a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float, b: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.window = a, b
        return step(x)


class FusedReLU(Function):
    """What torch.relu itself does: keeps its output; lets a NaN in x through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = torch.relu(x)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return threshold_backward(grad_out, output, 0)


def open_window(a: float, b: float) -> tuple[float, float]:
    """Return the float32 numbers next outside of a closed window."""
    edges = torch.tensor([a, b])
    outside = torch.nextafter(edges, torch.tensor([-math.inf, math.inf]))
    return outside[0].item(), outside[1].item()


def enter(cls: type[Function], *values: float) -> Any:
    """Return a call past `Function.apply`, whose check for torch.func it leaves out."""
    apply = super(Function, cls).apply

    def call(x: Tensor) -> Tensor:
        return apply(x, *values)

    return call


def apply(cls: type[Function], *values: float) -> Any:
    """Return a call of the Function by its documented door."""

    def call(x: Tensor) -> Tensor:
        return cls.apply(x, *values)

    return call


RIVALS = {
    ("Heaviside", "triangular"): {
        "plain": apply(PlainTriangular, 1.0),
        "hand-written": apply(Triangular, 1.0),
        "shortcut": enter(FusedTriangular, 1.0),
    },
    ("ReLU", "rectangular"): {
        "plain": apply(PlainRectangular, -0.5, 0.5),
        "hand-written": apply(Rectangular, -0.5, 0.5),
        "shortcut": enter(FusedRectangular, *open_window(-0.5, 0.5)),
    },
    ("Heaviside", "rectangular"): {
        "plain": apply(PlainStepRectangular, -0.5, 0.5),
        "hand-written": apply(StepRectangular, -0.5, 0.5),
        "shortcut": enter(FusedStepRectangular, *open_window(-0.5, 0.5)),
    },
    ("Heaviside", "arctan"): {
        "plain": apply(PlainArctan, 2.0),
        "hand-written": apply(Arctan, 2.0),
        "shortcut": enter(Arctan, 2.0),
    },
    ("ReLU", "d(ReLU)"): {
        "plain": apply(PlainReLU),
        "hand-written": apply(ReLU),
        "shortcut": enter(FusedReLU),
    },
    ("Linear", "clip_norm"): {
        "plain": apply(PlainClipNorm, 1.0, 1e-12),
        "hand-written": apply(ClipNorm, 1.0, 1e-12),
        "shortcut": enter(ClipNorm, 1.0, 1e-12),
    },
}
