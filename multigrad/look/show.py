"""`xg.show`: the rule IR as text, and what forward keeps for backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from ..backend.finding.discovery import in_use
from ..errors import MultigradError
from ..functions.calls.decision import SHOWN
from ..functions.chain import Chain
from ..functions.function import Function
from ..functions.recipes.examples import find_variant
from ..graph import ops
from ..graph.ir.graph import Graph, Node, format_graph
from ..graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, T, Type
from ..graph.passes.residuals import BYTES, Cut
from ..graph.support.data import Shown
from ..lowering.forwards import Forward, find_forward
from ..lowering.function_graph import PACK, FunctionGraph
from ..rules.in_force.activation import Activation
from ..rules.model.forwards_of_code import ForwardOfCode
from ..rules.model.parts import chain_of
from ..rules.model.rule import BoundRule, Rule
from ..rules.registry import resolve
from ..trace.trace import NeedsConcrete

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
        return _chained(inner.rule) + _show(own.bound_rule, inner.forward, memory)
    return _chained(inner) + _show(resolve(inner).bound_rule(), None, memory)


def _both(function: FunctionGraph) -> str:
    return f"{format_graph(function.forward)}\n\n{format_graph(function.backward)}"


def _chained(given: Any) -> str:
    """Return the parts of a composed rule, on a line above its graph."""
    rule = resolve(given)
    return f"{chain_of(rule)}\n\n" if rule.parts else ""


def _show(bound_rule: BoundRule, forward: Forward | None, memory: bool) -> str:
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


def captured_graph(bound_rule: BoundRule) -> Graph:
    """Return the graph of a rule; of one that has several, the last that was used.

    Raises:
        MultigradError: it has several, and none is known yet.
        TraceError: it cannot be captured.
    """
    rule = bound_rule.specialization.rule
    try:
        return bound_rule.graph()
    except NeedsConcrete as need:
        per = f"one graph per {', '.join(need.facts)} of its input"
        found, which = bound_rule.specialization.latest(), "the last"
        if found is None or found.input("tin") is None:
            found, facts = bound_rule.likely_graph(True)
            which = f"for {', '.join(f'{name} {value}' for name, value in facts.items())}"
        if found is None:
            raise MultigradError(
                f"rule {rule.name!r} has {per}; it is captured when it is first used"
            ) from need
        return replace(found, origin=f"{found.origin}; {per}, this one {which}")


def _with_memory(text: str, function: FunctionGraph, memory: bool) -> str:
    """Add what is kept."""
    return f"{text}\n\n{describe_kept(function)}" if memory else text


def describe_kept(function: FunctionGraph) -> str:
    """Return what forward keeps for backward, per group of the backends in use that keep the
    same.
    """
    besides = function.cut_besides(floats=False)
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
    found: dict[str, list[str]] = {}
    for backend in in_use():
        autodiff = backend.autodiff
        text = texts[autodiff.keeps_float_derivatives, autodiff.watches_outputs]
        found.setdefault(text, []).append(backend.name)
    return "\n\n".join(f"kept for backward on {', '.join(n)}:{text}" for text, n in found.items())


def describe_cut(cut: Cut, known: Collection[str] = ()) -> str:
    """Return a line for each thing that a cut keeps, but for those known: its bytes, and what it
    is.
    """
    if not cut.residuals:
        return " nothing, 0 bytes per element"
    computed = dict(zip(cut.computed, cut.keep.outputs, strict=True))
    lines = [""]
    for name in [name for name in cut.residuals if name not in known]:
        value = f" = {format_expression(computed[name])}" if name in computed else ""
        alone = "; its shape and dtype alone are read" if name in cut.likes else ""
        is_packed = name in computed and computed[name].op is PACK
        size = "1 bit per element" if is_packed else describe_size(cut.type(name))
        lines.append(f"  {name}{value}: {size}{alone}")
    return "\n".join(lines)


def format_expression(node: Node) -> str:
    """Return a node as one nested call, with "..." for what makes it too long to read."""
    return _nested(node, itertools.repeat("...", MOST_CALLS))


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
    """Return the bytes that a residual takes, in words."""
    size = BYTES.get(type_.dtype)
    if type_.shape == SCALAR_SHAPE:
        return f"one {'number' if type_.dtype == T else type_.dtype}"
    if type_.shape != INPUT_SHAPE:
        return f"fewer {'numbers' if type_.dtype == T else f'{type_.dtype}s'} than tin has elements"
    if type_.dtype == T:
        return "4 bytes per element in float32 (2 in float16 and bfloat16, 8 in float64)"
    where = "" if size != 1 else ", where tin would take 4 in float32"
    return f"{size} byte{'' if size == 1 else 's'} per element{where}"
