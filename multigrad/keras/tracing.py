"""The trace that a layer is called in: symbolic, inference, export, and the frames around it.

Keras calls a model symbolically, for shapes, before it is trained, and compiles `evaluate` and
`predict` besides the train step. Neither takes a gradient, so no rule acts there, and nothing may
go stale.
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
from ..backend.discovery import load_backend
from ..errors import GradientError, StaleTraceError, UnsupportedOp

Tensor = Any
in_symbolic_scope = symbolic_scope.in_symbolic_scope
BACKEND: str = keras.config.backend()  # Keras fixes it at import
HOST: Backend = load_backend(BACKEND)
EXPORTERS = ("keras.src.export", "tensorflow.python.saved_model")
INFERENCE_STEPS = ("test_step", "predict_step")


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of a function that it cannot follow."""
    return function if HOST.compiler.opaque is None else HOST.compiler.opaque(function)


def is_inference_trace() -> bool:
    """Return whether TensorFlow is tracing `evaluate` or `predict`.

    Such a trace would be bound to the rule in force although no gradient is taken. jax and torch
    retrace by themselves.
    """
    if BACKEND != "tensorflow":
        return False
    import tensorflow as tf

    if tf.executing_eagerly():
        return False
    from tensorflow.python.eager import record

    if record.could_possibly_record():  # a user's own step, which may take gradients
        return False
    # By the stack, as no argument tells: users pass `training=False` in their own functions too.
    return any(frame.f_code.co_name in INFERENCE_STEPS for _, frame in running(*INFERENCE_STEPS))


def is_exporting(x: Tensor) -> bool:
    """Return whether a model is being exported, to a file that must run without multigrad."""
    if HOST.compiler.is_exporting is not None:
        return HOST.compiler.is_exporting()
    return HOST.tensors.is_traced(x) and is_within(EXPORTERS)


def refuse_xla(layer: Any) -> None:
    if layer.supports_jit:
        return
    # Keras (3.15) itself would warn, and then compile nothing of the whole model
    if any(asks_for_xla(model) for model, _ in running()):
        raise UnsupportedOp(
            f"layer {layer.name!r} runs in {layer.backend!r}, which TensorFlow's XLA cannot call: "
            "compile the model with jit_compile=False (or 'auto'), or give the layer backend=None"
        )


def asks_for_xla(model: Any) -> bool:
    # The user's own argument: `model.jit_compile` is resolved from it, and `get_compile_config`
    # reads all Variables.
    compiled = getattr(model, "_compile_config", None)
    return compiled is not None and compiled.config.get("jit_compile") is True


def refuse_scan(what: str) -> None:
    """Raise if a recurrent layer scans on jax, which would leak the generator's state."""
    if is_within("keras.src.backend.jax.rnn", "_step"):
        raise GradientError(
            f"{what} draws random numbers in a recurrent layer, whose steps jax runs as a loop in "
            "which no generator can go on: give the recurrent layer unroll=True"
        )


def run_inference(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a forward of x in a trace that refuses gradients, as it knows no rule."""
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


# --- the stack around a call ----------------------------------------------------------------------
# Keras (3.15) does not tell a layer its step, model or loop. So they are found on the stack, only
# while a compiler traces or an error passes: a compiled step does none of this.
def around() -> Iterator[FrameType]:
    """Yield the frames around a call, the innermost first."""
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
    """Return the state that a model's running `fit` on jax has taken, else ()."""
    for frame in around():
        if frame.f_code.co_name == "fit":
            names = frame.f_locals
            if names.get("self") is model and "state" in names:
                return names["state"]
    return ()


def put_first(callback: Any) -> None:
    """Put a callback first in the `fit` that begins around this call."""
    for frame in around():
        group: Any = frame.f_locals.get("self")
        if isinstance(group, keras.callbacks.CallbackList):
            # The loop over the list goes on by position, past callbacks that have begun.
            if callback in group.callbacks:
                group.callbacks.remove(callback)
                group.callbacks.insert(0, callback)
            return


def is_within(module: str | tuple[str, ...], function: str = "") -> bool:
    """Return whether code of these modules, or a function of theirs, runs around a call."""
    return any(
        frame.f_globals.get("__name__", "").startswith(module)
        and function in ("", frame.f_code.co_name)
        for frame in around()
    )
