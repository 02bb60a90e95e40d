"""The Keras tests run on one backend, the one that KERAS_BACKEND names: Keras fixes it at import.

`network` is a problem small enough for NumPy: Dense, activation, Dense, mean squared error, SGD.
Its `step` is the oracle, in float64, with the derivative of the spikes written by hand.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest

from ..harness.models.surrogates import triangle, window
from ..support.sampling import WHOLE

Array: TypeAlias = np.ndarray[Any, Any]

KERAS_BACKENDS = ("tensorflow", "jax", "torch")
if "KERAS_BACKEND" not in os.environ:
    installed = [name for name in KERAS_BACKENDS if find_spec(name)]
    if installed:
        os.environ["KERAS_BACKEND"] = installed[0]

# What `compile` may ask for. Keras's own choice is jax.jit, tf.function without XLA, eager torch.
MODES: dict[str, dict[str, Any]] = {
    "auto": {},
    "jit_compile": {"jit_compile": True},
    "no_jit": {"jit_compile": False},
    "eagerly": {"run_eagerly": True},
}
# Which are the same there as another one: jax compiles by itself, TensorFlow and torch do not.
SAME: dict[str, tuple[str, ...]] = {
    "tensorflow": ("no_jit",),
    "jax": ("jit_compile", "no_jit"),
    "torch": ("no_jit", "eagerly"),
}
DISTINCT_MODES = [m for m in MODES if m not in SAME.get(os.environ.get("KERAS_BACKEND", ""), ())]
# Weekly each test that is run in one way is run in each of them.
USUAL_MODES = DISTINCT_MODES if WHOLE else DISTINCT_MODES[:1]
KINDS = ("sequential", "functional", "subclass")


def zero(x: Array) -> Array:
    """The step's own derivative."""
    return np.zeros_like(x)


class Network:
    """Data, initial weights, and what one step of SGD makes of them by the formulas."""

    rate = 0.125
    surrogates: ClassVar[dict[str | None, Callable[..., Array]]] = {
        None: zero,
        "triangular": triangle,
        "rectangular": window,
    }

    def __init__(self) -> None:
        rng = np.random.default_rng(20250919)
        self.x = rng.normal(size=(32, 8)).astype(np.float32)
        self.y = rng.normal(size=(32, 3)).astype(np.float32)
        shapes = ((8, 6), (6,), (6, 3), (3,))
        self.weights = [0.3 * rng.normal(size=shape).astype(np.float32) for shape in shapes]

    def build(self, layer: Any, kind: str = "sequential", **compile_options: Any) -> Any:
        """Give a compiled model around a layer, or what calls one, with the initial weights."""
        import keras

        dtype = getattr(layer, "dtype_policy", None)
        first, last = keras.layers.Dense(6, dtype=dtype), keras.layers.Dense(3, dtype=dtype)
        if kind == "sequential":
            model = keras.Sequential([keras.Input((8,)), first, layer, last])
        elif kind == "functional":
            inputs = keras.Input((8,))
            model = keras.Model(inputs, last(layer(first(inputs))))
        else:
            model = self.chain([first, layer, last])
            model(self.x[:1])
        model.compile(keras.optimizers.SGD(self.rate), "mse", **compile_options)
        return self.reset(model)

    def chain(self, parts: list[Any]) -> Any:
        """Give a model written as a subclass."""
        return chain_class()(parts)

    def reset(self, model: Any) -> Any:
        """Give the model the initial weights again."""
        for variable, weight in zip(model.trainable_variables, self.weights, strict=True):
            variable.assign(weight)
        return model

    def trained(self, model: Any) -> list[Array]:
        """Give the trained weights: a rule's numbers are weights too, which no gradient changes."""
        import keras

        return [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables]

    def step(self, derivative: Callable[[Array], Array]) -> list[Array]:
        """Give the weights after one step on all the data, with this derivative of the spikes."""
        return self.step_of(lambda x: x > 0, lambda upstream, x: upstream * derivative(x))

    def step_of(
        self, forward: Callable[[Array], Array], backward: Callable[[Array, Array], Array]
    ) -> list[Array]:
        """Give the weights after one step on all the data, with another layer than the spikes."""
        x, y, a, b, c, d = (w.astype(np.float64) for w in (self.x, self.y, *self.weights))
        hidden = x @ a + b
        shown = forward(hidden).astype(np.float64)
        error = 2 * (shown @ c + d - y) / y.size
        back = backward(error @ c.T, hidden)
        gradients = (x.T @ back, back.sum(0), shown.T @ error, error.sum(0))
        return [w - self.rate * g for w, g in zip((a, b, c, d), gradients, strict=True)]

    def fit(self, model: Any, *callbacks: Any, size: int = 8, epochs: int = 1) -> None:
        """Train on the data in their order, in batches of a size."""
        options = {"batch_size": size, "epochs": epochs, "shuffle": False, "verbose": 0}
        model.fit(self.x, self.y, callbacks=list(callbacks), **options)

    def train(self, model: Any) -> list[Array]:
        """Give the weights after one step on all the data, by Keras."""
        self.fit(model, size=len(self.x))
        return self.trained(model)

    def assert_trained(self, model: Any, expected: list[Array], tolerance: float = 1e-6) -> None:
        """Compare the trained weights with these."""
        for ours, theirs in zip(self.trained(model), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)

    def check(
        self, model: Any, derivative: Callable[[Array], Array], tolerance: float = 1e-6
    ) -> None:
        """Make one step from the initial weights and compare it with the formulas."""
        self.reset(model)
        trained = self.train(model)
        self.assert_trained(model, self.step(derivative), tolerance)
        if derivative is not zero:  # else an untrained first layer would pass as well
            assert np.abs(trained[0] - self.weights[0]).max() > 1e-3


