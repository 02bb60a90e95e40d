"""`xg.jit` on JAX: `jax.jit`, keyed by the rule in force, whose numbers are arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.context import CURRENT, ActiveRules
from multigrad.core.support.threads import SERIALS, set_within
from multigrad.core.trace.trace import setting
from multigrad.engine.rules import jit as compilers

from .core.attach.render import key_words
from .core.compile import (
    ENTERED,
    EPOCH,
    FRAME,
    MOVED,
    SHOWN,
    EnteredUse,
    on_read,
    on_replace,
    value_of,
)


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return jax.jit(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    make = functools.partial(_CompiledByJax, fn, options)
    return compilers.key_runs(fn, "jax", make, lambda: EPOCH.value, on_hold=on_replace)


class _CompiledByJax(compilers.Run):
    def __init__(
        self, fn: Callable[..., Any], options: dict[str, Any], rules: Any, moving: Any, word: str
    ) -> None:
        super().__init__(fn, rules, moving, word)

        def run(*args: Any, multigrad_hidden: Any, **kwargs: Any) -> Any:
            result, applied = self.trace(multigrad_hidden, args, kwargs)
            return _ResultAndCount(result, _ApplicationCount(applied))

        run.__signature__ = _signature_with_hidden(fn)  # type: ignore[attr-defined]
        if "out_shardings" in options:
            no_count = _ApplicationCount((0, 0))
            # the user's shardings are for the result alone; the count has none
            options = {
                **options,
                "out_shardings": _ResultAndCount(options["out_shardings"], no_count),
            }
        self.run = jax.jit(run, **options)

    @contextmanager
    def in_force(self, active: ActiveRules) -> Iterator[None]:
        value = value_of(active.token)
        entries = (*ENTERED.get(), EnteredUse(next(SERIALS), active.token, value))
        with (
            set_within(ENTERED, entries),
            set_within(CURRENT, active),
            setting(SHOWN, token=active.token),
            FRAME(value),  # on exit jax restores the one around it
        ):
            yield

    def call(self, rules: Any, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        hidden = self.hidden(rules, load_backend("jax"), lambda number: number, key_words)
        on_read(None)  # a trace around this one may hold the hidden arguments as constants
        with FRAME("xg.jit"), MOVED(self.word):
            result_and_count = self.run(*args, multigrad_hidden=hidden, **kwargs)
        return result_and_count.result, result_and_count.applied


class _ApplicationCount(tuple[int, int]):
    """The number of applications in a run; equal to any other, as it is no part of cache keys."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ApplicationCount)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_pytree_node_class
class _ResultAndCount:
    def __init__(self, result: Any, applied: _ApplicationCount) -> None:
        self.result = result
        self.applied = applied

    def tree_flatten(self) -> tuple[tuple[Any], _ApplicationCount]:
        return (self.result,), self.applied

    @classmethod
    def tree_unflatten(cls, applied: _ApplicationCount, children: tuple[Any]) -> _ResultAndCount:
        return cls(children[0], applied)


def _signature_with_hidden(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of `run`, the user's with `multigrad_hidden` before any `**kwargs`."""
    try:
        # jax finds static arguments by the signature, which must show the hidden one
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
        parameters = [inspect.Parameter(name, kind) for name, kind in kinds.items()]
    end = len(parameters) - any(p.kind is p.VAR_KEYWORD for p in parameters)
    hidden = inspect.Parameter("multigrad_hidden", inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature([*parameters[:end], hidden, *parameters[end:]])
