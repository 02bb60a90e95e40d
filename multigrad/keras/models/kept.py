"""What the layers of a Keras model keep for backward, as the framework tells that Keras runs on."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from ...backend.finding.discovery import load_backend
from ...errors import RuleTypeError, RuleValueError
from ...models.kept import WHOLE, Row, Within
from .found import list_layers


def kept_by_layers(
    model: Any, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> tuple[str, list[Row]]:
    """Return the backend that Keras runs on, and what is kept of one call in training.

    The call has no effects: statistics and seeds stay as they are.

    Raises:
        RuleValueError: the model is not built.
        RuleTypeError: the backend does not tell.
    """
    backend = load_backend(keras.backend.backend())
    if backend.models.kept_by_call is None:
        raise RuleTypeError(f"backend {backend.name!r} does not tell what layers of Keras keep")
    if not model.built:
        raise RuleValueError(
            f"{type(model).__name__} {model.name!r} has no weights yet, so it keeps nothing: call "
            f"it once, or {model.name}.build({shapes[0]})"
        )

    trains = "training" in inspect.signature(model.call).parameters
    options = {"training": True} if trains else {}

    groups = model.trainable_variables, model.non_trainable_variables

    def call(weights: Any, others: Any, inputs: Any, within: Within) -> Any:
        state = zip([*groups[0], *groups[1]], [*weights, *others], strict=True)
        given = inputs[0] if len(inputs) == 1 else list(inputs)
        with layers_within(model, within), keras.StatelessScope(state_mapping=list(state)):
            return model(given, **options)

    values = [[each.value for each in group] for group in groups]
    return backend.name, backend.models.kept_by_call(call, *values, shapes, dtypes)


@contextmanager
def layers_within(model: Any, within: Within) -> Iterator[None]:
    """Let the layers of a model be called by `within`."""
    layers = [each for each in list_layers(model) if isinstance(each.layer, keras.Layer)]
    before = [(vars(each.layer), vars(each.layer).get("call")) for each in layers]
    try:
        for each in layers:
            own = each.layer.call
            call = functools.partial(_call_within, within, each.names[0] or WHOLE, own)
            vars(each.layer)["call"] = functools.wraps(own)(call)
        yield
    finally:
        for held, call in before:
            held.pop("call", None)
            if call is not None:
                held["call"] = call


def _call_within(within: Within, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    return within(name, call, args, kwargs)
