"""What emitted code refuses: the checks of a call and of its derivatives, and their messages.

`bind_checks` gives each check a name in the emitted module; `Checks` holds the names, which the
backend's `render` writes into the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backend.emitted import Checks
from ..errors import GradientError
from ..graph.ir.types import UNKNOWN, is_float
from ..graph.passes.residuals import ResidualCut
from .emit import Emission
from .function_graph import FunctionGraph
from .input_checks import gradient_shape_check, shape_check


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
    shape, gradients = _bind_shape_checks(graphs, emission)
    derivative = second = ""
    if not autodiff.keeps_float_derivatives and any(is_float(cut.type(r)) for r in cut.computed):
        refusal = derivative_refusal(graphs.backward.name, graphs.is_rule)
        derivative = emission.bind("refuse_derivative", refusal)
    if not graphs.second_order and autodiff.forbid_derivative is not None:
        message = second_refusal(graphs.backward.name, graphs.first_order)
        second = emission.bind("once", autodiff.forbid_derivative(message))
    arguments = {}
    if author_params is not None:
        arguments = _bind_argument_checks(graphs, emission, author_params)
    return Checks(shape, gradients, derivative, second, arguments)


def _bind_shape_checks(graphs: FunctionGraph, emission: Emission) -> tuple[str, tuple[str, ...]]:
    # A rule's result must have the shape of grad_out, a gradient that of its input.
    none = ("",) * len(graphs.wrt)
    if graphs.is_rule:
        if graphs.backward.outputs[0].type.shape != UNKNOWN:
            return "", none
        return emission.bind("check_shape", shape_check(graphs.backward.name)), none
    checks = []
    for name, gradient in zip(graphs.wrt, graphs.backward.outputs, strict=True):
        given = graphs.backward.input(name) or graphs.forward.input(name)
        assert given is not None
        sure = gradient is given or gradient.type.shape == given.type.shape != UNKNOWN
        like = gradient.op.shaped_like
        follows = sure or (like is not None and gradient.operands[like] is given)
        check = gradient_shape_check(graphs.name, name)
        checks.append("" if follows else emission.bind(f"check_{name}", check))
    return "", tuple(checks)


def _bind_argument_checks(
    graphs: FunctionGraph, emission: Emission, author_params: Sequence[str]
) -> dict[str, str]:
    # By number of a Function, a function that refuses a tensor that needs a gradient; by input
    # without a derivative, one that refuses that. A rule's params reach no output.
    autodiff = emission.backend.autodiff
    refuse, forbid = autodiff.refuse_gradient, autodiff.forbid_derivative
    if graphs.is_rule or refuse is None or forbid is None:
        return {}
    checks = {
        name: refuse(number_refusal(graphs.name, known))
        for name, known in zip(graphs.params, author_params, strict=True)
    }
    checks.update({name: forbid(message) for name, message in graphs.refused.items()})
    return {name: emission.bind(f"refuse_{name}", check) for name, check in checks.items()}


def number_refusal(function: str, param: str) -> str:
    """Return an error message for a tensor that needs a gradient but was captured as a number."""
    return (
        f"function {function!r} was lowered after a call with a number for {param!r}, so a tensor "
        "there gets no gradient: give a number, or call the function with a tensor there and lower "
        "it again"
    )


def second_refusal(name: str, is_promised: bool = False) -> str:
    """Return the error message for the second derivative of a backward that has none."""
    if is_promised:
        return (
            f"function {name!r} promises that nobody differentiates its backward, but a derivative "
            "of it is taken; take the promise back (once_differentiable)"
        )
    return (
        f"the backward of {name!r} uses a function with a gradient of its own, or asks whether "
        "autograd records, so it cannot be differentiated again; give it native=True, and the "
        "framework differentiates it"
    )


def derivative_refusal(name: str, is_rule: bool) -> Callable[[], None]:
    """Return a function that refuses the derivative of a backward promised to have none."""
    promise, advice = "is registered with first_order=True", "register it without"
    if not is_rule:
        promise, advice = (
            "promises that nobody differentiates its backward",
            "take the promise back",
        )

    def refuse_derivative() -> None:
        raise GradientError(
            f"{'rule' if is_rule else 'function'} {name!r} {promise}, so its backward keeps "
            "numbers without their derivative and cannot be differentiated (create_graph, "
            f"torch.func); {advice}"
        )

    return refuse_derivative
