"""`xg.lower` and `xg.source`: the native object of a rule or a Function, and what is emitted for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from ..backend.contract import Backend
from ..backend.emitted import Attached
from ..backend.finding.discovery import load_backend
from ..errors import RuleTypeError, TraceError, UnsupportedOp
from ..functions.calls.decision import LOWERED
from ..functions.eject.eject import eject
from ..functions.function import Function
from ..functions.recipes.examples import find_variant
from ..graph.support.data import Shown
from ..lowering.forwards import Forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import lower_graphs
from ..lowering.names import ActivationName
from ..rules.in_force.activation import Activation
from ..rules.model.forwards_of_code import ForwardOfCode, as_forward
from ..rules.model.rule import BoundRule, Rule, read_number, resolve
from ..rules.model.under import RuleUnder
from ..trace.scope.moving import Moving
from ..trace.trace import NeedsConcrete

AnyRule: TypeAlias = str | Rule | Function | Activation | Callable[..., Any]


def lower(
    rule: AnyRule | None,
    backend: str,
    *,
    forward: ActivationName | Callable[..., Any] = "Linear",
    forward_mode: bool = False,
) -> Any:
    """Return the native object: what an expert would have written for this framework.

    Examples:
        >>> spike = xg.lower("triangular", "numpy", forward="Heaviside")
        >>> y, pull = spike.vjp(np.array([-0.5, 0.25]))
        >>> y, pull(np.ones(2))
        (array([0., 1.]), array([0.5 , 0.75]))

    Args:
        rule: a name, a Rule, a function that is a rule, or a Function; None is the forward's true
            derivative. A Function is taken as it was captured at its latest call.
        backend: "torch", "jax", "tensorflow", "numpy" or a third party's.
        forward: the activation that the rule sits under, or a function of one tensor, as
            `xg.activation` takes them.
        forward_mode: ask for an object that also supports forward mode (torch: a Function with
            `jvp`; jax: `custom_jvp`, where jax chooses what to keep; numpy: `f.jvp(inputs,
            tangents)`); for what is linear in the cotangents.

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


def source(
    rule: AnyRule | None,
    backend: str,
    *,
    forward: ActivationName | Callable[..., Any] = "Linear",
    standalone: bool = False,
) -> Shown:
    """Return the source emitted for a rule under a forward, to read or paste.

    Examples:
        >>> print(xg.source("rectangular", "numpy", forward="Heaviside"))
        def prepare(wrap, a, b):
            return (wrap(a), wrap(b),)
        <BLANKLINE>
        <BLANKLINE>
        def forward(tin):
            return heaviside(tin)
        <BLANKLINE>
        <BLANKLINE>
        def keep(tin, output, a, b, n1, n2):
            return (and_(tin >= n1, tin <= n2),)
        <BLANKLINE>
        <BLANKLINE>
        def backward(grad_out, kept, a, b, n1, n2):
            return mul_into(cast(kept, dtype=grad_out.dtype), grad_out)

    Args:
        rule: as `lower` takes it, or an activation (`xg.activation(...)`), which has a forward and
            a rule.
        standalone: return a whole module that runs where multigrad is not installed, with what it
            calls written into it. It defines one function for people, named as the rule, of the
            tensors and then the run-time params; it gives the bits of what `lower` gives.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: as `lower`; UnsupportedOp also for
            what no file can hold: code that runs as it is.
    """
    meant: Any = forward
    if isinstance(rule, Activation):
        rule, meant = _parts_of(rule, forward)
    if standalone:
        return Shown(_eject(rule, load_backend(backend), meant))
    return Shown(_lower(rule, backend, meant, False).source)


def _parts_of(activation: Activation, forward: Any) -> tuple[Any, Forward]:
    """Return the rule and the forward of an activation.

    Raises:
        RuleTypeError: another forward is given.
    """
    if forward != "Linear" and as_forward(forward) is not activation.forward:
        raise RuleTypeError(
            f"{activation!r} has a forward of its own; leave out forward={forward!r}"
        )
    own = activation.own_in_force()
    return None if own is None else own.bound_rule, activation.forward


