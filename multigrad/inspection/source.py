"""`xg.lower` and `xg.source`: the native object of a rule or a Function, and what is emitted for
it.
"""

from __future__ import annotations

from typing import Any

from ..backend.contract import Backend
from ..backend.discovery import load_backend
from ..backend.emitted import Attached
from ..errors import RuleTypeError, TraceError, UnsupportedOp
from ..functions.function import Function
from ..lowering.forwards import find_forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import lower_graphs
from ..recipes.examples import find_variant
from ..rulebook.rule import resolve
from ..rulebook.under import RuleUnder
from ..tracing.trace import NeedsConcrete


def lower(rule: Any, backend: str, *, forward: str = "Linear", forward_mode: bool = False) -> Any:
    """Return the native object: what an expert would have written for this framework.

    Args:
        rule: a name, a Rule, a function that is a rule, or a Function; None is the forward's true
            derivative. A Function is taken as it was captured at its latest call.
        backend: "torch", "jax", "tensorflow", "numpy" or a third party's.
        forward: the activation that the rule sits under.
        forward_mode: ask for an object that also supports forward mode (torch: a Function with
            `jvp`; jax: `custom_jvp`, where jax chooses what to keep); for rules that are linear in
            grad_out.

    Returns:
        torch: an `autograd.Function` subclass, `F.apply(x, *params)`; jax: a `custom_vjp` function;
            tensorflow:
        a function with a custom gradient; numpy: an object with `f(x)` and `f.vjp(x) -> (y,
        pullback)`. Run-time params follow the tensor, in alphabetical order, and default to the
        rule's own. A Function takes its tensors in order, then its numbers, and returns one output
        or a tuple of them.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: what each says.
    """
    return _lower(rule, backend, forward, forward_mode).native


def source(rule: Any, backend: str, *, forward: str = "Linear") -> str:
    """Return the source that is emitted for a rule under a forward, for reading and pasting.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: as `lower`.
    """
    return _lower(rule, backend, forward, False).source


def _lower(rule: Any, backend_name: str, forward: str, forward_mode: bool) -> Attached:
    backend = load_backend(backend_name)
    if isinstance(rule, Function):
        return _lower_function(find_variant(rule), backend, forward, forward_mode)
    row = find_forward(forward)
    if forward_mode and not backend.autodiff.forward_mode:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no custom forward mode; lower without forward_mode=True"
        )
    if rule is None:
        graphs, values = RuleUnder(None, row).graphs({}), None
    else:
        bound_rule = resolve(rule).bound_rule()
        values = dict(zip(bound_rule.specialization.runtime, bound_rule.values, strict=True))
        try:
            graphs = RuleUnder(bound_rule.specialization, row).graphs({})
        except NeedsConcrete as need:
            raise TraceError(
                f"{bound_rule.specialization.subject} needs {', '.join(need.facts)} of its input "
                "in Python; lower it through xg.activation(...), which knows the input"
            ) from need
    return lower_graphs(graphs, backend, values, forward_mode, checks=True)


def _lower_function(variant: Any, backend: Backend, forward: str, forward_mode: bool) -> Attached:
    """Lower a captured Function; its tensors come first, then its numbers."""
    graphs: FunctionGraph = variant.graphs
    if forward != "Linear":
        raise RuleTypeError(
            f"function {graphs.name!r} has a forward of its own; lower it without "
            f"forward={forward!r}"
        )
    if forward_mode:
        raise UnsupportedOp(
            f"function {graphs.name!r} has no forward mode; lower it without forward_mode=True"
        )
    return lower_graphs(graphs, backend, {}, checks=True)
