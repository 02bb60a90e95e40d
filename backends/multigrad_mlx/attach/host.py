"""What runs in another framework, inside of MLX: a custom function around it.

The guest runs at once, so that arrays are computed there, and keeps its residuals. Compiled code,
and code mapped over an axis, has no values to hand over and no way to call back: there it is
refused, as a second derivative is.
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
    """Apply what runs in another framework; its gradient flows back in MLX's autodiff.

    Raises:
        UnsupportedOp: inside of mx.compile or mx.vmap.
    """
    if trace_dependencies.find_traced(tensors) is not None:
        raise guest.unsupported(
            "mx.compile and mx.vmap", "call it outside of them, or run it in mlx (backend=None)"
        )
    if not trace_dependencies.is_tracing():
        return borrow_all(guest.run(lend_all(tensors)))
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
    """Return a function that gives the first of its arrays and refuses a derivative of them."""

    @mx.custom_function
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
