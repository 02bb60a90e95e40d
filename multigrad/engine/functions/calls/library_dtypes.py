"""Calls while the framework chooses dtypes by itself: under autocast, and of weak types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ....core.backend.contract import Backend
from ....core.functions.arguments import Layout
from ....core.functions.function import Entry, Run
from ....core.functions.recipe import Recipe, Variant
from ....core.support.trees import Tensor, optree
from ....core.trace.active_rules import KeySource
from ....core.trace.source import FORWARD_MODE
from .arguments import replace_at
from .as_written import run_as_it_is


def weakened(run: Run, weak: tuple[int, ...], weaken: Callable[[Tensor], Tensor]) -> Run:
    """Return a run that makes the outputs at some positions weakly typed."""

    def run_weakened(leaves: Sequence[Any], draws: KeySource) -> Any:
        outputs = run(leaves, draws)
        if not isinstance(outputs, tuple):
            return weaken(outputs)
        return tuple(weaken(y) if i in weak else y for i, y in enumerate(outputs))

    return run_weakened


def follow_casts(
    entry: Entry,
    native: Callable[[], Entry] | None,
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    `native` makes the entry of the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on, transform = casts.is_on, backend.autodiff.transform
    assert transform is not None
    native_entries: list[Entry] = []

    def run_aside(leaves: Sequence[Any], draws: KeySource) -> Any:
        kinds = transform()
        # The graph, in its own dtypes: the original draws by no key, and may lack forward mode.
        if native is None or draws.counter is not None or (kinds and FORWARD_MODE in kinds):
            with casts.without():
                return run(leaves, draws)
        if kinds is not None:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        if not native_entries:
            native_entries.append(native())
        return native_entries[0].run(leaves, draws)

    def following(leaves: Sequence[Any], draws: KeySource) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: KeySource) -> Any:  # one frame fewer
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)


def follow_weak(entry: Entry, recipe: Recipe, variant: Variant, backend: Backend) -> Entry:
    """Return an entry whose results are weakly typed where those of the original are."""
    layout, run = variant.layout.without_objects(), entry.run
    weak_types = backend.tensors.weak_types
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
        all_leaves = replace_at(leaves, tensors, given)
        return optree.tree_leaves(recipe.run_forward(*layout.rebuild(all_leaves)))

    return Entry(following)
