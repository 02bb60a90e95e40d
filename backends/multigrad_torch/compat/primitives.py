"""Primitive functions, whose derivatives are surrogate gradients; units that do not spike return
them.

The name is SpikingJelly's. Their own gradient is torch's, the true derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from multigrad.errors import RuleError
from multigrad.rules.activation import Activation
from multigrad.trace.moving_numbers import settle

Tensor: TypeAlias = torch.Tensor


def piecewise_quadratic(x: Tensor, alpha: float) -> Tensor:
    u = torch.clamp(alpha * x, -1.0, 1.0)
    return 0.5 + u - 0.5 * u * u.abs()


def piecewise_exp(x: Tensor, alpha: float) -> Tensor:
    beyond = 0.5 * torch.exp(-alpha * x.abs())
    return torch.where(x >= 0, 1.0 - beyond, beyond)


def sigmoid(x: Tensor, alpha: float) -> Tensor:
    return torch.sigmoid(alpha * x)


def soft_sign(x: Tensor, alpha: float) -> Tensor:
    return 0.5 * (F.softsign(alpha * x) + 1.0)


def atan(x: Tensor, alpha: float) -> Tensor:
    return torch.atan((0.5 * math.pi * alpha) * x) / math.pi + 0.5


def nonzero_sign_log(x: Tensor, alpha: float) -> Tensor:
    away = torch.log1p(alpha * x.abs())
    return torch.where(x >= 0, away, -away)


def erf(x: Tensor, alpha: float) -> Tensor:
    return 0.5 * torch.erfc(-alpha * x)


def piecewise_leaky_relu(x: Tensor, w: float, c: float) -> Tensor:
    inside = torch.clamp(x, -w, w)
    return 0.5 + inside / (2.0 * w) + c * (x - inside)


def squarewave(x: Tensor, terms: int, period: float) -> Tensor:
    waves = torch.zeros_like(x)
    for i in range(1, terms + 1):
        waves = waves + torch.sin((2 * i - 1) * (2.0 * math.pi / period) * x) / (2 * i - 1)
    return 0.5 + (2.0 / math.pi) * waves


def squarewave_fourier(x: Tensor, n: int, period: float) -> Tensor:
    return squarewave(x, n, period)


def squarewave_fourier_series(x: Tensor, n: int, T_period: float) -> Tensor:
    return squarewave(x, n - 1, T_period)


def s2nn(x: Tensor, alpha: float, beta: float) -> Tensor:
    above = beta * torch.log(torch.clamp(x, min=0.0) + (1.0 + 1e-5)) + 0.5
    return torch.where(x < 0, torch.sigmoid(alpha * x), above)


def q_pseudo_spike(x: Tensor, alpha: float) -> Tensor:
    beyond = 0.5 * (1.0 + (2.0 / (alpha - 1.0)) * x.abs()) ** (1.0 - alpha)
    return torch.where(x >= 0, 1.0 - beyond, beyond)


def leaky_k_relu(x: Tensor, leak: float, k: float) -> Tensor:
    return torch.where(x >= 0, k * x, leak * x)


def log_tailed_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 1.0, torch.log(torch.clamp(x, min=1.0)) + 1.0, F.leaky_relu(x, alpha))


def rect(x: Tensor, alpha: float) -> Tensor:
    return torch.clamp(alpha * x + 0.5, 0.0, 1.0)


def identity(x: Tensor) -> Tensor:
    return x


# By the name of the rule that is the derivative.
PRIMITIVES: dict[str, Callable[..., Tensor]] = {
    "arctan": atan,
    "erf_surrogate": erf,
    "leaky_k_relu": leaky_k_relu,
    "log_tailed_relu": log_tailed_relu,
    "nonzero_sign_log": nonzero_sign_log,
    "piecewise_leaky_relu": piecewise_leaky_relu,
    "piecewise_quadratic": piecewise_quadratic,
    "q_pseudo_spike": q_pseudo_spike,
    "s2nn": s2nn,
    "sigmoid_surrogate": sigmoid,
    "soft_sign_surrogate": soft_sign,
    "squarewave_fourier": squarewave_fourier,
    "straight_through": identity,
    "unit_rectangular": rect,
    **{
        f"spikingjelly.{each.__name__}": each
        for each in (
            *(atan, erf, leaky_k_relu, log_tailed_relu, piecewise_exp, piecewise_leaky_relu),
            *(piecewise_quadratic, q_pseudo_spike, rect, s2nn, sigmoid, soft_sign),
            squarewave_fourier_series,
        )
    },
    "spikingjelly.deterministic_pass": identity,
    "spikingjelly.nonzero_sign_log_abs": nonzero_sign_log,
    "spikingjelly.poisson_pass": identity,
}


def find_primitive(activation: Activation) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """Return the function whose derivative is an activation's own rule, and its params.

    Raises:
        RuleError: none is known.
    """
    own = activation.own_in_force()
    name = "" if own is None else own.specialization.rule.name
    function = None if own is None else own.specialization.rule.function
    is_ours = str(getattr(function, "__module__", None)).startswith("multigrad.rules.library.")
    if own is None or not is_ours or name not in PRIMITIVES:
        which = f"rule {name!r}" if name else "an activation without a rule of its own"
        raise RuleError(
            f"{which} has no primitive function, so it only spikes; those that have one: "
            f"{', '.join(sorted(PRIMITIVES))}"
        )
    if not activation.forward.name.startswith("Heaviside"):
        raise RuleError(
            f"activation {activation.forward.name!r} gives no spikes, so it has no other mode"
        )
    params = own.params
    return PRIMITIVES[name], {name: settle(value) for name, value in params.items()}
