"""What the layer must know about the trace it is called in.

Keras calls a model symbolically, to learn shapes, before it is trained, and it compiles `evaluate`
and `predict` beside the train step. No gradient is taken in either, so no rule acts there, and none
may go stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import keras

# Keras (3.15) has no public name for it.
from keras.src.backend.common import symbolic_scope

from ..backend.contract import Backend
from ..backend.finding.discovery import load_backend
from ..errors import GradientError, StaleTraceError, UnsupportedOp

Tensor = Any
in_symbolic_scope = symbolic_scope.in_symbolic_scope
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

    if tf.executing_eagerly():
        return False
    from tensorflow.python.eager import record

    if record.could_possibly_record():  # a step of the user's own, which may take gradients
        return False
    # No argument would tell: `training=False` is also what users pass in functions of their own.
    return any(frame.f_code.co_name in INFERENCE_STEPS for _, frame in running(*INFERENCE_STEPS))


def is_exporting(x: Tensor) -> bool:
    """Return whether a model is being exported: what is written must run where multigrad is not."""
    if HOST.compiler.is_exporting is not None:
        return HOST.compiler.is_exporting()
    return HOST.tensors.is_traced(x) and is_within(EXPORTERS)


def refuse_xla(layer: Any) -> None:
    """Raise where a model that is being built asks XLA to compile a layer that runs in another
    framework.

    Keras (3.15) itself would warn, and compile nothing in the whole model.
    """
    if layer.supports_jit:
        return
    if any(asks_for_xla(model) for model, _ in running()):
        raise UnsupportedOp(
            f"layer {layer.name!r} runs in {layer.backend!r}, which TensorFlow's XLA cannot call: "
            "compile the model with jit_compile=False (or 'auto'), or give the layer backend=None"
        )


def asks_for_xla(model: Any) -> bool:
    # What `compile` was given: `model.jit_compile` is what became of it, and `get_compile_config`
    # reads all Variables.
    compiled = getattr(model, "_compile_config", None)
    return compiled is not None and compiled.config.get("jit_compile") is True


def refuse_scan(what: str) -> None:
    """Raise where a recurrent layer scans on jax, which would leak the generator's state."""
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
    raise StaleTraceError(
        "a gradient is taken through a test_step or predict_step that was traced without a "
        "GradientTape, so under no rule: take it inside the step, or call the model itself"
    )


# --- who called -----------------------------------------------------------------------------------
# Keras (3.15) hands a layer neither the step nor the model nor the loop that it is called in. So
# these are looked for on the stack, where a compiler traces or an error passes: not in a compiled
# step.
def around() -> Iterator[FrameType]:
    """Yield the frames of what runs around a call, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def running(*endings: str) -> Iterator[tuple[Any, FrameType]]:
    """Yield the models with such a method running around a call, and the methods' frames."""
    for frame in around():
        if frame.f_code.co_name.endswith(endings or ("",)):
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model):
                yield model, frame


def find_state(model: Any) -> tuple[Any, ...]:
    """Return the state that a model's `fit` on jax, around this call, has taken; else ()."""
    for frame in around():
        if frame.f_code.co_name == "fit":
            names = frame.f_locals
            if names.get("self") is model and "state" in names:
                return names["state"]
    return ()


def put_first(callback: Any) -> None:
    """Put a callback before the others of the `fit` that begins around this call."""
    for frame in around():
        group: Any = frame.f_locals.get("self")
        if isinstance(group, keras.callbacks.CallbackList):
            # Those that have begun stay so: the loop over the list is past them.
            if callback in group.callbacks:
                group.callbacks.remove(callback)
                group.callbacks.insert(0, callback)
            return


def is_within(module: str | tuple[str, ...], function: str = "") -> bool:
    """Return whether code of such a module, or that function of it, runs around a call."""
    return any(
        frame.f_globals.get("__name__", "").startswith(module)
        and function in ("", frame.f_code.co_name)
        for frame in around()
    )
