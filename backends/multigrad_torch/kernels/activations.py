"""Torch's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from .elementwise import Tensor, widened

transforms_active = torch._C._are_functorch_transforms_active
count_modes = torch._C._len_torch_dispatch_stack


def softplus(x: Tensor) -> Tensor:
    # The default threshold of 20 returns x where log1p(exp(-x)) still counts in float64.
    return F.softplus(x, threshold=40.0)


def heaviside(x: Tensor) -> Tensor:
    # Compared straight into floats: 136 us for 1e6 elements, 996 us through bools (torch.heaviside
    # 5.2 ms). `out=` has no batching rule, no derivative and no name in ONNX, so only where none is
    # wanted; other classes of tensors may lack it.
    if torch.is_grad_enabled() or transforms_active() or torch.jit.is_tracing():
        return (x > 0).to(x.dtype)
    if type(x) is not Tensor or not (torch.compiler.is_compiling() or count_modes() == 0):
        return (x > 0).to(x.dtype)
    return torch.gt(x, 0, out=torch.empty_like(x))


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return F.leaky_relu(x, slope)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return F.gelu(x, approximate="tanh" if approximate else "none")


@widened
def squareplus(x: Tensor, *, b: float) -> Tensor:
    # Of torch's own functions: by the rows, which take numbers too, it is a tenth slower.
    root = torch.hypot(x, torch.full((), b**0.5, dtype=x.dtype, device=x.device))
    return torch.where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (x.abs() + root))


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return F.threshold(x, threshold, default)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.ELU: F.elu,
    ops.CELU: F.celu,
    ops.LOGIT: torch.logit,
    ops.SOFT_SHRINK: F.softshrink,
    ops.HARD_SHRINK: widened(F.hardshrink),  # 2.13 rounds lambd to 16 bits before it compares
    ops.SIGMOID: torch.sigmoid,
    ops.LOG_SIGMOID: F.logsigmoid,
    ops.RELU: torch.relu,
    ops.RELU6: F.relu6,
    ops.SELU: F.selu,
    ops.SILU: F.silu,
    ops.MISH: F.mish,
}
NAMES = """
    sigmoid: sigmoid F.sigmoid special.expit; log_sigmoid: F.logsigmoid; soft_sign: F.softsign;
    tanh_shrink: F.tanhshrink
"""
