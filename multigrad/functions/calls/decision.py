"""How a call runs: by its graph, as its author wrote it, or not at all.

Everything that runs a Function or writes one down is a `Door`: it names itself, says what a graph
may leave out for it, and asks `decide`. So all of them decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...backend.contract import Backend
from ...errors import (
    UnsupportedOp,
)
from ...trace.assertions import (
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
from .effects import COPIES, describe
from .recipe import Recipe, Variant

Tensor = Any
OWN = __name__.partition(".")[0]

# The answers of `way_while_cast`.
SAME, ORIGINAL, GRAPH = "same", "original", "graph"
EFFECTS = frozenset((UPDATES, NOTES))
# Omissions that nothing could decide by values where compilers and transforms take the graph.
UNSEEN = frozenset((ASSERTIONS, BRANCHES, ORDERS, SPARSE, UNDIFFERENTIATED))


class Door(NamedTuple):
    """A way to run a Function, or to write it down.

    Attributes:
        name: its name in messages.
        takes: the kinds of omissions despite which the graph runs there. AUTOCAST is one of them
            wherever the framework does not choose dtypes by itself.
        refuses: those that it refuses on the code's own framework; for others the code runs as
            written there.
    """

    name: str
    takes: frozenset[str]
    refuses: frozenset[str] = frozenset()

    def showing(self, kinds: frozenset[str]) -> Door:
        """Return this door where omissions of these kinds would show, so that it takes none."""
        return self._replace(takes=self.takes - kinds)


INSTEAD = f"return the new value, or have it write on copies by capture={COPIES}"
# Entries are built once, so `way_while_cast` decides about AUTOCAST at each call.
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
# The graph is only shown, or measured.
SHOWN = ELSEWHERE._replace(name="a listing")


class Decision(NamedTuple):
    """How a call runs.

    Attributes:
        variant: the graphs.
        reason: why the code runs as written; "": the graphs run.
        kinds: the omissions of its graphs that a door does not accept.
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

    In this order: the graph where it leaves nothing out that counts at this door, or on another
    framework, which has nothing but the graph; an error for what `door` refuses; the graph where
    the author chose; or as written, with the first omission as the reason.

    Args:
        variant: what the call was captured to.
        backend: the framework of the call; None: that of the code.
        native: the author's choice, `xg.function(native=...)`; None: there is none.

    Raises:
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    if not (variant.omissions or variant.updates or variant.notes):
        return Decision(variant)
    is_home = backend is None or backend.name == recipe.dialect()
    casts = None if backend is None else backend.autodiff.casts
    # AUTOCAST matters only while the framework chooses dtypes.
    takes = door.takes if casts is not None and casts.is_on() else door.takes | {AUTOCAST}
    left_out = {k: v for k, v in omissions_of(recipe, variant).items() if k not in takes}
    # On another framework there is nothing but the graph.
    if not is_home or not left_out:
        return Decision(variant)
    refused = [left_out[kind] for kind in left_out if kind in door.refuses]
    if refused:
        raise UnsupportedOp(f"{recipe.subject}: {refused[0]}, which {door.name} does not")
    # The author has chosen. False: the graph, whatever it lacks. True: `Entries` runs such code as
    # written and does not ask here, so that whoever asks has use for a graph alone.
    if native is not None:
        return Decision(variant)
    return Decision(variant, next(iter(left_out.values())), frozenset(left_out))


def way_while_cast(recipe: Recipe, variant: Variant, backend: Backend, native: bool | None) -> str:
    """Return how a captured form runs under autocast.

    SAME as otherwise, by the ORIGINAL code, or by the GRAPH in its own dtypes.
    """
    casts, graphs = backend.autodiff.casts, variant.graphs
    if casts is None or graphs.is_rule:
        return SAME
    if backend.name == recipe.dialect():  # where the capture has noted what autocast changes
        is_cast = AUTOCAST in variant.omissions
        return SAME if not is_cast else GRAPH if native is False else ORIGINAL
    nodes = (*graphs.forward.nodes, *graphs.backward.nodes)
    return GRAPH if any(casts.of(node.op) for node in nodes) else SAME


def omissions_of(recipe: Recipe, variant: Variant) -> Mapping[str, str]:
    """Return the effects of a call's code that its graph leaves out: descriptions by kind."""
    omissions = {kind: f"its graph lacks {words}" for kind, words in variant.omissions.items()}
    if variant.updates and not recipe.copies:
        where = next((f"{each.where}; " for each in variant.updates if each.where), "")
        omissions[UPDATES] = f"it {describe(variant.updates)} ({where}{INSTEAD})"
    if variant.notes:
        names = ", ".join(sorted({note.name for note in variant.notes}))
        omissions[NOTES] = f"it sets attributes of tensors ({names}; return them as results)"
    return omissions
