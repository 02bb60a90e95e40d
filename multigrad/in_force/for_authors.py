"""What `xg.jit` is made of, for authors of backends: `from multigrad.backend import compilers`.

`key_by_rules` is all of it for a framework whose compiler takes a function of trees of arrays and
gives one: code is kept by the rules in force, and their numbers are arguments. Where a compiler
reads Python code, the classes are those whose calls it is to leave alone, and `FOLDER` has the code
that is none of a user's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import registry
from ..active.present import MOST_HELD, Met, all_at_present, read, revealing
from ..backend.discovery import load_backend
from ..backend.events import enter_rules, leave_rules
from ..context import CURRENT, ActiveRules
from ..functions.function import Function
from .activation import Activation
from .jit import Hidden, advance, call_cut, count_applied, fixed, hide, reveal

__all__ = ["CURRENT", "FOLDER", "Activation", "ActiveRules", "Function", "key_by_rules"]

FOLDER = Path(__file__).parents[1]


def key_by_rules(
    fn: Callable[..., Any],
    name: str,
    compile: Callable[[Callable[..., Any]], Callable[..., Any]],
    as_number: Callable[[Any], Any],
    as_key: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Return a function that is compiled once for each rule.

    Args:
        fn: the function.
        name: the backend's.
        compile: the framework's compiler, of `run(hidden, args, kwargs) -> (result, applied)`,
            where `applied` are two numbers that its trace counted.
        as_number: a number as the compiler takes arguments.
        as_key: the same for a key.
    """
    compiled: dict[str, Callable[..., Any]] = {}
    met = Met()
    backend = load_backend(name)

    def make(rules: Any, moving: Any) -> Callable[..., Any]:
        def traced(hidden: Any, args: Any, kwargs: Any) -> Any:
            values, keys, counts, numbers = hidden
            parts = zip(values, keys, counts, strict=True)
            first, second = (Hidden(tuple(v), k, c) for v, k, c in parts)
            active = reveal(rules, (first, second))
            with in_force(active), revealing(moving, numbers) as revealed:
                result = fn(*args, **kwargs)
            met.add(revealed.met, revealed.held)
            if revealed.met or revealed.held:
                compiled.clear()
            return result, list(count_applied(active))

        run = compile(traced)

        def call_once(now: Any, args: Any, kwargs: Any) -> Any:
            parts = hide(now)
            hidden = (
                [[as_number(value) for value in part.values] for part in parts],
                [None if part.key is None else as_key(part.key) for part in parts],
                [None if part.key is None else as_number(part.count) for part in parts],
                [as_number(read(each, backend)) for each in moving],
            )
            with in_force(ActiveRules(token="xg.jit")):
                result, applied = run(hidden, args, kwargs)
            advance(now, (int(applied[0]), int(applied[1])))
            return result

        return call_once

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        def call_cut_once(rules: Any) -> Any:
            moving = met.now()
            key = fixed(rules, registry.epoch(), moving) + met.word()
            run = compiled.get(key)
            if run is None:
                if len(compiled) >= MOST_HELD and met.word():
                    compiled.pop(next(iter(compiled)))
                run = compiled[key] = make(rules, moving)
            return run(rules, args, kwargs)

        return call_cut(all_at_present(CURRENT.get(), backend), call_cut_once)

    return call


@contextmanager
def in_force(active: ActiveRules) -> Iterator[None]:
    """Put rules in force for a trace."""
    leaves = enter_rules(active.token)
    reset = CURRENT.set(active)
    try:
        yield
    finally:
        CURRENT.reset(reset)
        leave_rules(leaves)
