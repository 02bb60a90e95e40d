"""`EntriesOfCode`: what runs the calls of a Function, one entry for each layout of the arguments.

To what a rule under an activation needs it adds, from the outside in:

    find                   looks the entry up by the kinds of the leaves, or has it built
    _build                 opens and completes the leaves; finds layout and backend
    entry_for_facts       another where a constant index lies outside, if its library allows that
    native_entry           the code as written; and what follows what a framework chooses by itself:
                           dtypes under autocast, and which are weak
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import FUNCTION_READERS
from ...core.backend.emitted import Attached
from ...core.backend.values import framework_of, in_one_framework, owner_of
from ...core.functions.arguments import Layout, flatten
from ...core.functions.captures import MOST_VARIANTS, Captures
from ...core.functions.function import MOST_ENTRIES, Entries, Entry
from ...core.functions.recipe import Options, Variant
from ...core.support.threads import build_once, set_within
from ...core.support.trees import optree
from ...core.trace.active_rules import KeySource
from ...core.trace.identity import value_key
from ...core.trace.source import AUTOCAST
from ...errors import GradientError, PlaceError, RuleTypeError, TraceError
from .calls.arguments import PLAIN, learn_containers, one_backend, positional_names, unwrap
from .calls.as_written import explain_fallback, no_original, refuse_elsewhere, run_as_it_is
from .calls.assumptions import check_call
from .calls.effects import callers_own, copied_all, giving, warn_left_out
from .calls.facts import left_out, looks_outside, open_indices
from .calls.imported_gradients import is_original_on
from .calls.library_dtypes import follow_casts, follow_weak
from .calls.parameters import Completion, bind_call, refuse_unknown
from .decision import (
    EAGER,
    ORIGINAL,
    SAME,
    TRANSFORMED,
    decide,
    form_under_autocast,
)

# The entries being built around a call, as tables and keys; emptied as each is built.
_in_progress: ContextVar[tuple[Any, ...]] = ContextVar("multigrad_entries", default=())


class EntriesOfCode(Entries):
    """The entries that run the calls of a Function under one set of choices.

    Attributes:
        completion: fills in the arguments that a call leaves out.
        checked: those of calls whose arguments an estimator has checked, by the arguments' types,
            then by what the check reads of them.
    """

    def __init__(
        self, captures: Captures, completion: Completion, options: Options | None = None
    ) -> None:
        super().__init__(captures, options)
        self.completion = completion
        self.checked: dict[Any, dict[Any, Entry]] = {}

    @property
    def parameters(self) -> inspect.Signature | None:
        return self.completion.parameters

    def changed(
        self,
        captures: Captures | None = None,
        completion: Completion | None = None,
        **options: Any,
    ) -> EntriesOfCode:
        """Return new, empty entries with other captures, completion or options."""
        return EntriesOfCode(
            captures or self.captures,
            completion or self.completion,
            replace(self.options, **options),
        )

    def apart(self) -> EntriesOfCode:
        return self.changed()

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
            build = partial(self.apart()._build, leaves, tree)
            with set_within(_in_progress, (*jobs, job)):
                entry = build_once(self.known, key, build, MOST_ENTRIES)
        return entry

    def lay_out(
        self, leaves: Sequence[Any], tree: Any, backend: Backend | None = None
    ) -> tuple[Layout, Sequence[Any]]:
        """Return the layout of a call, and its leaves with those that it left out."""
        leaves, tree = self.completion.complete(leaves, tree, backend)
        return self.recipe.lay_out(self.completion.parameters, leaves, tree), leaves

    def lowered(self, variant: Variant, backend: Backend) -> Attached:
        if variant.updates and not self.recipe.options.copies:
            module = self.captures.module
            warn_left_out(self.recipe.subject, variant.updates, backend.name, module)
        return super().lowered(variant, backend)

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
            inner = self.entry_for(layout, backend, inputs)
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
            uncaptured = self.captures.findings.uncaptured
            if len(uncaptured) >= MOST_VARIANTS:
                uncaptured.clear()
            uncaptured[layout.key, layout.dtype] = layout.without_objects()
            return True
        return self.options.native is True or self.completion.is_written_to

    def entry_for(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        # An imported gradient has its original on its own framework alone.
        if self.runs_as_written(layout) and (
            self.recipe.imported is None or is_original_on(self.recipe, backend)
        ):
            reason = "it has native=True" if self.options.native else "its code looks at values"
            return native_entry(self, layout.without_objects(), backend, None, reason)
        capture = partial(self.captured_entry, layout, backend, leaves)
        return self.captured_or_native(layout, backend, capture)

    def reason_after(self, error: Exception, backend: Backend) -> str:
        # On its own framework an imported function runs as written whatever went wrong; but
        # gradients that do not fit are raised, if that framework lets them pass.
        imported = self.recipe.imported
        is_checked = imported is not None and imported.is_checked
        is_caught = is_checked or not isinstance(error, GradientError)
        is_home = is_original_on(self.recipe, backend)
        if self.options.native is False or not (is_caught and is_home):
            return ""
        return f"its capture raised {type(error).__name__}: {error}"

    def entry_for_facts(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        variant, layout = self.captures.for_call(layout, leaves), layout.without_objects()
        reason = decide(EAGER, self.recipe, variant, backend, self.options.native).reason
        if reason:
            return written_entry(self, variant, layout, backend, reason)
        # `attribute_of` reads this: results on this backend lack these attributes.
        left_out.update((backend.name, note.name) for note in variant.notes)
        entry = self.lowered_entry(variant, backend)
        if not variant.graphs.is_rule:
            entry = follow_library(self, entry, variant, backend)
        if not open_indices(self.recipe, variant):
            return entry
        by_facts: list[Entry] = []

        def run_inside(leaves: Sequence[Any], draws: KeySource) -> Any:
            try:
                return entry.run(leaves, draws)
            except PlaceError:
                # Here a constant index lies outside, which its library gives a meaning.
                call_layout = layout.with_objects(leaves)
                if not looks_outside(self.captures, variant, call_layout, leaves):
                    raise
                if not by_facts:
                    capture = partial(self.captured_entry, call_layout, backend, leaves)
                    by_facts.append(self.captured_or_native(layout, backend, capture))
            return by_facts[0].run(leaves, draws)

        return Entry(run_inside)

    def checked_entry(self, entry: Entry, variant: Variant, backend: Backend) -> Entry:
        graphs, subject = variant.graphs, self.recipe.subject
        if variant.assumed or variant.updates:
            entry = checking(entry, partial(check_call, subject, variant, backend))
        forbid = backend.autodiff.forbid_derivative
        if graphs.refused and forbid is not None:
            entry = refusing_derivatives(entry, variant, forbid)
        return entry


def numbers_in_list(subject: str, name: str) -> RuleTypeError:
    return RuleTypeError(
        f"{subject} got no tensor, but numbers in a list or the like: give "
        f"numpy.array({name}), or a tensor, for {name}"
    )


def checking(entry: Entry, check: Callable[[Sequence[Any]], None]) -> Entry:
    run = entry.run

    def run_checked(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(leaves)
        return run(leaves, draws)

    return Entry(run_checked)


def proving_each_call(entries: Entries, entry: Entry, variant: Variant) -> Entry:
    """Return an entry that compares the code with its graph at each call, on its tensors."""

    def prove_again(leaves: Sequence[Any]) -> None:
        # A compiler's trace has no values to compare.
        if not any(is_reading() for is_reading, *_ in FUNCTION_READERS):
            entries.captures.compare(variant, leaves)

    return checking(entry, prove_again)


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


# --- the code as written ---
def leaves_numbers_to_original(entries: Entries, leaves: Sequence[Any]) -> bool:
    # Numbers alone name no framework: the original's library may make its own arrays of them.
    imported = entries.recipe.imported
    makes_arrays = imported is not None and imported.makes_arrays_of_numbers
    is_plain = all(
        leaf is None or isinstance(leaf, int | float | str) or callable(leaf) for leaf in leaves
    )
    return makes_arrays and is_plain and entries.options.native is not False


def original_entry(
    entries: Entries, rebuild: Callable[..., Any], backend: Backend | None, reason: str | TraceError
) -> Entry:
    """Return the entry of a framework's own custom gradient, unchanged.

    `rebuild` nests the leaves into (args, kwargs).
    """
    recipe = entries.recipe
    imported, copies = recipe.imported, recipe.options.copies
    assert imported is not None
    apply = imported.apply

    def original(leaves: Sequence[Any], draws: KeySource) -> Any:
        # `rebuild` nests the leaves into (args, kwargs).
        args, kwargs = callers_own(rebuild(leaves), leaves)
        try:
            if not copies:
                return apply(*args, **kwargs)
            args, kwargs = copied_all((args, kwargs))
            # The derivative of a copy gives a cotangent memory of its own.
            return copied_all(apply(*args, **kwargs))
        except Exception as failure:
            explain_fallback(recipe, reason, failure, backend)
            names = positional_names(entries.parameters)
            nested = [n for n, a in zip(names, args, strict=False) if isinstance(a, list | tuple)]
            if backend is None and nested and isinstance(failure, TypeError):
                raise numbers_in_list(recipe.subject, nested[0]) from failure
            raise

    return Entry(original)


def native_entry(
    entries: Entries,
    layout: Layout,
    backend: Backend,
    error: TraceError | None,
    reason: str | TraceError,
) -> Entry:
    """Return the entry of the code as written."""
    recipe = entries.recipe
    refuse_elsewhere(error, backend)
    if is_original_on(recipe, backend):
        return original_entry(entries, layout.rebuild, backend, reason)
    if recipe.imported is not None and error is not None:
        raise no_original(error, recipe) from error.__cause__

    # Some libraries call their own gradient in another framework's program (`call_across`).
    opaque = recipe.opaque
    if opaque is not None and backend.name != recipe.dialect(backend.name):
        return Entry(lambda leaves, draws: opaque.call_across(backend, layout, leaves))

    def native(leaves: Sequence[Any], draws: KeySource) -> Any:
        try:
            return run_as_it_is(recipe, layout, backend, leaves, error)
        except Exception as failure:
            explain_fallback(recipe, reason, failure, backend)
            raise

    return Entry(native)


def decided_entry(entries: Entries, variant: Variant, layout: Layout, backend: Backend) -> Entry:
    """Return the entry of a rule's graphs, or of its code, which does more than these."""
    reason = decide(EAGER, entries.recipe, variant, backend, entries.options.native).reason
    if not reason:
        return entries.lowered_entry(variant, backend)
    return written_entry(entries, variant, layout.without_objects(), backend, reason)


