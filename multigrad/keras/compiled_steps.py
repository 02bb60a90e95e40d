"""Traces and compiled steps of Keras models, and the Variables that a step takes with it.

In which trace a layer is called: Keras calls a model symbolically, for shapes, before it is
trained, and compiles `evaluate` and `predict` besides the train step. Neither takes a gradient, so
no rule acts there, and nothing may go stale.

Which steps to renew when a layer's rule or backend changes: torch.compile notices a change by its
guards and jax by a key of all its caches (`Compiler.on_replace`). TensorFlow's graphs can only be
made again, so a layer notes the models for which it was traced (`note_models`, then `renew_steps`);
a stale graph that is not made again raises StaleTraceError.

Where a Variable's value is: on jax a loop of Keras takes the values of its groups of Variables out
of the model, as `state`, and puts them back at its end. Meanwhile a Variable `is_taken`: a number
is put into the state (`assign_number`), and an error gives all values back (`keeping_weights`).
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any

import keras
import numpy as np

# Keras (3.15) has no public name for it.
from keras.src.backend.common import symbolic_scope

from ..core.backend.contract import Backend
from ..core.backend.discovery import load_backend
from ..errors import GradientError, StaleTraceError, UnsupportedOp

Tensor = Any
in_symbolic_scope = symbolic_scope.in_symbolic_scope
BACKEND: str = keras.config.backend()  # Keras fixes it at import
HOST: Backend = load_backend(BACKEND)
EXPORTERS = ("keras.src.export", "tensorflow.python.saved_model")
INFERENCE_STEPS = ("test_step", "predict_step")


# --- in which trace a layer is called -------------------------------------------------------------
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
    return any(
        frame.f_code.co_name in INFERENCE_STEPS for _, frame in running_methods(*INFERENCE_STEPS)
    )


def is_exporting(x: Tensor) -> bool:
    """Return whether a model is being exported, to a file that must run without multigrad."""
    if HOST.compiler.is_exporting is not None:
        return HOST.compiler.is_exporting()
    return HOST.tensors.is_traced(x) and is_within(EXPORTERS)


def refuse_xla(layer: Any) -> None:
    if layer.supports_jit:
        return
    # Keras (3.15) itself would warn, and then compile nothing of the whole model
    for model, _ in running_methods():
        # The user's own argument: `model.jit_compile` is resolved from it, and
        # `get_compile_config` reads all Variables.
        compiled = getattr(model, "_compile_config", None)
        if compiled is None or compiled.config.get("jit_compile") is not True:
            continue
        raise UnsupportedOp(
            f"layer {layer.name!r} runs in {layer.backend!r}, which TensorFlow's XLA cannot call: "
            "compile the model with jit_compile=False (or 'auto'), or give the layer backend=None"
        )


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

    def refuse_gradient(grad_out: Tensor) -> Tensor:
        raise StaleTraceError(
            "a gradient is taken through a test_step or predict_step that was traced without a "
            "GradientTape, so under no rule: take it inside the step, or call the model itself"
        )

    @tf.custom_gradient
    def function(tin: Tensor) -> tuple[Tensor, Any]:
        return run(tin), refuse_gradient

    return function(x)


# --- the stack around a call ----------------------------------------------------------------------
# Keras (3.15) does not tell a layer its step, model or loop. So they are found on the stack, only
# while a compiler traces or an error passes: a compiled step does none of this.
def frames_around() -> Iterator[FrameType]:
    return (frame for frame, _ in walk_stack(sys._getframe(1)))


def running_methods(*endings: str) -> Iterator[tuple[Any, FrameType]]:
    """Yield the models with such a method running around a call, and the methods' frames."""
    for frame in frames_around():
        if frame.f_code.co_name.endswith(endings or ("",)):
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model):
                yield model, frame


def put_callback_first(callback: Any) -> list[Any]:
    """Put a callback first in the `fit` that begins around this call, and return all of it."""
    for frame in frames_around():
        group: Any = frame.f_locals.get("self")
        if isinstance(group, keras.callbacks.CallbackList):
            # The loop over the list goes on by position, past callbacks that have begun.
            if callback in group.callbacks:
                group.callbacks.remove(callback)
                group.callbacks.insert(0, callback)
            return group.callbacks
    return []


def is_within(module: str | tuple[str, ...], function: str = "") -> bool:
    """Return whether code of these modules, or a function of theirs, runs around a call."""
    return any(
        frame.f_globals.get("__name__", "").startswith(module)
        and function in ("", frame.f_code.co_name)
        for frame in frames_around()
    )


# --- models whose steps are compiled --------------------------------------------------------------
STEPS = ("train", "test", "predict")
# Whether Keras's own steps hold traces, so that a layer must know the models that call it.
NOTES_MODELS = HOST.compiler.on_read is not None


def note_models(models: weakref.WeakSet[Any], x: Tensor) -> None:
    """Add the models whose steps are being traced around this call."""
    if HOST.tensors.is_traced(x):
        models.update(model for model, _ in running_methods("_step"))


