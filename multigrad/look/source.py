"""`xg.show`, `xg.lower` and `xg.source`: the graph, native object and code of a rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from ..backend.contract import Backend
from ..backend.discovery import in_use, load_backend
from ..backend.emitted import Attached
from ..errors import MultigradError, RuleTypeError, TraceError, UnsupportedOp
from ..functions.calls.decision import LOWERED, SHOWN
from ..functions.captures import find_variant
from ..functions.chain import Chain
from ..functions.eject.eject import eject
from ..functions.function import Function
from ..graph import ops
from ..graph.ir.graph import Graph, Node, format_graph
from ..graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, T, Type
from ..graph.passes.residuals import BYTES, ResidualCut
from ..graph.support.class_bases import Shown
from ..lowering.forwards import Forward, find_forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import lower_graphs
from ..lowering.names import ActivationName
from ..lowering.packed_masks import PACK
from ..rules.activation import Activation
from ..rules.model.activation_function import ForwardOfCode, as_forward, graphs_under
from ..rules.model.rule import Rule
from ..rules.model.rule_in_force import RuleInForce, chain_of, read_number
from ..rules.registry import resolve
from ..trace.moving_numbers import Moving
from ..trace.trace import NeedsConcrete

# --- graphs as text, and what forward keeps -------------------------------------------------------


MOST_CALLS = 100  # of one expression


def show(
    obj: str | Rule | Callable[..., Any] | Activation | Graph | FunctionGraph | Function,
    *,
    memory: bool = False,
) -> Shown:
    """Return the graph of a rule, an activation (also a module or layer) or a Function as text.

    Examples:
        >>> print(xg.show("rectangular"))
        rectangular(grad_out: T[...], tin: T[...], a: weak float, b: weak float)  # written in ...
          %1: bool[...] = ge(tin, a)  # surrogate.py:...
          %2: bool[...] = le(tin, b)  # surrogate.py:...
          %3: bool[...] = and(%1, %2)  # surrogate.py:...
          %4: T[...] = cast(%3, dtype='T')
          %5: T[...] = mul(grad_out, %4)  # surrogate.py:...
          return %5
        >>> print(xg.show(xg.activation("ReLU", rule="rectangular"), memory=True))
        ReLU(tin: T[...])
          %1: T[...] = relu(tin)
          return %1
        <BLANKLINE>
        rectangular(grad_out: T[...], tin: T[...], a: weak float, b: weak float)  # written in ...
          %1: bool[...] = ge(tin, a)  # surrogate.py:...
          %2: bool[...] = le(tin, b)  # surrogate.py:...
          %3: bool[...] = and(%1, %2)  # surrogate.py:...
          %4: T[...] = cast(%3, dtype='T')
          %5: T[...] = mul(grad_out, %4)  # surrogate.py:...
          return %5
        <BLANKLINE>
        kept for backward:
          kept = and(ge(tin, a), le(tin, b)): 1 byte per element, where tin would take 4 in float32

    Args:
        obj: what to show; a bare rule sits under Linear where memory is asked for.
        memory: also say what forward keeps for backward, in bytes per element of the input.

    Raises:
        RuleError: the rule is unknown.
        TraceError: it cannot be captured.
    """
    return Shown(_text_of(obj, memory))


def _text_of(obj: Any, memory: bool) -> str:
    if isinstance(obj, Graph):
        return format_graph(obj)
    inner: Any = getattr(obj, "_activation", obj)  # of a module or layer
    inner = getattr(inner, "captured_form", inner)  # of what `override` returned
    if isinstance(inner, Function):
        graphs = find_variant(inner, SHOWN).graphs
        chain = f"{inner._words}\n\n" if isinstance(inner, Chain) else ""
        return _with_memory(f"{chain}{_both(graphs)}", graphs, memory)
    if isinstance(inner, FunctionGraph):
        return _with_memory(_both(inner), inner, memory)
    if isinstance(inner, Activation):
        own = inner.own_in_force()
        if own is None and isinstance(inner.forward, ForwardOfCode):
            return _text_of(inner.forward.function, memory)
        if own is None:
            function = FunctionGraph(
                inner.forward.name,
                inner.forward.graph(),
                inner.forward.derivative(),
                is_rule=True,
            )
            return _with_memory(_both(function), function, memory)
        return _chained(inner.rule) + _show(own, inner.forward, memory)
    return _chained(inner) + _show(resolve(inner).bound_rule(), None, memory)


def _both(function: FunctionGraph) -> str:
    return f"{format_graph(function.forward)}\n\n{format_graph(function.backward)}"


def _chained(given: Any) -> str:
    rule = resolve(given)
    return f"{chain_of(rule)}\n\n" if rule.parts else ""


def _show(bound_rule: RuleInForce, forward: Forward | None, memory: bool) -> str:
    rule = bound_rule.specialization.rule
    head = "" if forward is None else f"{format_graph(forward.graph())}\n\n"
    if rule.native is True:
        kept = "\n\nkept for backward: the input, which the rule may read" if memory else ""
        return f"{head}{rule.name}: runs as written (native=True), so it has no graph{kept}"
    backward = captured_graph(bound_rule)
    row = find_forward("Linear") if forward is None else forward
    function = FunctionGraph(
        rule.name,
        row.graph(),
        backward,
        rule.first_order,
        is_rule=True,
        residuals=rule.residuals,
    )
    return _with_memory(f"{head}{format_graph(backward)}", function, memory)


def captured_graph(bound_rule: RuleInForce) -> Graph:
    """Return the graph of a rule; if it has several, the last one used."""
    rule = bound_rule.specialization.rule
    try:
        return bound_rule.graph()
    except NeedsConcrete as need:
        per = f"one graph per {', '.join(need.facts)} of its input"
        graph, which = bound_rule.specialization.latest_graph(), "the last"
        # A graph without tin is that for gradients of params, which is not what is asked for.
        if graph is None or graph.input("tin") is None:
            graph, facts = bound_rule.likely_graph(True)
            which = f"for {', '.join(f'{name} {value}' for name, value in facts.items())}"
        if graph is None:
            raise MultigradError(
                f"rule {rule.name!r} has {per}; it is captured when it is first used"
            ) from need
        return replace(graph, origin=f"{graph.origin}; {per}, this one {which}")


def _with_memory(text: str, function: FunctionGraph, memory: bool) -> str:
    return f"{text}\n\n{describe_kept(function)}" if memory else text


def describe_kept(function: FunctionGraph) -> str:
    """Return text on what forward keeps for backward, once for backends that keep the same."""
    besides = function.cut_with_costly(floats=False)
    # Backends differ in two ways: derivatives kept as floats, and outputs that are watched.
    texts = {
        (floats, watched): describe_cut(function.cut(floats, watched=watched, packs=True))
        for floats in (False, True)
        for watched in (False, True)
    }
    if besides is not None:
        for watched in (False, True):
            known = function.cut(watched=watched).residuals
            texts[False, watched] += describe_cut(besides, known)
    if len(set(texts.values())) == 1:
        return f"kept for backward:{texts[False, False]}"
    names: dict[str, list[str]] = {}
    for backend in in_use():
        autodiff = backend.autodiff
        text = texts[autodiff.keeps_float_derivatives, autodiff.watches_outputs]
        names.setdefault(text, []).append(backend.name)
    return "\n\n".join(f"kept for backward on {', '.join(n)}:{text}" for text, n in names.items())


def describe_cut(cut: ResidualCut, known: Collection[str] = ()) -> str:
    """Return a line for each residual of a cut that is not known yet: its bytes and content."""
    if not cut.residuals:
        return " nothing, 0 bytes per element"
    computed = dict(zip(cut.computed, cut.keep.outputs, strict=True))
    lines = [""]
    for name in [name for name in cut.residuals if name not in known]:
        left = itertools.repeat("...", MOST_CALLS)
        value = f" = {_nested(computed[name], left)}" if name in computed else ""
        alone = "; its shape and dtype alone are read" if name in cut.likes else ""
        is_packed = name in computed and computed[name].op is PACK
        size = "1 bit per element" if is_packed else describe_size(cut.type(name))
        lines.append(f"  {name}{value}: {size}{alone}")
    return "\n".join(lines)


def _nested(node: Node, left: Iterator[str]) -> str:
    if node.op is ops.INPUT:
        return str(node.attr("name"))
    if node.op is ops.CONST:
        return repr(node.attr("value"))
    # A value used twice is written twice, so that an expression may be far longer than its graph.
    if next(left, None) is None:
        return "..."
    arguments = [_nested(operand, left) for operand in node.operands]
    arguments += [f"{key}={value!r}" for key, value in node.attrs]
    return f"{node.op.name}({', '.join(arguments)})"


def describe_size(type_: Type) -> str:
    size = BYTES.get(type_.dtype)
    if type_.shape == SCALAR_SHAPE:
        return f"one {'number' if type_.dtype == T else type_.dtype}"
    if type_.shape != INPUT_SHAPE:
        return f"fewer {'numbers' if type_.dtype == T else f'{type_.dtype}s'} than tin has elements"
    if type_.dtype == T:
        return "4 bytes per element in float32 (2 in float16 and bfloat16, 8 in float64)"
    where = "" if size != 1 else ", where tin would take 4 in float32"
    return f"{size} byte{'' if size == 1 else 's'} per element{where}"


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
            derivative. A Function is taken as it was captured last.
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
    if forward != "Linear" and as_forward(forward) is not activation.forward:
        raise RuleTypeError(
            f"{activation!r} has a forward of its own; leave out forward={forward!r}"
        )
    own = activation.own_in_force()
    return None if own is None else own, activation.forward


def _eject(rule: Any, backend: Backend, forward: Any) -> str:
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
        # Its tensors come first, then its numbers.
        graphs = _graphs_of(find_variant(rule, LOWERED, backend), forward)
        return lower_graphs(graphs, backend, {}, forward_mode=forward_mode, checks=True)
    row = as_forward(forward)
    graphs, values = _graphs_under(rule, row)
    return lower_graphs(graphs, backend, values, forward_mode=forward_mode, checks=True)


def _own_of_code(rule: Any, forward: Any) -> tuple[Any, Any]:
    # A forward of code without a rule is a Function itself.
    row = as_forward(forward) if rule is None else None
    return (row.function, "Linear") if isinstance(row, ForwardOfCode) else (rule, forward)


def _graphs_under(rule: Any, row: Forward) -> tuple[FunctionGraph, dict[str, Any] | None]:
    if rule is None:
        graphs, values = graphs_under(None, row, {}), None
    else:
        bound_rule = rule if isinstance(rule, RuleInForce) else resolve(rule).bound_rule()
        values = _written(bound_rule)
        try:
            graphs = graphs_under(bound_rule.specialization, row, {})
        except NeedsConcrete as need:
            raise TraceError(
                f"{bound_rule.specialization.subject} needs {', '.join(need.facts)} of its input "
                "in Python; lower it through xg.activation(...), which knows the input"
            ) from need
    return graphs, values


def _written(bound_rule: RuleInForce) -> dict[str, Any]:
    values = {}
    for name, value in bound_rule.numbers.items():
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
    graphs: FunctionGraph = variant.graphs
    if forward != "Linear":
        raise RuleTypeError(
            f"function {graphs.name!r} has a forward of its own; lower it without "
            f"forward={forward!r}"
        )
    return graphs
