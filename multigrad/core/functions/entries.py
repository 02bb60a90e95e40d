"""`Entries`: what runs the calls of a rule under an activation, one entry for each dtype.

An entry is built at the first call, from the outside in:

    on                     looks the entry up by the dtype, or has it built
    entry_for              as written, or captured; as written if the capture fails
    captured_entry         one entry for each set of facts, if the capture needs facts
    entry_by_lengths       that of the facts of a call
    entry_by_decision      graphs, or the code as written but under some transforms
    lowered_entry          graphs, with what is checked before each call
    native_entry           the code as written

`EntriesOfCode` of `engine/functions/entries.py` adds what calls of any arguments need.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import TraceError
from ..backend.contract import Backend
from ..backend.discovery import FUNCTION_READERS
from ..backend.emitted import Attached
from ..lowering.checks import find_lacking, refuse_lacking
from ..lowering.lower import lower_graphs
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.threads import build_once
from ..trace.active_rules import KeySource
from ..trace.lookups import is_in_force, is_read
from .arguments import Layout, flatten
from .binding import Entry, bind_leaves
from .capture_errors import NotCaptured
from .captures import Captures, prove
from .decision import EAGER, PULLED, Decision, Door, decide
from .facts import watch
from .proof import ALL, how_much
from .recipe import Options, Variant

# --- one entry for each set of facts about a call's values ----------------------------------------
# For each Function; a table that is full is emptied.
MOST_ENTRIES = 1024


class EntriesByFacts:
    """Entries of one layout, one for each set of facts about a call's values.

    `captures` has the facts that are needed, of which a new capture may need more. Where a rule in
    force, or the rule of a name, is among them, calls are within `on_call` of their compiler.
    """

    __slots__ = ("_around", "_build", "_entry", "_layout", "_on_call", "_state", "captures")

    def __init__(
        self,
        captures: Captures,
        layout: Layout,
        build: Callable[[Sequence[Any]], Entry],
        on_call: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        self.captures, self._layout, self._build = captures, layout, build
        self._on_call = on_call
        self._entry: Callable[[], Entry | None] = lambda: None
        self._begin_anew()

    def entry(self) -> Entry:
        """Return the entry that runs the calls; this table refers to it weakly."""
        entry = Entry(self.run)
        self._entry = weakref.ref(entry)
        return entry

    def _begin_anew(self) -> None:
        facts = self.captures.facts
        # What reads the facts of a call, and the entries by them: both change together.
        self._state: tuple[Any, dict[Any, Entry]] = watch(facts, self._layout), {}
        self._around = self._on_call if any(map(is_in_force, facts)) else None

    def put(self, leaves: Sequence[Any], entry: Entry) -> None:
        read_facts, entries = self._state
        entries[read_facts(leaves)] = entry

    def run(self, leaves: Sequence[Any], draws: KeySource) -> Any:
        """Run the entry for the facts of a call."""
        if self._around is not None:
            with self._around():
                return self._choose(leaves).run(leaves, draws)
        return self._choose(leaves).run(leaves, draws)

    def _choose(self, leaves: Sequence[Any]) -> Entry:
        read_facts, entries = self._state
        return entries.get(read_facts(leaves)) or self._build_anew(leaves)

    def _build_anew(self, leaves: Sequence[Any]) -> Entry:
        old_facts = self.captures.facts
        entry = self._build(leaves)
        if self.captures.facts != old_facts or len(self._state[1]) >= MOST_ENTRIES:
            self._begin_anew()  # new facts tell more calls apart
        self.put(leaves, entry)
        return entry


# --- one for each layout --------------------------------------------------------------------------
class Entries:
    """The entries that run the calls of a rule under an activation, under one set of choices; see
    `EntriesOfCode` for those of any arguments.

    Attributes:
        captures: what its recipe was captured to; copies of a Function share them.
        options: those of the recipe, unless the Function was given others since.
        known: the entries, by the kinds of a call's leaves.
    """

    def __init__(self, captures: Captures, options: Options | None = None) -> None:
        self.captures, self.recipe = captures, captures.recipe
        self.options = self.recipe.options if options is None else options
        self.known: dict[Any, Entry] = {}

    @property
    def parameters(self) -> inspect.Signature | None:
        """The parameters of a call; None: they are not known."""
        return self.recipe.signature

    def apart(self) -> Entries:
        """Return empty entries of the same: those that built some and referred to their own table
        would be a cycle of references.
        """
        return Entries(self.captures, self.options)

    def lay_out(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Layout, Sequence[Any]]:
        """Return the layout of a call, and its leaves with those that it left out."""
        return self.recipe.lay_out(self.parameters, leaves, tree), leaves

    def decide(
        self, door: Door, layout: Layout, leaves: Sequence[Any], backend: Backend | None = None
    ) -> Decision:
        """Decide how a call runs at a door; captures its code if that is still to be done."""
        # A form for numbers that move serves all calls of a function whose code reads some.
        has_reads = door is PULLED and any(map(is_read, self.captures.facts))
        find = find_form if has_reads else Captures.for_call
        variant = find(self.captures, layout, leaves)
        return decide(door, self.recipe, variant, backend, self.options.native)

    def lowered(self, variant: Variant, backend: Backend) -> Attached:
        """Return a variant lowered to one backend, once for each set of choices."""
        graphs, key = variant.graphs, backend.name
        residuals, fused = self.options.residuals, self.options.fused
        if residuals != "auto":
            graphs, key = replace(graphs, residuals=residuals), f"{key} {residuals}"
        if fused != "auto":
            graphs, key = replace(graphs, fused=fused), f"{key} fused={fused}"
        build = partial(lower_graphs, graphs, backend)
        return build_once(variant.lowered, key, build)

    def runs_as_written(self, layout: Layout) -> bool:
        """Return whether such a call runs as written while no compiler traces."""
        return self.options.native is True

    def on(self, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of a call whose layout never differs but in its first tensor's dtype."""
        key = (backend.name, leaves[0].dtype)
        entry = self.known.get(key)
        if entry is None:
            tree = flatten(tuple(leaves), {})[1]
            layout = self.recipe.lay_out(self.parameters, leaves, tree)
            build = partial(self.apart().entry_for, layout, backend, leaves)
            entry = build_once(self.known, key, build, MOST_ENTRIES)
        return entry

    def entry_for(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of calls of a layout, captured, or as written if that fails."""
        if self.runs_as_written(layout):
            reason = "it has native=True"
            return native_entry(self, layout.without_objects(), backend, None, reason)
        capture = partial(self.captured_entry, layout, backend, leaves)
        return self.captured_or_native(layout, backend, capture)

    def captured_or_native(
        self, layout: Layout, backend: Backend, capture: Callable[[], Entry]
    ) -> Entry:
        """Return an entry that is captured, or the code as written if that fails."""
        opaque = backend.compiler.opaque
        try:  # a compiler that traces the code around this call would read on in the capture
            return capture() if opaque is None else opaque(capture)()
        except NotCaptured as error:
            error.error.__cause__ = error.__cause__
            why = self.recipe.give_up(error.error)
            # Kept without the cause, whose traceback would keep the call's tensors alive.
            return native_entry(self, layout.without_objects(), backend, why, error.error.to_keep())
        except Exception as error:
            reason = self.reason_after(error, backend)
            if not reason:
                raise
            return native_entry(self, layout.without_objects(), backend, None, reason)

    def reason_after(self, error: Exception, backend: Backend) -> str:
        """Return why the code runs as written after any other error; "": it is raised."""
        return ""

    def captured_entry(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        entry = self.entry_by_lengths(layout, backend, leaves)
        if not self.captures.facts - {"dtype"}:
            return entry
        layout = layout.without_objects()

        def build(leaves: Sequence[Any]) -> Entry:
            capture = partial(self.entry_by_lengths, layout.with_objects(leaves), backend, leaves)
            return self.captured_or_native(layout, backend, capture)

        make = entries_by_facts if any(map(is_read, self.captures.facts)) else EntriesByFacts
        table = make(self.captures, layout, build, on_call=backend.compiler.on_call)
        table.put(leaves, entry)
        return table.entry()

    def entry_by_lengths(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of calls with the facts of this one."""
        decision = self.decide(EAGER, layout, leaves, backend)
        return self.entry_by_decision(decision, layout, backend)

    def entry_by_decision(self, decision: Decision, layout: Layout, backend: Backend) -> Entry:
        """Return the entry of the graphs, or of the code as written but under some transforms."""
        if not decision.reason:
            return self.lowered_entry(decision.variant, backend)
        native = native_entry(self, layout.without_objects(), backend, None, decision.reason)
        return entry_under_transforms(self, native, decision.variant, backend)

    def lowered_entry(self, variant: Variant, backend: Backend) -> Entry:
        """Return the entry of a variant's graphs, with what is checked before each call."""
        graphs, lowered = variant.graphs, self.lowered(variant, backend)
        lacking = find_lacking(self.recipe.subject, backend, graphs.forward, graphs.backward)
        refuse_lacking(lacking, variant.layout.dtype or "")
        bound = bind_leaves(self.recipe, variant, backend, lowered)
        entry = self.checked_entry(bound, variant, backend)

        def prove_again(leaves: Sequence[Any]) -> None:
            # A compiler's trace has no values to compare.
            if not any(is_reading() for is_reading, *_ in FUNCTION_READERS):
                prove(self.recipe, variant, leaves, is_call=True)

        return checking(entry, prove_again) if how_much() == ALL else entry

    def checked_entry(self, entry: Entry, variant: Variant, backend: Backend) -> Entry:
        """Return an entry with the checks of a call that its code asks for."""
        return entry


@provided
def native_entry(
    entries: Entries,
    layout: Layout,
    backend: Backend,
    error: TraceError | None,
    reason: str | TraceError,
) -> Entry:
    """Return the entry of the code as written; `error` says why it was not captured."""
    subject, why = entries.recipe.subject, error or reason
    raise TraceError(f"{subject} runs as written ({why}), which {NEEDS_ENGINE}") from error


@provided
def entry_under_transforms(
    entries: Entries, native: Entry, variant: Variant, backend: Backend
) -> Entry:
    """Return an entry that runs the code as written but under some transforms."""
    return native


@provided
def find_form(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> Variant:
    """Return the variant for a call: one for all values of numbers that move, if there is one."""
    return captures.for_call(layout, leaves)


@provided
def entries_by_facts(
    captures: Captures,
    layout: Layout,
    build: Callable[[Sequence[Any]], Entry],
    on_call: Callable[[], AbstractContextManager[Any]] | None,
) -> EntriesByFacts:
    """Return the entries of a layout by facts, among which are values that code reads."""
    return EntriesByFacts(captures, layout, build, on_call)


def checking(entry: Entry, check: Callable[[Sequence[Any]], None]) -> Entry:
    run = entry.run

    def run_checked(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(leaves)
        return run(leaves, draws)

    return Entry(run_checked)
