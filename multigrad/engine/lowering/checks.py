"""The checks of emitted code that is no plain rule's: of gradients' shapes, of derivatives that are
not there, and of what people call it with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.backend.contract import Backend
from ...core.backend.emitted import Body, Checks, Code
from ...core.ir.graph import Graph, every_node
from ...core.ir.op import UNKNOWN, T, is_float
from ...core.lowering.checks import bind_shape_check, find_lacking, refuse_lacking, shapes_agree
from ...core.lowering.emit import Emission
from ...core.lowering.function_graph import FunctionGraph
from ...core.lowering.lower import Lowering
from ...core.ops.shapes import Shape, summed_to
from ...core.passes.residuals import ResidualCut
from ...core.support.trees import Tensor
from ...core.trace.trace import dtype_name
from ...errors import GradientError, UnsupportedOp


def bind_checks(
    graphs: FunctionGraph,
    emission: Emission,
    cut: ResidualCut,
    author_params: Sequence[str] | None,
) -> Checks:
    """Bind the functions by which the code refuses a call or a derivative.

    Args:
        author_params: the params under their author's names, where people call the code; None
            where an entry has looked at the arguments already.
    """
    autodiff = emission.backend.autodiff
    shape, gradients = bind_shape_checks(graphs, emission)
    derivative = second_derivative = ""
    if not autodiff.keeps_float_derivatives and any(is_float(cut.type(r)) for r in cut.computed):
        refusal = derivative_refusal(graphs.backward.name, graphs.is_rule)
        derivative = emission.bind("refuse_derivative", refusal)
    if not graphs.second_order and autodiff.forbid_derivative is not None:
        message = second_refusal(graphs.backward.name, graphs.first_order, graphs.lost)
        second_derivative = emission.bind("once", autodiff.forbid_derivative(message))
    arguments = {}
    if author_params is not None:
        arguments = bind_argument_checks(graphs, emission, author_params)
    return Checks(shape, gradients, derivative, second_derivative, arguments)


def bind_shape_checks(graphs: FunctionGraph, emission: Emission) -> tuple[str, tuple[str, ...]]:
    # A rule's result must have the shape of grad_out, a gradient that of its input.
    none = ("",) * len(graphs.wrt)
    if graphs.is_rule:
        return bind_shape_check(graphs, emission), none
    checks = []
    for name, gradient in zip(graphs.wrt, graphs.backward.outputs, strict=True):
        argument = graphs.backward.input(name) or graphs.forward.input(name)
        assert argument is not None
        is_alike = gradient is argument or gradient.type.shape == argument.type.shape != UNKNOWN
        position = gradient.op.shaped_like
        is_certain = is_alike or (position is not None and gradient.operands[position] is argument)
        check = gradient_shape_check(graphs.name, name)
        checks.append("" if is_certain else emission.bind(f"check_{name}", check))
    return "", tuple(checks)


def bind_argument_checks(
    graphs: FunctionGraph, emission: Emission, author_params: Sequence[str]
) -> dict[str, str]:
    # By number of a Function, a function that refuses a tensor that needs a gradient; by input
    # without a derivative, one that refuses that. A rule's params reach no output.
    autodiff = emission.backend.autodiff
    refuse, forbid = autodiff.refuse_gradient, autodiff.forbid_derivative
    if graphs.is_rule or refuse is None or forbid is None:
        return {}
    checks = {
        name: refuse(
            f"function {graphs.name!r} was lowered after a call with a number for {param!r}, so a "
            "tensor there gets no gradient: give a number, or call the function with a tensor "
            "there and lower it again"
        )
        for name, param in zip(graphs.params, author_params, strict=True)
    }
    checks.update({name: forbid(message) for name, message in graphs.refused.items()})
    return {name: emission.bind(f"refuse_{name}", check) for name, check in checks.items()}


def second_refusal(
    name: str, is_promised: bool, lost: Sequence[str], part: str = "backward"
) -> str:
    """Return the core's message with the reason, and where there is a derivative."""
    if is_promised:
        return (
            f"function {name!r} promises that nobody differentiates its backward, but a derivative "
            "of it is taken; take the promise back (once_differentiable)"
        )
    uses = "a function with a gradient of its own, or asks whether autograd records"
    if names := " and ".join([repr(each) for each in lost if each]):
        uses = f"{names}, with a gradient of its own"
    return (
        f"the {part} of {name!r} uses {uses}, so it cannot be differentiated again here. "
        "As written it can on its own framework, by xg.function(f, native=True); a converted class "
        "can in torch (torch.autograd.grad(..., create_graph=True), torch.func.grad)"
    )