def _eject(rule: Any, backend: Backend, forward: Any) -> str:
    """Return a file of what is lowered otherwise."""
    rule, forward = _own_of_code(rule, forward)
    if isinstance(rule, Function):
        graphs = _graphs_of(find_variant(rule, LOWERED, backend), forward)
        title = f"The function {graphs.name!r} for {backend.name}"
        return eject(graphs, backend, _numbers_of(rule, graphs), title=title)
    row = as_forward(forward)
    graphs, values = _graphs_under(rule, row)
    name = graphs.backward.name
    title = f"{row.name} with the gradient of the rule {name!r} for {backend.name}"
    if rule is None:
        name, title = row.name, f"{row.name} with its true derivative for {backend.name}"
    return eject(replace(graphs, name=name), backend, values or {}, title=title)


def _numbers_of(function: Function, graphs: FunctionGraph) -> dict[str, float]:
    """Return the numbers that a Function has where a call leaves them out."""
    known = {} if function.parameters is None else function.parameters.parameters
    numbers = {name: known[name].default for name in graphs.params if name in known}
    return {name: number for name, number in numbers.items() if isinstance(number, float)}


def _lower(rule: Any, backend_name: str, forward: Any, forward_mode: bool) -> Attached:
    backend = load_backend(backend_name)
    rule, forward = _own_of_code(rule, forward)
    if forward_mode and not backend.autodiff.forward_mode:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no custom forward mode; lower without forward_mode=True"
        )
    if isinstance(rule, Function):
        return _lower_function(find_variant(rule, LOWERED, backend), backend, forward, forward_mode)
    row = as_forward(forward)
    graphs, values = _graphs_under(rule, row)
    return lower_graphs(graphs, backend, values, forward_mode, checks=True)


def _own_of_code(rule: Any, forward: Any) -> tuple[Any, Any]:
    """Return the Function that a forward of code is without a rule; all else as it is."""
    row = as_forward(forward) if rule is None else None
    return (row.function, "Linear") if isinstance(row, ForwardOfCode) else (rule, forward)


def _graphs_under(rule: Any, row: Forward) -> tuple[FunctionGraph, dict[str, Any] | None]:
    """Return the graphs of a rule under a forward, and the values of its run-time params."""
    if rule is None:
        graphs, values = RuleUnder(None, row).graphs({}), None
    else:
        bound_rule = rule if isinstance(rule, BoundRule) else resolve(rule).bound_rule()
        values = _written(bound_rule)
        try:
            graphs = RuleUnder(bound_rule.specialization, row).graphs({})
        except NeedsConcrete as need:
            raise TraceError(
                f"{bound_rule.specialization.subject} needs {', '.join(need.facts)} of its input "
                "in Python; lower it through xg.activation(...), which knows the input"
            ) from need
    return graphs, values


def _written(bound_rule: BoundRule) -> dict[str, Any]:
    """Return the values of a rule's run-time params as what code can hold: Python's numbers.

    Raises:
        RuleTypeError: one follows a schedule, or is known at run time only.
    """
    values = {}
    for name, value in zip(bound_rule.specialization.runtime, bound_rule.values, strict=True):
        subject = f"{bound_rule.specialization.subject}: param {name!r}"
        if isinstance(value, Moving):
            raise RuleTypeError(
                f"{subject} follows a schedule, and what is lowered holds numbers; give it "
                "schedule.value"
            )
        values[name] = read_number(value)
        if values[name] is None:
            raise RuleTypeError(
                f"{subject} is known when the traced code runs, and what is lowered holds "
                "numbers; pass a number, and the tensor in the call"
            )
    return values


def _graphs_of(variant: Any, forward: str) -> FunctionGraph:
    """Return the graphs of a captured Function.

    Raises:
        RuleTypeError: a forward is given beside its own.
    """
    graphs: FunctionGraph = variant.graphs
    if forward != "Linear":
        raise RuleTypeError(
            f"function {graphs.name!r} has a forward of its own; lower it without "
            f"forward={forward!r}"
        )
    return graphs


def _lower_function(variant: Any, backend: Backend, forward: str, forward_mode: bool) -> Attached:
    """Lower a captured Function; its tensors come first, then its numbers."""
    graphs = _graphs_of(variant, forward)
    return lower_graphs(graphs, backend, {}, forward_mode, checks=True)
