"""`Entries`: what runs the calls of a Function, one entry for each layout of the arguments.

An entry is built at the first call of its layout, from the outside in:

    find                   looks the entry up by the kinds of the leaves, or has it built
    _build                 opens and completes the leaves; finds layout and backend
    _entry_for             as written, or captured; as written if the capture fails
    _captured_entry        one entry for each set of facts, if the capture needs facts
    _entry_by_lengths      another where a constant index lies outside, if its library allows that
    _entry_by_decision     graphs, or the code as written but under some transforms
    lowered_entry          graphs, with what is checked before each call
    native_entry           the code as written (`native_entries.py`)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import GradientError, PlaceError, RuleTypeError, TraceError
from ..backend.contract import Backend
from ..backend.discovery import FUNCTION_READERS
from ..backend.emitted import Attached
from ..backend.values import framework_of, in_one_framework
from ..lowering.checks import find_lacking, refuse_lacking
from ..lowering.lower import lower_graphs
from ..support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from ..support.threads import build_once, set_within
from ..support.trees import optree
from ..trace.active_rules import KeySource
from ..trace.identity import value_key
from ..trace.lookups import is_in_force, is_read
from .arguments import PLAIN, Layout, flatten, learn_containers, one_backend, owner_of, unwrap
from .binding import Entry, bind_leaves
from .capture_errors import NotCaptured
from .captures import Captures, open_indices, prove
from .decision import EAGER, PULLED, Decision, Door, decide
from .facts import watch
from .parameters import Completion, bind_call, refuse_unknown
from .proof import ALL, how_much
from .recipe import (
    Options,
    Variant,
    callers_own,
    check_apart,
    giving,
    is_original_on,
    left_out,
    warn_left_out,
)

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
# The entries being built around a call, as tables and keys; emptied as each is built.
_in_progress: ContextVar[tuple[Any, ...]] = ContextVar("multigrad_entries", default=())


class Entries:
    """The entries that run the calls of a Function under one set of choices.

    Attributes:
        captures: what its recipe was captured to; copies of a Function share them.
        completion: fills in the arguments that a call leaves out.
        options: those of the recipe, unless the Function was given others since.
        known: the entries, by the kinds of a call's leaves.
        checked: those of calls whose arguments an estimator has checked, by the arguments' types,
            then by what the check reads of them.
    """

    def __init__(
        self,
        captures: Captures,
        completion: Completion,
        options: Options | None = None,
    ) -> None:
        self.captures, self.recipe = captures, captures.recipe
        self.completion = completion
        self.options = self.recipe.options if options is None else options
        self.known: dict[Any, Entry] = {}
        self.checked: dict[Any, dict[Any, Entry]] = {}

    def changed(
        self,
        captures: Captures | None = None,
        completion: Completion | None = None,
        **options: Any,
    ) -> Entries:
        """Return new, empty entries with other captures, completion or options."""
        return Entries(
            captures or self.captures,
            completion or self.completion,
            replace(self.options, **options),
        )

    def find(self, leaves: Sequence[Any], tree: Any, key: Any) -> Entry:
        """Return the entry that runs a call of this layout, built at the first such call."""
        kinds, key_part = tuple(map(kind_of, leaves)), self.completion.key(leaves, tree)
        if key is None or key_part or None in kinds:  # an object that has a dtype may be no tensor
            pairs = zip(kinds, leaves, strict=True)
            key = (tree, *key_part, tuple(kind or value_key(leaf) for kind, leaf in pairs))
        try:
            hash(key)
        except TypeError:
            # An object holds something unhashable, as TensorFlow's tensors: nothing is kept.
            return self._build(leaves, tree)
        entry = self.known.get(key)
        if entry is None:
            job, jobs = (id(self.known), key), _in_progress.get()
            if job in jobs:  # its own code calls it, in a capture or a proof
                return self.changed(native=True)._build(leaves, tree)
            build = partial(self._apart()._build, leaves, tree)
            with set_within(_in_progress, (*jobs, job)):
                entry = build_once(self.known, key, build, MOST_ENTRIES)
        return entry

    def _apart(self) -> Entries:
        # What builds entries: one that referred to its own table would be a cycle of references.
        return self.changed()

    def lay_out(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Layout, Sequence[Any]]:
        """Return the layout of a call, and its leaves with those that it left out."""
        leaves, tree = self.completion.complete(leaves, tree, backend)
        return self.recipe.lay_out(self.completion.parameters, leaves, tree), leaves

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
        if variant.updates and not self.recipe.options.copies:
            module = self.captures.module
            warn_left_out(self.recipe.subject, variant.updates, backend.name, module)
        graphs, key = variant.graphs, backend.name
        residuals, fused = self.options.residuals, self.options.fused
        if residuals != "auto":
            graphs, key = replace(graphs, residuals=residuals), f"{key} {residuals}"
        if fused != "auto":
            graphs, key = replace(graphs, fused=fused), f"{key} fused={fused}"
        build = partial(lower_graphs, graphs, backend)
        return build_once(variant.lowered, key, build)

    def _build(self, leaves: Sequence[Any], nesting: Any) -> Entry:
        inputs = [unwrap(leaf) for leaf in leaves]
        if learn_containers(inputs):
            # Classes that a framework registered as containers: the call is flattened anew.
            return Entry(partial(self._run_flattened_anew, nesting))
        wrapped = tuple(i for i, leaf in enumerate(leaves) if inputs[i] is not leaf)
        owner, parameters = framework_of(inputs), self.completion.parameters
        args, kwargs = optree.tree_unflatten(nesting, inputs)
        if parameters is not None:
            refuse_unknown(self.recipe.subject, parameters, kwargs)
        if owner is not None:
            return self._completed_entry(inputs, nesting, owner, wrapped)
        if self.recipe.imported is not None and leaves_numbers_to_original(self, inputs):
            return original_entry(self, partial(optree.tree_unflatten, nesting), None, "")
        # Python numbers alone become NumPy's arrays.
        wrapped = tuple(i for i, leaf in enumerate(inputs) if isinstance(leaf, float))
        inputs = [np.asarray(leaf) if i in wrapped else leaf for i, leaf in enumerate(inputs)]
        if not wrapped and parameters is not None:
            bind_call(self.recipe.subject, parameters, args, kwargs)  # which argument is missing
        return self._completed_entry(inputs, nesting, None, wrapped)

    def _completed_entry(
        self,
        inputs: Sequence[Any],
        nesting: Any,
        owner: Backend | None,
        wrapped: tuple[int, ...],
    ) -> Entry:
        # `owner` is the framework of the inputs, None for numbers alone; `wrapped` says which
        # leaves of a call are to be opened, or made arrays.
        is_incomplete = self.completion.is_needed(inputs)
        # Defaults come before the layout: they are arguments like the others.
        completed, tree = self.completion.complete(inputs, nesting, owner)
        inputs = in_one_framework(completed)
        is_mixed = any(a is not b for a, b in zip(inputs, completed, strict=True))
        try:
            layout = self.recipe.lay_out(self.completion.parameters, inputs, tree)
        except GradientError as error:  # a dtype that no graph has
            is_original = owner is not None and is_original_on(self.recipe, owner)
            if self.options.native is False or not is_original:
                raise
            rebuild = partial(optree.tree_unflatten, nesting)
            return original_entry(self, rebuild, owner, str(error))
        backend = one_backend(self.recipe.name, layout, inputs)
        try:
            inner = self._entry_for(layout, backend, inputs)
        except TraceError as error:
            nested = [leaf.path.partition("[")[0] for leaf in layout.leaves if "[" in leaf.path]
            # Numbers in a list may be what it takes: only its failure shows that they are not.
            are_numbers = owner is None or not any(map(np.ndim, inputs))
            if not are_numbers or self.recipe.imported is None or not nested:
                raise
            raise numbers_in_list(self.recipe.subject, nested[0]) from error
        if not (wrapped or is_incomplete or is_mixed):
            return inner
        open_leaf, count = np.asarray if owner is None else unwrap, len(inputs)

        def run_completed(leaves: Sequence[Any], draws: KeySource) -> Any:
            opened = [open_leaf(leaf) if i in wrapped else leaf for i, leaf in enumerate(leaves)]
            completed = self.completion.complete(opened, nesting, backend)[0]
            if len(completed) != count:  # building this entry has filled a cache of an object
                return self.find(leaves, nesting, None).run(leaves, draws)
            if not is_mixed:
                return inner.run(completed, draws)
            alike = in_one_framework(completed)
            # The original may write into the caller's own lists and dicts.
            with giving(callers_own(optree.tree_unflatten(nesting, leaves), leaves), alike):
                return inner.run(alike, draws)

        return Entry(run_completed)

    def _run_flattened_anew(self, nesting: Any, leaves: Sequence[Any], draws: KeySource) -> Any:
        args, kwargs = optree.tree_unflatten(nesting, leaves)
        leaves, tree = flatten(args, kwargs)
        return self.find(leaves, tree, None).run(leaves, draws)

    def runs_as_written(self, layout: Layout) -> bool:
        """Return whether such a call runs as written while no compiler traces.

        What looks at values is captured later, if a file is to hold it; the layout is kept for it.
        """
        if self.recipe.options.looks_at_values:
            self.captures.keep_uncaptured(layout)
            return True
        return self.options.native is True or self.completion.is_written_to

    def on(self, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of a call whose layout never differs but in its first tensor's dtype."""
        key = (backend.name, leaves[0].dtype)
        entry = self.known.get(key)
        if entry is None:
            tree = flatten(tuple(leaves), {})[1]
            layout = self.recipe.lay_out(self.completion.parameters, leaves, tree)
            build = partial(self._apart()._entry_for, layout, backend, leaves)
            entry = build_once(self.known, key, build, MOST_ENTRIES)
        return entry

    def _entry_for(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        # An imported gradient has its original on its own framework alone.
        if self.runs_as_written(layout) and (
            self.recipe.imported is None or is_original_on(self.recipe, backend)
        ):
            reason = "it has native=True" if self.options.native else "its code looks at values"
            return native_entry(self, layout.without_objects(), backend, None, reason)
        return self._captured_or_native(
            layout, backend, lambda: self._captured_entry(layout, backend, leaves)
        )

    def _captured_or_native(
        self, layout: Layout, backend: Backend, capture: Callable[[], Entry]
    ) -> Entry:
        opaque = backend.compiler.opaque
        try:  # a compiler that traces the code around this call would read on in the capture
            return capture() if opaque is None else opaque(capture)()
        except NotCaptured as error:
            error.error.__cause__ = error.__cause__
            why = self.recipe.give_up(error.error)
            # Kept without the cause, whose traceback would keep the call's tensors alive.
            return native_entry(self, layout.without_objects(), backend, why, error.error.to_keep())
        except Exception as error:
            # On its own framework an imported function runs as written whatever went wrong; but
            # gradients that do not fit are raised, if that framework lets them pass.
            imported = self.recipe.imported
            is_checked = imported is not None and imported.is_checked
            is_caught = is_checked or not isinstance(error, GradientError)
            is_home = is_original_on(self.recipe, backend)
            if self.options.native is False or not (is_caught and is_home):
                raise
            reason = f"its capture raised {type(error).__name__}: {error}"
            return native_entry(self, layout.without_objects(), backend, None, reason)

    def _captured_entry(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        entry = self._entry_by_lengths(layout, backend, leaves)
        if not self.captures.facts - {"dtype"}:
            return entry
        layout = layout.without_objects()

        def build(leaves: Sequence[Any]) -> Entry:
            capture = partial(self._entry_by_lengths, layout.with_objects(leaves), backend, leaves)
            return self._captured_or_native(layout, backend, capture)

        make = entries_by_facts if any(map(is_read, self.captures.facts)) else EntriesByFacts
        table = make(self.captures, layout, build, on_call=backend.compiler.on_call)
        table.put(leaves, entry)
        return table.entry()

    def _entry_by_lengths(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        decision = self.decide(EAGER, layout, leaves, backend)
        variant, layout = decision.variant, layout.without_objects()
        entry = self._entry_by_decision(decision, layout, backend)
        if decision.reason or not open_indices(self.recipe, variant):
            return entry
        by_facts: list[Entry] = []

        def run_inside(leaves: Sequence[Any], draws: KeySource) -> Any:
            try:
                return entry.run(leaves, draws)
            except PlaceError:
                # Here a constant index lies outside, which its library gives a meaning.
                call_layout = layout.with_objects(leaves)
                if not self.captures.looks_outside(variant, call_layout, leaves):
                    raise
                if not by_facts:
                    capture = partial(self._captured_entry, call_layout, backend, leaves)
                    by_facts.append(self._captured_or_native(layout, backend, capture))
            return by_facts[0].run(leaves, draws)

        return Entry(run_inside)

    def _entry_by_decision(self, decision: Decision, layout: Layout, backend: Backend) -> Entry:
        variant = decision.variant
        if decision.reason:
            native = native_entry(self, layout.without_objects(), backend, None, decision.reason)
            return entry_under_transforms(self, native, variant, backend)
        # `attribute_of` reads this: results on this backend lack these attributes.
        left_out.update((backend.name, note.name) for note in variant.notes)
        entry = self.lowered_entry(variant, backend)
        return entry if variant.graphs.is_rule else follow_library(self, entry, variant, backend)

    def lowered_entry(self, variant: Variant, backend: Backend) -> Entry:
        """Return the entry of a variant's graphs, with what is checked before each call."""
        graphs, lowered = variant.graphs, self.lowered(variant, backend)
        lacking = find_lacking(self.recipe.subject, backend, graphs.forward, graphs.backward)
        refuse_lacking(lacking, variant.layout.dtype or "")
        entry = bind_leaves(self.recipe, variant, backend, lowered)
        subject = self.recipe.subject

        def prove_again(leaves: Sequence[Any]) -> None:
            # A compiler's trace has no values to compare.
            if not any(is_reading() for is_reading, *_ in FUNCTION_READERS):
                prove(self.recipe, variant, leaves, is_call=True)

        if variant.assumed:
            entry = checking(entry, partial(check_assumptions, subject, variant, backend))
        if updates := variant.updates:
            tensors = variant.layout.indices("tensor")
            entry = checking(
                entry, lambda leaves: check_apart(subject, updates, [leaves[i] for i in tensors])
            )
        forbid = backend.autodiff.forbid_derivative
        if graphs.refused and forbid is not None:
            entry = refusing_derivatives(entry, variant, forbid)
        return checking(entry, prove_again) if how_much() == ALL else entry


@provided
def leaves_numbers_to_original(entries: Entries, leaves: Sequence[Any]) -> bool:
    """Return whether numbers alone, which name no framework, go to an imported original."""
    return False


def numbers_in_list(subject: str, name: str) -> RuleTypeError:
    return RuleTypeError(
        f"{subject} got no tensor, but numbers in a list or the like: give "
        f"numpy.array({name}), or a tensor, for {name}"
    )


original_entry = of_engine(__name__, "original_entry", "what is imported", TraceError)


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
def follow_library(entries: Entries, entry: Entry, variant: Variant, backend: Backend) -> Entry:
    """Return an entry whose results have the dtypes that the library gives those of the code."""
    return entry


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


@provided
def check_assumptions(
    subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]
) -> None:
    """Check what the code asserts of the values of a call; plain code asserts nothing."""


def checking(entry: Entry, check: Callable[[Sequence[Any]], None]) -> Entry:
    run = entry.run

    def run_checked(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(leaves)
        return run(leaves, draws)

    return Entry(run_checked)


def refusing_derivatives(
    entry: Entry, variant: Variant, forbid: Callable[[str], Callable[[Any], Any]]
) -> Entry:
    """Return an entry that marks tensors whose derivatives the author refuses.

    Without this, a framework would take these derivatives for zero.
    """
    refused, numbered = variant.graphs.refused, enumerate(variant.layout.leaves)
    marks = {i: forbid(refused[leaf.name]) for i, leaf in numbered if leaf.name in refused}

    def run_marked(leaves: Sequence[Any], draws: KeySource) -> Any:
        marked_leaves = [marks[i](leaf) if i in marks else leaf for i, leaf in enumerate(leaves)]
        return entry.run(marked_leaves, draws)

    return Entry(run_marked)


def kind_of(leaf: Any) -> Any:
    """Return the key of a number or a tensor among leaves; None for other leaves."""
    kind = type(leaf)
    if kind is float:
        return kind
    if kind in PLAIN:
        return (kind, leaf)
    return None if owner_of(unwrap(leaf)) is None else (kind, leaf.dtype)
