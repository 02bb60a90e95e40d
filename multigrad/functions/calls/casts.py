"""What runs a call while its framework chooses the dtypes of calls by itself, as autocast does.

A graph holds the dtypes of its capture, where casts to the dtype that a tensor had are no ops. So
the original runs where the code is the framework's own; any other graph runs apart from the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backend.contract import Backend
from ...trace.omissions import FORWARD_MODE
from ...trace.scope.draws import Draws
from .arguments import Layout
from .binding import Entry
from .native import run_as_it_is
from .recipe import Recipe


def follow_casts(
    entry: Entry, native: Entry | None, recipe: Recipe, layout: Layout, backend: Backend
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    Args:
        native: runs the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on, transform = casts.is_on, backend.autodiff.transform
    assert transform is not None

    def run_aside(leaves: Sequence[Any], draws: Draws) -> Any:
        shown = transform()
        if native is None or draws.counter is not None or (shown and FORWARD_MODE in shown):
            with casts.without():
                return run(leaves, draws)
        if shown is not None:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        return native.run(leaves, draws)

    def following(leaves: Sequence[Any], draws: Draws) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: Draws) -> Any:  # with a frame less
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)
