"""What classes ask a tensor about itself, and how they make others beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])


class Doubling(Function):
    """The gradient of all classes here."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (2 * grads[0], *(None for _ in ctx.needs_input_grad[1:]))


class IsCuda(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ones = torch.ones(x.size())
        if x.is_cuda:
            ones = ones.cuda()
        return x * ones


class IsContiguous(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        if not x.is_contiguous():
            x = x.contiguous()
        return x.t().contiguous().t() + 1


class RequiresGrad(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any) -> Any:
        ctx.both = x.requires_grad and bias.requires_grad
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad, grad.sum(0) if ctx.both else None


class DeviceOfAll(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        device = x.device
        one = torch.tensor(1.0, device=device)
        zeros = torch.zeros(x.shape, device=device)
        half = torch.full_like(x, 0.5, device=device)
        return x.to(device) * one + zeros + half


class DtypeAndDevice(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        n = x.shape[-1]
        ramp = torch.arange(n, device=x.device, dtype=x.dtype)
        scale = torch.tensor([2.0], dtype=x.dtype, device=x.device)
        return x * ramp * scale + torch.linspace(0.0, 1.0, n, device=x.device, dtype=x.dtype)


class DrawsLikeIt(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        noise = torch.randn(x.size(), device=x.device, dtype=x.dtype)
        return x + noise + torch.rand(x.size(0), 1, device=x.device)


class DeviceType(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        if x.device.type == "cuda" and x.get_device() >= 0:
            return x * 1.0
        return x * 1.0


class ToDeviceAndDtype(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        table = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(x.device, x.dtype)
        return x * table.to(device=x.device, dtype=x.dtype, non_blocking=True)


class Layout(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        if x.layout != torch.strided or x.is_sparse:
            raise ValueError("dense tensors only")
        out = torch.empty(x.shape, dtype=x.dtype, layout=x.layout, device=x.device)
        out.copy_(x)
        return out


class ElementSize(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        bits = 8 * x.element_size()
        return x * bits + x.nelement() + x.ndimension()


class Limits(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        info = torch.finfo(x.dtype)
        levels = torch.iinfo(torch.int8).max
        return torch.clamp(x / info.eps, info.min, info.max) + levels


class NewOfSizes(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        a = x.new(x.size()).fill_(2.0)
        b = x.new(x.size(0), x.size(1)).zero_()
        c = x.new([1.0, 2.0, 3.0, 4.0])
        return x * a + b + c


class OldTensors(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        zero = torch.Tensor([0.0])
        one = torch.FloatTensor([1.0])
        return torch.max(x, zero) + one


class TypeOfFloat(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        mask = (x > 0).type(torch.FloatTensor)
        return x * mask + x.type(torch.float32) + (x < 0).type(x.type())


class ItemInArithmetic(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        scale = x.abs().max().item() / 127
        mean = x.mean().item()
        return torch.round((x - mean) / scale) * scale


class ItemOfOneElement(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, step: Any) -> Any:
        limit = step.item()
        return x.clamp(-limit, limit) / max(limit, 1e-3)


class SqueezesNothing(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.squeeze(0).squeeze(1) + torch.squeeze(x, -1) + x.squeeze()


class FlattensSome(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.view(x.size(0), 2, 2)
        return torch.flatten(y, 1) + y.flatten(start_dim=1, end_dim=2) + y.flatten(1, -1)


class ExpandsKeeping(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        row = x.mean(0, keepdim=True).expand(x.size(0), -1)
        column = x.mean(1, keepdim=True).expand(-1, x.size(1))
        return row + column + x.unsqueeze(0).expand(2, -1, -1).sum(0)


class IsATensor(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        if not torch.is_tensor(scale):
            scale = torch.tensor(scale, dtype=x.dtype, device=x.device)
        if isinstance(x, torch.Tensor) and torch.is_floating_point(x):
            return x * scale
        return x


class DefaultTensor(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any = WEIGHT) -> Any:
        return x * weight


class NumelOfShape(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        shape = x.size()
        n = shape.numel() if len(shape) > 1 else shape[0]
        return x.view(-1).view(*shape) / n + x.reshape(shape[0], -1)


class SameDtype(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, other: Any) -> Any:
        assert x.dtype == other.dtype
        assert x.device == other.device
        assert x.shape[-1] == other.shape[-1], "lengths differ"
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        return x + other.to(x.dtype)


class NumpyNumbers(Doubling):
    @staticmethod
    def forward(ctx: Any, x: Any, a: Any, b: Any) -> Any:
        return x * a + b


class Grandchild(IsCuda):
    """By the class above it."""

    @classmethod
    def forward(cls, ctx: Any, x: Any) -> Any:
        return super().forward(ctx, x) + 1
