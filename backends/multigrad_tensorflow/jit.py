"""`xg.jit` on TensorFlow: `tf.function`, keyed by the rule in force; its numbers are arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core.converter import ConversionOptions

from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.context import ActiveRules
from multigrad.engine.rules import jit as compilers

from .core.compile import on_read
from .kernels import random

Tensor: TypeAlias = tf.Tensor


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return tf.function(fn), keyed by the rule in force, whose numbers are run-time arguments."""
    keyed_call = compilers.key_runs(
        fn, "tensorflow", functools.partial(_CompiledByTensorflow, fn, options)
    )

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        on_read(None)  # in a graph around this one the hidden arguments are constants
        on_read(None, None, "params")
        return keyed_call(*args, **kwargs)

    return call


class _CompiledByTensorflow(compilers.Run):
    def __init__(
        self, fn: Callable[..., Any], options: dict[str, Any], rules: Any, moving: Any, word: str
    ) -> None:
        options = dict(options)
        converted_function = fn
        if options.pop("autograph", True):  # AutoGraph sees the user's function, and not ours
            status = ag_ctx.ControlStatusCtx(
                ag_ctx.Status.ENABLED, ConversionOptions(recursive=True)
            )
            converted_function = tf.__internal__.autograph.tf_convert(fn, status)
        super().__init__(converted_function, rules, moving, word)
        self.applied = (0, 0)  # set by each trace
        if options.get("input_signature") is not None:
            specs = tf.nest.map_structure(_spec_of, self.tensors(rules))
            # the hidden numbers come first, so the user's signature is extended
            options["input_signature"] = (specs, tuple(options["input_signature"]), {})

        def run(hidden: Any, args: Any, kwargs: Any) -> Any:
            result, self.applied = self.trace(hidden, args, kwargs)
            return result, tf.constant(self.applied) if any(self.applied) else None

        self.run = tf.function(run, autograph=False, **options)

    def tensors(self, rules: Any) -> Any:
        return self.hidden(rules, load_backend("tensorflow"), _as_number, random.key_words)

    def call(self, rules: Any, args: Any, kwargs: Any) -> tuple[Any, tuple[int, int]]:
        hidden = self.tensors(rules)
        with self.in_force(ActiveRules(token="xg.jit")):
            result, applied = self.run(hidden, args, kwargs)
        if applied is None:
            return result, (0, 0)
        # In an outer graph the number is symbolic, but there the last trace is this call's.
        first, second = applied.numpy().tolist() if tf.executing_eagerly() else self.applied
        return result, (first, second)


def _spec_of(tensor: Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _as_number(value: Any) -> Tensor:
    if isinstance(value, float):
        # faster than a conversion
        return tf.constant(value, tf.float64)
    return tf.convert_to_tensor(value)
