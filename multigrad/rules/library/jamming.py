"""Gradient jamming: noise instead of a gradient's size, or with it (arXiv 2509.07236, sec. 5)."""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..registry import register

Tensor = Any


@register("full_jam")
def full_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * U, with U uniform on [0, 1) for each element.

    Source: "full_jam" of FreeGrad.
    """
    return grad_out * xp.rand_like(grad_out)


@register("positive_jam")
def positive_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * U where tin >= 0, else 0; without tin, everywhere.

    Source: "positive_jam" of FreeGrad.
    """
    jam = xp.rand_like(grad_out)
    return grad_out * (jam if tin is None else xp.where(tin >= 0, jam, 0.0))


@register("rectangular_jam", ranges={"a": "<= b", "b": ">= a"})
def rectangular_jam(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, a: float = -5.0, b: float = 5.0
) -> Tensor:
    """grad_out * U where a <= tin <= b, else 0; both edges belong to the window; without tin,
    everywhere.

    Source: "rectangular_jam" of FreeGrad.
    """
    jam = xp.rand_like(grad_out)
    return grad_out * (jam if tin is None else xp.where((tin >= a) & (tin <= b), jam, 0.0))


@register("sign_jam")
def sign_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """sign(grad_out) * U, with U uniform on [0, 1) for each element: 0 where grad_out is 0, NaN
    where it is NaN.

    Source: the text of arXiv 2509.07236, section 5, which keeps the sign and replaces the size;
    FreeGrad's code does what `full_jam` does.
    """
    return xp.sign(grad_out) * xp.rand_like(grad_out)


@register("noisy_threshold", ranges={"t": "finite", "sigma": ">= 0 and finite"})
def noisy_threshold(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, t: float = 0.0, sigma: float = 0.1
) -> Tensor:
    """grad_out where tin >= t, else 0 (grad_out at t), plus sigma * N(0, 1), drawn anew for each
    element; without tin, grad_out plus noise everywhere.

    Source: "noisy_threshold", the example of FreeGrad's documentation of own rules.
    """
    kept = grad_out if tin is None else grad_out * (tin >= t)
    return kept + sigma * xp.randn_like(grad_out)
