"""From a lowering to `torch.autograd.Function`.

Two classes share one backward. The old style (forward gets ctx) costs 13 to 17 us less per call; the style with
`setup_context` works under torch.func and vmap. `apply` picks by asking whether a transform is active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function

if TYPE_CHECKING:
    from multigrad.lowering.lower import Lowering

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active


def render(lowering: Lowering) -> str:
    """Return the source of both classes, the public one last."""
    f, b, name = lowering.forward, lowering.backward, lowering.identifier
    draw = "        if key is None:\n            key = draw_key()\n" if lowering.draws else ""
    stored = "".join(f"        ctx.{p} = {p}\n" for p in lowering.params)
    loaded = "".join(f"        {p} = ctx.{p}\n" for p in lowering.params)
    save = "        ctx.save_for_backward(tin)\n" if lowering.saves else ""
    load = "        (tin,) = ctx.saved_tensors\n" if lowering.saves else ""
    nones = ", None" * len(lowering.params)
    unpack = (
        f"        tin{lowering.arguments} = inputs\n"
        if lowering.params
        else "        (tin,) = inputs\n"
    )
    # setup_context may not save an input that is returned as it is, but may save beside a view of it.
    output = "tin.view_as(tin)" if f.result == "tin" else f.result
    if lowering.tangent is not None:
        return f"""\
class {name}(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tin{lowering.signature}):
{f.indented(8)}        return {output}

    @staticmethod
    def setup_context(ctx, inputs, output):
{unpack}{draw}        ctx.save_for_backward(tin)
        ctx.save_for_forward(tin)
{stored}
    @staticmethod
    def backward(ctx, grad_out):
        (tin,) = ctx.saved_tensors
{loaded}{b.indented(8)}        return {lowering.grad_in}{nones}

    @staticmethod
    def jvp(ctx, tangent, *params):
        (tin,) = ctx.saved_tensors
{loaded}{lowering.tangent.indented(8)}        return {lowering.tangent.result}
"""
    needs_inputs = bool(lowering.params or lowering.saves)
    return f"""\
class {name}_eager(Function):
    @staticmethod
    def forward(ctx, tin{lowering.signature}):
{draw}{save}{stored}{f.indented(8)}        return {f.result}

    @staticmethod
    def backward(ctx, grad_out):
{load}{loaded}{b.indented(8)}        return {lowering.grad_in}{nones}


class {name}(Function):
    generate_vmap_rule = True
    backward = {name}_eager.backward

    @staticmethod
    def forward(tin{lowering.signature}):
{f.indented(8)}        return {output}

    @staticmethod
    def setup_context(ctx, inputs, output):
{(unpack + draw + save + stored) if needs_inputs else "        pass" + chr(10)}
    @classmethod
    def apply(cls, *args):
        if transforms_active():
            return super().apply(*args)
        return {name}_eager.apply(*args)
"""


def finish(namespace: dict[str, Any], lowering: Lowering) -> type[Function]:
    """Return the public class; its docstring says what it is."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{lowering.identifier}_eager", native)
    return native


NAMESPACE = {"Function": Function, "transforms_active": transforms_active}


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the class: the C entry directly, unless a transform is active."""
    if native.eager is native:  # with forward mode there is one class only
        return native.apply
    # Function.apply looks for default arguments in Python first; its base is the C implementation.
    eager = super(Function, native.eager).apply
    transformed = super(native, native).apply

    def apply(tin: Tensor, *values: Any) -> Tensor:
        if transforms_active():
            return transformed(tin, *values)
        return eager(tin, *values)

    return apply


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on tensors."""

    class NativeRule(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
            output = forward(tin)
            # setup_context may not save an input that is returned as it is.
            return tin.view_as(tin) if output is tin else output

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            tin, ctx.values = inputs
            ctx.save_for_backward(tin)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
            (tin,) = ctx.saved_tensors
            return backward(ctx, grad_outputs[0], tin, ctx.values), None

    NativeRule.__name__ = name
    return NativeRule.apply
