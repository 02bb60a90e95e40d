"""tf.function: a call-time guard in every traced graph, and `xg.jit`.

A tf.function's cache cannot be keyed from outside, so each graph in which an activation is traced captures a check: at
every call it compares the rule in force outside of the graph with that of its trace, and raises.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core.converter import ConversionOptions
from tensorflow.python.saved_model import save_context

from multigrad import registry
from multigrad.activation import Activation
from multigrad.context import CURRENT, Application, Frame
from multigrad.errors import StaleTraceError
from multigrad.rule import Spec

from . import random

Tensor = Any
Entry = tuple[str, Any]  # a frame's token, and the graph in which its `use` was entered (None: eagerly)
ENTRIES: contextvars.ContextVar[tuple[Entry, ...]] = contextvars.ContextVar(
    "multigrad_tensorflow_entries", default=()
)
GUARD = "multigrad_rule_in_force"


@contextmanager
def mirror(token: str) -> Iterator[None]:
    """Note in which graph a frame was entered: inside its own graph it is part of the trace."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    reset = ENTRIES.set((*ENTRIES.get(), (token, graph)))
    try:
        yield
    finally:
        ENTRIES.reset(reset)


def guard(x: Tensor, activation: Activation) -> None:
    """Capture the check in the graph being traced, and in the graphs around it, once each.

    Raises:
        StaleTraceError: the rule was put in force before TensorFlow was imported.
    """
    if tf.executing_eagerly() or save_context.in_save_context():
        return
    entries = ENTRIES.get()
    if (entries[-1][0] if entries else "") != CURRENT.get().token:
        raise StaleTraceError(
            "a tf.function is traced under a rule that was put in force before TensorFlow was "
            "imported: import tensorflow before `with xg.use(...)`"
        )
    graph = tf.compat.v1.get_default_graph()
    chain = []
    while graph is not None and hasattr(graph, "capture_call_time_value"):
        chain.append(graph)
        graph = graph.outer_graph
    for position, graph in enumerate(chain):
        if not hasattr(graph, GUARD):
            inner = chain[: position + 1]
            outside = [token for token, where in entries if not any(where is g for g in inner)]
            expected = outside[-1] if outside else ""
            setattr(graph, GUARD, expected)
            check = functools.partial(check_token, expected, registry.epoch(), graph.name)
            graph.capture_call_time_value(check, tf.TensorSpec([0]), key=f"{GUARD} {id(graph)}")


def check_token(expected: str, epoch: int, name: str) -> Tensor:
    """Raise where another rule is in force than when the graph was traced."""
    found = CURRENT.get().token
    if found != expected or registry.epoch() != epoch:
        raise StaleTraceError(
            f"tf.function {name!r} was traced under {describe(expected)}, now "
            f"{describe(found)} is in force{'' if epoch == registry.epoch() else ' (redefined)'}. "
            f"Compile with xg.jit(fn), which retraces, or put `with xg.use(...)` inside the function"
        )
    return tf.zeros([0])


def describe(token: str) -> str:
    """Return a frame's token as words."""
    return f"the rule {token!r}" if token else "no rule"


# --- xg.jit ------------------------------------------------------------------------------------------


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return tf.function(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    compiled: dict[str, _Compiled] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = CURRENT.get()
        structure = " | ".join(_structure(app) for app in (frame.activations, frame.params))
        structure += f"~{registry.epoch()}"
        if structure not in compiled:
            compiled[structure] = _Compiled(fn, options, frame)
        return compiled[structure](frame, args, kwargs)

    return call


def _structure(application: Application | None) -> str:
    """Return what of a rule in force is fixed in compiled code."""
    if application is None:
        return "-"
    return f"{application.spec.family.id}{'' if application.key is None else '@'}"


class _Compiled:
    """tf.function of the function under one rule; lives as long as the function it compiles."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any], frame: Frame) -> None:
        self.applied = [0, 0]  # rule applications in one run, counted while tracing
        converted = _convert(fn) if options.get("autograph", True) else fn

        def run(hidden: Any, args: Any, kwargs: Any) -> Any:
            applications = (frame.activations, frame.params)
            counters = [_Counter(numbers) for numbers in hidden]
            inner = [
                _traced(app, numbers, counter)
                for app, numbers, counter in zip(applications, hidden, counters, strict=True)
            ]
            with _in_force(Frame(*inner, token="<traced>")):
                result = converted(*args, **kwargs)
            self.applied = [counter.count for counter in counters]
            return result

        self.run = tf.function(run, **{**options, "autograph": False})

    def __call__(self, frame: Frame, args: Any, kwargs: Any) -> Any:
        applications = (frame.activations, frame.params)
        hidden = tuple(_hidden(app) for app in applications)
        with _in_force(Frame(token="xg.jit")):
            result = self.run(hidden, args, kwargs)
        for app, applied in zip(applications, self.applied, strict=True):
            if app is not None and app.counter is not None:
                app.counter.advance(applied)
        return result


def _convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let AutoGraph see the user's function, and nothing of ours around it."""
    status = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, ConversionOptions(recursive=True))
    return tf.__internal__.autograph.tf_convert(fn, status)


def _hidden(application: Application | None) -> Any:
    """Return a rule's numbers as tensors: params, key words, the number of the next application."""
    if application is None:
        return None
    values = tuple(
        tf.constant(value, tf.float64) if isinstance(value, float) else value
        for value in application.spec.values
    )
    if application.key is None:
        return values, None, None
    start = tf.constant(application.counter.count, tf.uint32)
    return values, random.key_words(application.key), start


class _Counter:
    """Counts applications from a number known at run time."""

    def __init__(self, hidden: Any) -> None:
        self.start = None if hidden is None else hidden[2]
        self.count = 0

    def __next__(self) -> Any:
        n, self.count = self.count, self.count + 1
        return self.start + n

    def advance(self, number: int) -> None:
        self.count += number


def _traced(application: Application | None, hidden: Any, counter: _Counter) -> Application | None:
    """Return the rule in force with numbers known at run time."""
    if application is None:
        return None
    values, key, _ = hidden
    spec = Spec(application.spec.family, values, "<traced>")
    return Application(spec, key, None if key is None else counter)


@contextmanager
def _in_force(frame: Frame) -> Iterator[None]:
    with mirror(frame.token):
        reset = CURRENT.set(frame)
        try:
            yield
        finally:
            CURRENT.reset(reset)
