"""Calls while the framework chooses dtypes by itself: under autocast, and of weak types.

A captured graph has fixed dtypes, so each call asks the framework first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...backend.contract import Backend
from ...graph.support.trees import optree
from ...trace.active_rules import KeySource
from ...trace.assertions import FORWARD_MODE
from .arguments import Layout
from .as_written import run_as_it_is
from .binding import Entry
from .recipe import Recipe
from .variant import Variant


def follow_casts(
    entry: Entry,
    native: Callable[[], Entry] | None,
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    Args:
        native: makes the entry of the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on, transform = casts.is_on, backend.autodiff.transform
    assert transform is not None
    made: list[Entry] = []

    def run_aside(leaves: Sequence[Any], draws: KeySource) -> Any:
        shown = transform()
        # The original cannot draw from our key and may lack forward mode: the graph runs, in its
        # own dtypes.
        if native is None or draws.counter is not None or (shown and FORWARD_MODE in shown):
            with casts.without():
                return run(leaves, draws)
        if shown is not None:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        if not made:
            made.append(native())
        return made[0].run(leaves, draws)

    def following(leaves: Sequence[Any], draws: KeySource) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: KeySource) -> Any:  # one frame fewer
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)


def follow_weak(entry: Entry, recipe: Recipe, variant: Variant, backend: Backend) -> Entry:
    """Return an entry whose results are weakly typed where those of the original are."""
    layout, weak_types, run = (
        variant.layout.without_objects(),
        backend.tensors.weak_types,
        entry.run,
    )
    assert weak_types is not None
    is_weak, tensors = weak_types.is_weak, layout.indices("tensor")
    # By the shapes, dtypes and weakness of the tensors; grows with them, and is never emptied.
    weakness: dict[Any, Sequence[bool]] = {}

    def following(leaves: Sequence[Any], draws: KeySource) -> Any:
        for i in tensors:
            if is_weak(leaves[i]):
                return weakened(leaves, run(leaves, draws))
        return run(leaves, draws)

    def weakened(leaves: Sequence[Any], outputs: Any) -> Any:
        inputs = [leaves[i] for i in tensors]
        key = tuple([(x.shape, x.dtype, is_weak(x)) for x in inputs])
        if key not in weakness:
            weakness[key] = weak_types.find(partial(forward, leaves), inputs)
        flat, tree = optree.tree_flatten(outputs)
        if len(weakness[key]) != len(flat):  # the original was not understood
            return outputs
        pairs = zip(flat, weakness[key], strict=True)
        return optree.tree_unflatten(tree, [weak_types.weaken(y) if w else y for y, w in pairs])

    def forward(leaves: Sequence[Any], *given: Any) -> list[Any]:
        every = list(leaves)
        for i, x in zip(tensors, given, strict=True):
            every[i] = x
        return optree.tree_leaves(recipe.run_forward(*layout.rebuild(every)))

    return Entry(following)
