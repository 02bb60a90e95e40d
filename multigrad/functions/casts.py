"""What runs a call while its framework chooses the dtypes of calls by itself, as autocast does.

A graph holds the dtypes of its capture, where casts to the dtype that a tensor had are no ops. So
the original runs where the code is the framework's own; any other graph runs apart from the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..backend.contract import Backend
from ..graph.support.trees import optree
from ..trace.omissions import FORWARD_MODE
from ..trace.scope.draws import Draws
from .calls.arguments import Layout
from .calls.binding import Entry
from .calls.native import run_as_it_is
from .calls.recipe import Recipe, Variant


def follow_casts(
    entry: Entry,
    native: Callable[[], Entry] | None,
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    Args:
        native: () -> what runs the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on, transform = casts.is_on, backend.autodiff.transform
    assert transform is not None
    made: list[Entry] = []

    def run_aside(leaves: Sequence[Any], draws: Draws) -> Any:
        shown = transform()
        if native is None or draws.counter is not None or (shown and FORWARD_MODE in shown):
            with casts.without():
                return run(leaves, draws)
        if shown is not None:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        if not made:
            made.append(native())
        return made[0].run(leaves, draws)

    def following(leaves: Sequence[Any], draws: Draws) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: Draws) -> Any:  # with a frame less
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)


def follow_weak(entry: Entry, recipe: Recipe, variant: Variant, backend: Backend) -> Entry:
    """Return an entry that gives results whose dtype gives way where that of arguments does, and so
    that of the original's results.
    """
    layout, weak_types, run = (
        variant.layout.without_objects(),
        backend.tensors.weak_types,
        entry.run,
    )
    assert weak_types is not None
    is_weak, tensors = weak_types.is_weak, layout.indices("tensor")
    found: dict[Any, Sequence[bool]] = {}

    def following(leaves: Sequence[Any], draws: Draws) -> Any:
        for i in tensors:
            if is_weak(leaves[i]):
                return weakened(leaves, run(leaves, draws))
        return run(leaves, draws)

    def weakened(leaves: Sequence[Any], outputs: Any) -> Any:
        given = [leaves[i] for i in tensors]
        key = tuple([(x.shape, x.dtype, is_weak(x)) for x in given])
        if key not in found:
            found[key] = weak_types.find(partial(forward, leaves), given)
        flat, tree = optree.tree_flatten(outputs)
        if len(found[key]) != len(flat):  # it could not be told
            return outputs
        pairs = zip(flat, found[key], strict=True)
        return optree.tree_unflatten(tree, [weak_types.weaken(y) if w else y for y, w in pairs])

    def forward(leaves: Sequence[Any], *given: Any) -> list[Any]:
        every = list(leaves)
        for i, x in zip(tensors, given, strict=True):
            every[i] = x
        return optree.tree_leaves(recipe.run_forward(*layout.rebuild(every)))

    return Entry(following)
