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
    from multigrad.lowering.lower import Code, Lowering

Tensor: TypeAlias = torch.Tensor
transforms_active = torch._C._are_functorch_transforms_active


def render(lowering: Lowering) -> str:
    """Return the source of both classes, the public one last."""
    f, name = lowering.forward, lowering.identifier
    draw = "        if key is None:\n            key = draw_key()\n" if lowering.draws else ""
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
{_store(lowering.params)}
    @staticmethod
    def backward(ctx, grad_out):
        (tin,) = ctx.saved_tensors
{_load(lowering.params)}{lowering.backward.indented(8)}        return {lowering.grad_in}{nones}

    @staticmethod
    def jvp(ctx, tangent, *params):
        (tin,) = ctx.saved_tensors
{_load(lowering.params)}{lowering.tangent.indented(8)}        return {lowering.tangent.result}
"""
    read = lowering.read_params
    setup = f"{_keep(lowering, lowering.code)}{_store(read)}"
    needs_inputs = bool(lowering.params or lowering.residuals)
    return f"""\
class {name}_eager(Function):
    @staticmethod
    def forward(ctx, tin{lowering.signature}):
{draw}{_run_forward(lowering)}{_store(read)}        return output

    @staticmethod
    def backward(ctx, grad_out):
{_load_residuals(lowering)}{_load(read)}{_run_backward(lowering, nones)}

class {name}(Function):
    generate_vmap_rule = True
    backward = {name}_eager.backward

    @staticmethod
    def forward(tin{lowering.signature}):
{f.indented(8)}        return {output}

    @staticmethod
    def setup_context(ctx, inputs, output):
{(unpack + draw + setup) if needs_inputs else "        pass" + chr(10)}
    @classmethod
    def apply(cls, *args):
        if transforms_active():
            return super().apply(*args)
        return {name}_eager.apply(*args)
"""


def _store(params: tuple[str, ...]) -> str:
    return "".join(f"        ctx.{p} = {p}\n" for p in params)


def _load(params: tuple[str, ...]) -> str:
    return "".join(f"        {p} = ctx.{p}\n" for p in params)


def _load_residuals(lowering: Lowering) -> str:
    names = "".join(f"{name}, " for name in lowering.residuals)
    return f"        ({names.strip()}) = ctx.saved_tensors\n" if names else ""


def _run_forward(lowering: Lowering) -> str:
    """The eager class's forward: grad mode is off there, and no transform is active."""
    f = lowering.fast.forward
    keep = _keep(lowering, lowering.fast)
    if lowering.computed:  # for nothing where no gradient is asked for
        inner = "".join(f"    {line}\n" for line in keep.splitlines())
        keep = f"        if ctx.needs_input_grad[0]:\n{inner}"
    run = f"{f.indented(8)}        output = {f.result}\n"
    # Residuals first: the memory of their temporaries is then at hand for the output.
    needs_output = "output" in (*lowering.residuals, *lowering.fast.keep.reads)
    return f"{run}{keep}" if needs_output else f"{keep}{run}"


def _keep(lowering: Lowering, code: Code) -> str:
    """Compute the residuals and save them, where output is known."""
    if not lowering.residuals:
        return ""
    computed = iter(code.keep.results)
    kept = [next(computed) if r in lowering.computed else r for r in lowering.residuals]
    return f"{code.keep.indented(8)}        ctx.save_for_backward({', '.join(kept)})\n"


def _run_backward(lowering: Lowering, nones: str) -> str:
    """Return the gradient: by fast code, but where a derivative is taken of it or a transform is active."""
    plain, fast = lowering.code.backward, lowering.fast.backward
    anywhere = f"{plain.indented(8)}        return {lowering.checked(plain)}{nones}\n"
    refuse = ""
    if lowering.refuse:
        refuse = f"        if is_grad_enabled():\n            {lowering.refuse}()\n"
    if (plain.lines, plain.results) == (fast.lines, fast.results):
        return f"{refuse}{anywhere}"
    inner = "".join(f"    {line}\n" for line in anywhere.splitlines())
    return (
        f"{refuse}        if is_grad_enabled() or transforms_active() or is_included(BATCHED):\n{inner}"
        f"{fast.indented(8)}        return {lowering.checked(fast)}{nones}\n"
    )


def finish(namespace: dict[str, Any], lowering: Lowering) -> type[Function]:
    """Return the public class; its docstring says what it is."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    native.eager = namespace.get(f"{lowering.identifier}_eager", native)
    return native


# `torch.autograd.grad(is_grads_batched=True)` maps by an older vmap, which is no functorch transform.
BATCHED = torch._C._parse_dispatch_key("VmapMode")

NAMESPACE = {
    "BATCHED": BATCHED,
    "Function": Function,
    "is_included": torch._C._dispatch_tls_is_dispatch_key_included,
    "is_grad_enabled": torch.is_grad_enabled,
    "transforms_active": transforms_active,
}


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the class: the C entry directly, unless a transform is active."""
    eager, transformed = _entries(native)

    def apply(tin: Tensor, *values: Any) -> Tensor:
        return (transformed if transforms_active() else eager)(tin, *values)

    return apply


def bind(native: Any, values: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Return the same for fixed values of the params, in one call of Python less."""
    eager, transformed = _entries(native)

    def apply(tin: Tensor) -> Tensor:
        return (transformed if transforms_active() else eager)(tin, *values)

    def apply_alone(tin: Tensor) -> Tensor:
        return (transformed if transforms_active() else eager)(tin)

    return apply if values else apply_alone


def _entries(native: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what runs outside of transforms, and inside."""
    if native.eager is native:  # with forward mode there is one class only
        return native.apply, native.apply
    # Function.apply looks for default arguments in Python first; its base is the C implementation.
    return super(Function, native.eager).apply, super(native, native).apply


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
