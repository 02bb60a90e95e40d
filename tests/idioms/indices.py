"""Idioms with integer places and composed functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function


class SparsemaxFunction(Function):
    @staticmethod
    def forward(ctx: Any, X: Any, dim: Any = -1) -> Any:
        ctx.dim = dim
        max_val, _ = X.max(dim=dim, keepdim=True)
        X = X - max_val
        topk, _ = torch.sort(X, dim=dim, descending=True)
        topk_cumsum = topk.cumsum(dim) - 1
        rhos = torch.arange(1, X.shape[dim] + 1, device=X.device, dtype=X.dtype)
        support = rhos * topk > topk_cumsum
        support_size = support.sum(dim=dim).unsqueeze(dim)
        tau = topk_cumsum.gather(dim, support_size - 1)
        tau /= support_size.to(X.dtype)
        output = torch.clamp(X - tau, min=0)
        ctx.save_for_backward(support_size, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        supp_size, output = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[output == 0] = 0
        v_hat = grad_input.sum(dim=ctx.dim) / supp_size.to(output.dtype).squeeze(ctx.dim)
        v_hat = v_hat.unsqueeze(ctx.dim)
        return torch.where(output != 0, grad_input - v_hat, grad_input), None


class ArgmaxSTE(Function):
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        index = logits.max(dim=-1, keepdim=True)[1]
        return torch.zeros_like(logits).scatter_(-1, index, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class TopKMask(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, k: Any) -> Any:
        _, index = x.abs().topk(k, dim=-1)
        mask = torch.zeros_like(x)
        mask.scatter_(-1, index, 1)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return grad * mask, None


class NearestCode(Function):
    """VQ-VAE's."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, codebook: Any) -> Any:
        distances = torch.addmm(
            (codebook**2).sum(1) + (inputs**2).sum(1, keepdim=True),
            inputs,
            codebook.t(),
            alpha=-2.0,
        )
        _, indices = torch.min(distances, dim=1)
        ctx.save_for_backward(indices, codebook)
        return codebook.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        indices, codebook = ctx.saved_tensors
        grad_codebook = torch.zeros_like(codebook)
        grad_codebook.index_add_(0, indices, grad)
        return grad, grad_codebook


class LongScale(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return (x * 16).long().float() / 16

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


LEVELS = torch.tensor([-1.0, -0.25, 0.0, 0.25, 1.0])


class LevelsByIndex(Function):
    """APoT's."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        idx = (x.reshape(-1, 1) - LEVELS.to(x.device)).abs().argmin(dim=1)
        return LEVELS.type_as(x)[idx].view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class SoftmaxCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any) -> Any:
        p = F.softmax(logits, dim=1)
        one_hot = F.one_hot(target.long(), logits.size(1)).to(p.dtype)
        ctx.save_for_backward(p, one_hot)
        return F.nll_loss(torch.log(p), target)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        p, one_hot = ctx.saved_tensors
        return grad * (p - one_hot) / p.size(0), None


class ChunkGLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        ctx.save_for_backward(a, b)
        return a * torch.sigmoid(b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        s = torch.sigmoid(b)
        return torch.hstack((grad * s, grad * a * s * (1 - s)))


class SplitAndStack(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        a, b = torch.split(x, [1, 3], dim=1)
        return torch.vstack((a.expand(-1, 3), b))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        n = grad.size(0) // 2
        return torch.cat((grad[:n].sum(1, keepdim=True), grad[n:]), dim=1)


class Unbound(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.stack([row * (i + 1) for i, row in enumerate(x.unbind(0))])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.stack([row * (i + 1) for i, row in enumerate(torch.unbind(grad))])


class LinearByName(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class DiagonalScale(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x, scale)
        return x @ torch.diag(scale) + 0 * torch.eye(4)[:3]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, scale = ctx.saved_tensors
        return grad @ torch.diag(scale), (grad * x).sum(0)


class LayerNormByName(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return F.layer_norm(x, x.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, index: Any) -> Any:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device).scatter_add_(
            1, index, grad
        ), None


class SortedByValue(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        values, indices = x.sort(dim=1)
        ctx.save_for_backward(indices)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(1, indices, grad)


class SoftTargetLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, target: Any) -> Any:
        ctx.save_for_backward(x, target)
        return F.mse_loss(x, target) + F.l1_loss(x, target) + F.smooth_l1_loss(x, target)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, target = ctx.saved_tensors
        return grad * (x - target) / x.numel(), None
