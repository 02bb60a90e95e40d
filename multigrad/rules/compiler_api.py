"""The parts of `xg.jit` for authors of backends: `from multigrad.backend import compilers`.

`key_by_rules` is all of it for a framework whose compiler takes a function of trees of arrays and
gives one: code is kept by the rules in force, and their numbers are arguments. `key_runs` keeps the
code of a compiler that needs more, which a class of `Run` compiles. Where a compiler reads Python
code, the classes are those whose calls it is to leave alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ..backend.compiler_events import enter_rules, leave_rules
from ..backend.contract import Backend
from ..backend.discovery import load_backend
from ..functions.function import Function
from ..trace.lookups import MOST_HELD, Met, all_at_present, read, revealing
from ..trace.moving_numbers import Moving
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
        with self.in_force(active), revealing(self.moving, numbers) as revealed:
            result = self.fn(*args, **kwargs)
        self.met += revealed.met
        self.held += revealed.held
        return result, count_applied(active)

    def numbers(self, backend: Backend) -> list[Any]:
        return [read(each, backend) for each in self.moving]

    def call(self, rules: Cut, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        """Return the result for arguments, and how often each rule was applied."""
        raise NotImplementedError


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
    met = Met()
    backend = load_backend(name)

    def call_once(rules: Cut, args: Any, kwargs: Any) -> Any:
        moving = met.now()
        key = fixed(rules, epoch(), moving) + (word := met.word())
        run = compiled.get(key)
        if run is None:
            # Code that holds numbers as constants is soon useless: the oldest goes first.
            if word and len(compiled) >= MOST_HELD:
                compiled.pop(next(iter(compiled)), None)
            run = compiled[key] = make(rules, moving, word)
        result, applied = run.call(rules, args, kwargs)
        advance(rules, applied)
        if run.met or run.held:  # this trace has numbers as they were: the next one takes them
            met.add(run.met, run.held)
            run.held.clear()
            if run.met or met.word() != word:
                compiled.pop(key, None)
            if on_hold is not None and met.word() != word:
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
