"""`xg.vjp` of code: what is derived on NumPy, reads more than its arguments, or runs as written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.backend.contract import Backend
from ...core.functions.arguments import Layout, owner_of
from ...core.functions.binding import Entry, Run
from ...core.functions.function import Function
from ...core.functions.gradients import match_gradients
from ...core.rules.vjp import COTANGENT, as_that_of, zeros_if_none
from ...core.support.trees import optree
from ...core.trace.active_rules import KeySource
from ...core.trace.lookups import look_up
from ...errors import TraceError, UnsupportedOp
from ..capture.user_code.reads import Reads, run_while
from ..functions.calls.as_written import check_native, run_recipe
from ..functions.code_recipes import recipe_of_pair
from ..functions.known_forms import CALLS


def as_derived(f: Callable[..., Any]) -> Function:
    """Return a function as a Function with its true derivative."""
    return Function(recipe_of_pair(f), f)


def entry_of(others: frozenset[str], facts: Mapping[str, Any], run: Run) -> Entry | None:
    """Return an entry that runs while the code reads the same values, after which it gives None;
    None where anything else decides.
    """
    read = {fact: number for fact, number in facts.items() if isinstance(fact, Reads)}
    if not all(isinstance(fact, Reads) for fact in others):
        return None
    if not read:
        return Entry(run)
    calls = 0

    def compare(leaves: Sequence[Any], draws: KeySource) -> Any:
        nonlocal calls
        if any(look_up(fact) != number for fact, number in read.items()):
            return None
        calls += 1
        if calls == CALLS and (known := find_entry()) is not None:
            known.run = run_while(read, {}, run, compare)
        return run(leaves, draws)

    entry = Entry(compare)
    find_entry = weakref.ref(entry)
    return entry


def vjp_as_written(
    function: Function,
    layout: Layout,
    leaves: Sequence[Any],
    backend: Backend,
    error: TraceError | None,
) -> tuple[Any, Callable[[list[Any]], list[Any]]]:
    """Run a Function as its author wrote it; return its outputs and the map from cotangents."""
    recorded = run_recipe(function.recipe, backend, *layout.rebuild(leaves), error)
    flat, nesting = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
    pull_own = recorded.pull
    if pull_own is None:
        raise UnsupportedOp(
            f"{function.recipe.subject} runs as it is, and {backend.name} has no derivative of "
            "that: give it a backward, or let it be captured"
        )

    def pull(cotangents: list[Any]) -> list[Any]:
        upstream = [
            None
            if owner_of(y) is None
            else zeros_if_none(as_that_of(y, c, backend, COTANGENT), y, True, backend)
            for c, y in zip(cotangents, flat, strict=True)
        ]
        raw_gradients = pull_own(optree.tree_unflatten(nesting, upstream))
        gradients = match_gradients(function.name, raw_gradients, layout)
        for i in layout.indices("tensor"):
            leaf = layout.leaves[i]
            gradient = check_native(
                function.recipe.subject, leaf.path, leaves[i], gradients[i], backend
            )
            gradients[i] = zeros_if_none(gradient, leaves[i], leaf.is_float, backend)
        return [
            g if leaf.is_float else None for g, leaf in zip(gradients, layout.leaves, strict=True)
        ]

    return recorded.outputs, pull
