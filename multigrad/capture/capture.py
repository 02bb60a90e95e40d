"""From a rule's Python function to its graph, and the checks on what it returned."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import GradientError, MultigradError, TraceError
from ..ir.graph import Graph
from ..ir.passes import simplify
from ..ir.record import NeedFact, Trace, Value, constant
from ..ir.types import BOOL, FLOAT_SCALAR, INPUT, INPUT_SHAPE, UNKNOWN, T
from . import numpy as _numpy_dialect
from .dialect import substitute
from .tracer import V

__all__ = ["capture", "run_function"]
_DIALECTS = _numpy_dialect  # imported for its table

Run = Callable[[Trace, Value, Value | None, Mapping[str, Any]], Any]


def capture(
    name: str,
    run: Run,
    *,
    has_tin: bool,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Graph:
    """Run a rule on symbolic values and return its simplified graph.

    Args:
        name: the rule's name, for messages.
        run: what runs the rule (one function, or a chain of them) in a trace.
        has_tin: whether the rule gets its forward input; else `tin` is None.
        runtime: names of the params that are run-time scalars, in order.
        static: the other params.
        facts: what is fixed for this capture: "ndim", "dtype", "shape", "param:<name>".

    Raises:
        NeedFact: Python needed something concrete that is not among the facts.
        TraceError: the rule cannot be captured.
        GradientError: it returned something that is no gradient of its input.
    """
    trace = Trace(name, facts, V)
    grad_out = trace.input("grad_out", INPUT)
    tin = trace.input("tin", INPUT) if has_tin else None
    scalars = {param: trace.input(param, FLOAT_SCALAR) for param in runtime}
    given = {
        param: trace.value(constant(facts[f"param:{param}"]))
        if f"param:{param}" in facts
        else scalar
        for param, scalar in scalars.items()
    }
    try:
        result = run(trace, grad_out, tin, {**static, **given})
    except (NeedFact, MultigradError):
        raise
    except Exception as error:
        raise TraceError(
            f"rule {name!r}{_place(trace, error)} raised {type(error).__name__} while captured: {error}"
        ) from error
    node = _check_result(trace, result).node
    inputs = [grad_out.node, *([tin.node] if tin is not None else [])]
    inputs += [scalar.node for scalar in scalars.values()]
    if trace.key is not None:
        inputs.append(trace.key)
    return simplify(Graph(name, tuple(inputs), (node,), trace.locations))


def _place(trace: Trace, error: BaseException) -> str:
    """Return " (file:line)" of the user's code in a traceback."""
    place, tb = "", error.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code in trace.codes:
            place = f" ({tb.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{tb.tb_lineno})"
        tb = tb.tb_next
    return place


def _check_result(trace: Trace, result: Any) -> Value:
    """Return the rule's result where it is a tensor of the input's shape and dtype."""
    name = trace.name
    if not isinstance(result, Value):
        given = "None" if result is None else f"{type(result).__name__} {result!r}"
        raise GradientError(
            f"rule {name!r} returned {given}; expected the gradient, a tensor like tin. "
            f"For zero write xp.zeros_like(grad_out)"
        )
    type_ = result.node.type
    if type_.kind != "tensor":
        raise GradientError(
            f"rule {name!r} returned a scalar; expected a tensor of tin's shape. "
            f"Write grad_out * scalar or xp.full_like(grad_out, scalar)"
        )
    if type_.shape not in (INPUT_SHAPE, UNKNOWN):
        raise GradientError(
            f"rule {name!r} returned shape {type_} instead of tin's; "
            f"use keepdims=True and combine with grad_out"
        )
    if type_.dtype == BOOL:
        raise GradientError(
            f"rule {name!r} returned bools; multiply by grad_out or cast to its dtype"
        )
    if type_.dtype != T:
        if "dtype" not in trace.facts:
            raise NeedFact("dtype")
        if type_.dtype != trace.facts["dtype"]:
            raise GradientError(
                f"rule {name!r} returned {type_.dtype} for a {trace.facts['dtype']} input; "
                f"cast it back with .to(grad_out.dtype)"
            )
    return result


def run_function(function: Callable[..., Any], trace: Trace, *args: Any, **kwargs: Any) -> Any:
    """Call a rule's own function in a trace, with what Python hides from symbolic values replaced."""
    if isinstance(function, types.FunctionType):
        before, trace.dialect = trace.dialect, dialect_of(function)
        try:
            return substitute(function, trace)(*args, **kwargs)
        finally:
            trace.dialect = before
    return function(*args, **kwargs)


def dialect_of(function: types.FunctionType) -> str:
    """Return the array library that a function mentions, or "" where it is written in methods only."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            root = value.__name__.partition(".")[0]
            return "xp" if root == "multigrad" else root
    return ""
