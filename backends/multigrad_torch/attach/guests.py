"""Calls of guests from torch; a guest is a function of another framework.

Other frameworks read a tensor by the buffer that `lend` makes, and torch reads theirs by `borrow`,
so that no backend knows another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd import Function

from multigrad.backend import Guest, SharedBuffer, kind_of

from ..core import dynamo
from ..core.attach.host import dtype, from_numpy, on_memory, to_numpy
from ..core.dynamo import at_import
from ..core.state import transforms_active
from ..releases import custom_op

Tensor: TypeAlias = torch.Tensor


def lend(x: torch.Tensor) -> SharedBuffer:
    """Return a buffer for other frameworks to read, without a copy for contiguous CPU tensors."""
    x = x.detach().resolve_neg()
    if x.device.type != "cpu":
        x = x.cpu()
    x = x.contiguous()
    return SharedBuffer(
        str(x.dtype).removeprefix("torch."), tuple(x.shape), partial(to_numpy, x), x
    )


def borrow(lent: SharedBuffer, own: bool = False) -> torch.Tensor:
    """Return a tensor on a buffer that another framework lent, or a copy if `own` is set."""
    if lent.exporter is None:
        x = lent.array()
        # torch may write in place, so it gets no read-only memory.
        is_copied = own or not x.flags.writeable or not x.flags.c_contiguous
        return from_numpy(x) if is_copied else on_memory(x)
    tensor = torch.from_dlpack(lent.exporter)
    return tensor.clone() if own else tensor


# --- calls of guests ------------------------------------------------------------------------------
# Eagerly, an `autograd.Function` calls the guest (`Bridged`). Dynamo must read neither its forward
# nor its backward (torch 2.13 traces into DLPack and fails), so both are hidden from it. Inputs,
# and outputs that the guest keeps, are saved with the node, although the guest has what it needs:
# this lets torch notice when one of them, which shares memory with the guest, is written to before
# backward.
#
# torch.func's transforms and compiled code call a Function that they know; in compiled code it
# calls operators, which do not break a graph. Its backward starts from the inputs again.
Tensors: TypeAlias = tuple[Tensor, ...]
# Tensors, with the position of each one's batch axis; None: it has none.
Group: TypeAlias = tuple[Sequence[Tensor], Sequence[int | None]]
# By number, as graphs cannot hold objects. Entries stay for good: a graph may run at any time.
GUESTS: dict[int, Guest] = {}


@dynamo.disable
def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Call a guest; its gradient flows back through torch's autograd."""
    if transforms_active():
        return TransformedGuest.apply(guest, *tensors)
    if any(x.is_meta for x in tensors):
        outputs = []
        for shape, name in guest.infer([kind_of(x) for x in tensors]):
            # A meta tensor has no values, so only shapes and dtypes are inferred.
            sizes = [*map(int, shape)]  # type: ignore[arg-type]
            outputs.append(torch.empty(sizes, dtype=dtype(name), device="meta"))
        return tuple(outputs)
    return Bridged.apply(guest, *tensors)


class Bridged(Function):
    @staticmethod
    @dynamo.disable
    def forward(ctx: Any, guest: Guest, *tensors: Tensor) -> tuple[Tensor, ...]:
        buffers = [lend(x) for x in tensors]
        ctx.guest, ctx.count = guest, len(tensors)
        if any(ctx.needs_input_grad):
            outputs, ctx.pull = guest.record(buffers)
        else:
            outputs = guest.run(buffers)
        results: list[Tensor] = []
        # Memory that no result may share, as a write in place would change the guest's tensors.
        memories = [x.exporter for x in buffers]
        for output in outputs:
            results.append(apart(borrow(output, guest.owns), [*memories, *results]))
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
        cotangent_buffers = [
            lend(c) if carries else None for c, carries in zip(cotangents, ctx.carries, strict=True)
        ]
        memories = [c.exporter for c in cotangent_buffers if c is not None]
        gradients: list[Any] = [None]
        for x, buffer in zip(inputs, ctx.pull(cotangent_buffers), strict=True):
            if buffer is None:
                gradients.append(None)
                continue
            # Autograd may accumulate into a gradient in place, so it needs memory of its own.
            gradient = apart(borrow(buffer, ctx.guest.owns), memories)
            memories.append(gradient)
            gradients.append(place_like(gradient, [x]))
        # Under create_graph=True the gradient's own derivative is refused.
        if torch.is_grad_enabled():
            carriers = [c for c, carries in zip(cotangents, ctx.carries, strict=True) if carries]
            return tuple(
                None if g is None else OnceDifferentiable.apply(ctx.guest, g, *inputs, *carriers)
                for g in gradients
            )
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise ctx.guest.refusal("has no forward mode")


class OnceDifferentiable(Function):
    """The identity on a gradient that depends on tensors in an unknown way; has no derivative."""

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
    for memory in others:
        low, high = span(memory)
        if start < high and low < end:
            return result.clone()
    return result


def span(x: Tensor) -> tuple[int, int]:
    start = x.data_ptr()
    return start, start + x.numel() * x.element_size()


