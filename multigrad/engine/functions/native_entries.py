"""Entries that run code as its author wrote it, and that follow what a framework chooses by itself:
dtypes under autocast, and which are weak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.backend.contract import Backend
from ...core.functions.arguments import Layout, positional_names
from ...core.functions.binding import Entry
from ...core.functions.decision import ORIGINAL, SAME, TRANSFORMED, decide, form_under_autocast
from ...core.functions.entries import Entries, numbers_in_list
from ...core.functions.recipe import Variant, callers_own, copied_all, is_original_on
from ...core.trace.active_rules import KeySource
from ...core.trace.source import AUTOCAST
from ...errors import TraceError
from .calls.as_written import explain_fallback, no_original, refuse_elsewhere, run_as_it_is
from .calls.library_dtypes import follow_casts, follow_weak


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
            names = positional_names(entries.completion.parameters)
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


def entry_under_transforms(
    entries: Entries, native: Entry, variant: Variant, backend: Backend
) -> Entry:
    """Return an entry that runs the code as written but under some transforms."""
    recipe = entries.recipe
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
