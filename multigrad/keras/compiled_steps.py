"""What to do when a layer's structure changes (its rule, its backend) after a step was compiled.

torch.compile sees it by its guards and jax by a key of all its caches (`Compiler.on_replace`);
TensorFlow's graphs can only be made anew, so a layer notes for which models it was traced. A graph
that nobody makes anew raises StaleTraceError.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from .tracing import HOST, find_state, running

Tensor = Any
STEPS = ("train", "test", "predict")
# Where Keras's own steps hold what they have traced.
NOTES_MODELS = HOST.compiler.on_read is not None


def note_models(models: weakref.WeakSet[Any], x: Tensor) -> None:
    """Add the models whose steps are being traced around this call."""
    if HOST.tensors.is_traced(x):
        models.update(model for model, _ in running("_step"))


def fetch_state(models: Iterable[Any]) -> None:
    """Bring back into a model what a training step has taken from it (amid `fit` on jax)."""
    for model in models:
        fetch = getattr(model, "jax_state_sync", None)
        if fetch is not None:
            fetch()


# The model whose `fit` runs a callback of ours: neither a layer nor an optimizer has it.
FITTED: contextvars.ContextVar[Any] = contextvars.ContextVar("multigrad_keras_fitted", default=None)


def assign_number(variable: Any, number: float, models: Iterable[Any]) -> bool:
    """Assign to a Variable, also to one that a training step has taken from one of these models
    (amid `fit` on jax): the next step takes the number. Return whether that was done.
    """
    if is_taken(variable):
        fitted = FITTED.get()
        models = [*models] if fitted is None else [fitted, *models]
        if any(put_in_state(model, variable, number) for model in models):
            return True
        fetch_state(models)  # to fetch all takes longer
        if is_taken(variable):
            return False
    write = HOST.tensors.write_number
    if write is None or not write(variable.value, number):
        variable.assign(number)
    return True


def read_value(value: Tensor) -> Any:
    """Return a Variable's value as a tensor, or as a number where that is faster."""
    return value if HOST.tensors.read_number is None else HOST.tensors.read_number(value)


def read_array(variable: Any) -> Any:
    """Return a Variable's value as an array; a mirrored one of TensorFlow is not a tensor."""
    return np.asarray(keras.ops.convert_to_numpy(read_value(variable.value)), variable.dtype)


def is_taken(variable: Any) -> bool:
    return getattr(variable, "_value", variable) is None


def put_in_state(model: Any, variable: Any, number: float) -> bool:
    """Put a number where the next step of `fit` on jax takes a Variable's value from, and where
    Keras brings it back from; return whether it was found there.
    """
    copies = getattr(model, "_jax_state", None)
    if not copies or model._jax_state_synced or variable._layout is not None:
        return False
    state = find_state(model)
    for group, values in zip(TAKEN["fit"], state, strict=False):
        copy = copies.get(TAKEN_AS.get(group))
        if not copy:
            continue
        for place, each in enumerate(variables_of(model, group)):
            if each is variable and isinstance(values, list):
                # An array of NumPy: the step takes it as it is, and faster than it is made a
                # tensor here.
                values[place] = copy[place] = np.asarray(number, variable._dtype)
                return True
    return False


# By what names Keras on jax tells what it has taken, of the groups that hold a rule's numbers.
TAKEN_AS = {"state": "non_trainable_variables", "optimizer": "optimizer_variables"}

# What each loop of Keras on jax has taken out of the model, in the order of its local `state`.
TAKEN = {
    "fit": ("model", "state", "optimizer", "metrics"),
    "evaluate": ("model", "state", "metrics"),
    "predict": ("model", "state"),
}


def keeping_weights(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a layer's `call` after whose failure the model still has its weights.

    Keras (3.15) on jax takes them out of the model while a step runs, and an error in the step
    would lose them.
    """
    if not hasattr(keras.Model, "jax_state_sync"):
        return call

    @functools.wraps(call)
    def call_keeping(*args: Any, **kwargs: Any) -> Tensor:
        try:
            return call(*args, **kwargs)
        except Exception:
            give_back_weights()
            raise

    return call_keeping


def give_back_weights() -> None:
    """Put the weights back into the model whose `fit`, `evaluate` or `predict` is running."""
    for model, frame in running(*TAKEN):
        state = frame.f_locals.get("state")
        for group, values in zip(TAKEN.get(frame.f_code.co_name, ()), state or (), strict=False):
            for variable, value in zip(variables_of(model, group), values, strict=False):
                if variable._value is None:
                    # Not `assign`: within a step that is the step's own.
                    variable._value = value


def variables_of(model: Any, group: str) -> list[Any]:
    """Return the Variables of a model that a loop takes together."""
    if group == "optimizer":
        return model.optimizer.variables
    names = {"model": "trainable", "state": "non_trainable", "metrics": "metrics"}
    return getattr(model, f"{names[group]}_variables")


def find_compiled(layers: Iterable[Any]) -> list[Any]:
    """Return the models, alive anywhere, that hold one of these layers and have compiled steps.

    Nothing in Keras leads from a layer to the models made of it (one of its features, a trainer
    around it), and a step of theirs that stayed as it was compiled would be silently stale.
    """
    changed = {id(layer) for layer in layers}
    models = [each for each in gc.get_objects() if issubclass(type(each), keras.Model)]
    return [
        model
        for model in models
        if any(vars(model).get(f"{step}_function") is not None for step in STEPS)
        and any(id(layer) in changed for layer in model._flatten_layers())
    ]


def renew_steps(models: Iterable[Any]) -> None:
    """Let what was compiled for these models be compiled anew."""
    if HOST.compiler.on_replace is not None:
        HOST.compiler.on_replace()
    for model in models:
        for step in STEPS:
            if getattr(model, f"{step}_function", None) is not None:
                getattr(model, f"make_{step}_function")(force=True)
