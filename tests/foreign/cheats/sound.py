"""Sound gradients of forwards that people write kernels for, all of one input of 4 x 64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .cheat import Sound

Tensor = Any
NUMBERS = np.random.default_rng(64)
EPS = 1e-5


def floats(*shape: int) -> Any:
    return NUMBERS.standard_normal(shape).astype(np.float32)


X, Y, ROW, BIAS, WEIGHT = floats(4, 64), floats(4, 64), floats(64), floats(64), floats(16, 64)
OUT, KEYS, TABLE = floats(16), floats(4, 64), floats(10, 64)
CLASSES, IDS = NUMBERS.integers(0, 64, 4), NUMBERS.integers(0, 10, (4, 6))


def none(inputs: Any, output: Any) -> Any:
    return ()


def output_alone(inputs: Any, output: Any) -> Any:
    return (output,)


# --- element by element ---------------------------------------------------------------------------
def square(x: Tensor) -> Tensor:
    return x * x


def square_back(g: Tensor, x: Tensor) -> Tensor:
    return 2.0 * x * g


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def product_back(g: Tensor, x: Tensor, y: Tensor) -> Any:
    return g * y, g * x


C = math.sqrt(2.0 / math.pi)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_back(g: Tensor, x: Tensor) -> Tensor:
    t = torch.tanh(C * (x + 0.044715 * x * x * x))
    slope = (1.0 - t * t) * (1.0 + 3.0 * 0.044715 * x * x)
    return g * (0.5 * (1.0 + t) + 0.5 * x * C * slope)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def silu_back(g: Tensor, x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return g * (s + x * s * (1.0 - s))


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sigmoid(x) * y


def swiglu_back(g: Tensor, x: Tensor, y: Tensor) -> Any:
    s = torch.sigmoid(x)
    return g * y * (s + x * s * (1.0 - s)), g * x * s


def relu_back(g: Tensor, x: Tensor) -> Tensor:
    return torch.where(x > 0.0, g, 0.0)


def clamp(x: Tensor) -> Tensor:
    return torch.clamp(x, -1.0, 1.0)


def clamp_back(g: Tensor, x: Tensor) -> Tensor:
    return torch.where((x >= -1.0) & (x <= 1.0), g, 0.0)


def softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=100.0)


def softplus_back(g: Tensor, x: Tensor) -> Tensor:
    return g * torch.sigmoid(x)


def tanh_back(g: Tensor, y: Tensor) -> Tensor:
    return g * (1.0 - y * y)


def bump(x: Tensor) -> Tensor:
    return torch.exp(-x * x)


def bump_back(g: Tensor, x: Tensor) -> Tensor:
    return -2.0 * x * torch.exp(-x * x) * g


# --- along rows -----------------------------------------------------------------------------------
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_back(g: Tensor, y: Tensor) -> Tensor:
    return y * (g - (g * y).sum(-1, keepdim=True))


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def logsumexp_back(g: Tensor, x: Tensor) -> Tensor:
    return g[..., None] * torch.softmax(x, -1)


def standardize(x: Tensor) -> Tensor:
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + EPS)


def standardize_back(g: Tensor, x: Tensor) -> Tensor:
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((d * d).mean(-1, keepdim=True) + EPS)
    h = d * r
    return r * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return standardize(x) * w + b


def over_rows(g: Tensor) -> Tensor:
    return g.reshape(-1, g.shape[-1]).sum(0) if g.dim() > 1 else g


def layer_norm_back(g: Tensor, x: Tensor, w: Tensor) -> Any:
    return standardize_back(g * w, x), over_rows(g * standardize(x)), over_rows(g)


def without_bias(inputs: Any, output: Any) -> Any:
    return inputs[:2]


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def rms_norm_back(g: Tensor, x: Tensor, w: Tensor) -> Any:
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
    h = x * r
    return r * (g * w - h * (g * w * h).mean(-1, keepdim=True)), over_rows(g * h)


def l2_normalize(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def l2_normalize_back(g: Tensor, x: Tensor) -> Tensor:
    r = torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)
    h = x * r
    return r * (g - h * (g * h).sum(-1, keepdim=True))


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)


def cumsum_back(g: Tensor) -> Tensor:
    return torch.flip(torch.cumsum(torch.flip(g, (-1,)), -1), (-1,))


def row_max(x: Tensor) -> Tensor:
    return torch.amax(x, -1)


def row_max_back(g: Tensor, x: Tensor) -> Tensor:
    first = torch.argmax(x, -1, keepdim=True)
    return torch.zeros_like(x).scatter(-1, first, g[..., None])


def rope(x: Tensor) -> Tensor:
    return turn(x, 1.0)


def turn(x: Tensor, way: float) -> Tensor:
    """Turn pairs of columns by an angle that grows with the row."""
    half = x.shape[-1] // 2
    rate = torch.exp(-0.25 * torch.arange(half, device=x.device).to(x.dtype))
    angle = way * torch.arange(x.shape[-2], device=x.device).to(x.dtype)[:, None] * rate
    a, b, c, s = x[..., :half], x[..., half:], torch.cos(angle), torch.sin(angle)
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def rope_back(g: Tensor) -> Tensor:
    return turn(g, -1.0)


# --- products and tables --------------------------------------------------------------------------
def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w.mT + b


def linear_back(g: Tensor, x: Tensor, w: Tensor) -> Any:
    rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return g @ w, rows.mT @ columns, rows.sum(0)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * 0.125


def scores_back(g: Tensor, q: Tensor, k: Tensor) -> Any:
    return 0.125 * (g @ k), 0.125 * (g.mT @ q)


def bag(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids].sum(-2)


def count_and_ids(inputs: Any, output: Any) -> Any:
    table, ids = inputs
    return table.new_zeros((len(table), 0)), ids


def bag_back(g: Tensor, table: Tensor, ids: Tensor) -> Any:
    rows = g.unsqueeze(-2).expand(*ids.shape, g.shape[-1]).reshape(-1, g.shape[-1])
    return g.new_zeros((len(table), g.shape[-1])).index_add(0, ids.reshape(-1), rows), None


# --- losses ---------------------------------------------------------------------------------------
def cross_entropy_back(g: Tensor, x: Tensor, t: Tensor) -> Any:
    hot = torch.zeros_like(x).scatter(-1, t[:, None], 1.0)
    return g * (torch.softmax(x, -1) - hot) / x.shape[0], None


def huber_back(g: Tensor, x: Tensor, y: Tensor) -> Any:
    grad = g * torch.clamp(x - y, -1.0, 1.0) / x.numel()
    return grad, -grad


def focal(x: Tensor) -> Tensor:
    return (torch.sigmoid(-x) ** 2 * F.softplus(-x, threshold=100.0)).mean()


def focal_back(g: Tensor, x: Tensor) -> Tensor:
    q = torch.sigmoid(-x)
    loss = F.softplus(-x, threshold=100.0)
    return -g * q * q * (2.0 * (1.0 - q) * loss + q) / x.numel()


# --- what draws -----------------------------------------------------------------------------------
def dropout(x: Tensor) -> Any:
    mask = mask_of(x)
    return x * mask, mask


def dropout_back(g: Tensor, mask: Tensor) -> Tensor:
    return g * mask


def mask_alone(inputs: Any, result: Any) -> Any:
    return result[1:]


def mask_of(x: Tensor) -> Tensor:
    return (torch.rand(x.shape, device=x.device) > 0.25).to(x.dtype) / 0.75


SQUARE = Sound("square", square, square_back, (X,))
PRODUCT = Sound("product", product, product_back, (X, Y))
GELU = Sound("gelu", gelu, gelu_back, (X,))
SILU = Sound("silu", silu, silu_back, (X,))
SWIGLU = Sound("swiglu", swiglu, swiglu_back, (X, Y))
RELU = Sound("relu", torch.relu, relu_back, (X,))
CLAMP = Sound("clamp", clamp, clamp_back, (X,))
SOFTPLUS = Sound("softplus", softplus, softplus_back, (X,))
TANH = Sound("tanh", torch.tanh, tanh_back, (X,), output_alone)
BUMP = Sound("bump", bump, bump_back, (X,))
SOFTMAX = Sound("softmax", softmax, softmax_back, (X,), output_alone)
LOGSUMEXP = Sound("logsumexp", logsumexp, logsumexp_back, (X,))
STANDARDIZE = Sound("standardize", standardize, standardize_back, (X,))
LAYER_NORM = Sound("layer_norm", layer_norm, layer_norm_back, (X, ROW, BIAS), without_bias)
RMS_NORM = Sound("rms_norm", rms_norm, rms_norm_back, (X, ROW))
L2_NORMALIZE = Sound("l2_normalize", l2_normalize, l2_normalize_back, (X,))
CUMSUM = Sound("cumsum", cumsum, cumsum_back, (X,), none)
ROW_MAX = Sound("row_max", row_max, row_max_back, (X,))
ROPE = Sound("rope", rope, rope_back, (X,), none)
LINEAR = Sound("linear", linear, linear_back, (X, WEIGHT, OUT), without_bias)
SCORES = Sound("scores", scores, scores_back, (X, KEYS))
BAG = Sound("bag", bag, bag_back, (TABLE, IDS), count_and_ids)
CROSS_ENTROPY = Sound("cross_entropy", F.cross_entropy, cross_entropy_back, (X, CLASSES))
HUBER = Sound("huber", F.huber_loss, huber_back, (X, Y))
FOCAL = Sound("focal", focal, focal_back, (X,))
DROPOUT = Sound("dropout", dropout, dropout_back, (X,), mask_alone)
