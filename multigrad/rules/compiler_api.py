"""The parts of `xg.jit` for authors of backends: `from multigrad.backend import compilers`.

`key_by_rules` is all of it for a framework whose compiler takes a function of trees of arrays and
gives one: code is kept by the rules in force, and their numbers are arguments. `key_runs` keeps the
code of a compiler that needs more, which a class of `Run` compiles. Where a compiler reads Python
code, the classes are those whose calls it is to leave alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ..backend.compiler_events import enter_rules, leave_rules
from ..backend.contract import Backend
from ..backend.discovery import load_backend
from ..functions.function import Function
from ..trace.lookups import all_at_present, jit_tracing, read
from ..trace.moving_numbers import Moving, alive
from . import registry
from .activation import Activation
from .context import CURRENT, ActiveRules
from .jit import Cut, Hidden, advance, call_cut, count_applied, fixed, hide, reveal

__all__ = [
    "CURRENT",
    "Activation",
    "ActiveRules",
    "Cut",
    "Function",
    "Hidden",
    "Run",
    "hide",
    "key_by_rules",
    "key_runs",
]
Call = Callable[..., Any]
MOST_HELD = 8  # traces of one function that is traced again for each held number


@contextmanager
def in_force(active: ActiveRules) -> Iterator[None]:
    leaves = enter_rules(active.token)
    reset = CURRENT.set(active)
    try:
        yield
    finally:
        CURRENT.reset(reset)
        leave_rules(leaves)


class Run:
    """A function that is compiled under one rule; lives as long as the function.

    Attributes:
        rules: the rules that it is compiled under.
        moving: the numbers that move which are its arguments.
        word: what stands for the numbers that its traces hold.
        met: numbers that move besides, which its last traces have met.
        held: those that graphs in these traces hold.
    """

    def in_force(self, active: ActiveRules) -> AbstractContextManager[Any]:
        return in_force(active)

    def __init__(self, fn: Call, rules: Cut, moving: tuple[Moving, ...], word: str) -> None:
        self.fn = fn
        self.rules, self.moving, self.word = rules, moving, word
        self.met: list[Moving] = []
        self.held: list[Moving] = []

    def trace(
        self, hidden: tuple[Hidden, Hidden], numbers: Sequence[Any], args: Any, kwargs: Any
    ) -> tuple[Any, tuple[int, int]]:
        """Return the function's result in a trace, and how often each rule was applied there."""
        active = reveal(self.rules, hidden)
        with self.in_force(active), jit_tracing(self.moving, numbers) as jit_trace:
            result = self.fn(*args, **kwargs)
        self.met += jit_trace.met
        self.held += jit_trace.held
        return result, count_applied(active)

    def numbers(self, backend: Backend) -> list[Any]:
        return [read(each, backend) for each in self.moving]

    def call(self, rules: Cut, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        """Return the result for arguments, and how often each rule was applied."""
        raise NotImplementedError


class NumbersRead:
    """The moving numbers that a function compiled by `xg.jit` reads by itself.

    From its second call on they are its arguments, except those that a captured graph holds.
    """

    def __init__(self) -> None:
        self._met: tuple[weakref.ref[Moving], ...] = ()
        self._held: tuple[weakref.ref[Moving], ...] = ()

    def arguments(self) -> tuple[Moving, ...]:
        """Return the numbers that are alive, in a fixed order."""
        if not self._met:
            return ()
        return tuple(alive(self._met))

    def add(self, met: Iterable[Moving], held: Iterable[Moving]) -> None:
        self._met = _add(self._met, met)
        self._held = _add(self._held, held)

    def held_text(self) -> str:
        """Return the numbers that traces hold, as text; each trace is valid for one text."""
        if not self._held:
            return ""
        return "".join([f" {each.serial}={each.value!r}" for each in alive(self._held)])


def _add(known: tuple[weakref.ref[Moving], ...], more: Iterable[Moving]) -> Any:
    found = {each.serial: each for each in (*alive(known), *more)}
    return tuple(weakref.ref(found[serial]) for serial in sorted(found))


def key_runs(
    fn: Call,
    name: str,
    make: Callable[[Cut, tuple[Moving, ...], str], Run],
    epoch: Callable[[], int | str] = registry.epoch,
    on_hold: Callable[[], None] | None = None,
) -> Call:
    """Return a function that is compiled once for each rule.

    Args:
        fn: the function.
        name: the backend's.
        make: `(rules, moving, word)` -> what is compiled for them.
        epoch: what changes where a name changes its meaning.
        on_hold: is told where traces hold more numbers than before.
    """
    compiled: dict[str, Run] = {}
    numbers = NumbersRead()
    backend = load_backend(name)

    def call_once(rules: Cut, args: Any, kwargs: Any) -> Any:
        moving = numbers.arguments()
        key = fixed(rules, epoch(), moving) + (word := numbers.held_text())
        run = compiled.get(key)
        if run is None:
            # Code that holds numbers as constants is soon useless: the oldest goes first.
            if word and len(compiled) >= MOST_HELD:
                compiled.pop(next(iter(compiled)), None)
            run = compiled[key] = make(rules, moving, word)
        result, applied = run.call(rules, args, kwargs)
        advance(rules, applied)
        if run.met or run.held:  # this trace has numbers as they were: the next one takes them
            numbers.add(run.met, run.held)
            run.held.clear()
            if run.met or numbers.held_text() != word:
                compiled.pop(key, None)
            if on_hold is not None and numbers.held_text() != word:
                on_hold()
        return result

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        present = all_at_present(CURRENT.get(), backend)
        return call_cut(present, functools.partial(call_once, args=args, kwargs=kwargs))

    return call


def key_by_rules(
    fn: Call,
    name: str,
    compile: Callable[[Call], Call],
    as_number: Callable[[Any], Any],
    as_key: Callable[[Any], Any],
) -> Call:
    """Return a function that is compiled once for each rule.

    Args:
        fn: the function.
        name: the backend's.
        compile: the framework's compiler, of `run(hidden, args, kwargs) -> (result, applied)`,
            where `applied` are two numbers that its trace counted.
        as_number: a number as the compiler takes arguments.
        as_key: the same for a key.
    """
    backend = load_backend(name)

    class Keyed(Run):
        """One that hides its rule in trees of arrays."""

        def __init__(self, rules: Cut, moving: tuple[Moving, ...], word: str) -> None:
            super().__init__(fn, rules, moving, word)
            self.run = compile(self.traced)

        def traced(self, hidden: Any, args: Any, kwargs: Any) -> Any:
            values, keys, counts, numbers = hidden
            parts = zip(values, keys, counts, strict=True)
            first, second = (Hidden(tuple(v), k, c) for v, k, c in parts)
            result, applied = self.trace((first, second), numbers, args, kwargs)
            return result, list(applied)

        def call(self, rules: Cut, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
            parts = hide(rules)
            hidden = (
                [[as_number(value) for value in part.values] for part in parts],
                [None if part.key is None else as_key(part.key) for part in parts],
                [None if part.key is None else as_number(part.count) for part in parts],
                [as_number(number) for number in self.numbers(backend)],
            )
            with in_force(ActiveRules(token="xg.jit")):
                result, applied = self.run(hidden, args, kwargs)
            return result, (int(applied[0]), int(applied[1]))

    return key_runs(fn, name, Keyed)
