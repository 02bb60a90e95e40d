"""Gradient jamming: multiply the gradient by uniform noise (arXiv 2509.07236, section 5)."""

from __future__ import annotations

from typing import Any

from ..registry import register
from ..tracing import xp_all as xp

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
