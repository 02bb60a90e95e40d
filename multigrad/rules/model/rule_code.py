"""`RuleCode`: what has been made of a rule, which equal rules share: graphs, proofs, lowered code.

`code_of` returns it, by a key that is equal for equal rules. It lives as long as the functions that
the rule is made of, even if no rule is held; and it refers to none of them, or what they close over
would live forever. Its `Specialization` (`specialization.py`) fills it at the first calls:

1. A capture needs a fact of the input, such as its rank: `need` adds "ndim" to `facts`. Whoever
   asks for a graph gives those facts, and each set of their values has a graph of its own.
2. A capture ends, and has read more than its input, such as what the name "scale" means:
   `note_capture` adds that to `reads`. From now on there is a `Tables` for each meaning of it.
3. The graph is put into the table of graphs, and the native code of it into that of entries.

Nothing else makes a graph out of date: a name that means another rule leads to other tables, and
to the same ones again once it means the first rule again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import field
from typing import Any, NamedTuple

from ...errors import TraceError
from ...graph.ir.graph import Graph
from ...graph.support.class_bases import dataclass
from ...graph.support.threads import SERIALS
from ...trace.identity import Same
from ...trace.lookups import Meanings, look_up, note

MOST_CODES = 4096
MOST_MEANINGS = 64  # of what one rule reads


@dataclass(slots=True, eq=False)
class CapturedRule:
    """A graph of a rule, and the dtypes in which it was compared with the rule itself."""

    graph: Graph
    proven_dtypes: set[str]


@dataclass(slots=True, eq=False)
class Tables:
    """What was made of a rule under one meaning of what it reads besides its inputs.

    Attributes:
        graphs: by whether there is an input and by the facts about it, the latest last.
        entries: the bare rule's attached code, by backend and facts; None: it runs as written.
    """

    graphs: dict[Any, CapturedRule] = field(default_factory=dict)
    entries: dict[Any, Any] = field(default_factory=dict)


class RuleCode:
    """The graphs and the lowered code of a rule with its static params fixed.

    Attributes:
        id: its name in tokens, different for each.
        owner_ids: the `id` of each function and object that the rule is made of.
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        reads: what the rule's code read besides its inputs (`lookups.py`); grows.
        draws: whether a capture of it was random.
        uncapturable: why it runs as written, without the frames that led there.
        variants: by activation, what the rule is under it, by layout and facts, which contain what
            `reads` mean: so they need no `Tables`.
        emitted: the bare rule by backend and graph: equal graphs are emitted once.
    """

    __slots__ = (
        "_tables", "draws", "emitted", "facts", "id", "owner_ids", "reads", "uncapturable",
        "variants",
    )  # fmt: skip

    def __init__(self, name: str, owner_ids: tuple[int, ...]) -> None:
        self.owner_ids = owner_ids
        self.id = f"{name}#{next(SERIALS)}"
        self.facts: frozenset[str] = frozenset()
        self.reads: frozenset[str] = frozenset()
        self.draws = False
        self.uncapturable: TraceError | None = None
        self.variants: dict[str, dict[Any, Any]] = {}
        self.emitted: dict[tuple[Any, ...], Any] = {}
        self._tables: dict[tuple[Any, ...], Tables] = {}  # by the meanings of `reads`, in order

    @property
    def graphs(self) -> dict[Any, CapturedRule]:
        return self._present_tables().graphs

    @property
    def entries(self) -> dict[Any, Any]:
        return self._present_tables().entries

    def _present_tables(self) -> Tables:
        reads = self.reads
        meanings = tuple(map(look_up, sorted(reads))) if reads else ()
        tables = self._tables.get(meanings)
        if tables is None:
            if len(self._tables) >= MOST_MEANINGS:
                self._tables.clear()
            tables = self._tables.setdefault(meanings, Tables())
        return tables

    def need(self, facts: Iterable[str]) -> None:
        """Note facts that a capture asked for; all later ones are given them."""
        self.facts |= set(facts)

    def note_capture(self, graph: Graph, meanings: Meanings) -> None:
        """Note whether a capture drew, and what it read, with the meanings of then."""
        self.draws = self.draws or graph.input("key") is not None
        note(meanings)  # by a capture around this one too
        if not self.reads >= meanings.keys():
            self.reads |= meanings.keys()
            # Their keys lack what this capture read. Its graph, too, is put into a table that is
            # gone: it serves this one call, and the next one captures again.
            self._tables.clear()


# --- which code belongs to which rule -------------------------------------------------------------
class _Owner(NamedTuple):
    """A function or object that rules are made of, and the keys in `_codes` that go with it."""

    reference: Same
    keys: set[Any]


_codes: dict[Any, RuleCode] = {}
_owners: dict[int, _Owner] = {}  # by `id`


def code_of(name: str, key: Any, owners: Iterable[Any]) -> RuleCode:
    """Return the code made of a rule; it is dropped with the first of its owners to go.

    Args:
        name: the rule's name.
        key: equal for equal rules; it keeps no owner alive.
        owners: the functions and objects of which the rule is made.
    """
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= MOST_CODES:
            _codes.clear()
            _owners.clear()
        owners = tuple(owners)
        for owner in owners:
            _keys_of(owner).add(key)
        code = _codes.setdefault(key, RuleCode(name, tuple(map(id, owners))))
    return code


def _keys_of(owner: Any) -> set[Any]:
    identity = id(owner)
    known = _owners.get(identity)
    # The id of an object that is gone may be another's now.
    if known is None or known.reference.item() is not owner:
        reference = Same(owner, functools.partial(_forget, identity))
        known = _owners[identity] = _Owner(reference, set())
    return known.keys


def _forget(identity: int, _: Any) -> None:
    # Called when an owner is gone; its id may have a new owner already.
    gone = _owners.get(identity)
    if gone is not None and gone.reference.item() is None:
        del _owners[identity]
        for key in gone.keys:
            code = _codes.pop(key, None)
            for other in code.owner_ids if code is not None else ():
                if other in _owners:
                    _owners[other].keys.discard(key)
