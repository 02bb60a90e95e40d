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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.functions.arguments import Layout
from ...core.functions.binding import Entry, Run
from ...core.functions.captures import Captures
from ...core.functions.entries import EntriesByFacts
from ...core.functions.facts import gather_facts, watch_arguments
from ...core.functions.recipe import Variant
from ...core.ir.graph import Graph
from ...core.lowering.function_graph import FunctionGraph
from ...core.passes.simplify import constant, simplify, substitute
from ...core.support.threads import set_within
from ...core.trace.active_rules import KeySource
from ...core.trace.identity import items_key
from ...core.trace.lookups import is_noted, is_read
from ..capture.user_code.reads import LOOSE, Reads, run_while

CALLS = 4  # for which what code reads has stayed the same: then a check of it is written
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


# --- which entry runs a call ----------------------------------------------------------------------
class OpenEntries(EntriesByFacts):
    """Entries by facts where values that the code reads are among these.

    A float that the code reads, and that keeps changing, becomes a number of the call: the entries
    in `_open` take it as it is then.

    Where nothing is looked up but what code reads (`_reads`), and that has stayed the same for some
    calls, the entry of this table runs a quick check of it, and then one of the entries in
    `_latest`, which are by the facts about arguments.
    """

    __slots__ = ("_latest", "_look", "_open", "_reads")

    def _run_by(self, run: Run) -> None:
        entry = self._entry()
        if entry is not None:
            entry.run = run

    def _begin_anew(self) -> None:
        super()._begin_anew()
        facts = self.captures.facts
        # Numbers that the code reads and that move, and the entries of forms for all their values.
        self._open: tuple[Numbers, dict[Any, Entry]] = {}, {}
        reads = sorted(filter(is_read, facts))
        is_of_code = all(isinstance(fact, Reads) for fact in reads)
        self._reads: list[Any] = reads if is_of_code else []
        self._look = watch_arguments(facts, self._layout)
        # The entries, the numbers of what was read, and for how many calls.
        self._latest: tuple[dict[Any, Entry], Any, int] = {}, (), 0
        self._run_by(self.run)

    def _choose(self, leaves: Sequence[Any]) -> Entry:
        paths, open_entries = self._open
        if paths and not is_noted():
            with set_within(LOOSE, paths):
                key = self._state[0](leaves)
            entry = open_entries.get(key)
            if entry is not None:
                if self._reads:
                    self._note_latest(key, entry, paths)
                return entry
        read_facts, entries = self._state
        key = read_facts(leaves)
        entry = entries.get(key)
        if entry is not None:
            if self._reads:
                self._note_latest(key, entry, {})
            return entry
        entry = self._build_anew(leaves)
        if any(isinstance(fact, Reads) and fact.moving for fact in self.captures.facts):
            self._try_open(leaves)
        return entry

    def _note_latest(self, key: Any, entry: Entry, paths: Numbers) -> None:
        """Note the entry for a key of `watch`; in time, have the check written."""
        *numbers, of_arguments = key
        entries, numbers_before, calls = self._latest
        if numbers != numbers_before:
            entries, calls = {}, 0
            self._run_by(self.run)
        entries[of_arguments] = entry
        # Again after 8, 16, ... calls: equal numbers may have taken the place of those it has.
        if calls >= CALLS and not calls & (calls - 1):
            meanings = dict(zip(self._reads, numbers, strict=True))
            run = self._run_latest(entries) if self._look else entry.run
            self._run_by(run_while(meanings, paths, run, self.run))
        self._latest = entries, numbers, calls + 1

    def _run_latest(self, entries: Mapping[Any, Entry]) -> Run:
        look, otherwise = self._look, self.run
        assert look is not None

        def run(leaves: Sequence[Any], draws: KeySource) -> Any:
            entry = entries.get(look(leaves))
            return otherwise(leaves, draws) if entry is None else entry.run(leaves, draws)

        return run

    def _try_open(self, leaves: Sequence[Any]) -> None:
        layout = self._layout.with_objects(leaves)
        paths: Numbers = {}
        with suppress(Exception):  # it runs as written
            variant = self.captures.for_call(layout, leaves)
            paths = try_open(self.captures, layout, leaves, variant)
        if paths:
            paths_before, entries = self._open
            with set_within(LOOSE, paths):
                entries = entries if paths == paths_before else {}
                entries[self._state[0](leaves)] = self._build(leaves)
            self._open = paths, entries


entries_by_facts = OpenEntries
