"""How a call runs: by its graph, as its author wrote it, or not at all.

Whoever runs a Function, or writes one down, is a door: it names itself here, with what a graph may
leave out there, and asks `decide`. So no two doors decide otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...backend.contract import Backend
from ...errors import UnsupportedOp
from ...trace.omissions import (
    ASSERTIONS,
    AUTOCAST,
    BRANCHES,
    FORWARD_MODE,
    NOTES,
    ORDERS,
    SPARSE,
    TWICE,
    UNDIFFERENTIATED,
    UPDATES,
)
from .recipe import Recipe, Variant
from .updates import COPIES, describe

SAME, ORIGINAL, GRAPH = "same", "original", "graph"
EFFECTS = frozenset((UPDATES, NOTES))
# Where compilers and transforms take the graph, which nothing there could decide by values.
UNSEEN = frozenset((ASSERTIONS, BRANCHES, ORDERS, SPARSE, UNDIFFERENTIATED))


class Door(NamedTuple):
    """A way to run a Function, or to write it down.

    Attributes:
        name: in messages.
        takes: the kinds of omissions with which the graph serves there all the same. AUTOCAST is
            one of them wherever the framework does not choose dtypes by itself.
        refuses: those that it refuses on the code's own framework; for others the code runs as
            written there.
    """

    name: str
    takes: frozenset[str]
    refuses: frozenset[str] = frozenset()

    def showing(self, kinds: frozenset[str]) -> Door:
        """Return the door as it is while these kinds show there."""
        return self._replace(takes=self.takes - kinds)


INSTEAD = f"return the new value, or have it write on copies by capture={COPIES}"
# Its entries are made once: `way_while_cast` says how they run while dtypes are chosen.
EAGER = Door("eager code", takes=frozenset((AUTOCAST,)))
COMPILED = Door("compiled code", takes=UNSEEN | {FORWARD_MODE})
TRANSFORMED = Door("a transform of functions", takes=UNSEEN | {FORWARD_MODE})
PULLED = Door("xg.vjp", takes=UNSEEN | {FORWARD_MODE, TWICE})
PUSHED = Door("xg.jvp", takes=PULLED.takes | {AUTOCAST}, refuses=EFFECTS)
TRANSPOSED = Door("xg.linear_transpose", takes=PUSHED.takes, refuses=EFFECTS)
EXPORTED = Door("an exported file", takes=PUSHED.takes, refuses=EFFECTS)
SAVED = Door("a document", takes=PUSHED.takes, refuses=EFFECTS)
LOWERED = Door("lowered code", takes=PUSHED.takes, refuses=EFFECTS)
# On another framework than the code's own, where arrays are not written to: a warning says so.
ELSEWHERE = Door("another framework", takes=PUSHED.takes | EFFECTS)
# It is only looked at, or measured.
SHOWN = ELSEWHERE._replace(name="a listing")


class Decision(NamedTuple):
    """How a call runs.

    Attributes:
        variant: the graphs.
        reason: why the code runs as written; "": the graphs run.
        kinds: of what its graphs leave out that the door does not.
    """

    variant: Variant
    reason: str = ""
    kinds: frozenset[str] = frozenset()


def decide(
    door: Door,
    recipe: Recipe,
    variant: Variant,
    backend: Backend | None,
    native: bool | None = None,
) -> Decision:
    """Decide how a call runs at a door.

    Args:
        variant: what the call was captured to.
        backend: the framework of the call; None: that of the code.
        native: whether the Function runs as written, where its author says so.

    Raises:
        UnsupportedOp: the door has no way to do what the code does besides returning.
    """
    if not (variant.omissions or variant.updates or variant.notes):
        return Decision(variant)
    is_home = backend is None or backend.name == recipe.dialect()
    casts = None if backend is None else backend.autodiff.casts
    takes = door.takes if casts is not None and casts.is_on() else door.takes | {AUTOCAST}
    left_out = {k: v for k, v in omissions_of(recipe, variant).items() if k not in takes}
    if not is_home or not left_out:
        return Decision(variant)
    refused = [left_out[kind] for kind in left_out if kind in door.refuses]
    if refused:
        raise UnsupportedOp(f"{recipe.subject}: {refused[0]}, which {door.name} does not")
    if native is not None:
        return Decision(variant)
    return Decision(variant, next(iter(left_out.values())), frozenset(left_out))


def way_while_cast(recipe: Recipe, variant: Variant, backend: Backend, native: bool | None) -> str:
    """Return what runs a captured form while its framework chooses dtypes by itself: the same as
    else, the original, or the graph in its own dtypes.
    """
    casts, graphs = backend.autodiff.casts, variant.graphs
    if casts is None or graphs.is_rule:
        return SAME
    if backend.name == recipe.dialect():  # of its own calls more is known than of ops
        is_cast = AUTOCAST in variant.omissions
        return SAME if not is_cast else GRAPH if native is False else ORIGINAL
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    return GRAPH if any(casts.of(node.op) for node in nodes) else SAME


def omissions_of(recipe: Recipe, variant: Variant) -> Mapping[str, str]:
    """Return what a graph leaves out of the code of a call, in words by kind."""
    found = {kind: f"its graph lacks {words}" for kind, words in variant.omissions.items()}
    if variant.updates and not recipe.copies:
        where = next((f"{each.where}; " for each in variant.updates if each.where), "")
        found[UPDATES] = f"it {describe(variant.updates)} ({where}{INSTEAD})"
    if variant.notes:
        names = ", ".join(sorted({note.name for note in variant.notes}))
        found[NOTES] = f"it sets attributes of tensors ({names}; return them as results)"
    return found
