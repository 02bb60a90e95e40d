"""The checks of emitted code: of a call's input, of what a rule returns, and of derivatives.

Of the input: tensors of another framework or another device, a dtype that rules do not compute in,
and ops that a backend lacks for a dtype. Errors say what was given and what to type. `bind_checks`
gives those of a lowering their names in the emitted module, which the backend's `render` writes
into the source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import GradientError, MultigradError, UnsupportedOp
from ..backend.contract import Backend
from ..backend.discovery import backend_of
from ..backend.emitted import Checks
from ..ir.graph import Graph, Location, every_node
from ..ir.op import FLOATS, UNKNOWN, T, is_float
from ..ops.table import Shape, summed_to
from ..passes.residuals import ResidualCut
from ..trace.trace import dtype_name
from .emit import Emission
from .function_graph import FunctionGraph

Tensor = Any


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
    derivative = second_derivative = ""
    if not autodiff.keeps_float_derivatives and any(is_float(cut.type(r)) for r in cut.computed):
        refusal = derivative_refusal(graphs.backward.name, graphs.is_rule)
        derivative = emission.bind("refuse_derivative", refusal)
    if not graphs.second_order and autodiff.forbid_derivative is not None:
        message = second_refusal(graphs.backward.name, graphs.first_order, graphs.lost)
        second_derivative = emission.bind("once", autodiff.forbid_derivative(message))
    arguments = {}
    if author_params is not None:
        arguments = _bind_argument_checks(graphs, emission, author_params)
    return Checks(shape, gradients, derivative, second_derivative, arguments)


def _bind_shape_checks(graphs: FunctionGraph, emission: Emission) -> tuple[str, tuple[str, ...]]:
    # A rule's result must have the shape of grad_out, a gradient that of its input.
    none = ("",) * len(graphs.wrt)
    if graphs.is_rule:
        if graphs.backward.outputs[0].type.shape != UNKNOWN:
            return "", none
        return emission.bind("check_shape", shape_check(graphs.backward.name)), none
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
    """Return the error message for the derivative of a backward, or of a jvp, that has none.

    `lost`: the functions with a gradient of their own that it uses, where they are known.
    """
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


def shapes_agree(a: Any, b: Any) -> bool:
    """Return whether two shapes may be the same; a length that is not known yet agrees with all."""
    if getattr(a, "rank", 0) is None or getattr(b, "rank", 0) is None:
        return True
    a, b = tuple(a), tuple(b)
    return len(a) == len(b) and all(
        n == m or n is None or m is None for n, m in zip(a, b, strict=True)
    )


def shape_check(rule: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the check of a result whose shape capture could not tell."""

    def check_shape(grad_in: Tensor, like: Tensor) -> Tensor:
        if not shapes_agree(grad_in.shape, like.shape):
            raise GradientError(
                f"rule {rule!r} returned shape {tuple(grad_in.shape)} for an input of shape "
                f"{tuple(like.shape)}; use keepdims=True where it reduces"
            )
        return grad_in

    return check_shape


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


# By dtype, as a look-up is faster than a name; it holds the few dtypes that were seen.
_float_dtypes: dict[Any, bool] = {}


def check_float(x: Tensor, rule: Any) -> None:
    """Raise GradientError if a tensor's dtype is not a float that rules compute in."""
    is_float = _float_dtypes.get(x.dtype)
    if is_float is None:
        is_float = _float_dtypes[x.dtype] = dtype_name(x.dtype) in FLOATS
    if not is_float:
        dtype = dtype_name(x.dtype)
        is_complex = dtype.startswith("complex")
        advice = ", or apply the rule to the real and the imaginary part" if is_complex else ""
        code = getattr(rule.function, "__code__", None)  # none of a rule that is made of others
        place = code and Location(code.co_filename, code.co_firstlineno)
        where = f" (the rule: {place})" if place else ""
        raise GradientError(
            f"rule {rule.name!r} got a tensor of dtype {dtype}; expected one of "
            f"{', '.join(FLOATS)}: cast it first{advice}{where}"
        )


def find_lacking(whose: str, backend: Backend, *graphs: Graph) -> dict[str, str]:
    """Return error messages by input dtype, where the backend lacks an op for it; raise
    UnsupportedOp if it lacks one for a dtype that a rule itself chose.
    """
    lacking: dict[str, str] = {}
    # Most backends lack no op for single dtypes, and need no walk.
    if not any(isinstance(reason, Mapping) for reason in backend.kernels.unsupported.values()):
        return lacking
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


def refuse_lacking(lacking: Mapping[str, str], dtype: str) -> None:
    if dtype in lacking:
        raise UnsupportedOp(lacking[dtype])


def check_values(
    subject: str, names: Sequence[str], backend: Backend, x: Tensor, values: Sequence[Any]
) -> None:
    """Check that run-time params fit a tensor; messages name their owner, `subject`."""
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool | int | float):
            continue
        owner = backend_of(value)
        if owner is not backend:
            raise MultigradError(
                f"{subject} got param {name!r} as a tensor of {owner.name} for a tensor of "
                f"{backend.name}; pass float({name})"
            )
        device = find_device(value)
        # A scalar on the CPU meets tensors on any device.
        if device is not None and device.type != "cpu" and device != find_device(x):
            raise two_devices(subject, f"param {name!r}", value, "the input", x)


def find_device(x: Tensor) -> Any:
    """Return a tensor's device where its framework never moves tensors by itself, else None."""
    device = getattr(x, "device", None)
    return device if hasattr(device, "type") else None


def two_devices(subject: str, what: str, x: Tensor, other: str, y: Tensor) -> MultigradError:
    return MultigradError(
        f"{subject} got {what} on {x.device} and {other} on {y.device}; move one of them: "
        f".to({str(y.device)!r})"
    )
