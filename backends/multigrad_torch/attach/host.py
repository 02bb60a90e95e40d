"""What runs in another framework, inside of torch: an `autograd.Function` around it.

Dynamo must read neither its forward nor its backward (torch 2.13 traces into DLPack and fails), so
both are kept from it. The inputs, and outputs that the guest keeps, are saved with the node,
although the guest has what it needs: so torch notices when one of them, which is the guest's memory
too, is written to before backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import Function

from multigrad.backend import Guest, kind_of

from .. import dynamo
from . import bridge as transfer
from .guest_op import Transformed
from .state import transforms_active

Tensor: TypeAlias = torch.Tensor


@dynamo.disable
def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Apply what runs in another framework; its gradient flows back in torch's autograd."""
    if transforms_active():
        return Transformed.apply(guest, *tensors)
    if any(x.is_meta for x in tensors):
        outputs = []
        for shape, dtype in guest.infer([kind_of(x) for x in tensors]):
            sizes = [*map(int, shape)]  # type: ignore[arg-type]
            outputs.append(torch.empty(sizes, dtype=transfer.dtype(dtype), device="meta"))
        return tuple(outputs)
    return Bridged.apply(guest, *tensors)


class Bridged(Function):
    """Applies a Guest to tensors."""

    @staticmethod
    @dynamo.disable
    def forward(ctx: Any, guest: Guest, *tensors: Tensor) -> tuple[Tensor, ...]:
        lent = [transfer.lend(x) for x in tensors]
        ctx.guest, ctx.count = guest, len(tensors)
        if any(ctx.needs_input_grad):
            outputs, ctx.pull = guest.record(lent)
        else:
            outputs = guest.run(lent)
        results: list[Tensor] = []
        held = [x.exporter for x in lent]
        for output in outputs:
            results.append(apart(transfer.borrow(output, guest.owns), [*held, *results]))
        results = [place_like(y, tensors) for y in results]
        ctx.carries = [guest.carries(i, y.dtype) for i, y in enumerate(outputs)]
        ctx.mark_non_differentiable(
            *(y for y, carries in zip(results, ctx.carries, strict=True) if not carries)
        )
        ctx.save_for_backward(*tensors, *(results if guest.keeps_outputs else ()))
        return tuple(results)

    @staticmethod
    @dynamo.disable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors[: ctx.count]
        given = [
            transfer.lend(c) if carries else None
            for c, carries in zip(cotangents, ctx.carries, strict=True)
        ]
        held = [c.exporter for c in given if c is not None]
        gradients: list[Any] = [None]
        for x, lent in zip(inputs, ctx.pull(given), strict=True):
            if lent is None:
                gradients.append(None)
                continue
            # Autograd adds to it in place.
            gradient = apart(transfer.borrow(lent, ctx.guest.owns), held)
            held.append(gradient)
            gradients.append(place_like(gradient, [x]))
        # create_graph=True: what depends on the gradient is refused its own.
        if torch.is_grad_enabled():
            carried = [c for c, carries in zip(cotangents, ctx.carries, strict=True) if carries]
            return tuple(
                None if g is None else Once.apply(ctx.guest, g, *inputs, *carried)
                for g in gradients
            )
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise ctx.guest.refusal("has no forward mode")


class Once(Function):
    """A gradient that depends on tensors in an unknown way: its derivative is refused."""

    @staticmethod
    def forward(ctx: Any, guest: Guest, gradient: Tensor, *tensors: Tensor) -> Tensor:
        ctx.guest = guest
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        raise ctx.guest.refusal()


def apart(result: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return a result in memory of its own: a guest may return its input, or one tensor twice."""
    start, end = span(result)
    for other in others:
        low, high = span(other)
        if start < high and low < end:
            return result.clone()
    return result


def span(x: Tensor) -> tuple[int, int]:
    """Return where a contiguous tensor's memory begins and ends."""
    start = x.data_ptr()
    return start, start + x.numel() * x.element_size()


def place_like(y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Move a result to where the inputs are."""
    device = next((x.device for x in tensors), y.device)
    return y if y.device == device else y.to(device)


def outside(function: Any) -> Any:
    """Return a function that autograd does not record."""
    return torch.no_grad()(function)