def place_like(y: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    device = next((x.device for x in tensors), y.device)
    return y if y.device == device else y.to(device)


# --- a guest and its gradients, each from the inputs alone ----------------------------------------
def run_guest(guest: Guest | int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a guest's outputs in memory of their own; compiled code names it by its number."""
    guest = _guest_of(guest)
    buffers = guest.run([lend(x) for x in tensors])
    return [borrow(y, guest.owns).to(tensors[0].device, copy=True) for y in buffers]


def pull_guest(
    guest: Guest | int, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Return a gradient for each input, zeros where the guest gives none."""
    guest = _guest_of(guest)
    kinds = guest.infer([kind_of(x) for x in tensors])
    cotangent_buffers = [
        lend(c) if guest.carries(i, name) else None
        for i, (c, (_, name)) in enumerate(zip(cotangents, kinds, strict=True))
    ]
    gradients = guest.gradients([lend(x) for x in tensors], cotangent_buffers)
    return [
        torch.zeros_like(x) if g is None else borrow(g, guest.owns).to(x.device, copy=True)
        for g, x in zip(gradients, tensors, strict=True)
    ]


def call_batch(
    guest: Guest, size: int, groups: Sequence[Group], call: Callable[..., Sequence[Tensor]]
) -> list[Tensor]:
    """Call once with the batch axis in front if the guest takes one, else once for each example."""
    batches = [
        [x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0) for x, axis in pairs]
        for pairs in (zip(*group, strict=True) for group in groups)
    ]
    if guest.is_batched:
        return list(call(*batches))
    examples = [call(*([x[i] for x in group] for group in batches)) for i in range(size)]
    return [torch.stack(parts) for parts in zip(*examples, strict=True)]


# --- under transforms -----------------------------------------------------------------------------
class TransformedGuest(Function):
    """Runs a guest under transforms; compiled code names it by its number."""

    @staticmethod
    def forward(guest: Guest | int, *tensors: Tensor) -> Tensors:  # type: ignore[override]
        if isinstance(guest, int):
            return tuple(torch.ops.multigrad.run_guest.default(guest, list(tensors)))
        return tuple(run_guest(guest, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.guest, *tensors = inputs
        ctx.mark_non_differentiable(*(y for y in output if not y.is_floating_point()))
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        tensors = ctx.saved_tensors
        gradients = Pulled.apply(ctx.guest, len(tensors), *tensors, *cotangents)
        wrt = _guest_of(ctx.guest).wrt
        return None, *[g if i in wrt else None for i, g in enumerate(gradients)]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise _guest_of(ctx.guest).refusal("has no forward mode")

    @staticmethod
    def vmap(info: Any, in_dims: Any, guest: Guest | int, *tensors: Tensor) -> Any:
        def call(examples: Sequence[Tensor]) -> Sequence[Tensor]:
            return TransformedGuest.apply(guest, *examples)

        groups = [(tensors, in_dims[1:])]
        outputs = call_batch(_guest_of(guest), info.batch_size, groups, call)
        return tuple(outputs), (0,) * len(outputs)


class Pulled(Function):
    """The gradients of a guest. Their own derivative is refused."""

    @staticmethod
    def forward(guest: Guest | int, count: int, *values: Tensor) -> Tensors:  # type: ignore[override]
        tensors, cotangents = list(values[:count]), list(values[count:])
        if isinstance(guest, int):
            return tuple(torch.ops.multigrad.pull_guest.default(guest, tensors, cotangents))
        return tuple(pull_guest(guest, tensors, cotangents))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.guest = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise _guest_of(ctx.guest).refusal()

    @staticmethod
    def vmap(info: Any, in_dims: Any, guest: Guest | int, count: int, *values: Tensor) -> Any:
        def call(tensors: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
            return Pulled.apply(guest, count, *tensors, *cotangents)

        dims = in_dims[2:]
        groups = (values[:count], dims[:count]), (values[count:], dims[count:])
        outputs = call_batch(_guest_of(guest), info.batch_size, groups, call)
        return tuple(outputs), (0,) * len(outputs)


def _guest_of(guest: Guest | int) -> Guest:
    return GUESTS[guest] if isinstance(guest, int) else guest


# --- in compiled code -----------------------------------------------------------------------------
def describe_outputs(number: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    kinds = GUESTS[number].infer([kind_of(x) for x in tensors])
    return [tensors[0].new_empty(shape, dtype=dtype(name)) for shape, name in kinds]


def describe_gradients(
    number: int, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


@at_import
def register_operators() -> None:
    """Register a guest's forward and backward as operators, which graphs can hold."""
    schema = "(SymInt number, Tensor[] tensors) -> Tensor[]"
    run_operator = custom_op("multigrad::run_guest", schema)(run_guest)
    run_operator.register_fake(describe_outputs)
    schema = "(SymInt number, Tensor[] tensors, Tensor[] cotangents) -> Tensor[]"
    pull_operator = custom_op("multigrad::pull_guest", schema)(pull_guest)
    pull_operator.register_fake(describe_gradients)
