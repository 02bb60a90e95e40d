"""How a call runs: by its graph, as its author wrote it, or not at all.

A graph may lack what its code does besides returning: raise an error by a value, write into an
argument. These are its omissions. Each way to run a Function, or to write it down, is a `Door`,
which says which omissions do not count there; `decide` decides for all doors alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.backend.contract import Backend
from ...core.functions.arguments import Layout
from ...core.functions.function import Entries
from ...core.functions.recipe import Recipe, Variant
from ...core.passes.facts import LIBRARY
from ...core.trace.source import (
    ASSERTIONS,
    AUTOCAST,
    BRANCHES,
    FORWARD_MODE,
    NO_GRADIENTS,
    NOTES,
    ORDERS,
    SHARED,
    SPARSE,
    STATE,
    TWICE,
    UNDIFFERENTIATED,
    UPDATES,
)
from ...errors import UnsupportedOp
from .calls.effects import COPIES, describe_updates

# The answers of `form_under_autocast`.
SAME, ORIGINAL, GRAPH = "same", "original", "graph"
EFFECTS = frozenset((UPDATES, NOTES))
# Omissions that compilers and transforms accept: there no values are seen that could decide them.
UNSEEN = frozenset((ASSERTIONS, BRANCHES, NO_GRADIENTS, ORDERS, SPARSE, STATE, UNDIFFERENTIATED))

# Nothing that a rule's graph leaves out of its code, as it is a backward pass.
UNSEEN_IN_RULES = (UNSEEN - {ASSERTIONS}) | {AUTOCAST, FORWARD_MODE, SHARED}


class Door(NamedTuple):
    """A way to run a Function, or to write it down; `name` is for messages.

    Attributes:
        takes: the kinds of omissions that do not count there. AUTOCAST is one of them at every
            door while the framework does not choose dtypes by itself.
        refuses: the kinds that are an error on the code's own framework. For all other kinds the
            code runs as written there.
    """

    name: str
    takes: frozenset[str]
    refuses: frozenset[str] = frozenset()


INSTEAD = f"return the new value, or have it write on copies by capture={COPIES}"
# Entries are built once, so `form_under_autocast` decides about AUTOCAST at each call.
EAGER = Door("eager code", takes=frozenset((AUTOCAST,)))
COMPILED = Door("compiled code", takes=UNSEEN | {FORWARD_MODE})
TRANSFORMED = Door("a transform of functions", takes=UNSEEN | {FORWARD_MODE, SHARED})
PULLED = Door("xg.vjp", takes=(UNSEEN - {STATE}) | {FORWARD_MODE, SHARED, TWICE})
PUSHED = Door("xg.jvp", takes=PULLED.takes | {AUTOCAST, STATE}, refuses=EFFECTS)
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
        reason: why the code runs as written; "": the graphs of the variant run.
        kinds: the omissions of its graphs that count for a call; none if the graphs run.
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

    The first that applies:

    1. the graph, if it leaves nothing out that counts at this door;
    2. the graph, on another framework than the code's own, which has nothing else;
    3. an error, if it leaves out what this door refuses;
    4. the graph, if the author has chosen: code that is to run as written is not asked about;
    5. the code as written, with the first omission as the reason.

    Args:
        variant: what the call was captured to.
        backend: the framework of the call; None: that of the code.
        native: the author's choice, `xg.function(native=...)`; None: there is none.

    Raises:
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    if variant.is_whole:
        return Decision(variant)
    # Code whose names are not those of the call's tensors does not run on these as written.
    called = variant.facts.get(LIBRARY, backend and backend.name)
    is_home = backend is None or backend.name == recipe.dialect(called)
    casts = None if backend is None else backend.autodiff.casts
    # AUTOCAST matters only while the framework chooses dtypes.
    takes = door.takes if casts is not None and casts.is_on() else door.takes | {AUTOCAST}
    left_out = {k: v for k, v in omissions_of(recipe, variant).items() if k not in takes}
    if not left_out or not is_home:
        return Decision(variant)
    refused = [left_out[kind] for kind in left_out if kind in door.refuses]
    if refused:
        raise UnsupportedOp(f"{recipe.subject}: {refused[0]}, which {door.name} does not")
    # False: the graph, whatever it lacks. True: `Entries` runs such code as written without asking
    # here, so that whoever asks has use for a graph alone.
    if native is not None:
        return Decision(variant)
    return Decision(variant, next(iter(left_out.values())), frozenset(left_out))


def decide_call(
    entries: Entries,
    door: Door,
    layout: Layout,
    leaves: Sequence[Any],
    backend: Backend | None = None,
) -> Decision:
    """Decide how a call runs at a door; captures its code if that is still to be done."""
    variant = entries.captures.for_call(layout, leaves)
    return decide(door, entries.recipe, variant, backend, entries.options.native)


def form_under_autocast(
    recipe: Recipe, variant: Variant, backend: Backend, native: bool | None
) -> str:
    """Return which form of a call runs under autocast; see `decide` for `native`.

    SAME: the one that runs otherwise, too; ORIGINAL: the code; GRAPH: the graph, in its own dtypes.
    """
    casts, graphs = backend.autodiff.casts, variant.graphs
    if casts is None or graphs.is_rule:
        return SAME
    # The capture has noted whether autocast changes it.
    if backend.name == recipe.dialect(backend.name):
        if AUTOCAST not in variant.omissions:
            return SAME
        return GRAPH if native is False else ORIGINAL
    return GRAPH if graphs.casts_in(backend) else SAME


def omissions_of(recipe: Recipe, variant: Variant) -> Mapping[str, str]:
    """Describe, by kind, the effects of a function's code that its graph lacks."""
    omissions = {kind: f"its graph lacks {words}" for kind, words in variant.omissions.items()}
    if variant.updates and not recipe.options.copies:
        location = next((f"{each.where}; " for each in variant.updates if each.where), "")
        omissions[UPDATES] = f"it {describe_updates(variant.updates)} ({location}{INSTEAD})"
    if variant.notes:
        names = ", ".join(sorted({note.name for note in variant.notes}))
        omissions[NOTES] = f"it sets attributes of tensors ({names}; return them as results)"
    return omissions


def find_omission(recipe: Recipe, variant: Variant) -> str:
    """Return what a rule's graph leaves out that its code does; "": nothing that shows."""
    left_out = omissions_of(recipe, variant)
    return next((left_out[kind] for kind in left_out if kind not in UNSEEN_IN_RULES), "")
