"""Forms for all values of numbers that code reads and that keep changing, such as a slope that is
annealed: the numbers are their last inputs (`Variant.numbers`), so that no step costs a capture.

    captures    slope = 1.0, 2.0, 3.0     a form each, as for any value that code reads
    tried       3.0, the second change    a form in which a symbol stands wherever the slope is read
    held        4.0                       it is now, at two values, the form for that value alone

A form in which the number decides what Python does, or is read in a way that no symbol reaches,
does not hold: each value keeps a form of its own. Calls alone run open forms. A file, a compiler
and a capture around them get the form for the present values.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..capture.user_code.reads import LOOSE, Reads
from ..graph.ir.graph import Graph
from ..graph.passes.simplify import constant, simplify, substitute
from ..graph.support.threads import set_within
from ..lowering.function_graph import FunctionGraph
from ..trace.identity import items_key
from ..trace.lookups import is_noted
from .calls.arguments import Layout
from .calls.facts import gather_facts
from .calls.recipe import Variant
from .captures import Captures

MOST_TRIED = 4  # forms of one layout, of which none held
Numbers = Mapping[Reads, frozenset[Any]]  # the paths to them


@dataclass(slots=True, eq=False)
class OpenForms:
    """The open forms of a layout, by its other facts.

    Attributes:
        paths: the numbers.
        tried: the forms; None: it does not hold.
        numbers: their values when each was captured.
        held: those that run.
    """

    paths: Numbers
    tried: dict[Any, Variant | None] = field(default_factory=dict)
    numbers: dict[Any, list[float]] = field(default_factory=dict)
    held: set[Any] = field(default_factory=set)


def find_form(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> Variant:
    """Return the variant for a call: an open one, if there is one that holds."""
    forms = captures.forms.open_forms.get(layout.key)
    if forms is not None and forms.held and not is_noted():
        with set_within(LOOSE, forms.paths):
            if _key(captures, layout, leaves) in forms.held:
                return captures.for_call(layout, leaves)
    variant = captures.for_call(layout, leaves)
    try_open(captures, layout, leaves, variant)
    return variant


def try_open(
    captures: Captures, layout: Layout, leaves: Sequence[Any], variant: Variant
) -> Numbers:
    """Return the numbers that a form leaves open which holds now; empty if none does.

    `variant` is that for the present values alone.
    """
    paths = {
        fact: fact.moving
        for fact in sorted(captures.facts)
        if isinstance(fact, Reads) and fact.moving
    }
    forms = captures.forms.open_forms.get(layout.key)
    if not paths:
        return {}
    if forms is None or forms.paths != paths:
        forms = captures.forms.open_forms[layout.key] = OpenForms(paths)
    with set_within(LOOSE, paths):
        key = _key(captures, layout, leaves)
        if key not in forms.tried:
            if len(forms.tried) >= MOST_TRIED and not forms.held:
                return {}
            try:
                forms.tried[key] = captures.for_call(layout, leaves)
            except Exception:  # noqa: BLE001  # of the user's code, too, which met a symbol
                forms.tried[key] = None
        form = forms.tried[key]
    if form is not None and not _agrees(form, variant):
        form = forms.tried[key] = None
    if form is None:
        return {}
    numbers = [find() for find in form.numbers]
    if any(map(operator.eq, forms.numbers.setdefault(key, numbers), numbers)):
        return {}  # it is compared again once all have changed
    forms.held.add(key)
    return paths


def _key(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> Any:
    subject, places = captures.recipe.subject, captures.forms.places
    return items_key(gather_facts(subject, captures.facts, layout, leaves, places=places))


def _agrees(form: Variant, variant: Variant) -> bool:
    # Whether an open form is, at the present values, the variant for these.
    graphs, own = _at_present(form), variant.graphs
    return (
        graphs.forward.outputs == own.forward.outputs
        and graphs.backward.outputs == own.backward.outputs
        and (graphs.wrt, form.outputs, form.fixed) == (own.wrt, variant.outputs, variant.fixed)
    )


def _at_present(form: Variant) -> FunctionGraph:
    graphs, values = form.graphs, form.numbers_now()

    def filled(graph: Graph) -> Graph:
        rows = {
            node: constant(values[node.attr("name")])
            for node in graph.inputs
            if node.attr("name") in values
        }
        kept = tuple(node for node in graph.inputs if node not in rows)
        return simplify(replace(substitute(graph, rows), inputs=kept))

    return replace(graphs, forward=filled(graphs.forward), backward=filled(graphs.backward))
