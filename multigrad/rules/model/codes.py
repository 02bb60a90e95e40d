"""What has been made of rules, kept as long as the functions that they are made of, though nobody
holds the rules.

It refers to none of those functions, or what they close over would live for ever.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

from ...errors import TraceError
from ...graph.ir.graph import Graph
from ...trace.scope.identity import Same
from ...trace.scope.reads import Meanings, look_up, note

MOST_CODES = 4096
MOST_MEANINGS = 64
_serial = itertools.count()


class Code:
    """The graphs and the lowered code of a rule with its static params fixed.

    Attributes:
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        reads: what the rule's code read besides its inputs (`reads.py`); grows.
        draws: whether a capture of it was random.
        uncapturable: why it runs as it is, without the frames that led there.
        variants: what it is under each activation, by layout and facts.
        proven: the graph that was compared with the rule, and in which dtypes, by facts.
        emitted: the bare rule by backend, as it was emitted last.
    """

    __slots__ = (
        "_memories",
        "draws",
        "emitted",
        "facts",
        "id",
        "owners",
        "proven",
        "reads",
        "uncapturable",
        "variants",
    )

    def __init__(self, name: str, owners: tuple[int, ...]) -> None:
        self.owners = owners  # by their identity
        self.id = f"{name}#{next(_serial)}"
        self.facts: frozenset[str] = frozenset()
        self.reads: frozenset[str] = frozenset()
        self.draws = False
        self.uncapturable: TraceError | None = None
        self.variants: dict[str, dict[Any, Any]] = {}
        self.proven: dict[Any, tuple[Graph, set[str]]] = {}
        self.emitted: dict[tuple[Any, ...], Any] = {}
        # Graphs and lowered code, by what the facts in `reads` mean, in their order.
        self._memories: dict[tuple[Any, ...], tuple[dict[Any, Graph], dict[Any, Any]]] = {}

    @property
    def graphs(self) -> dict[Any, Graph]:
        """What has been captured for what is read as it is now, the latest last."""
        return self._memory()[0]

    @property
    def entries(self) -> dict[Any, Any]:
        """Attached code of the bare rule by backend, for what is read as it is now."""
        return self._memory()[1]

    def _memory(self) -> tuple[dict[Any, Graph], dict[Any, Any]]:
        reads = self.reads
        key = tuple(map(look_up, sorted(reads))) if reads else ()
        memory = self._memories.get(key)
        if memory is None:
            if len(self._memories) >= MOST_MEANINGS:
                self._memories.clear()
            memory = self._memories.setdefault(key, ({}, {}))
        return memory

    def note_capture(self, graph: Graph, found: Meanings) -> None:
        """Note what a capture read: all is kept by that from now on."""
        self.draws = self.draws or graph.input("key") is not None
        note(found)  # by a capture around this one too
        if not self.reads >= found.keys():
            self.reads = self.reads | found.keys()
            self._memories.clear()


_codes: dict[Any, Code] = {}
_owned: dict[int, tuple[Same, set[Any]]] = {}  # by an owner's identity: which codes go with it


def code_of(name: str, key: Any, owners: Iterable[Any]) -> Code:
    """Return what has been made of a rule; it goes with the first of its owners that goes.

    Args:
        name: the rule's.
        key: equal for equal rules; it keeps no owner alive.
        owners: the functions and objects that the rule is made of.
    """
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= MOST_CODES:
            _codes.clear()
            _owned.clear()
        owners = tuple(owners)
        for owner in owners:
            _keys_of(owner).add(key)
        code = _codes.setdefault(key, Code(name, tuple(map(id, owners))))
    return code


def _keys_of(owner: Any) -> set[Any]:
    """Return the keys of the codes that go with an object."""
    identity = id(owner)
    known = _owned.get(identity)
    if known is None or known[0].item() is not owner:
        known = _owned[identity] = Same(owner, functools.partial(_forget, identity)), set()
    return known[1]


def _forget(identity: int, _: Any) -> None:
    """Drop the codes of an owner that is gone."""
    known = _owned.get(identity)
    if known is not None and known[0].item() is None:
        del _owned[identity]
        for key in known[1]:
            code = _codes.pop(key, None)
            for other in code.owners if code is not None else ():
                if other in _owned:
                    _owned[other][1].discard(key)
