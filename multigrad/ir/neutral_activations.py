"""The neutral dialect, activations; see `neutral.py`."""

from __future__ import annotations

from typing import Any

from . import ops
from .record import apply

Tensor = Any

__all__ = [
    "celu", "elu", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "heaviside",
    "leaky_relu", "log_sigmoid", "logit", "mish", "relu", "relu6", "selu", "sigmoid", "silu",
    "soft_shrink", "soft_sign", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus",
    "tanh_shrink", "threshold",
]  # fmt: skip


def sigmoid(x: Tensor) -> Tensor:
    return apply(ops.SIGMOID, x)


def relu(x: Tensor) -> Tensor:
    return apply(ops.RELU, x)


def relu6(x: Tensor) -> Tensor:
    return apply(ops.RELU6, x)


def silu(x: Tensor) -> Tensor:
    return apply(ops.SILU, x)


def softplus(x: Tensor) -> Tensor:
    return apply(ops.SOFTPLUS, x)


def log_sigmoid(x: Tensor) -> Tensor:
    return apply(ops.LOG_SIGMOID, x)


def logit(x: Tensor) -> Tensor:
    return apply(ops.LOGIT, x)


def selu(x: Tensor) -> Tensor:
    return apply(ops.SELU, x)


def mish(x: Tensor) -> Tensor:
    return apply(ops.MISH, x)


def sparse_plus(x: Tensor) -> Tensor:
    return apply(ops.SPARSE_PLUS, x)


def sparse_sigmoid(x: Tensor) -> Tensor:
    return apply(ops.SPARSE_SIGMOID, x)


def soft_sign(x: Tensor) -> Tensor:
    return apply(ops.SOFT_SIGN, x)


def tanh_shrink(x: Tensor) -> Tensor:
    return apply(ops.TANH_SHRINK, x)


def hard_sigmoid(x: Tensor) -> Tensor:
    return apply(ops.HARD_SIGMOID, x)


def hard_silu(x: Tensor) -> Tensor:
    return apply(ops.HARD_SILU, x)


def heaviside(x: Tensor) -> Tensor:
    """1 above zero, else 0."""
    return apply(ops.HEAVISIDE, x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return apply(ops.LEAKY_RELU, x, slope=float(slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return apply(ops.ELU, x, alpha=float(alpha))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return apply(ops.CELU, x, alpha=float(alpha))


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    return apply(ops.GELU, x, approximate=bool(approximate))


def squareplus(x: Tensor, b: float = 4.0) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2; the square is not formed."""
    return apply(ops.SQUAREPLUS, x, b=float(b))


def soft_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards zero."""
    return apply(ops.SOFT_SHRINK, x, lambd=float(lambd))


def hard_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but zero within lambd of zero."""
    return apply(ops.HARD_SHRINK, x, lambd=float(lambd))


def threshold(x: Tensor, threshold: float, default: float) -> Tensor:
    """x above the threshold, else the default."""
    return apply(ops.THRESHOLD, x, threshold=float(threshold), default=float(default))


def hard_tanh(x: Tensor, min: float = -1.0, max: float = 1.0) -> Tensor:
    """x limited to [min, max]; the slope is zero at both."""
    return apply(ops.HARD_TANH, x, min=float(min), max=float(max))
