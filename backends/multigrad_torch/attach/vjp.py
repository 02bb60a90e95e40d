"""`xg.vjp` on torch, walks through autograd's nodes, and identities that refuse a derivative."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import has_torch_function

from multigrad.errors import GradientError, as_class

from ..core import dynamo

Tensor: TypeAlias = torch.Tensor
SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
# The node that `once_differentiable` attaches to a gradient.
ONCE = "torch::autograd::Error"


def vjp(
    run: Callable[[Sequence[Tensor]], list[Any]], inputs: Sequence[Tensor], *, again: bool = True
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of tensors, and the pullback, which maps cotangents to one
    gradient per input. The pullback may be called once, or repeatedly if `again` is set.

    Inside another differentiation the inputs, and so the gradients, stay part of its graph.
    """
    inputs = plain(inputs)
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    is_nested = is_recorded or any(unpack_dual(x).tangent is not None for x in inputs)
    with outside_inference(), torch.enable_grad():
        xs = [_track(x, is_nested) for x in inputs]
        outputs = run(xs)
    active = [i for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]
    wrt = [i for i, x in enumerate(xs) if x.requires_grad]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        gradient_by_input: dict[int, Tensor | None] = {}
        if active and wrt:
            heads = [
                torch.zeros_like(outputs[i]) if cotangents[i] is None else cotangents[i]
                for i in active
            ]
            keeps = again or is_nested
            results = [outputs[i] for i in active]
            tracked = [xs[i] for i in wrt]
            with outside_inference():
                gradients = differentiate(results, tracked, plain(heads), keeps, is_recorded)
            # torch runs no nodes that lead to no input: the gradient would silently be zeros.
            if any(gradient is None for gradient in gradients) and any(
                node.name() == ONCE for node in list_nodes(results)
            ):
                raise RuntimeError(
                    "trying to differentiate twice a function that was marked with "
                    "@once_differentiable"
                )
            gradient_by_input = dict(zip(wrt, gradients, strict=True))
        return [
            torch.zeros_like(x) if x.is_floating_point() and gradient_by_input.get(i) is None
            else gradient_by_input.get(i)
            for i, x in enumerate(inputs)
        ]  # fmt: skip

    if is_nested:
        return outputs, pullback
    return [y.detach() if isinstance(y, Tensor) else y for y in outputs], pullback


def outside_inference() -> AbstractContextManager[Any]:
    """Leave inference mode, where torch's autograd keeps nothing: a derivative would be zero."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def plain(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors that autograd takes: copies of those made in inference mode."""
    with outside_inference():
        return [x.clone() if isinstance(x, Tensor) and x.is_inference() else x for x in tensors]


def _track(x: Tensor, is_nested: bool) -> Tensor:
    if not x.is_floating_point():
        return x
    # Detached only outside other differentiations: nested, gradients must reach the outer inputs.
    if not is_nested:
        return x.detach().requires_grad_(True)
    view = x.view_as(x)  # with the tangent that it may have
    return view if view.requires_grad else view.requires_grad_(True)


def differentiate(
    outputs: list[Tensor], inputs: list[Tensor], cotangents: list[Any], keeps: bool, records: bool
) -> tuple[Tensor | None, ...]:
    """Do `torch.autograd.grad` without its import of sympy, which only compares shapes.

    The import (torch 2.13) is half of a first call. While nothing else has imported it, and shapes
    are equal, this calls the function that `grad` calls after the comparison.
    """
    pairs = zip(outputs, cotangents, strict=True)
    if (
        torch.compiler.is_compiling()
        or SYMBOLIC in sys.modules
        or has_torch_function((*outputs, *inputs, *cotangents))
        or not all(_fits(*pair) for pair in pairs)
    ):
        return torch.autograd.grad(
            outputs,
            inputs,
            cotangents,
            retain_graph=keeps,
            create_graph=records,
            allow_unused=True,
        )
    return torch.autograd.graph._engine_run_backward(
        tuple(outputs),
        tuple(cotangents),
        keeps,
        records,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def _fits(output: Tensor, cotangent: Any) -> bool:
    is_like = isinstance(cotangent, Tensor) and cotangent.dtype == output.dtype
    return is_like and not output.is_nested and cotangent.shape == output.shape


# --- autograd's nodes -----------------------------------------------------------------------------
def list_nodes(outputs: Sequence[Any], stops: Collection[Any] = ()) -> list[Any]:
    """Return the autograd nodes that lead to outputs, without `stops` and the nodes behind them."""
    nodes = {y.grad_fn: None for y in outputs if isinstance(y, Tensor)}
    for stop in (None, *stops):
        nodes.pop(stop, None)
    queue = [*nodes]
    while queue:
        for next_node, _ in queue.pop().next_functions:
            if not (next_node is None or next_node in nodes or next_node in stops):
                nodes[next_node] = None
                queue.append(next_node)
    return [*nodes]


def custom_nodes(outputs: Sequence[Any]) -> list[Any]:
    return [node for node in list_nodes(outputs) if hasattr(node, "_forward_cls")]


def as_leaf(x: Tensor) -> Tensor:
    """Return a tensor apart from its graph; a gradient for it is asked for if it has floats."""
    return x.detach().requires_grad_(x.is_floating_point())


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity as a function whose derivative raises an error."""

    class Once(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
            raise GradientError(message)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Tensor:  # else torch asks for one to be written
            raise as_class(GradientError(message), NotImplementedError)

    dynamo.allow_in_graph(Once)
    return Once.apply


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on numbers, which raises an error for a tensor that requires grad."""

    def refuse(number: Any) -> Any:
        if isinstance(number, Tensor) and number.requires_grad and torch.is_grad_enabled():
            raise GradientError(message)
        if isinstance(number, Tensor) and unpack_dual(number).tangent is not None:
            raise GradientError(message)
        return number

    return refuse
