"""What the layer must know about the trace it is called in.

Keras calls a model symbolically, to learn shapes, before it is trained, and it compiles `evaluate`
and `predict` beside the train step. No gradient is taken in either, so no rule acts there, and none
may go stale.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import sys
from typing import Any

import keras

# Keras (3.15) has no public name for it.
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from ..activation import plain
from ..errors import StaleTraceError
from ..forwards import Forward
from ..lowering.backend import backend_of

Tensor = Any
__all__ = ["BACKEND", "in_symbolic_scope", "is_inference_trace", "run_forward", "run_inference"]
BACKEND: str = keras.config.backend()  # Keras fixes it when it is imported
INFERENCE_STEPS = ("test_step", "predict_step")


def run_forward(forward: Forward, x: Tensor) -> Tensor:
    """Return the activation of x, with the framework's own derivative."""
    return plain(forward, backend_of(x))(x)


def is_inference_trace() -> bool:
    """Return whether `evaluate` or `predict` is being traced by TensorFlow.

    Its trace would be bound to the rule in force although no gradient is taken. jax and torch
    retrace by themselves.
    """
    import tensorflow as tf

    if tf.executing_eagerly() or is_tape_active():
        return False
    return is_inside_step(INFERENCE_STEPS)


def is_tape_active() -> bool:
    """Return whether a GradientTape records: a step of the user's own may take gradients."""
    from tensorflow.python.eager import record

    return record.could_possibly_record()


def is_inside_step(names: tuple[str, ...]) -> bool:
    """Return whether a method of a model of one of these names is running."""
    # No argument would tell: `training=False` is also what users pass in functions of their own.
    frame = sys._getframe(1)
    while frame is not None:
        is_step = frame.f_code.co_name in names
        if is_step and isinstance(frame.f_locals.get("self"), keras.Model):
            return True
        frame = frame.f_back
    return False


def run_inference(forward: Forward, x: Tensor) -> Tensor:
    """Return the activation of x in a trace that refuses gradients, because it knows no rule."""
    import tensorflow as tf

    @tf.custom_gradient
    def function(tin: Tensor) -> tuple[Tensor, Any]:
        return run_forward(forward, tin), refuse_gradient

    return function(x)


def refuse_gradient(grad_out: Tensor) -> Tensor:
    """Raise: the trace was made for `evaluate` or `predict`."""
    raise StaleTraceError(
        "a gradient is taken through a test_step or predict_step that was traced without a "
        "GradientTape, so under no rule: take it inside the step, or call the model itself"
    )
