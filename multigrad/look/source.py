"""`xg.show`, `xg.lower` and `xg.source`: the graphs, native object and code of a rule or Function.

`show` writes the forward graph, the backward graph, and with `memory=True` a line for each residual
that forward keeps. `lower` and `source` take a rule under a forward, or a Function, and find the
pair of graphs in one way:

    a Function                         the graphs that were captured of it last
    None under a forward of code       that code, as a Function
    None under another forward         the forward and its true derivative
    a rule                             the forward and the rule's graph, with the rule's numbers
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from ..core import ops
from ..core.backend.contract import Backend
from ..core.backend.discovery import in_use, load_backend
from ..core.backend.emitted import Attached
from ..core.functions.recipe import Variant
from ..core.ir.graph import Graph, Node, format_graph
from ..core.ir.op import INPUT_SHAPE, SCALAR_SHAPE, T, Type
from ..core.lowering.forwards import ActivationName, Forward, find_forward
from ..core.lowering.function_graph import FunctionGraph
from ..core.passes.facts import LIBRARY
from ..core.passes.residuals import BYTES, ResidualCut
from ..core.rules.activation import Activation
from ..core.rules.activation_function import as_forward, graphs_under
from ..core.rules.registry import resolve
from ..core.rules.rule import Rule
from ..core.rules.rule_in_force import RuleInForce, chain_of
from ..core.trace.active_rules import Moving
from ..core.trace.trace import NeedsConcrete
from ..engine.functions.chain import Chain
from ..engine.functions.decision import LOWERED, SHOWN
from ..engine.functions.eject.eject import eject, fact_checks
from ..engine.functions.function import Function
from ..engine.functions.known_forms import find_variant
from ..engine.functions.saving import Asked, asked_of_arguments, over_dtypes
from ..engine.lowering.checks import format_lengths
from ..engine.lowering.cuts import (
    as_far_as_written,
    cut_with_costly,
    find_cuts_for_writes,
    keeps_apart,
)
from ..engine.lowering.lower import lower_pair
from ..engine.passes.residuals import PACK
from ..engine.rules.model.rule_graphs import graph_of, likely_graph
from ..engine.trace.moving_numbers import read_number
from ..errors import MultigradError, RuleTypeError, TraceError, UnsupportedOp

# --- show -----------------------------------------------------------------------------------------
MOST_CALLS = 100  # written of one expression in the text on what is kept


class Shown(str):
    """A text for readers: a prompt and a notebook show it as printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


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
        obj: what to show; a bare rule sits under Linear where memory is asked for. Of a Function
            the form that was captured last, for the kind of arguments that were new then.
        memory: also say what forward keeps for backward, in bytes per element of the input.

    Raises:
        RuleError: the rule is unknown.
        TraceError: it cannot be captured.
    """
    return Shown(_text_of(obj, memory))


# --- the graphs -----------------------------------------------------------------------------------
def _text_of(obj: Any, memory: bool) -> str:
    if isinstance(obj, Graph):
        return format_graph(obj)
    obj = getattr(obj, "_activation", obj)  # of a module or layer
    obj = getattr(obj, "captured_form", obj)  # of what `override` returned
    if isinstance(obj, Function):
        heading = f"{obj._words}\n\n" if isinstance(obj, Chain) else ""
        return heading + _text_of_pair(find_variant(obj, SHOWN).graphs, memory)
    if isinstance(obj, FunctionGraph):
        return _text_of_pair(obj, memory)
    if not isinstance(obj, Activation):
        return _chain_heading(obj) + _text_of_rule(resolve(obj).bound_rule(), None, memory)
    rule, forward = obj.in_force(), obj.forward
    if rule is not None:
        return _chain_heading(rule.specialization.rule) + _text_of_rule(rule, forward, memory)
    if forward.function is not None:
        return _text_of(forward.function, memory)
    pair = FunctionGraph(forward.name, forward.graph(), forward.derivative, is_rule=True)
    return _text_of_pair(pair, memory)


def _text_of_pair(pair: FunctionGraph, memory: bool) -> str:
    text = f"{format_graph(pair.forward)}\n\n{format_graph(pair.backward)}"
    return _with_memory(text, pair, memory)


def _chain_heading(rule: Any) -> str:
    resolved_rule = resolve(rule)
    return f"{chain_of(resolved_rule)}\n\n" if resolved_rule.parts else ""


def _text_of_rule(bound_rule: RuleInForce, forward: Forward | None, memory: bool) -> str:
    """Return the text of a rule, after that of the forward above it if there is one."""
    rule = bound_rule.specialization.rule
    heading = "" if forward is None else f"{format_graph(forward.graph())}\n\n"
    if rule.native is True:
        note = "\n\nkept for backward: the input, which the rule may read" if memory else ""
        return f"{heading}{rule.name}: runs as written (native=True), so it has no graph{note}"
    pair = captured_pair(bound_rule, find_forward("Linear") if forward is None else forward)
    return _with_memory(heading + format_graph(pair.backward), pair, memory)


def captured_pair(bound_rule: RuleInForce, forward: Forward) -> FunctionGraph:
    """Return the graphs of a rule under a forward."""
    rule, backward = bound_rule.specialization.rule, captured_graph(bound_rule)
    fields = {"is_rule": True, "residuals": rule.residuals}
    return FunctionGraph(rule.name, forward.graph(), backward, rule.first_order, **fields)


def captured_graph(bound_rule: RuleInForce) -> Graph:
    """Return the graph of a rule; if it has several, the last one used."""
    rule = bound_rule.specialization.rule
    try:
        return graph_of(bound_rule)
    except NeedsConcrete as need:
        scope = f"one graph per {', '.join(need.facts)} of its input"
        captures, label = bound_rule.specialization.captures[True], "the last"
        latest = next(reversed(captures.variants.values()), None)
        graph = None if latest is None else captures.alone(latest).graphs.backward
        # A graph without tin is that for gradients of params, which is not what is asked for.
        if graph is None or graph.input("tin") is None:
            graph, facts = likely_graph(bound_rule, True)
            label = f"for {', '.join(f'{name} {value}' for name, value in facts.items())}"
        if graph is None:
            raise MultigradError(
                f"rule {rule.name!r} has {scope}; it is captured when it is first used"
            ) from need
        return replace(graph, origin=f"{graph.origin}; {scope}, this one {label}")


# --- what forward keeps for backward --------------------------------------------------------------
def _with_memory(text: str, pair: FunctionGraph, memory: bool) -> str:
    return f"{text}\n\n{describe_residuals(pair)}" if memory else text


def describe_residuals(pair: FunctionGraph) -> str:
    """Return text on what forward keeps for backward, once for backends that keep the same."""
    # Backends differ in two ways: derivatives kept as floats, and outputs that are watched. Those
    # that nobody writes to are a third, for a backward that computes an output again.
    costly = cut_with_costly(pair, floats=False)

    def describe(graphs: FunctionGraph, floats: bool, is_watched: bool) -> str:
        text = describe_cut(graphs.cut(floats, watched=is_watched, packs=True))
        if costly is None or floats:
            return text
        return text + describe_cut(costly, graphs.cut(watched=is_watched).residuals)

    forms = [pair, replace(pair, unread=())] if pair.unread else [pair]
    texts = {describe(*each) for each in itertools.product(forms, (False, True), (False, True))}
    if len(texts) == 1 and not keeps_apart(pair):
        return f"kept for backward:{texts.pop()}"
    backends: dict[str, list[str]] = {}
    for backend in in_use():
        autodiff = backend.autodiff
        graphs = as_far_as_written(pair, backend)
        text = describe(graphs, autodiff.keeps_float_derivatives, autodiff.watches_outputs)
        apart = find_cuts_for_writes(pair, backend, joins=True)
        if apart is not None:
            wide, known = apart.wide, apart.anywhere.residuals
            text = describe_cut(apart.anywhere)
            text += "" if wide is None else describe_cut(wide.cut, known)
        backends.setdefault(text, []).append(backend.name)
    return "\n\n".join(
        f"kept for backward on {', '.join(names)}:{text}" for text, names in backends.items()
    )


def describe_cut(cut: ResidualCut, known: Collection[str] = ()) -> str:
    """Return a line for each residual of a cut that is not known yet: its bytes and content."""
    if not cut.residuals:
        return " nothing, 0 bytes per element"
    nodes = dict(zip(cut.computed, cut.keep.outputs, strict=True))
    lines = [""]
    for name in [name for name in cut.residuals if name not in known]:
        calls_left = itertools.repeat("...", MOST_CALLS)
        value = f" = {_expression(nodes[name], calls_left)}" if name in nodes else ""
        use = "; its shape and dtype alone are read" if name in cut.likes else ""
        is_packed = name in nodes and nodes[name].op is PACK
        size = "1 bit per element" if is_packed else describe_size(cut.type(name))
        lines.append(f"  {name}{value}: {size}{use}")
    return "\n".join(lines)


def _expression(node: Node, calls_left: Iterator[str]) -> str:
    """Return how a node is computed, as nested calls: "and(ge(tin, a), le(tin, b))"."""
    if node.op is ops.INPUT:
        return str(node.attr("name"))
    if node.op is ops.CONST:
        return repr(node.attr("value"))
    # A value used twice is written twice, so that an expression may be far longer than its graph.
    if next(calls_left, None) is None:
        return "..."
    arguments = [_expression(operand, calls_left) for operand in node.operands]
    arguments += [f"{key}={value!r}" for key, value in node.attrs]
    return f"{node.op.name}({', '.join(arguments)})"


def describe_size(type_: Type) -> str:
    """Return the size of a residual, where it can be, in bytes per element of `tin`."""
    size = BYTES.get(type_.dtype)
    if type_.shape == SCALAR_SHAPE:
        return f"one {'number' if type_.dtype == T else type_.dtype}"
    if type_.shape != INPUT_SHAPE:
        return f"fewer {'numbers' if type_.dtype == T else f'{type_.dtype}s'} than tin has elements"
    if type_.dtype == T:
        return "4 bytes per element in float32 (2 in float16 and bfloat16, 8 in float64)"
    comparison = "" if size != 1 else ", where tin would take 4 in float32"
    return f"{size} byte{'' if size == 1 else 's'} per element{comparison}"


# --- lower and source -----------------------------------------------------------------------------
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
        tensorflow: a function with a custom gradient; numpy: an object with `f(x)` and
        `f.vjp(x) -> (y, pullback)`. Run-time params follow the tensor, in alphabetical order, and
        default to the rule's own. A Function takes its tensors in order, then its numbers, and
        returns one output or a tuple of them.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: what each says.
    """
    return _lower(rule, forward, backend, forward_mode=forward_mode).native


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
            a rule; of a Function the form that was captured last.
        standalone: return a whole module that runs where multigrad is not installed, with what it
            calls written into it. It defines one function for people, named as the rule, of the
            tensors and then the run-time params; it gives the bits of what `lower` gives.

    Raises:
        RuleError, BackendNotFound, TraceError, UnsupportedOp: as `lower`; UnsupportedOp also for
            what no file can hold: code that runs as it is.
    """
    if standalone:
        return Shown(with_note(rule, backend, forward)[0])
    return Shown(_lower(*_parts_of(rule, forward), backend, forward_mode=False).source)


def _lower(rule: Any, forward: Any, backend_name: str, *, forward_mode: bool) -> Attached:
    backend = load_backend(backend_name)
    rule, forward = _function_of_code(rule, forward)
    if forward_mode and not backend.autodiff.forward_mode:
        raise UnsupportedOp(
            f"backend {backend.name!r} has no custom forward mode; lower without forward_mode=True"
        )
    if isinstance(rule, Function):
        # Its tensors come first, then its numbers.
        variant = _variant_of_function(rule, backend, forward)
        graphs = variant.graphs
        asked = fact_checks(graphs.name, asked_of_arguments(rule, variant))
        return lower_pair(graphs, backend, {}, forward_mode=forward_mode, checks=True, asked=asked)
    row = as_forward(forward)
    graphs, numbers = _graphs_of_rule(rule, row, backend)
    return lower_pair(graphs, backend, numbers, forward_mode=forward_mode, checks=True)


def with_note(rule: Any, backend_name: str, forward: Any) -> tuple[str, str]:
    """Return a standalone module, and what it is for alone: shapes, dtypes, words and ints of the
    call.

    The arguments are those of `source`.
    """
    backend = load_backend(backend_name)
    rule, forward = _function_of_code(*_parts_of(rule, forward))
    if isinstance(rule, Function):
        variant = _variant_of_function(rule, backend, forward)
        graphs, asked = variant.graphs, asked_of_arguments(rule, variant)
        title = f"The function {graphs.name!r} for {backend.name}"
        parameters = {} if rule.parameters is None else rule.parameters.parameters
        defaults = {n: parameters[n].default for n in graphs.params if n in parameters}
        numbers = {name: value for name, value in defaults.items() if isinstance(value, float)}
        note = _note(variant, asked)
        return eject(graphs, backend, numbers, title=title, note=note, asked=asked), note
    row = as_forward(forward)
    graphs, numbers = _graphs_of_rule(rule, row, backend)
    name = graphs.backward.name
    title = f"{row.name} with the gradient of the rule {name!r} for {backend.name}"
    if rule is None:
        name, title = row.name, f"{row.name} with its true derivative for {backend.name}"
    return eject(replace(graphs, name=name), backend, numbers or {}, title=title), ""


# --- what both are given --------------------------------------------------------------------------
def _parts_of(activation: Any, forward: Any) -> tuple[Any, Any]:
    """Return an activation's rule in force and its forward, which the argument must be, too; the
    same for anything else.
    """
    activation = getattr(activation, "_activation", activation)  # of a module or layer
    if not isinstance(activation, Activation):
        return activation, forward
    if forward != "Linear" and as_forward(forward) is not activation.forward:
        raise RuleTypeError(
            f"{activation!r} has a forward of its own; leave out forward={forward!r}"
        )
    return activation.in_force(), activation.forward


def _function_of_code(rule: Any, forward: Any) -> tuple[Any, Any]:
    """Return a forward of code without a rule as a Function of its own, under no other forward."""
    function = as_forward(forward).function if rule is None else None
    return (rule, forward) if function is None else (function, "Linear")


def _variant_of_function(function: Function, backend: Backend, forward: str) -> Variant:
    variant = find_variant(function, LOWERED, backend)
    if forward != "Linear":
        raise RuleTypeError(
            f"function {variant.graphs.name!r} has a forward of its own; lower it without "
            f"forward={forward!r}"
        )
    return over_dtypes(function, variant)


def _note(variant: Variant, asked: Asked) -> str:
    words = []
    for name, each in asked.items():
        dtype, shape = each.get("dtype", ""), each.get("shape", ())
        of_shape = [f"shape {format_lengths(shape)}"] * any(shape)
        if facts := [f"dtype {dtype}"] * bool(dtype) + of_shape:
            words.append(f"{name} of {' and '.join(facts)}")
    for_shapes = f"For {' and '.join(words)}: its code asks for that. Others are refused."
    leaves = [leaf for leaf in variant.layout.leaves if leaf.kind == "static"]
    written = ", ".join(f"{leaf.path} = {leaf.value!r:.40}" for leaf in leaves)
    of_call = f"Written into it, and no arguments: {written}."
    return " ".join([for_shapes] * bool(words) + [of_call] * bool(leaves))


def _graphs_of_rule(
    rule: Any, row: Forward, backend: Backend
) -> tuple[FunctionGraph, dict[str, Any] | None]:
    """Return the graphs of a rule under a forward, and its numbers; of None the true derivative."""
    if rule is None:
        return graphs_under(None, row, {}), None
    bound_rule = rule if isinstance(rule, RuleInForce) else resolve(rule).bound_rule()
    numbers, specialization = _read_numbers(bound_rule), bound_rule.specialization
    captures, asked = specialization.captures[True], None
    # Whose its methods are, this backend may say, or what its file imports; whatever else it asks
    # is not known.
    for facts in ({}, {LIBRARY: backend.name}, {LIBRARY: ""}):
        known = captures.facts
        try:
            return graphs_under(specialization, row, facts), numbers
        except NeedsConcrete as need:
            asked = asked or (need if facts else None)
            if facts:  # what it asked as another library's it may not ask
                captures.findings.facts = known
    assert asked is not None
    raise TraceError(
        f"{specialization.subject} needs {', '.join(asked.facts)} of its input in Python; lower it "
        "through xg.activation(...), which knows the input"
    ) from asked


def _read_numbers(bound_rule: RuleInForce) -> dict[str, Any]:
    """Return a rule's run-time params; raise for one whose number is not known now."""
    numbers = {}
    for name, value in bound_rule.numbers.items():
        subject = f"{bound_rule.specialization.subject}: param {name!r}"
        if isinstance(value, Moving):
            raise RuleTypeError(
                f"{subject} follows a schedule, and what is lowered holds numbers; give it "
                "schedule.value"
            )
        numbers[name] = read_number(value)
        if numbers[name] is None:
            raise RuleTypeError(
                f"{subject} is known when the traced code runs, and what is lowered holds "
                "numbers; pass a number, and the tensor in the call"
            )
    return numbers