def find_compiled(layers: Iterable[Any]) -> list[Any]:
    """Return all living models with compiled steps that hold one of these layers.

    Keras has no reference from a layer to the models made of it (a model of its features, a trainer
    around it), and a compiled step that is not renewed would be silently stale.
    """
    identities = {id(layer) for layer in layers}
    models = [each for each in gc.get_objects() if issubclass(type(each), keras.Model)]
    return [
        model
        for model in models
        if any(vars(model).get(f"{step}_function") is not None for step in STEPS)
        and any(id(layer) in identities for layer in model._flatten_layers())
    ]


def renew_steps(models: Iterable[Any]) -> None:
    if HOST.compiler.on_replace is not None:
        HOST.compiler.on_replace()
    for model in models:
        for step in STEPS:
            if getattr(model, f"{step}_function", None) is not None:
                getattr(model, f"make_{step}_function")(force=True)


# --- Variables, whose values a loop on jax takes --------------------------------------------------
# The groups that each loop of Keras takes out of the model, in the order of `state`.
GROUPS_OF_LOOP = {
    "fit": ("model", "state", "optimizer", "metrics"),
    "evaluate": ("model", "state", "metrics"),
    "predict": ("model", "state"),
}
# The copies in a model, from which Keras restores it, of the groups that hold a rule's numbers.
COPY_OF_GROUP = {"state": "non_trainable_variables", "optimizer": "optimizer_variables"}
# The model whose `fit` runs our callback: layers and optimizers do not know their models.
FITTED: contextvars.ContextVar[Any] = contextvars.ContextVar("multigrad_keras_fitted", default=None)


def taken_groups(*loops: str) -> Iterator[tuple[Any, str, list[Any], Any]]:
    """Yield what these loops, where they run around a call, have taken: of each group the model,
    its name, its Variables and their values.
    """
    for model, frame in running_methods(*loops):
        groups = GROUPS_OF_LOOP.get(frame.f_code.co_name, ())
        state = frame.f_locals.get("state") or ()
        for group, values in zip(groups, state, strict=False):
            yield model, group, variables_of_group(model, group), values


def is_taken(variable: Any) -> bool:
    """Return whether a running loop of Keras on jax has taken a Variable's value."""
    return getattr(variable, "_value", variable) is None


def read_value(value: Tensor) -> Any:
    """Return a Variable's value as a tensor, or as a number if that is faster."""
    return value if HOST.tensors.read_number is None else HOST.tensors.read_number(value)


def read_array(variable: Any) -> Any:
    """Return a Variable's value as an array; a mirrored one of TensorFlow is not a tensor."""
    return np.asarray(keras.ops.convert_to_numpy(read_value(variable.value)), variable.dtype)


def read_number(value: Any) -> Any:
    """Return the number in a Variable or a scalar tensor now; any other value unchanged."""
    if isinstance(value, keras.Variable):
        return read_array(value).item()
    if keras.ops.is_tensor(value) and len(value.shape) == 0:
        return np.asarray(keras.ops.convert_to_numpy(value)).item()
    return value


def assign_number(variable: Any, number: float, models: Iterable[Any]) -> bool:
    """Assign to a Variable, even amid `fit` on jax; return whether that worked."""
    if is_taken(variable):
        # a training step on jax has taken the Variable's value, and would overwrite an assignment
        model_in_fit = FITTED.get()
        models = [*models] if model_in_fit is None else [model_in_fit, *models]
        if any(put_in_state(model, variable, number) for model in models):
            return True
        fetch_weights(models)  # this fetches all weights, which takes longer
        if is_taken(variable):
            return False
    write = HOST.tensors.write_number
    if write is None or not write(variable.value, number):
        variable.assign(number)
    return True


def put_in_state(model: Any, variable: Any, number: float) -> bool:
    """Put a number where the next step of `fit` on jax reads a Variable, if it is there."""
    copies = getattr(model, "_jax_state", None)
    if not copies or model._jax_state_synced or variable._layout is not None:
        return False
    for owner, group, variables, values in taken_groups("fit"):
        # Keras restores the model from these copies, so both must have the number
        copy = copies.get(COPY_OF_GROUP.get(group))
        if not copy or owner is not model:
            continue
        for place, each in enumerate(variables):
            if each is variable and isinstance(values, list):
                # a NumPy array: the step converts it faster than we would here
                values[place] = copy[place] = np.asarray(number, variable._dtype)
                return True
    return False


def variables_of_group(model: Any, group: str) -> list[Any]:
    if group == "optimizer":
        return model.optimizer.variables
    names = {"model": "trainable", "state": "non_trainable", "metrics": "metrics"}
    return getattr(model, f"{names[group]}_variables")


def fetch_weights(models: Iterable[Any]) -> None:
    for model in models:
        fetch = getattr(model, "jax_state_sync", None)
        if fetch is not None:
            fetch()


def keeping_weights(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a layer's `call` that restores the model's weights if it raises.

    Keras (3.15) on jax takes the weights out of the model while a step runs, and loses them on an
    error.
    """
    if not hasattr(keras.Model, "jax_state_sync"):
        return call

    @functools.wraps(call)
    def call_keeping(*args: Any, **kwargs: Any) -> Tensor:
        try:
            return call(*args, **kwargs)
        except Exception:
            for _, _, variables, values in taken_groups(*GROUPS_OF_LOOP):
                for variable, value in zip(variables, values, strict=False):
                    if variable._value is None:
                        # not `assign`, which within a step writes to the step's state
                        variable._value = value
            raise

    return call_keeping
