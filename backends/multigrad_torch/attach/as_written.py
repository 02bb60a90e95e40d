"""Functions that run unchanged, with the user's own code for their backward.

Such a function runs once, with gradients enabled, so that what its backward reads keeps its
derivative (`_apply_once`). Under a torch.func transform, whose tensors die with it, backward runs
it again (`_apply_again`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd import Function, forward_ad

from multigrad.engine.functions.calls.imported_gradients import pull_delivering

from ..core.attach.attach import is_pushing, warn_of_trace
from ..core.state import is_distributed, tracing_state, transforms_active
from ..dtensors import ShardLayout, lay_out, layout_of, refuse_odd
from .vjp import list_nodes

Tensor: TypeAlias = torch.Tensor
PUSHES_NOTHING = "so it has no forward mode"
NO_JVP = (
    "forward mode refuses, as no jvp returns tangents: write one, or take the gradient in "
    "reverse mode"
)
# By a pattern in torch's error message: why a transform refuses a class, and what to write.
REFUSALS = {
    r"must override the setup_context": "torch.func refuses, as forward gets ctx: split it "
    "into forward(*inputs) and setup_context(ctx, inputs, output)",
    r"does not have vmap support": "torch.func.vmap refuses, as the class has no rule for it: "
    "set generate_vmap_rule = True in it",
    r"both generate_vmap_rule=True and": "torch.func.vmap refuses, as the class has two rules "
    "for it: delete its vmap",
    r"vmap staticmethod (to have|returned)": "torch.func.vmap refuses, as the vmap of the "
    "class does not return (output, out_dims): delete it, and set generate_vmap_rule = True",
    r"tensor and its forward grad": "forward mode refuses, as the jvp of the class does not "
    "return a tangent for each output: delete it",
    r"must implement the jvp": NO_JVP,
}
Run = Callable[..., tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]], tuple[int, ...]]]


def attach(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function whose backward is the user's own code to tensors.

    `run(*tensors)` returns the outputs, `pull`, which is called as `pull(*cotangents, ctx=ctx)`,
    and the positions of outputs without a gradient.
    """
    layouts = [layout_of(x) if is_distributed(x) else None for x in tensors]
    if any(layouts):
        refuse_odd(name, tensors)
    is_traced = tracing_state() is not None
    if is_traced:
        warn_of_trace(f"{name} for the gradient")
    # A trace or transform does not know yet whether a gradient or tangent will be asked for.
    if is_traced or transforms_active() or forward_ad._current_level >= 0:
        return _apply_again(run, tensors, name)
    if not torch.is_grad_enabled():
        with torch.no_grad():
            # An output may be an input that requires grad; a result under no_grad may not.
            return tuple(y.detach() if y.requires_grad else y for y in run(*tensors)[0])
    return _apply_once(run, tensors, name, layouts)


