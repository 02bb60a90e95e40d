"""Functions in Keras models: called on symbolic tensors, on Keras's variables, trained, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")
xp = xg.xp
X = np.linspace(-2.0, 3.0, 12, dtype=np.float32).reshape(4, 3)


@xg.custom_gradient
def doubled_gradient(x: Any) -> Any:
    """The identity, whose gradient is twice the true one."""

    def grad(upstream: Any) -> Any:
        return upstream * 2.0

    return x * 1.0, grad


def clipped(x: Any, limit: Any) -> Any:
    return xp.clip(x, 0.0, limit)


def clipped_backward(grad_out: Any, x: Any, limit: Any) -> Any:
    return grad_out * ((x > 0) & (x < limit)), None


def build(function: Any, *args: Any) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    y = keras.layers.Dense(1, use_bias=False)(function(keras.layers.Dense(3)(x), *args))
    return keras.Model(x, y)


def first_step(model: Any) -> list[Any]:
    """The change of the weights in one step of SGD with a learning rate of 1."""
    import keras

    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(X, np.ones((4, 1), np.float32))
    return [b - a for a, b in zip(before, model.get_weights(), strict=True)]


def test_a_function_in_a_functional_keras_model_trains_with_its_own_gradient() -> None:
    def identity(x: Any) -> Any:
        return x

    ours, plain = first_step(build(doubled_gradient)), first_step(build(identity))
    assert np.allclose(ours[0], 2 * plain[0], rtol=1e-5, atol=1e-6)
    assert np.allclose(ours[2], plain[2], rtol=1e-5, atol=1e-6)


def test_a_keras_model_with_a_function_is_saved_and_loaded_with_its_gradient(
    tmp_path: Path,
) -> None:
    import keras

    function = xg.function(clipped, clipped_backward)
    model = build(function, 1.5)
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)  # safe_mode is on
    assert np.array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))
    for a, b in zip(first_step(again), first_step(model), strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_function_that_is_not_captured_cannot_be_saved_in_a_keras_model(tmp_path: Path) -> None:
    @xg.custom_gradient(native=True)
    def as_it_is(x: Any) -> Any:
        return x * 1.0, lambda upstream: upstream

    model = build(as_it_is)
    with pytest.raises(xg.TraceError, match="cannot be saved"):
        model.save(tmp_path / "model.keras")


def test_a_keras_variable_is_an_argument_and_gets_its_gradient() -> None:
    import keras

    @xg.custom_gradient
    def scaled(x: Any, w: Any) -> Any:
        def grad(upstream: Any) -> Any:
            return upstream * w, xp.sum(upstream * x) * 10.0

        return x * w, grad

    class Scale(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(), initializer="ones")

        def call(self, x: Any) -> Any:
            return scaled(x, self.w)

    model = keras.Sequential([Scale()])
    model.build((None, 3))
    change = first_step(keras.Sequential([model, keras.layers.Lambda(lambda y: y[:, :1])]))
    residual = X[:, :1] - 1.0
    expected = -10.0 * np.mean(2 * residual * X[:, :1])
    assert np.allclose(change[0], expected, rtol=1e-5)


def test_a_function_closes_over_a_keras_variable_without_a_gradient_for_it() -> None:
    import keras

    w = keras.Variable(np.float32(3.0))

    @xg.custom_gradient
    def scaled(x: Any) -> Any:
        value = keras.ops.convert_to_tensor(w)
        return x * value, lambda upstream: upstream * value

    class Scale(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return scaled(x)

    model = keras.Sequential([keras.layers.Dense(3), Scale(), keras.layers.Dense(1)])
    model.build((None, 3))
    before = model.predict(X, verbose=0)
    w.assign(np.float32(6.0))
    model.predict_function = None
    after = model(X)
    assert np.allclose(2 * (before - 0), keras.ops.convert_to_numpy(after), rtol=1e-5, atol=1e-6)
    assert all(np.all(np.isfinite(change)) for change in first_step(model))