def written_entry(
    entries: Entries, variant: Variant, layout: Layout, backend: Backend, reason: str
) -> Entry:
    """Return an entry that runs the code as written but under some transforms."""
    recipe, native = entries.recipe, native_entry(entries, layout, backend, None, reason)
    transform, is_random = backend.autodiff.transform, variant.graphs.is_random
    if transform is None and not is_random:
        return native
    lowered: list[Entry] = []

    def is_original_under(kinds: Any) -> bool:
        door = TRANSFORMED._replace(takes=TRANSFORMED.takes - kinds)
        return bool(decide(door, recipe, variant, backend, entries.options.native).reason)

    def run_chosen(leaves: Sequence[Any], draws: KeySource) -> Any:
        # A call with a key of ours needs the graph: the original cannot draw from that key.
        if not (is_random and draws.counter is not None):
            kinds_shown = None if transform is None else transform()
            # Under a transform the graph runs if what it leaves out does not show there.
            if kinds_shown is None or is_original_under(kinds_shown):
                return native.run(leaves, draws)
        if not lowered:
            lowered.append(entries.lowered_entry(variant, backend))
        return lowered[0].run(leaves, draws)

    return Entry(run_chosen)


def follow_library(entries: Entries, entry: Entry, variant: Variant, backend: Backend) -> Entry:
    """Return an entry whose results have the dtypes that the library gives those of the code."""
    recipe = entries.recipe
    if backend.tensors.weak_types is not None and recipe.dialect(backend.name) == backend.name:
        if variant.graphs.is_random:
            return entry
        return follow_weak(entry, recipe, variant, backend)
    form = form_under_autocast(recipe, variant, backend, entries.options.native)
    if form == SAME:
        return entry
    layout = variant.layout.without_objects()

    def native() -> Entry:
        return native_entry(entries, layout, backend, None, f"its graph lacks {AUTOCAST}")

    return follow_casts(entry, native if form == ORIGINAL else None, recipe, layout, backend)
