"""What the layer must know about the trace it is called in.

Keras calls a model symbolically, to learn shapes, before it is trained, and it compiles `evaluate`
and `predict` beside the train step. No gradient is taken in either, so no rule acts there, and none
may go stale.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

# Keras (3.15) has no public name for it.
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from ..backend.contract import Backend
from ..backend.finding.discovery import load_backend
from ..errors import GradientError, StaleTraceError, UnsupportedOp
from .stack import is_within, running

Tensor = Any
__all__ = [
    "BACKEND",
    "HOST",
    "in_symbolic_scope",
    "is_exporting",
    "is_inference_trace",
    "opaque",
    "refuse_scan",
    "refuse_xla",
    "run_inference",
]
BACKEND: str = keras.config.backend()  # Keras fixes it when it is imported
HOST: Backend = load_backend(BACKEND)
EXPORTERS = ("keras.src.export", "tensorflow.python.saved_model")
INFERENCE_STEPS = ("test_step", "predict_step")


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of a function, which it cannot follow."""
    return function if HOST.compiler.opaque is None else HOST.compiler.opaque(function)


def is_inference_trace() -> bool:
    """Return whether `evaluate` or `predict` is being traced by TensorFlow.

    Its trace would be bound to the rule in force although no gradient is taken. jax and torch
    retrace by themselves.
    """
    if BACKEND != "tensorflow":
        return False
    import tensorflow as tf

    if tf.executing_eagerly() or is_tape_active():
        return False
    # No argument would tell: `training=False` is also what users pass in functions of their own.
    return any(frame.f_code.co_name in INFERENCE_STEPS for _, frame in running(*INFERENCE_STEPS))


def is_tape_active() -> bool:
    """Return whether a GradientTape records: a step of the user's own may take gradients."""
    from tensorflow.python.eager import record

    return record.could_possibly_record()


def is_exporting(x: Tensor) -> bool:
    """Return whether a model is being exported: what is written must run where multigrad is not."""
    if HOST.compiler.is_exporting is not None:
        return HOST.compiler.is_exporting()
    return HOST.tensors.is_traced(x) and is_within(EXPORTERS)


def refuse_xla(layer: Any) -> None:
    """Raise where a model that is being built asks XLA to compile a layer that runs in another
    framework.

    Keras (3.15) itself would warn, and compile nothing in the whole model.

    Raises:
        UnsupportedOp: Keras runs on TensorFlow, whose XLA cannot call another framework.
    """
    if layer.supports_jit:
        return
    if any(asks_for_xla(model) for model, _ in running()):
        raise UnsupportedOp(
            f"layer {layer.name!r} runs in {layer.backend!r}, which TensorFlow's XLA cannot call: "
            "compile the model with jit_compile=False (or 'auto'), or give the layer backend=None"
        )


def asks_for_xla(model: Any) -> bool:
    """Return whether a model was compiled with `jit_compile=True`."""
    # What `compile` was given: `model.jit_compile` is what became of it, and `get_compile_config`
    # reads all Variables.
    compiled = getattr(model, "_compile_config", None)
    return compiled is not None and compiled.config.get("jit_compile") is True


def refuse_scan(what: str) -> None:
    """Raise where a recurrent layer scans on jax: a draw would take the generator's state out of
    the loop.

    Raises:
        GradientError: it does.
    """
    if is_within("keras.src.backend.jax.rnn", "_step"):
        raise GradientError(
            f"{what} draws random numbers in a recurrent layer, whose steps jax runs as a loop in "
            "which no generator can go on: give the recurrent layer unroll=True"
        )


def run_inference(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a forward of x in a trace that refuses gradients, because it knows no rule."""
    import tensorflow as tf

    @tf.custom_gradient
    def function(tin: Tensor) -> tuple[Tensor, Any]:
        return run(tin), refuse_gradient

    return function(x)


def refuse_gradient(grad_out: Tensor) -> Tensor:
    """Raise: the trace was made for `evaluate` or `predict`."""
    raise StaleTraceError(
        "a gradient is taken through a test_step or predict_step that was traced without a "
        "GradientTape, so under no rule: take it inside the step, or call the model itself"
    )
