"""What of a call a captured form depends on: its shapes, dtypes and numbers, or none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..graph.ir.graph import Graph, format_graph
from ..graph.ir.types import FLOATS, FLOATS_OF_16_BITS, T
from ..graph.passes.simplify import with_dtype
from .calls.arguments import lay_out
from .calls.facts import first_tensor, places_of
from .calls.recipe import Variant
from .captures import capture

Function = Any  # of function.py, which depends on this module
# Lengths at which a form is captured again, to see whether its graphs depend on those of the call.
OTHER_LENGTHS = (1, 2, 3, 5, 8, 33, 1025, 65_537, 1_000_003)
Asked = dict[str, dict[str, Any]]


def asked_of_arguments(function: Function, variant: Variant) -> Asked:
    """Return, by argument, the facts about it on which a captured form's graphs depend."""
    layout, facts = variant.layout, {**variant.facts, **asked_shapes(function, variant)}
    asked: Asked = {}
    for fact, kind, index in places_of(facts, layout, first_tensor(layout)):
        is_asked = kind in ("dtype", "ndim", "param", "shape") and facts[fact] is not None
        if is_asked and index is not None:
            asked.setdefault(layout.leaves[index].name, {})[kind] = facts[fact]
    return asked


def asked_shapes(function: Function, variant: Variant) -> dict[str, tuple[int | None, ...]]:
    """Return the facts of shapes, with None for a length that leaves the graphs as they are."""
    facts = variant.facts.items()
    shapes = {f: v for f, v in facts if f.partition(":")[0] == "shape" and v is not None}
    lengths = {n for shape in shapes.values() for n in shape}
    free = {n for n in lengths if _is_free(function, variant, n)}
    return {f: tuple(None if n in free else n for n in v) for f, v in shapes.items()}


def over_dtypes(function: Function, variant: Variant) -> Variant:
    """Return a captured form for floats of every dtype, where its code only asks whether they have
    16 bits to compute in float32; else the form itself.
    """
    layout, facts = variant.layout, dict(variant.facts)
    if facts.pop("dtype", None) is None or layout.mixes_floats:
        return variant

    def at(dtype: str) -> Variant:
        rows = [replace(leaf, dtype=dtype) if leaf.is_float else leaf for leaf in layout.leaves]
        of_dtype = lay_out(layout.tree, rows, is_apart=dtype in FLOATS_OF_16_BITS)
        return capture(function.recipe, of_dtype, {**facts, "dtype": dtype})

    try:
        half, *others = map(at, FLOATS)
    except Exception:  # noqa: BLE001  # of the author's code, which takes no such dtype
        return variant
    bfloat, single, double = map(_text, others)
    if _text(half) != bfloat or single != double:
        return variant
    graphs = half.graphs
    widens = _text(half) != single
    if widens:
        try:
            forward, backward = (
                with_dtype(graph, "float32", T) for graph in (graphs.forward, graphs.backward)
            )
        except TypeError:  # a loop in float32, whose body keeps its dtype
            return variant
        widened = replace(half, graphs=replace(graphs, forward=forward, backward=backward))
        if _text(widened) != single:
            return variant
    graphs = replace(graphs, widens=widens, residuals=variant.graphs.residuals)
    return replace(half, graphs=graphs, layout=layout, facts=facts)


def _text(form: Variant) -> tuple[Any, ...]:
    graphs = form.graphs
    bare = (Graph("", each.inputs, each.outputs) for each in (graphs.forward, graphs.backward))
    return *map(format_graph, bare), graphs.wrt, form.fixed


def _is_free(function: Function, variant: Variant, length: int) -> bool:
    def at(other: int) -> Variant:
        facts = {
            fact: tuple(other if n == length else n for n in value)
            if fact.partition(":")[0] == "shape" and value is not None
            else value
            for fact, value in variant.facts.items()
        }
        return capture(function.recipe, variant.layout, facts)

    try:
        own = _text(variant)
        return all(_text(at(n)) == own for n in OTHER_LENGTHS if n != length)
    except Exception:  # noqa: BLE001  # of the author's code, which takes no such length
        return False
