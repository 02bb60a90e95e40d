"""jax.jit: the frame's mirror as a user context, which keys the jit cache, and `xg.jit`.

Another rule retraces once; coming back is a cache hit. The user context is per thread, so a name that changes its
meaning (`override=True`) is mirrored to a second, global one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax

from multigrad import registry
from multigrad.activation import Activation
from multigrad.context import CURRENT, Frame
from multigrad.errors import StaleTraceError
from multigrad.jit import Cut, Hidden, advance, call_cut, count_applied, fixed, hide, reveal

from . import random

Tensor: TypeAlias = Any
FRAME = jax.make_user_context("")
EPOCH = jax.make_user_context("0")
_renewals = itertools.count(1)


@contextmanager
def mirror(token: str) -> Iterator[None]:
    """Key jax's caches by a frame's token."""
    FRAME(token).__enter__()
    try:
        yield
    finally:
        # From the ContextVar, not from a saved value: asyncio tasks interleave.
        FRAME(CURRENT.get().token).__enter__()


def refresh(epoch: int) -> None:
    """Invalidate compiled code on all threads: a name changed its meaning."""
    EPOCH.set_global(str(epoch))


def renew() -> None:
    """Invalidate compiled code on all threads: something that it holds as fixed was changed."""
    EPOCH.set_global(f"{registry.epoch()}.{next(_renewals)}")


def guard(x: Tensor, activation: Activation | None = None) -> None:
    """Raise where jax would keep a trace for another frame than the one in force.

    Raises:
        StaleTraceError: `use` was entered before jax was imported, or in another task or thread.
    """
    if isinstance(x, jax.core.Tracer) and FRAME.value != CURRENT.get().token and is_kept(x):
        raise StaleTraceError(
            f"a jax trace under {CURRENT.get().token!r} would be kept for {FRAME.value!r}: the rule "
            f"was put in force before jax was imported, or by another asyncio task or thread. "
            f"Import jax first, or compile with xg.jit"
        )


def is_kept(x: Tensor) -> bool:
    """Return whether a tracer belongs to a trace that makes a jaxpr, as those of an eager `grad` do not."""
    trace = x._trace
    while trace is not None:
        if type(trace).__name__ == "DynamicJaxprTrace":
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


# --- xg.jit ------------------------------------------------------------------------------------------


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return jax.jit(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    compiled: dict[str, _Compiled] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        def call_once(rules: Cut) -> Any:
            key = fixed(rules, EPOCH.value)
            if key not in compiled:
                compiled[key] = _Compiled(fn, options, rules)
            return compiled[key](rules, args, kwargs)

        return call_cut(CURRENT.get(), call_once)

    return call


class _Compiled:
    """jax.jit of the function under one rule; lives as long as the function it compiles."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any], rules: Cut) -> None:
        def run(*args: Any, multigrad_hidden: Any, **kwargs: Any) -> Any:
            first, second = (Hidden(*leaves) for leaves in multigrad_hidden)
            frame = reveal(rules, (first, second))
            with _in_force(frame):
                result = fn(*args, **kwargs)
            return _Counted(result, _Applied(count_applied(frame)))

        run.__signature__ = _add_hidden(fn)  # type: ignore[attr-defined]
        if "out_shardings" in options:
            nothing = _Applied((0, 0))
            options = {**options, "out_shardings": _Counted(options["out_shardings"], nothing)}
        self.run = jax.jit(run, **options)

    def __call__(self, rules: Cut, args: Any, kwargs: Any) -> Any:
        hidden = tuple(_as_leaves(h) for h in hide(rules))
        with FRAME("xg.jit"):
            counted = self.run(*args, multigrad_hidden=hidden, **kwargs)
        advance(rules, counted.applied)
        return counted.result


class _Applied(tuple[int, int]):
    """How many applications a run makes; equal to any other, so that it takes no part in cache keys."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Applied)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_pytree_node_class
class _Counted:
    """A result, and what its trace counted: a number that belongs to the trace, not to the run."""

    def __init__(self, result: Any, applied: _Applied) -> None:
        self.result = result
        self.applied = applied

    def tree_flatten(self) -> tuple[tuple[Any], _Applied]:
        return (self.result,), self.applied

    @classmethod
    def tree_unflatten(cls, applied: _Applied, children: tuple[Any]) -> _Counted:
        return cls(children[0], applied)


def _add_hidden(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature by which jax finds static arguments, with the hidden one at its place."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
        parameters = [inspect.Parameter(name, kind) for name, kind in kinds.items()]
    end = len(parameters) - any(p.kind is p.VAR_KEYWORD for p in parameters)
    hidden = inspect.Parameter("multigrad_hidden", inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature([*parameters[:end], hidden, *parameters[end:]])


def _as_leaves(hidden: Hidden) -> tuple[Any, Any, Any]:
    """Return the numbers, the key as an array and the count."""
    key = None if hidden.key is None else random.key_words(hidden.key)
    return hidden.values, key, hidden.count


@contextmanager
def _in_force(frame: Frame) -> Iterator[None]:
    with FRAME(frame.token):
        reset = CURRENT.set(frame)
        try:
            yield
        finally:
            CURRENT.reset(reset)
