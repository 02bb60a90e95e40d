"""How Keras applies each transform, on the backend that it runs on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import multigrad as xg
import multigrad.keras

from . import ways
from .declared import Cells
from .kinds import GRAD_OUT, LAYER, WEIGHT, Kind, NotApplicable, X, bare, gradient_of


def layer_of(kind: Kind, backend: str | None = None) -> Any:
    if kind.name == LAYER:
        raise NotApplicable("rules that read weights are put on models, by xg.attach")
    function = kind.make()
    if isinstance(function, xg.Function) or not hasattr(function, "rule"):
        if backend is not None:
            raise NotApplicable("a Function runs on Keras's own backend")
        if not isinstance(function, xg.Function):  # what a layer holds of a bound one
            function = function.function.with_defaults(tuple(function.params.values()))
        return multigrad.keras.CustomGradient(function)
    return multigrad.keras.Activation(
        function.forward.name, function.rule, function.params, backend=backend
    )


def model_of(layer: Any) -> Any:
    dense = keras.layers.Dense(4, use_bias=False, kernel_initializer="identity")
    return keras.Sequential([keras.layers.Input((4,)), dense, layer])


def weighted(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.sum(y_true * y_pred, axis=-1)


def trained(model: Any, kind: Kind, **options: Any) -> Any:
    """Take one step of 1.0 and return the gradient of the layer's input that it shows."""
    model.compile(keras.optimizers.SGD(1.0), weighted, **options)
    model.train_on_batch(X[None], GRAD_OUT[None])
    change = np.eye(4, dtype=np.float32) - keras.ops.convert_to_numpy(model.weights[0])
    return change[3] / X[3], "drawn" if "key" in kind.name else gradient_of


def loaded(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model_of(layer_of(kind)).save(path)
        return trained(keras.models.load_model(path), kind)


def cloned(kind: Kind) -> Any:
    return trained(keras.models.clone_model(model_of(layer_of(kind))), kind)


def attached(kind: Kind) -> Any:
    """The rule on a layer of a model that exists."""
    found = ways.rule_of(kind)
    layer: Any = keras.layers.ReLU(name="second")
    if kind.name == LAYER:
        layer = keras.layers.Dense(4, use_bias=False, name="second")
    model = model_of(layer)
    if kind.name == LAYER:
        layer.set_weights([WEIGHT])
        # In a graph, TensorFlow (2.21) may assign a weight before the step's gradient reads it, in
        # three of ten traces of two plain Dense layers under a linear loss.
        layer.trainable = False
    xg.attach(model, {"second": found})
    if kind.meaning is None and keras.backend.backend() == "jax":
        with pytest.raises(xg.RuleError, match="a random rule needs a key on jax"):
            trained(model, kind)
        return 2.0 * GRAD_OUT, "drawn"
    return trained(model, kind)


def by_optimizer(kind: Kind) -> Any:
    """The rule on the gradient of a weight."""
    if kind.name == LAYER:
        raise NotApplicable("it reads a layer, which a bare gradient has not")
    is_keyed = kind.name == ways.KEYED
    rule = xg.get("noise").with_params(sigma=0.5) if is_keyed else ways.rule_of(kind)
    optimizer = multigrad.keras.apply_to_gradients(
        keras.optimizers.SGD(1.0), rule, key=7 if is_keyed else None
    )
    weight = keras.Variable(np.zeros(4, np.float32))
    optimizer.apply([keras.ops.convert_to_tensor(GRAD_OUT)], [weight])
    found = -keras.ops.convert_to_numpy(weight)
    return found, "drawn" if "random" in kind.name else bare


TRANSFORMS = {
    "`fit`": lambda kind: trained(model_of(layer_of(kind)), kind),
    "`fit`, `run_eagerly=True`": lambda kind: trained(
        model_of(layer_of(kind)), kind, run_eagerly=True
    ),
    "saved and loaded": loaded,
    "`clone_model`": cloned,
    'another framework inside (`backend="numpy"`)': lambda kind: trained(
        model_of(layer_of(kind, "numpy")), kind, run_eagerly=True
    ),
    "`xg.attach`": attached,
    "gradients of weights (`multigrad.keras.apply_to_gradients`)": by_optimizer,
}
EXCEPTIONS = [
    Cells(
        ("`xg.attach`",),
        ("random, without a key",),
        "On jax it is refused: a random rule needs a key there.",
    ),
    Cells(
        (
            "`fit`",
            "`fit`, `run_eagerly=True`",
            "saved and loaded",
            "`clone_model`",
            'another framework inside (`backend="numpy"`)',
        ),
        ("rule of a layer",),
        "",
        absent=True,
    ),
    Cells(
        ('another framework inside (`backend="numpy"`)',),
        ("random, with a key", "own forward", "loop by values"),
        "",
        absent=True,
    ),
    Cells(
        ("`fit`", "`fit`, `run_eagerly=True`", "saved and loaded", "`clone_model`"),
        ("random, with a key",),
        "The calls that build a model count too, so which draw of the key is the first step's "
        "depends on the Keras backend.",
    ),
]