def derivative_refusal(name: str, is_rule: bool) -> Callable[[], None]:
    """Return a function that refuses the derivative of a backward promised to have none."""
    promise, advice = "promises that nobody differentiates its backward", "take the promise back"
    if is_rule:
        promise, advice = "is registered with first_order=True", "register it without"

    def refuse_derivative() -> None:
        raise GradientError(
            f"{'rule' if is_rule else 'function'} {name!r} {promise}, so its backward keeps "
            "numbers without their derivative and cannot be differentiated (create_graph, "
            f"torch.func); {advice}"
        )

    return refuse_derivative


def gradient_shape_check(function: str, argument: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the check of a gradient against the shape of its input."""

    def check_gradient(gradient: Tensor, expected: Any) -> Tensor:
        shape = gradient.shape
        if shape != expected and not shapes_agree(shape, expected):
            raise unlike(f"function {function!r}", argument, tuple(shape), tuple(expected))
        return gradient

    return check_gradient


def unlike(subject: str, argument: str, shape: Shape, expected: Shape) -> GradientError:
    """Return the error for a gradient of another shape than that of its argument."""
    hint = ""
    with contextlib.suppress(GradientError):
        summed_to(shape, expected)
        hint = f": xp.sum_to(gradient, {argument}) undoes broadcasting"
    return GradientError(
        f"{subject} returned a gradient of shape {shape} for argument {argument!r} "
        f"of shape {expected}; expected the same shape{hint}"
    )


def format_lengths(shape: Sequence[int | None]) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in shape)})"


def find_lacking_in(whose: str, backend: Backend, *graphs: Graph) -> dict[str, str]:
    """Return what `find_lacking` of the core does, op by op."""
    lacking: dict[str, str] = {}
    for graph in graphs:
        for node in every_node(graph):
            reasons = backend.kernels.unsupported.get(node.op, "")
            if not isinstance(reasons, Mapping):
                continue
            place = f" ({graph.locations[node]})" if node in graph.locations else ""
            tensor_types = [o.type for o in node.operands if o.type.kind == "tensor"]
            own_dtype = (tensor_types or [node.type])[0].dtype
            for dtype, reason in reasons.items():
                message = (
                    f"{whose}{place} uses {node.op.name}, which {backend.name} lacks for {dtype}: "
                    f"{reason}. Cast to another float dtype before it and back after it"
                )
                # A dtype that the rule chose is refused now, that of its input at a call.
                if own_dtype == dtype:
                    raise UnsupportedOp(message)
                if own_dtype == T:
                    lacking.setdefault(dtype, message)
    return lacking


def check_dtypes(lowering: Lowering, code: Code, fast: Code) -> tuple[Code, Code]:
    """Let code begin with a check of its inputs' dtypes, where the backend lacks an op for some."""
    graphs, noun = lowering.graphs, "rule" if lowering.graphs.is_rule else "function"
    subject = f"{noun} {graphs.backward.name!r}"
    lacking = find_lacking(subject, lowering.backend, graphs.forward, graphs.backward)
    if not lacking:
        return code, fast

    def check_dtype(tin: Any) -> None:
        refuse_lacking(lacking, dtype_name(tin.dtype))

    check = lowering.emission.bind("check_dtype", check_dtype)
    lines = tuple(f"{check}({name})" for name in graphs.inputs)

    def begin(body: Body) -> Body:
        return replace(body, lines=(*lines, *body.lines))

    def checked(code: Code) -> Code:
        whole = None if code.whole is None else begin(code.whole)
        return replace(code, forward=begin(code.forward), whole=whole)

    return checked(code), checked(fast)
