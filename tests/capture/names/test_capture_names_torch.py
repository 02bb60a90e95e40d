"""Names of torch that are composed from ops: on NumPy they give torch's numbers and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class
from .test_capture_names_numpy import inputs

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides"),
    pytest.mark.filterwarnings("ignore:size_average and reduce args"),
    pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.row_stack is deprecated"),
    pytest.mark.filterwarnings("ignore:Tensor.H is deprecated on 0-D tensors"),
]
F = torch.nn.functional
Tensor = Any
Call = Callable[..., Any]


def ends(p: Tensor) -> Tensor:
    """0 and 1 where p is below and above a half, with p's gradient."""
    return p - p.detach() + (p > 0.5).double()


def fixed(*tensors: Tensor) -> Any:
    """Tensors for which torch has no gradient, as a running mean."""
    return (each.detach() for each in tensors)


# Matrices x and y, w square, v a vector, b a batch of matrices, p and q between 0 and 1.
CALLS: list[Call] = [
    # Words of complex numbers, on real ones.
    lambda x, y, w, v, b, p, q: x.conj() * torch.conj(y) + x.conj_physical(),
    lambda x, y, w, v, b, p, q: x.resolve_conj() * torch.resolve_neg(y) + x.real * y.real,
    lambda x, y, w, v, b, p, q: torch.real(x) if not torch.is_complex(x) else y,
    lambda x, y, w, v, b, p, q: x.mH @ y + torch.adjoint(x) @ y + x.adjoint() @ y.conj(),
    lambda x, y, w, v, b, p, q: x.H @ y + v.sum().H,
    lambda x, y, w, v, b, p, q: b.mH,
    lambda x, y, w, v, b, p, q: x.isreal() * y + torch.isreal(y) * x,
    lambda x, y, w, v, b, p, q: x.angle() * y,
    lambda x, y, w, v, b, p, q: torch.angle(x * torch.tensor([-0.0, 0.0, -1.0, torch.nan])),
    lambda x, y, w, v, b, p, q: torch.angle((-2 * x).int()) + (x > 0).angle(),
    lambda x, y, w, v, b, p, q: y if x.is_conj() or x.is_neg() else x * 2,
    lambda x, y, w, v, b, p, q: x.clone().conj().mul_(2.0) + torch.conj_physical(y),
    lambda x, y, w, v, b, p, q: F.linear(x, w),
    lambda x, y, w, v, b, p, q: F.linear(x, w, v),
    lambda x, y, w, v, b, p, q: F.linear(x, w, bias=None),
    lambda x, y, w, v, b, p, q: F.linear(b, w, v),
    lambda x, y, w, v, b, p, q: F.linear(v, w),
    lambda x, y, w, v, b, p, q: F.bilinear(x, y, b[:, :, :1].expand(2, 3, 1).new_ones(2, 4, 4)),
    lambda x, y, w, v, b, p, q: torch.unbind(x, 1),
    lambda x, y, w, v, b, p, q: x.unbind(-1)[1],
    lambda x, y, w, v, b, p, q: sum(x.unbind()),
    lambda x, y, w, v, b, p, q: x.chunk(2, dim=1),
    lambda x, y, w, v, b, p, q: torch.chunk(x, 2, -1),
    lambda x, y, w, v, b, p, q: torch.chunk(x, 3),
    lambda x, y, w, v, b, p, q: x.chunk(2),
    lambda x, y, w, v, b, p, q: torch.chunk(v, 3),
    lambda x, y, w, v, b, p, q: x.split(2, dim=1),
    lambda x, y, w, v, b, p, q: x.split(2),
    lambda x, y, w, v, b, p, q: torch.split(x, [1, 3], dim=1),
    lambda x, y, w, v, b, p, q: torch.split(x, 1),
    lambda x, y, w, v, b, p, q: x.split([1, 2]),
    lambda x, y, w, v, b, p, q: torch.split(x, split_size_or_sections=3, dim=-1),
    lambda x, y, w, v, b, p, q: torch.split_with_sizes(x, [1, 2]),
    lambda x, y, w, v, b, p, q: torch.tensor_split(x, 3, dim=1),
    lambda x, y, w, v, b, p, q: torch.tensor_split(x, (1, 2), dim=1),
    lambda x, y, w, v, b, p, q: x.tensor_split(2),
    lambda x, y, w, v, b, p, q: torch.hsplit(x, 2),
    lambda x, y, w, v, b, p, q: torch.vsplit(x, 3),
    lambda x, y, w, v, b, p, q: torch.hsplit(x, [1]),
    lambda x, y, w, v, b, p, q: torch.diag(v),
    lambda x, y, w, v, b, p, q: torch.diag(w),
    lambda x, y, w, v, b, p, q: torch.diag(v, 1),
    lambda x, y, w, v, b, p, q: torch.diag(w, -1),
    lambda x, y, w, v, b, p, q: w.diag(),
    lambda x, y, w, v, b, p, q: torch.diagonal(b, dim1=1, dim2=2),
    lambda x, y, w, v, b, p, q: torch.diagonal(x, offset=1),
    lambda x, y, w, v, b, p, q: torch.diagonal(b, 0, -2, -1),
    lambda x, y, w, v, b, p, q: torch.diag_embed(x),
    lambda x, y, w, v, b, p, q: w.diagonal().sum(),
    lambda x, y, w, v, b, p, q: torch.triu(w, diagonal=1),
    lambda x, y, w, v, b, p, q: torch.linalg.diagonal(w),
    lambda x, y, w, v, b, p, q: torch.eye(4) * w,
    lambda x, y, w, v, b, p, q: torch.eye(4, dtype=torch.float64) @ w,
    lambda x, y, w, v, b, p, q: torch.eye(x.shape[1], dtype=x.dtype) - w,
    lambda x, y, w, v, b, p, q: torch.eye(x.size(0), x.size(1), dtype=x.dtype) * x,
    lambda x, y, w, v, b, p, q: torch.eye(w.size(-1)).to(w) + w,
    lambda x, y, w, v, b, p, q: w.tril(-1),
    lambda x, y, w, v, b, p, q: torch.tril(b),
    lambda x, y, w, v, b, p, q: torch.broadcast_tensors(x, v),
    lambda x, y, w, v, b, p, q: torch.broadcast_tensors(x, v)[1],
    lambda x, y, w, v, b, p, q: (
        torch.broadcast_tensors(v, torch.tensor(2.0, dtype=torch.float64))[1] * v
    ),
    lambda x, y, w, v, b, p, q: torch.meshgrid(v, v, indexing="ij"),
    lambda x, y, w, v, b, p, q: torch.meshgrid(v, x[:, 0], indexing="xy"),
    lambda x, y, w, v, b, p, q: torch.meshgrid(v, x[:, 0], indexing="ij")[0],
    lambda x, y, w, v, b, p, q: F.layer_norm(x, (4,)),
    lambda x, y, w, v, b, p, q: F.layer_norm(x, x.shape[-1:]),
    lambda x, y, w, v, b, p, q: F.layer_norm(x, [4], v, v),
    lambda x, y, w, v, b, p, q: F.layer_norm(x, (3, 4)),
    lambda x, y, w, v, b, p, q: F.layer_norm(b, (3, 4), x, y),
    lambda x, y, w, v, b, p, q: F.layer_norm(x, (4,), weight=v, eps=1e-3),
    lambda x, y, w, v, b, p, q: F.layer_norm(x, x.size()[1:], v, v, 1e-5),
    lambda x, y, w, v, b, p, q: F.group_norm(b.reshape(2, 6, 2), 3),
    lambda x, y, w, v, b, p, q: F.group_norm(b.reshape(2, 4, 3), 2, v, v),
    lambda x, y, w, v, b, p, q: F.rms_norm(x, (4,)),
    lambda x, y, w, v, b, p, q: F.rms_norm(x, (4,), v),
    lambda x, y, w, v, b, p, q: F.rms_norm(x, (4,), v, 1e-5),
    lambda x, y, w, v, b, p, q: F.batch_norm(x, *fixed(v, p[0])),
    lambda x, y, w, v, b, p, q: F.batch_norm(x, *fixed(v, p[0]), v, v),
    lambda x, y, w, v, b, p, q: F.batch_norm(x, *fixed(v, p[0]), v, v, False, 0.1, 1e-3),
    lambda x, y, w, v, b, p, q: F.batch_norm(x, None, None, training=True),
    lambda x, y, w, v, b, p, q: F.batch_norm(b.transpose(1, 2), *fixed(v, p[0]), v, v),
    lambda x, y, w, v, b, p, q: F.instance_norm(b),
    lambda x, y, w, v, b, p, q: F.normalize(x),
    lambda x, y, w, v, b, p, q: F.normalize(x, dim=0),
    lambda x, y, w, v, b, p, q: F.normalize(x, p=1, dim=-1),
    lambda x, y, w, v, b, p, q: F.normalize(x, 2, 1, 1e-6),
    lambda x, y, w, v, b, p, q: F.cosine_similarity(x, y),
    lambda x, y, w, v, b, p, q: F.cosine_similarity(x, y, dim=0),
    lambda x, y, w, v, b, p, q: F.cosine_similarity(x, v, dim=-1, eps=1e-6),
    lambda x, y, w, v, b, p, q: torch.cosine_similarity(x, y, 1),
    lambda x, y, w, v, b, p, q: F.pairwise_distance(x, y, p=1.0),
    lambda x, y, w, v, b, p, q: F.pairwise_distance(x, y, 2, 1e-6, True),
    lambda x, y, w, v, b, p, q: torch.cdist(x, y),
    lambda x, y, w, v, b, p, q: torch.cdist(x, w, p=1.0),
    lambda x, y, w, v, b, p, q: torch.cdist(x, w, p=2),
    lambda x, y, w, v, b, p, q: torch.cdist(x, w, p=float("inf")),
    lambda x, y, w, v, b, p, q: torch.dist(x, y, 1),
    lambda x, y, w, v, b, p, q: F.pdist(x),
    lambda x, y, w, v, b, p, q: torch.movedim(b, 0, 2),
    lambda x, y, w, v, b, p, q: torch.movedim(b, (0, 1), (1, 2)),
    lambda x, y, w, v, b, p, q: x.unflatten(1, (2, 2)),
    lambda x, y, w, v, b, p, q: torch.unflatten(x, -1, (2, -1)),
    lambda x, y, w, v, b, p, q: b.flatten(1),
    lambda x, y, w, v, b, p, q: b.flatten(start_dim=1),
    lambda x, y, w, v, b, p, q: torch.flatten(b, 1),
    lambda x, y, w, v, b, p, q: torch.flatten(b, 0, 1),
    lambda x, y, w, v, b, p, q: b.flatten(0, 1),
    lambda x, y, w, v, b, p, q: b.flatten(-2),
    lambda x, y, w, v, b, p, q: torch.flatten(b, start_dim=-2, end_dim=-1),
    lambda x, y, w, v, b, p, q: torch.lerp(x, y, 0.3),
    lambda x, y, w, v, b, p, q: torch.lerp(x, y, p),
    lambda x, y, w, v, b, p, q: x.lerp(y, 0.5),
    lambda x, y, w, v, b, p, q: x.lerp(y, 1.0),
    lambda x, y, w, v, b, p, q: torch.addmm(y, x, w),
    lambda x, y, w, v, b, p, q: torch.addmm(v, x, w, beta=0.5, alpha=2.0),
    lambda x, y, w, v, b, p, q: y.addmm(x, w),
    lambda x, y, w, v, b, p, q: torch.baddbmm(b, b, w.expand(2, 4, 4)),
    lambda x, y, w, v, b, p, q: torch.addmv(x[:, 0], x, v),
    lambda x, y, w, v, b, p, q: torch.addbmm(x, b, w.expand(2, 4, 4)),
    lambda x, y, w, v, b, p, q: torch.bmm(b, b.transpose(1, 2)),
    lambda x, y, w, v, b, p, q: b.bmm(b.mT),
    lambda x, y, w, v, b, p, q: torch.mv(x, v),
    lambda x, y, w, v, b, p, q: x.mv(v),
    lambda x, y, w, v, b, p, q: torch.linalg.multi_dot([x, w, v]),
    lambda x, y, w, v, b, p, q: F.scaled_dot_product_attention(x, y, p),
    lambda x, y, w, v, b, p, q: F.scaled_dot_product_attention(b, b, b, is_causal=True),
    lambda x, y, w, v, b, p, q: F.scaled_dot_product_attention(b, b, b, scale=0.3),
    lambda x, y, w, v, b, p, q: torch.tensordot(x, w, dims=1),
    lambda x, y, w, v, b, p, q: torch.tensordot(x, y, dims=([0, 1], [0, 1])),
    lambda x, y, w, v, b, p, q: torch.chain_matmul(x, w, w),
    lambda x, y, w, v, b, p, q: torch.where(p > 0, torch.xlogy(p, p), 0.0),
    lambda x, y, w, v, b, p, q: torch.where(p > -1, torch.special.xlog1py(x, p), x),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy(p, q),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy(p, q, weight=v.exp().detach()),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy(p, (q > 0.5).double(), reduction="none"),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy_with_logits(x, q),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy_with_logits(x, q, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy_with_logits(x, q, pos_weight=p[0].detach()),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy_with_logits(x, q, weight=p.detach()),
    lambda x, y, w, v, b, p, q: F.cross_entropy(x, y.softmax(1)),
    lambda x, y, w, v, b, p, q: F.cross_entropy(x, y.softmax(1), reduction="sum"),
    lambda x, y, w, v, b, p, q: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
    lambda x, y, w, v, b, p, q: F.cross_entropy(x, y.softmax(1), weight=p[0], reduction="none"),
    lambda x, y, w, v, b, p, q: torch.diff(x, dim=0),
    lambda x, y, w, v, b, p, q: torch.diff(x, n=2),
    lambda x, y, w, v, b, p, q: torch.diff(x, prepend=y[:, :1]),
    lambda x, y, w, v, b, p, q: torch.diff(x, dim=-1, append=y),
    lambda x, y, w, v, b, p, q: torch.trapezoid(x, dx=0.5),
    lambda x, y, w, v, b, p, q: torch.trapezoid(y, x, dim=1),
    lambda x, y, w, v, b, p, q: torch.nanmean(x, dim=1),
    lambda x, y, w, v, b, p, q: torch.std_mean(x, dim=1),
    lambda x, y, w, v, b, p, q: torch.var_mean(x, dim=0),
    lambda x, y, w, v, b, p, q: torch.var_mean(x, dim=-1, keepdim=True, unbiased=False),
    lambda x, y, w, v, b, p, q: torch.aminmax(x, dim=1, keepdim=True),
    lambda x, y, w, v, b, p, q: F.mse_loss(x, y, reduction="none"),
    lambda x, y, w, v, b, p, q: F.mse_loss(x, y, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.mse_loss(x, y.detach()),
    lambda x, y, w, v, b, p, q: F.l1_loss(x, y, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.smooth_l1_loss(x, y, beta=0.5),
    lambda x, y, w, v, b, p, q: F.smooth_l1_loss(x, y, reduction="none", beta=2.0),
    lambda x, y, w, v, b, p, q: F.huber_loss(x, y, delta=0.5),
    lambda x, y, w, v, b, p, q: F.huber_loss(x, y, "sum", 2.0),
    lambda x, y, w, v, b, p, q: F.cosine_embedding_loss(x, y, torch.tensor([1.0, -1.0, 1.0])),
    lambda x, y, w, v, b, p, q: F.cosine_embedding_loss(x, y, x[:, 0].sign(), margin=0.2),
    lambda x, y, w, v, b, p, q: F.hinge_embedding_loss(x, y.sign()),
    lambda x, y, w, v, b, p, q: F.hinge_embedding_loss(x, y.sign(), margin=0.5, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.margin_ranking_loss(x, y, q.sign()),
    lambda x, y, w, v, b, p, q: F.margin_ranking_loss(x, y, (q - 0.5).sign(), margin=0.3),
    lambda x, y, w, v, b, p, q: F.triplet_margin_loss(x, y, q, margin=2.0, p=1, swap=True),
    lambda x, y, w, v, b, p, q: F.poisson_nll_loss(x, p * 4, log_input=False, full=True),
    lambda x, y, w, v, b, p, q: F.poisson_nll_loss(p, q, False, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.gaussian_nll_loss(x, y, p, full=True, reduction="none"),
    lambda x, y, w, v, b, p, q: F.gaussian_nll_loss(x, y, p[:, :1]),
    lambda x, y, w, v, b, p, q: F.multilabel_soft_margin_loss(x, (q > 0.5).double()),
    lambda x, y, w, v, b, p, q: F.kl_div(x.log_softmax(1), y.softmax(1)),
    lambda x, y, w, v, b, p, q: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    lambda x, y, w, v, b, p, q: F.kl_div(
        x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="sum"
    ),
    lambda x, y, w, v, b, p, q: F.kl_div(x, p, reduction="none"),
    lambda x, y, w, v, b, p, q: F.prelu(x, v),
    lambda x, y, w, v, b, p, q: F.prelu(x, torch.tensor([0.25], dtype=torch.float64)),
    lambda x, y, w, v, b, p, q: torch.prelu(x, v[:1]),
    lambda x, y, w, v, b, p, q: F.dropout(x, 0.5, False),
    lambda x, y, w, v, b, p, q: F.dropout(x, training=False),
    lambda x, y, w, v, b, p, q: F.alpha_dropout(x, training=False),
    lambda x, y, w, v, b, p, q: F.dropout2d(b, training=False),
    lambda x, y, w, v, b, p, q: F.pad(x, (1, 1)),
    lambda x, y, w, v, b, p, q: F.pad(x, (1, 2), mode="reflect"),
    lambda x, y, w, v, b, p, q: F.pad(x, (1, 0), "replicate"),
    lambda x, y, w, v, b, p, q: F.pad(x, (-1, 0)),
    lambda x, y, w, v, b, p, q: F.pad(b, (1, 1), mode="circular"),
    lambda x, y, w, v, b, p, q: F.avg_pool1d(b, 2),
    lambda x, y, w, v, b, p, q: F.avg_pool2d(b, 2),
    lambda x, y, w, v, b, p, q: F.adaptive_avg_pool1d(b, 1),
    lambda x, y, w, v, b, p, q: F.adaptive_avg_pool2d(b, 1),
    lambda x, y, w, v, b, p, q: F.pixel_shuffle(b.reshape(1, 4, 3, 2), 2),
    lambda x, y, w, v, b, p, q: torch.round(x, decimals=1),
    lambda x, y, w, v, b, p, q: x.round(decimals=2),
    lambda x, y, w, v, b, p, q: torch.linalg.cross(x[:, :3], y[:, :3]),
    lambda x, y, w, v, b, p, q: torch.cross(x[:, :3], y[:, :3], dim=1),
    lambda x, y, w, v, b, p, q: torch.ldexp(x, torch.tensor(2.0)),
    lambda x, y, w, v, b, p, q: torch.float_power(p, 2),
    lambda x, y, w, v, b, p, q: x.unfold(1, 2, 1),
    lambda x, y, w, v, b, p, q: x.unfold(1, 2, 2).mean(-1),
    lambda x, y, w, v, b, p, q: torch.linalg.matrix_power(w, 3),
    lambda x, y, w, v, b, p, q: torch.dsplit(b, 2),
    lambda x, y, w, v, b, p, q: b.dsplit([1, 3]),
    lambda x, y, w, v, b, p, q: torch.corrcoef(x + 1e3).diagonal() * 2,
    lambda x, y, w, v, b, p, q: torch.linalg.norm(x, "fro"),
    # At the limits of a clamp.
    lambda x, y, w, v, b, p, q: (x - x.detach()).clamp(min=0) + x.clamp(min=0.1),
    lambda x, y, w, v, b, p, q: torch.clamp(x - x.detach(), max=0) + torch.clamp(x, max=y),
    lambda x, y, w, v, b, p, q: torch.clamp_min(x, x.detach()) + x.clamp_max(0.5),
    lambda x, y, w, v, b, p, q: torch.clamp(x - x.detach(), 0, 1),
    # Losses at their edges.
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy(ends(p), q.detach(), reduction="none"),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy(ends(p), ends(q).detach(), reduction="sum"),
    lambda x, y, w, v, b, p, q: F.smooth_l1_loss(x, y + (x - y).detach(), reduction="sum"),
    lambda x, y, w, v, b, p, q: F.huber_loss(x * 1e30, y, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.margin_ranking_loss(
        x, x.detach().clone(), y.sign(), reduction="sum"
    ),
    lambda x, y, w, v, b, p, q: F.hinge_embedding_loss(
        ends(p), -torch.ones_like(p), reduction="sum"
    ),
    lambda x, y, w, v, b, p, q: F.gaussian_nll_loss(x, y, p * 1e-9, reduction="none"),
    lambda x, y, w, v, b, p, q: F.cosine_similarity(x * 0, y),
    lambda x, y, w, v, b, p, q: F.pairwise_distance(x, x.detach(), eps=0.0),
    lambda x, y, w, v, b, p, q: torch.cdist(x, x.detach()),
    lambda x, y, w, v, b, p, q: F.triplet_margin_loss(x, y, y),
    lambda x, y, w, v, b, p, q: F.kl_div(x, ends(p).detach(), reduction="sum"),
    lambda x, y, w, v, b, p, q: F.binary_cross_entropy_with_logits(x * 100, q, reduction="sum"),
    lambda x, y, w, v, b, p, q: F.poisson_nll_loss(x, ends(p) * 2, full=True),
    lambda x, y, w, v, b, p, q: F.prelu(x * (p > 0.5), v),
    # NumPy's words.
    lambda x, y, w, v, b, p, q: torch.sum(x, axis=0, keepdims=True),
    lambda x, y, w, v, b, p, q: torch.var(x, axis=1, correction=2),
    lambda x, y, w, v, b, p, q: torch.stack([x, y], axis=1),
    lambda x, y, w, v, b, p, q: torch.std(x, False) + x.std(False),
    lambda x, y, w, v, b, p, q: torch.var(x, True) + torch.std(x, 1, False).sum(),
    lambda x, y, w, v, b, p, q: torch.std_mean(x, False),
    lambda x, y, w, v, b, p, q: torch.var_mean(x, 1, correction=0, keepdim=True),
    # Old words for a reduction.
    lambda x, y, w, v, b, p, q: F.mse_loss(x, y, size_average=False),
    lambda x, y, w, v, b, p, q: F.l1_loss(x, y, reduce=False),
    # Elementwise, with options.
    lambda x, y, w, v, b, p, q: F.celu(p - 0.5, 2.0) + F.hardtanh(p - 0.5, -0.2, 0.4),
    lambda x, y, w, v, b, p, q: F.threshold(p, 0.5, 20.0) + F.hardswish(8.0 * p - 4.0),
    lambda x, y, w, v, b, p, q: torch.logit(p, eps=0.2),
    # Below zero NumPy's reference has no higher one, so a proof would refuse the graph.
    lambda x, y, w, v, b, p, q: torch.polygamma(2, p.abs() + 0.1) + (p * p + 0.1).polygamma(3),
    lambda x, y, w, v, b, p, q: torch.special.polygamma(4, p.abs() + 0.1),
    lambda x, y, w, v, b, p, q: torch.nan_to_num(p / (p > 0.5), 1.0, 2.0).clamp(max=9),
    lambda x, y, w, v, b, p, q: torch.div(p, 0.3, rounding_mode="floor") + p % 0.2,
    lambda x, y, w, v, b, p, q: (-p).div(0.3, rounding_mode="trunc") * q,
    lambda x, y, w, v, b, p, q: (p.detach() // 0.2 + 2.0 // p.detach()) * (2.0 % p.detach()),
    lambda x, y, w, v, b, p, q: p * ((100 * p).int() & 12) + ((100 * p).to(torch.int32) << 2),
    lambda x, y, w, v, b, p, q: torch.bitwise_xor((100 * p).int(), 5) * p + (~(9 * p).int() >> 1),
    lambda x, y, w, v, b, p, q: torch.where(torch.signbit(p - 0.5), p, 1.0),
    # Shapes, order and choice.
    lambda x, y, w, v, b, p, q: torch.softmax(x, dim=1) * y.softmax(0),
    lambda x, y, w, v, b, p, q: F.softmax(x, -1) * F.log_softmax(y, dim=0) + F.softmin(x, dim=1),
    lambda x, y, w, v, b, p, q: y / torch.logsumexp(x, 1, keepdim=True),
    lambda x, y, w, v, b, p, q: y * torch.prod(x, 1, keepdim=True) + x.prod(),
    lambda x, y, w, v, b, p, q: torch.logcumsumexp(y, 0) + torch.logcumsumexp(x, dim=-1),
    lambda x, y, w, v, b, p, q: torch.cumsum(y, 0) + x.cumprod(dim=-1),
    lambda x, y, w, v, b, p, q: torch.cummax(y, 1).values + x.cummin(0)[0],
    lambda x, y, w, v, b, p, q: torch.sort(y, dim=1, descending=True).values + x.sort(0).values,
    lambda x, y, w, v, b, p, q: torch.topk(x, 2, dim=1).values,
    lambda x, y, w, v, b, p, q: y * x.topk(1, 0, largest=False).values,
    lambda x, y, w, v, b, p, q: y - torch.quantile(x, 0.25, dim=1, keepdim=True),
    lambda x, y, w, v, b, p, q: y * torch.count_nonzero(x > 0, dim=0),
    lambda x, y, w, v, b, p, q: y / y.norm(p=1) / torch.norm(x, p=3, dim=1, keepdim=True),
    lambda x, y, w, v, b, p, q: y / torch.linalg.vector_norm(y, 3, dim=0) / torch.linalg.norm(x),
    lambda x, y, w, v, b, p, q: y / torch.linalg.norm(x, 1, dim=0, keepdim=True),
    lambda x, y, w, v, b, p, q: torch.mm(y @ x.t(), x) + torch.matmul(x, torch.eye(4).double()),
    lambda x, y, w, v, b, p, q: torch.einsum("ij,kj,kl->il", y, x, x) + torch.outer(x[:, 0], v),
    lambda x, y, w, v, b, p, q: torch.cat([y[:, :2], x[:, 2:]], dim=1),
    lambda x, y, w, v, b, p, q: F.pad(y, (1, 0, 0, 1), value=2.0)[:-1, :-1] * x,
    lambda x, y, w, v, b, p, q: torch.flip(y, [1]) + x.roll(1, 0) + x.flip(0, 1),
    lambda x, y, w, v, b, p, q: torch.roll(y, (1, 2), (0, 1)) * torch.roll(x, 5),
    lambda x, y, w, v, b, p, q: y.permute(1, 0).reshape(x.shape) + torch.permute(x, (1, 0)).t(),
    lambda x, y, w, v, b, p, q: y.reshape(-1, 2).view(3, 4) * x.flatten().view_as(y),
    lambda x, y, w, v, b, p, q: y.reshape(y.shape[0], -1) * torch.squeeze(x[None], 0).unsqueeze(0),
    lambda x, y, w, v, b, p, q: torch.movedim(y, 0, 1).swapaxes(0, -1) * x,
    lambda x, y, w, v, b, p, q: x[:, :2].repeat(1, 2) + torch.tile(y[:, :1], (1, 4)),
    lambda x, y, w, v, b, p, q: torch.repeat_interleave(y[:, :2], 2, dim=1) * x,
    lambda x, y, w, v, b, p, q: x[:, :1].expand(3, 4) + y[:1].expand(x.shape),
    lambda x, y, w, v, b, p, q: torch.broadcast_to(v, (3, 4)) * x.triu(diagonal=1),
    lambda x, y, w, v, b, p, q: y.index_select(1, torch.tensor([3, 2, 1, 0])) + x.narrow(1, 0, 1),
    lambda x, y, w, v, b, p, q: y[:, 1:2] + x[..., -1:] + torch.select(x, 0, 1) + y[-1, None],
    lambda x, y, w, v, b, p, q: y + F.glu(torch.cat([x, x], 1), dim=1) * torch.dot(x[0], y[1]),
    lambda x, y, w, v, b, p, q: y * x.shape.numel() + sum(tuple(x.shape)) * x.shape.numel(),
]


@pytest.mark.parametrize("call", CALLS, ids=[f"{i}" for i in range(len(CALLS))])
def test_a_name_of_torch_means_what_torch_computes(call: Call) -> None:
    assert_as_in("torch", call, *inputs(), rtol=1e-9, atol=1e-9)


EDGES = [-math.inf, -1.0, -0.0, 0.0, 0.5, 3.0, math.inf, math.nan]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.special.entr(x),
        lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=2.5),
    ],
    ids=["entr", "huber"],
)
def test_slopes_at_the_edges_are_torchs(call: Any) -> None:
    values = []
    for f in (call, xg.function(call, native=False)):
        x = torch.tensor(EDGES, requires_grad=True)
        y = f(x)
        values += [y.detach(), *torch.autograd.grad(y.sum(), x)]
    torch.testing.assert_close(values[:2], values[2:], equal_nan=True)


def test_repeat_with_fewer_counts_than_axes_is_torchs_error() -> None:
    @torch_class(lambda ctx, g: g[..., :2])
    def Twice(ctx: Any, x: Any) -> Any:
        return x.repeat(2)

    assert xg.convert(Twice)(torch.ones(3)).shape == (6,)
    for f in (Twice.apply, xg.convert(Twice)):
        with pytest.raises(RuntimeError, match="can not be smaller than"):
            f(torch.ones(2, 3))
