"""Entries of one layout of arguments, one for each set of facts about a call's values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..trace.lookups import is_in_force
from ..trace.random_keys import KeySource
from .calls.arguments import Layout
from .calls.binding import Entry
from .calls.facts import watch
from .captures import Captures

# For each Function; a table that is full is emptied.
MOST_ENTRIES = 1024


class EntriesByFacts:
    """Entries of one layout, one for each set of facts about a call's values.

    `captures` has the facts that are needed, of which a new capture may need more. Where a rule in
    force, or the rule of a name, is among them, calls are within `on_call` of their compiler.
    """

    __slots__ = ("_around", "_build", "_entry", "_layout", "_on_call", "_state", "captures")

    def __init__(
        self,
        captures: Captures,
        layout: Layout,
        build: Callable[[Sequence[Any]], Entry],
        on_call: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        self.captures, self._layout, self._build = captures, layout, build
        self._on_call = on_call
        self._entry: Callable[[], Entry | None] = lambda: None
        self._begin_anew()

    def entry(self) -> Entry:
        """Return the entry that runs the calls; this table refers to it weakly."""
        entry = Entry(self.run)
        self._entry = weakref.ref(entry)
        return entry

    def _begin_anew(self) -> None:
        facts = self.captures.facts
        # What reads the facts of a call, and the entries by them: both change together.
        self._state: tuple[Any, dict[Any, Entry]] = watch(facts, self._layout), {}
        self._around = self._on_call if any(map(is_in_force, facts)) else None

    def put(self, leaves: Sequence[Any], entry: Entry) -> None:
        read_facts, entries = self._state
        entries[read_facts(leaves)] = entry

    def run(self, leaves: Sequence[Any], draws: KeySource) -> Any:
        """Run the entry for the facts of a call."""
        if self._around is not None:
            with self._around():
                return self._choose(leaves).run(leaves, draws)
        return self._choose(leaves).run(leaves, draws)

    def _choose(self, leaves: Sequence[Any]) -> Entry:
        read_facts, entries = self._state
        return entries.get(read_facts(leaves)) or self._build_anew(leaves)

    def _build_anew(self, leaves: Sequence[Any]) -> Entry:
        old_facts = self.captures.facts
        entry = self._build(leaves)
        if self.captures.facts != old_facts or len(self._state[1]) >= MOST_ENTRIES:
            self._begin_anew()  # new facts tell more calls apart
        self.put(leaves, entry)
        return entry