@functools.cache
def chain_class() -> Any:
    """Give a model written as a subclass, which can be saved."""
    import keras

    @keras.saving.register_keras_serializable(package="multigrad_tests")
    class Chain(keras.Model):
        def __init__(self, parts: list[Any], **options: Any) -> None:
            super().__init__(**options)
            self.parts = parts

        def call(self, inputs: Any) -> Any:
            for part in self.parts:
                inputs = part(inputs)
            return inputs

        def get_config(self) -> dict[str, Any]:
            saved = [keras.saving.serialize_keras_object(part) for part in self.parts]
            return {**super().get_config(), "parts": saved}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            parts = [keras.saving.deserialize_keras_object(part) for part in config["parts"]]
            return cls(**{**config, "parts": parts})

    return Chain


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def ruled() -> Callable[..., Any]:
    """What puts a rule around an optimizer."""
    import multigrad.keras

    return multigrad.keras.apply_to_gradients


@pytest.fixture(params=MODES)
def every_mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `compile`: each way to ask for."""
    return MODES[request.param]


@pytest.fixture(params=DISTINCT_MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `compile`: each way in which Keras can run a train step."""
    return MODES[request.param]


@pytest.fixture(params=USUAL_MODES)
def usual_mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `compile`: Keras's own choice, where other tests try the other ways."""
    return MODES[request.param]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The style in which a model is written."""
    return request.param


@pytest.fixture
def is_fixed(request: pytest.FixtureRequest) -> bool:
    """Whether a compiled train step cannot follow another rule: TensorFlow's graph."""
    name = "mode" if "mode" in request.fixturenames else "usual_mode"
    is_eager = request.getfixturevalue(name).get("run_eagerly")
    return os.environ["KERAS_BACKEND"] == "tensorflow" and not is_eager


@pytest.fixture
def whole_step() -> None:
    """torch.compile gets the train step as Keras gives it: in one piece."""


@pytest.fixture(autouse=True)
def torch_compile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compile trace everything but generate no C++, for which a compiler is needed.

    A train step is compiled in its parts. In one piece Dynamo traces the model four times: the
    backward in the middle breaks the graph, and it begins anew. Keras's own loss and metrics, which
    take as long to trace as a model, run as they are, and so does an optimizer without a rule.
    """
    if os.environ.get("KERAS_BACKEND") != "torch" or not find_spec("torch"):
        return
    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    # Dynamo gives up on code that it has compiled eight times, and every test compiles Keras's.
    torch.compiler.reset()
    if "whole_step" in request.fixturenames:
        return
    import keras

    as_they_are = [(keras.Model, "_compute_loss"), (keras.Model, "compute_metrics")]
    as_they_are += [(keras.metrics.Mean, "update_state")]
    if "ruled" not in request.fixturenames:
        as_they_are += [(keras.optimizers.Optimizer, "apply")]
    for owner, name in as_they_are:
        monkeypatch.setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    in_parts = torch.compiler.disable(keras.Model.train_step, recursive=False)
    monkeypatch.setattr(keras.Model, "train_step", in_parts)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Keras draws the seeds of its generators from Python's."""
    random.seed(0)
