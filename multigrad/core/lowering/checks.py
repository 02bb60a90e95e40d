"""The checks of emitted code: of a call's input, of what a rule returns, and of derivatives.

Of the input: tensors of another framework or another device, a dtype that rules do not compute in,
and ops that a backend lacks for a dtype. Errors say what was given and what to type.
`bind_shape_check` gives the check of a rule's result its name in the emitted module (the engine's
`bind_checks`, all of them), which the backend's `render` writes into the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import GradientError, MultigradError, UnsupportedOp
from ..backend.contract import Backend
from ..backend.discovery import backend_of
from ..ir.graph import Graph, Location
from ..ir.op import FLOATS, UNKNOWN
from ..support.lazy_modules import provided
from ..trace.trace import dtype_name
from .emit import Emission
from .function_graph import FunctionGraph

Tensor = Any


@provided
def second_refusal(
    name: str, is_promised: bool, lost: Sequence[str], part: str = "backward"
) -> str:
    """Return the error message for the derivative of a backward, or of a jvp, that has none.

    `lost`: the functions with a gradient of their own that it uses, where they are known.
    """
    return f"the {part} of {name!r} cannot be differentiated again here"


def bind_shape_check(graphs: FunctionGraph, emission: Emission) -> str:
    # A rule's result must have the shape of grad_out.
    is_known = graphs.backward.outputs[0].type.shape != UNKNOWN
    return "" if is_known else emission.bind("check_shape", shape_check(graphs.backward.name))


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
    # Most backends lack no op for single dtypes, and need no walk.
    if not any(isinstance(reason, Mapping) for reason in backend.kernels.unsupported.values()):
        return {}
    return find_lacking_in(whose, backend, *graphs)


@provided
def find_lacking_in(whose: str, backend: Backend, *graphs: Graph) -> dict[str, str]:
    return {}


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
