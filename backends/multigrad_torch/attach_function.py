"""From a Function of any inputs and outputs to `torch.autograd.Function`; rules go by `attach`.

Two classes again, for the same reasons. A whole function that runs as it is runs once, with gradients on, so that
what its backward reads keeps its derivative; under a torch.func transform, whose tensors die with it, backward
runs it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd import Function

from multigrad.ir.types import is_float

from . import attach
from .attach import ANYWHERE, KINDS, count_modes, tracing_state, transforms_active

if TYPE_CHECKING:
    from multigrad.lowering.code import Code, Lowering
    from multigrad.lowering.emit import Body

Tensor: TypeAlias = torch.Tensor
Run = Callable[..., tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]], tuple[int, ...]]]


def is_rule(lowering: Lowering) -> bool:
    """Return whether it is a rule under a forward, of one tensor that the params do not reach."""
    return lowering.inputs == ("tin",) and lowering.single and not lowering.forward_params


def render(lowering: Lowering) -> str:
    """Return the source of both classes, the public one last."""
    if is_rule(lowering):
        return attach.render(lowering)
    name, inputs = lowering.identifier, ", ".join(lowering.inputs)
    given = f"{inputs}{lowering.arguments}"
    draw = "        if key is None:\n            key = draw_key()\n" if lowering.draws else ""
    plain, fast = lowering.code, lowering.fast
    unpack = f"        ({given},) = inputs\n"
    if not lowering.single:
        unpack += f"        ({', '.join(lowering.outputs)},) = output\n"
    notes = _keep(lowering, plain) + _note(lowering)
    setup = unpack + notes if notes else "        pass\n"
    return f"""\
class {name}_eager(Function):
    @staticmethod
    def forward(ctx, {given}):
{_run_forward(lowering, fast)}        return {_tuple(lowering, lowering.outputs)}

    @staticmethod
    def backward(ctx, {", ".join(lowering.cotangents)}):
{_load(lowering)}{_run_backward(lowering)}

