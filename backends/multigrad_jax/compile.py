"""jax.jit: the frame's mirror as a user context, which keys the jit cache, and `xg.jit`.

Another rule retraces once; coming back is a cache hit. The user context is per thread, so a name that changes its
meaning (`override=True`) is mirrored to a second, global one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax

from multigrad.activation import Activation
from multigrad.context import CURRENT, Application, Frame
from multigrad.errors import StaleTraceError
from multigrad.rule import Spec

from . import random

Tensor = Any
FRAME = jax.make_user_context("")
EPOCH = jax.make_user_context("0")
_serial = itertools.count()


def mirror(token: str) -> AbstractContextManager[Any]:
    """Key jax's caches by a frame's token."""
    return FRAME(token)


def refresh(epoch: int) -> None:
    """Invalidate compiled code on all threads: a name changed its meaning."""
    EPOCH.set_global(str(epoch))


def guard(x: Tensor, activation: Activation) -> None:
    """Raise where a trace is being made under a frame that keys no cache.

    Raises:
        StaleTraceError: `use` was entered before jax was imported, or in another task.
    """
    if isinstance(x, jax.core.Tracer) and FRAME.value != CURRENT.get().token:
        raise StaleTraceError(
            f"a jax trace under {CURRENT.get().token!r} would be kept for {FRAME.value!r}: the rule "
            f"was put in force before jax was imported, or by another asyncio task. "
            f"Import jax first, or compile with xg.jit"
        )


# --- xg.jit ------------------------------------------------------------------------------------------


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return jax.jit(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    compiled: dict[str, _Compiled] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = CURRENT.get()
        structure = " | ".join(_structure(app) for app in (frame.activations, frame.params))
        structure += f"~{EPOCH.value}"
        if structure not in compiled:
            compiled[structure] = _Compiled(fn, options, frame)
        with FRAME("xg.jit"):
            return compiled[structure](frame, args, kwargs)

    return call


def _structure(application: Application | None) -> str:
    """Return what of a rule in force is fixed in compiled code."""
    if application is None:
        return "-"
    traced = any(isinstance(v, jax.core.Tracer) for v in application.spec.values)
    serial = f"<{next(_serial)}>" if traced else ""
    return f"{application.spec.family.id}{'' if application.key is None else '@'}{serial}"


class _Compiled:
    """jax.jit of the function under one rule; lives as long as the function it compiles."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any], frame: Frame) -> None:
        self.applied = [0, 0]  # rule applications in one run, counted while tracing

        def run(*args: Any, multigrad_hidden: Any, **kwargs: Any) -> Any:
            pairs = zip((frame.activations, frame.params), multigrad_hidden, strict=True)
            counters = [_Counter(hidden) for hidden in multigrad_hidden]
            inner = [
                _traced(app, hidden, counter)
                for (app, hidden), counter in zip(pairs, counters, strict=True)
            ]
            with _in_force(Frame(*inner, token=f"<traced {next(_serial)}>")):
                result = fn(*args, **kwargs)
            self.applied = [counter.count for counter in counters]
            return result

        self.run = jax.jit(run, **options)

    def __call__(self, frame: Frame, args: Any, kwargs: Any) -> Any:
        applications = (frame.activations, frame.params)
        hidden = tuple(_hidden(app) for app in applications)
        result = self.run(*args, multigrad_hidden=hidden, **kwargs)
        for app, applied in zip(applications, self.applied, strict=True):
            if app is not None and app.counter is not None:
                app.counter.advance(applied)
        return result


def _hidden(application: Application | None) -> Any:
    """Return a rule's numbers: the params, and the key with the number of the next application."""
    if application is None:
        return None
    if application.key is None:
        return application.spec.values, None, None
    assert application.counter is not None
    return application.spec.values, random.key_words(application.key), application.counter.count


class _Counter:
    """Counts applications from a traced number on."""

    def __init__(self, hidden: Any) -> None:
        self.start = None if hidden is None else hidden[2]
        self.count = 0

    def __next__(self) -> Any:
        n, self.count = self.count, self.count + 1
        return self.start + n

    def advance(self, count: int) -> None:
        self.count += count


def _traced(application: Application | None, hidden: Any, counter: _Counter) -> Application | None:
    """Return the rule in force with its numbers traced."""
    if application is None:
        return None
    values, key, _ = hidden
    spec = Spec(application.spec.family, values, f"<traced {next(_serial)}>")
    return Application(spec, key, None if key is None else counter)


@contextmanager
def _in_force(frame: Frame) -> Iterator[None]:
    with FRAME(frame.token):
        reset = CURRENT.set(frame)
        try:
            yield
        finally:
            CURRENT.reset(reset)


