"""Models in every style of Keras around an activation, and the oracle: a custom gradient written by
hand for the framework.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

KERAS_BACKEND = os.environ.get("KERAS_BACKEND", "")
WIDTH = 2.0
RULE: dict[str, Any] = {"rule": "triangular", "params": {"width": WIDTH}}


# --- the oracle: tanh, whose derivative is max(1 - |x| / 2, 0) ------------------------------------


@functools.cache
def native() -> Callable[[Any], Any]:
    """Give the function as an expert writes it for Keras's backend."""
    return {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}[KERAS_BACKEND]()


def in_torch() -> Callable[[Any], Any]:
    import torch

    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            (x,) = ctx.saved_tensors
            return cotangents[0] * (1 - x.abs() / WIDTH).clamp(min=0)

    return Tanh.apply


def in_jax() -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def tanh(x: Any) -> Any:
        return jnp.tanh(x)

    def forward(x: Any) -> Any:
        return jnp.tanh(x), x

    def backward(x: Any, cotangent: Any) -> Any:
        return (cotangent * jnp.maximum(1 - jnp.abs(x) / WIDTH, 0),)

    tanh.defvjp(forward, backward)
    return tanh


def in_tensorflow() -> Callable[[Any], Any]:
    import tensorflow as tf

    @tf.custom_gradient
    def tanh(x: Any) -> Any:
        def backward(cotangent: Any) -> Any:
            return cotangent * tf.maximum(1 - tf.abs(x) / WIDTH, 0)

        return tf.tanh(x), backward

    return tanh