class {name}(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward({given}):
{plain.forward.indented(8)}        return {_tuple(lowering, _own_tensors(lowering, plain.forward))}

    @staticmethod
    def setup_context(ctx, inputs, output):
{setup}
    @staticmethod
    def backward(ctx, {", ".join(lowering.cotangents)}):
{_load(lowering)}{_run_anywhere(lowering)}
    @classmethod
    def apply(cls, {inputs}{lowering.signature}):
{draw}        if transforms_active() or count_modes() or not KINDS.issuperset(map(type, ({inputs},))):
            return super().apply({given})
        return {name}_eager.apply({given})
"""


def _tuple(lowering: Lowering, results: tuple[str, ...]) -> str:
    """Return what a forward returns: its only output, or a tuple."""
    return results[0] if lowering.single else f"({', '.join(results)},)"


def _own_tensors(lowering: Lowering, forward: Body) -> tuple[str, ...]:
    """Return expressions of the outputs, each a tensor of its own.

    setup_context may not save an input that is returned as it is, but may save beside a view of it; of a tensor
    that is returned twice torch forgets the first place.
    """
    words: list[str] = []
    for result in forward.results:
        if result in lowering.inputs:
            words.append(f"{result}.view_as({result})")
        else:
            words.append(f"{result}.clone()" if result in words else result)
    return tuple(words)


def _run_forward(lowering: Lowering, code: Code) -> str:
    """The eager class's forward: grad mode is off there, and no transform is active."""
    keep = _keep(lowering, code)
    if lowering.computed:  # for nothing where no gradient is asked for
        inner = "".join(f"    {line}\n" for line in keep.splitlines())
        keep = f"        if True in ctx.needs_input_grad:\n{inner}"
    run = code.forward.indented(8)
    seen: list[str] = []
    for name, result in zip(lowering.outputs, code.forward.results, strict=True):
        run += f"        {name} = {result}{'.clone()' if result in seen else ''}\n"
        seen.append(result)
    reads_outputs = not {*lowering.residuals, *code.keep.reads}.isdisjoint(lowering.outputs)
    # Residuals first: the memory of their temporaries is then at hand for the outputs.
    return (run + keep if reads_outputs else keep + run) + _note(lowering)


def _keep(lowering: Lowering, code: Code) -> str:
    """Compute the residuals and save them, where the outputs are known."""
    if not lowering.residuals:
        return ""
    computed = iter(code.keep.results)
    kept = [next(computed) if r in lowering.computed else r for r in lowering.residuals]
    return f"{code.keep.indented(8)}        ctx.save_for_backward({', '.join(kept)})\n"


def _note(lowering: Lowering) -> str:
    """Note on ctx what else backward reads, and which outputs carry no gradient."""
    lines = [f"ctx.{name} = {name}" for name in lowering.read_params]
    lines += [f"ctx.shape_of_{name} = {name}.shape" for name in lowering.shapes]
    assert lowering.pair is not None
    types = [node.type for node in lowering.pair.forward.outputs]
    marked = [lowering.outputs[i] for i in lowering.undifferentiable if is_float(types[i])]
    if marked:
        lines.append(f"ctx.mark_non_differentiable({', '.join(marked)})")
    return "".join(f"        {line}\n" for line in lines)


def _load(lowering: Lowering) -> str:
    """Take from ctx what backward reads."""
    residuals = "".join(f"{name}, " for name in lowering.residuals).strip()
    lines = [f"({residuals}) = ctx.saved_tensors"] if residuals else []
    lines += [f"{name} = ctx.{name}" for name in lowering.read_params]
    lines += [f"shape_of_{name} = ctx.shape_of_{name}" for name in lowering.shapes]
    return "".join(f"        {line}\n" for line in lines)


def _refuse(lowering: Lowering) -> str:
    """Refuse a derivative that what is kept would lose."""
    if not lowering.refuse:
        return ""
    return f"        if is_grad_enabled():\n            {lowering.refuse}()\n"


def _run_anywhere(lowering: Lowering) -> str:
    """Return the gradients by code that may be differentiated and transformed."""
    plain = lowering.code.backward
    gradients = (*lowering.gradients(plain), *["None"] * len(lowering.params))
    return f"{_refuse(lowering)}{plain.indented(8)}        return {', '.join(gradients)}\n"


def _run_backward(lowering: Lowering) -> str:
    """Return the gradients that are asked for: by fast code, but where a derivative is taken of it."""
    plain, fast = lowering.code.backward, lowering.fast.backward
    anywhere = _return_needed(lowering, plain)
    if (plain.lines, plain.results) == (fast.lines, fast.results):
        return _refuse(lowering) + anywhere
    others = [
        f" or type({name}) is not Tensor"
        for name, carries in zip(lowering.cotangents, lowering.carries, strict=True)
        if carries and name != "grad_out"
    ]
    condition = ANYWHERE
    if "grad_out" not in lowering.cotangents:
        condition = ANYWHERE.removesuffix(" or type(grad_out) is not Tensor")
    inner = "".join(f"    {line}\n" for line in anywhere.splitlines())
    return (
        f"{_refuse(lowering)}        if {condition}{''.join(others)}:\n{inner}"
        f"{_return_needed(lowering, fast)}"
    )


def _return_needed(lowering: Lowering, backward: Body) -> str:
    """Return code that computes the gradients; where there are several, those that are asked for."""
    gradients = list(lowering.gradients(backward))
    if len(lowering.wrt) > 1:
        for i, gradient in enumerate(gradients):
            if gradient != "None":
                gradients[i] = f"({gradient} if ctx.needs_input_grad[{i}] else None)"
    gradients += ["None"] * len(lowering.params)
    return f"{backward.indented(8)}        return {', '.join(gradients)}\n"


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how a class is called: the C entry directly, unless a transform is active."""
    if is_rule(lowering):
        return attach.call(native, lowering)
    eager, transformed = attach.entries(native)
    count = len(lowering.inputs)

    def apply_one(x: Tensor, *values: Any) -> Any:
        anywhere = type(x) not in KINDS or transforms_active() or count_modes()
        anywhere = anywhere or tracing_state() is not None
        return (transformed if anywhere else eager)(x, *values)

    def apply_several(*args: Any) -> Any:
        anywhere = transforms_active() or not KINDS.issuperset(map(type, args[:count]))
        anywhere = anywhere or count_modes() or tracing_state() is not None
        return (transformed if anywhere else eager)(*args)

    return apply_one if count == 1 else apply_several


# --- a whole function that runs as it is -------------------------------------------------------------------


def attach_function(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function whose backward is the user's own code on tensors.

    Args:
        run: `run(*tensors) -> (outputs, pull, positions of outputs without a gradient)`.
        tensors: its inputs.
        name: what it is called in messages and profiles.
    """
    if transforms_active():
        return _apply_again(run, tensors, name)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        with torch.no_grad():  # what the function closes over gets no gradient
            return run(*tensors)[0]
    return _apply_once(run, tensors, name)


def _apply_once(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Run it now; backward calls what it returned."""
    with torch.enable_grad():
        outputs, pull, undifferentiable = run(*tensors)

    class NativeFunction(Function):
        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
            ctx.save_for_backward(*given)  # so that torch sees where one was changed meanwhile
            detached = tuple(output.detach() for output in outputs)
            ctx.mark_non_differentiable(*(detached[i] for i in undifferentiable))
            return detached

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            _ = ctx.saved_tensors
            return pull(*cotangents)

    NativeFunction.__name__ = name
    return NativeFunction.apply(*tensors)


def _apply_again(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Run it under a transform; backward runs it again on what was saved, and so at every order."""
    marked: tuple[int, ...] = ()

    class NativeFunction(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*given: Tensor) -> tuple[Tensor, ...]:
            nonlocal marked
            outputs, _, marked = run(*given)
            return tuple(output.clone() for output in outputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            return run(*ctx.saved_tensors)[1](*cotangents)

    NativeFunction.__name__ = name
    outputs = NativeFunction.apply(*tensors)
    return tuple(y.detach() if i in marked else y for i, y in enumerate(outputs))
