"""Calls of another framework's functions from MLX: a custom function around a guest.

The guest runs at once, so arrays are evaluated there, and keeps its residuals. Code that is
compiled or mapped over an axis has no values to pass and cannot call back, so it is refused there,
and so is a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from multigrad.backend import Guest, Pull, SharedBuffer, dtype_name

from ..compile import trace_dependencies
from . import bridge as transfer
from .render import fill, refuse

Tensor = Any


def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Call a guest; its gradient flows back through MLX's autodiff.

    Raises:
        UnsupportedOp: within mx.compile or mx.vmap.
    """
    if trace_dependencies.find_traced(tensors) is not None:
        raise guest.unsupported(
            "mx.compile and mx.vmap", "call it outside them, or run it in mlx (backend=None)"
        )
    if not trace_dependencies.is_tracing():
        return borrow_all(guest.run(lend_all(tensors)))
    # Outside differentiation no pullback is recorded. Within it, forward runs before backward.
    pulls: list[Pull] = []

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        lent, pull = guest.record(lend_all(given))
        pulls[:] = [pull]
        return borrow_all(lent)

    def pull_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        given = primals if isinstance(primals, tuple) else (primals,)
        found = pulls[0](
            [
                transfer.lend(c) if guest.carries(i, dtype_name(c.dtype)) else None
                for i, c in enumerate(cotangents)
            ]
        )
        gradients = [None if g is None else transfer.borrow(g, guest.owns) for g in found]
        return make_once(guest)(len(given), *fill(gradients, given), *given, *cotangents)

    native = mx.custom_function(forward)
    native.vjp(pull_back)
    native.jvp(refuse("a function of another framework"))
    return tuple(native(*tensors))


def make_once(guest: Guest) -> Callable[..., tuple[Tensor, ...]]:
    @mx.custom_function
    # The identity on gradients, whose own derivative would need the guest's.
    def once(number: int, *arrays: Tensor) -> tuple[Tensor, ...]:
        return arrays[:number]

    def refused(*values: Any) -> Any:
        raise guest.refusal()

    once.vjp(refused)
    once.jvp(refused)
    return once


def lend_all(tensors: Sequence[Tensor]) -> list[SharedBuffer]:
    return [transfer.lend(x) for x in tensors]


def borrow_all(lent: Sequence[SharedBuffer]) -> tuple[Tensor, ...]:
    return tuple(transfer.borrow(y) for y in lent)