@functools.cache
def by_hand_class() -> Any:
    """Give a layer around it, which Keras can clone and save."""
    import keras

    @keras.saving.register_keras_serializable(package="multigrad_tests")
    class ByHand(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return native()(inputs)

    return ByHand


# --- the styles: each builds a model around an activation, or a layer that holds one --------------


class Styles:
    """Models by name; `act` is what `activation=` takes."""

    def dense(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [keras.Input((5, 4)), layers.Dense(6, activation=act), layers.Dense(1)]
        )

    def activation_layer(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [keras.Input((5, 4)), layers.Dense(6), layers.Activation(act), layers.Dense(1)]
        )

    def conv(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential([keras.Input((5, 4)), layers.Conv1D(6, 3, activation=act)])

    def separable_conv(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential([keras.Input((5, 4)), layers.SeparableConv1D(6, 3, activation=act)])

    def simple_rnn(self, act: Any) -> Any:
        import keras

        return keras.Sequential([keras.Input((5, 4)), keras.layers.SimpleRNN(6, activation=act)])

    def lstm(self, act: Any) -> Any:
        import keras

        return keras.Sequential(
            [keras.Input((5, 4)), keras.layers.LSTM(6, activation=act, recurrent_activation=act)]
        )

    def gru(self, act: Any) -> Any:
        import keras

        return keras.Sequential(
            [keras.Input((5, 4)), keras.layers.GRU(6, activation=act, recurrent_activation=act)]
        )

    def unrolled_lstm(self, act: Any) -> Any:
        import keras

        recurrent = keras.layers.LSTM(6, activation=act, recurrent_activation=act, unroll=True)
        return keras.Sequential([keras.Input((5, 4)), recurrent])

    def unknown_length(self, act: Any) -> Any:
        import keras

        return keras.Sequential([keras.Input((None, 4)), keras.layers.GRU(6, activation=act)])

    def bidirectional(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [keras.Input((5, 4)), layers.Bidirectional(layers.SimpleRNN(6, activation=act))]
        )

    def time_distributed(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        inner = layers.TimeDistributed(layers.Dense(6, activation=act))
        return keras.Sequential(
            [keras.Input((5, 4)), inner, layers.TimeDistributed(layers.Activation(act))]
        )

    def masked_lstm(self, act: Any) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((5, 4)),
                layers.Masking(),
                layers.Dense(4, activation=act),
                layers.LSTM(6, activation=act),
            ]
        )

    def nested(self, act: Any) -> Any:
        import keras

        inputs = keras.Input((5, 4))
        inner = keras.Sequential([keras.layers.Dense(6, activation=act), keras.layers.Dense(4)])
        return keras.Model(inputs, keras.layers.Add()([inner(inputs), inputs]))

    def reused(self, act: Any) -> Any:
        import keras

        inputs, layer = keras.Input((5, 4)), keras.layers.Activation(act)
        hidden = layer(keras.layers.Dense(6)(inputs))
        return keras.Model(inputs, layer(keras.layers.Dense(6)(hidden)))

    def subclass(self, act: Any) -> Any:
        import keras

        class Model(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.first = keras.layers.Dense(6)
                self.act = keras.layers.Activation(act)
                self.last = keras.layers.Dense(1)

            def call(self, inputs: Any, training: bool = False) -> Any:
                hidden = self.act(self.first(inputs))
                return self.last(hidden * 2 if training else hidden)

        return Model()

    def cell(self, act: Any) -> Any:
        import keras

        return keras.Sequential([keras.Input((5, 4)), keras.layers.RNN(make_cell(act))])

    def unrolled_cell(self, act: Any) -> Any:
        import keras

        return keras.Sequential(
            [keras.Input((5, 4)), keras.layers.RNN(make_cell(act), unroll=True)]
        )


@functools.cache
def cell_class() -> Any:
    """Give an RNN cell that holds a layer."""
    import keras

    @keras.saving.register_keras_serializable(package="multigrad_tests")
    class Cell(keras.layers.Layer):
        def __init__(self, act: Any, **options: Any) -> None:
            super().__init__(**options)
            self.state_size = self.output_size = 6
            self.inner, self.act = keras.layers.Dense(6), act

        def build(self, input_shape: Any) -> None:
            self.inner.build((input_shape[0], input_shape[-1] + 6))

        def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
            output = self.act(self.inner(keras.ops.concatenate([inputs, states[0]], axis=-1)))
            return output, [output]

        def get_config(self) -> dict[str, Any]:
            saved = keras.saving.serialize_keras_object(self.act)
            return {**super().get_config(), "act": saved}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            return cls(**{**config, "act": keras.saving.deserialize_keras_object(config["act"])})

    return Cell


def make_cell(act: Any) -> Any:
    import keras

    return cell_class()(
        act if isinstance(act, keras.layers.Layer) else keras.layers.Activation(act)
    )


STYLES = [name for name in vars(Styles) if not name.startswith("_")]


class Trial:
    """The same data and the same initial weights for models that differ in their activation."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.x = rng.normal(size=(6, 5, 4)).astype(np.float32)
        self.x[:3, 3:] = 0  # masked, where a model masks
        self.rng = rng
        self.weights: list[Any] = []
        self.y: Any = None

    def build(self, style: str, act: Any, **options: Any) -> Any:
        """Give the compiled model of a style with the trial's weights."""
        import keras

        model = getattr(Styles(), style)(act)
        if not model.built:
            model(self.x)
        model.compile(keras.optimizers.SGD(0.5), "mse", **options)
        return self.reset(model)

    def reset(self, model: Any) -> Any:
        if not self.weights:
            shapes = [tuple(weight.shape) for weight in model.trainable_weights]
            self.weights = [0.5 * self.rng.normal(size=shape) for shape in shapes]
        for weight, value in zip(model.trainable_weights, self.weights, strict=True):
            weight.assign(value)
        return model

    def train(self, model: Any, steps: int = 2) -> list[Any]:
        """Give the weights after steps of SGD towards 1."""
        import keras

        self.reset(model)
        if self.y is None:
            self.y = np.ones(keras.ops.shape(model(self.x)), np.float32)
        x, y = self.x, self.y
        model.fit(x, y, batch_size=len(y), epochs=steps, shuffle=False, verbose=0)
        return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]

    def check(self, style: str, model: Any, tolerance: float = 2e-6) -> None:
        """Compare training with that of the same model around the hand-written function."""
        assert distance(self.train(model), train_by_hand(style)) < tolerance


@functools.cache
def train_by_hand(style: str) -> list[Any]:
    """Give the weights of a trial that the hand-written function has trained."""
    trial = Trial()
    expected = trial.train(trial.build(style, by_hand_class()()))
    if KERAS_BACKEND == "torch":  # the numbers are the same on each, and here there is no trace
        plain = trial.train(trial.build(style, "tanh"))
        assert distance(expected, plain) > 1e-3  # else the true derivative would pass as well
    return expected


def distance(first: list[Any], second: list[Any]) -> float:
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