def _apply_once(
    run: Run, tensors: tuple[Tensor, ...], name: str, layouts: Sequence[ShardLayout | None]
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        outputs, pull, undifferentiable = run(*tensors)
        other_leaves = read_besides(outputs, tensors)
        # The engine tells only of non-leaves whether backward reaches them: hence views.
        views = [x.view_as(x) for x in other_leaves]
    nodes = [view.grad_fn for view in views]
    call = NativeCall(
        name=name,
        outputs=outputs,
        pull=pull,
        undifferentiable=undifferentiable,
        layouts=layouts,
        other_leaves=other_leaves,
        nodes=nodes,
    )
    return NativeFunction.apply(call, *tensors, *views)


@dataclass(slots=True, eq=False)
class NativeCall:
    """A call of a function that runs as written.

    Attributes:
        outputs, pull, undifferentiable: as `run` returned them.
        layouts: how each tensor is distributed; None if it is not.
        other_leaves, nodes: the leaves that it reads besides, and the nodes of their views.
    """

    name: str
    outputs: tuple[Tensor, ...]
    pull: Callable[..., Any]
    undifferentiable: Sequence[int]
    layouts: Sequence[ShardLayout | None]
    other_leaves: Sequence[Tensor]
    nodes: Sequence[Any]


# One class for all calls: a class is a cycle of references, so that one made for a call would keep
# the call's tensors until it is collected.
class NativeFunction(Function):
    """Returns the outputs of a call that has run; its backward is the user's."""

    @staticmethod
    def forward(ctx: Any, call: NativeCall, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        # So that torch notices if one is written to before backward.
        ctx.save_for_backward(*inputs[: len(call.layouts)])
        detached = tuple(output.detach() for output in call.outputs)
        ctx.mark_non_differentiable(*(detached[i] for i in call.undifferentiable))
        call.outputs = ()  # else their own graph would live as long as this one
        return detached

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        # Reading them makes torch check their versions.
        _, call = ctx.saved_tensors, ctx.call
        # Only leaves that the running backward reaches get a gradient.
        pairs = zip(call.other_leaves, call.nodes, strict=True)
        leaves = [x for x, node in pairs if torch._C._will_engine_execute_node(node)]
        grads_before = {id(x): (x.grad, x.grad is not None and x.grad._version) for x in leaves}

        # The user's backward may call `backward()` itself, which adds to `.grad` of a leaf.
        def is_added(x: Tensor) -> bool:
            grad, version = grads_before[id(x)]
            return x.grad is not grad or (grad is not None and grad._version != version)

        pull = partial(call.pull, ctx=ctx)
        gradients, leaf_grads = pull_delivering(pull, cotangents, leaves, is_added)
        grad_by_leaf = dict(zip(map(id, leaves), leaf_grads, strict=True))
        laid_out = [lay_out(g, layout) for g, layout in zip(gradients, call.layouts, strict=True)]
        return (None, *laid_out, *(grad_by_leaf.get(id(x)) for x in call.other_leaves))


def explain_refusal(error: Exception) -> str:
    """Return why torch.func or forward mode refuses code that runs as written, else ""."""
    if not (transforms_active() or is_pushing()):
        return ""
    message = str(error)
    # The message of our own `jvp` says everything already.
    if message.endswith(PUSHES_NOTHING):
        return ""
    for pattern, refusal in REFUSALS.items():
        if re.search(pattern, message):
            return refusal
    if isinstance(error, NotImplementedError) and "implemented for" not in message:  # a jvp's own
        return NO_JVP
    is_about_batches = re.search(r"vmap|[Bb]atching rule|functorch|transform|have storage", message)
    return f"torch.func refuses: {message.splitlines()[0]}" if is_about_batches else ""


def read_besides(outputs: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves that require grad and that outputs depend on apart from these tensors."""
    arguments = {id(x) for x in tensors}
    leaves = {id(y): y for y in outputs if y.is_leaf and y.requires_grad and id(y) not in arguments}
    for node in list_nodes(outputs, {x.grad_fn for x in tensors}):
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in arguments:
            leaves[id(leaf)] = leaf
    return [*leaves.values()]


def _apply_again(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    again = CalledAgain(name, run)
    outputs = DerivedFunction.apply(again, *tensors)
    return tuple(y.detach() if i in again.undifferentiable else y for i, y in enumerate(outputs))


@dataclass(slots=True, eq=False)
class CalledAgain:
    name: str
    run: Run = field(repr=False)  # torch.jit.trace compares what it prints
    undifferentiable: Sequence[int] = ()


class DerivedFunction(Function):
    """Runs a function again in backward, on saved inputs, so that any order of transforms works."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: CalledAgain, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, _, call.undifferentiable = call.run(*inputs)
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        _, pull, _ = ctx.call.run(*ctx.saved_tensors)
        return None, *pull(*cotangents, ctx=ctx)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise NotImplementedError(f"{ctx.call.name!r} runs as written, {PUSHES_NOTHING}")
