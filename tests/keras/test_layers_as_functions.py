"""`xg.function` of a Keras layer: its variables are read at each call, on every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.others = [keras.layers.LayerNormalization(), keras.layers.LeakyReLU()]
        self.gain = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x: Any) -> Any:
        y = keras.ops.tanh(self.first(x) * self.gain) + x
        for layer in self.others:
            y = layer(y)
        return y


def dense() -> Any:
    return keras.layers.Dense(2, activation="tanh", kernel_initializer="glorot_uniform")


def sequential() -> Any:
    return keras.Sequential([keras.layers.Dense(4, activation="silu"), dense()])


MAKERS = (dense, sequential, Block)


def on_keras(layer: Any) -> np.ndarray[Any, Any]:
    return keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(X)))


@pytest.mark.parametrize("make", MAKERS)
def test_a_layer_on_arrays_has_the_weights_of_now_and_its_gradient(make: Any) -> None:
    keras.utils.set_random_seed(0)
    layer = make()
    layer(keras.ops.convert_to_tensor(X))
    function = xg.function(layer, native=False)
    for _ in range(2):
        expected = on_keras(layer)
        outputs, pullback = xg.vjp(function, X)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
        direction, size = np.cos(3 * X), 1e-2
        ahead, behind = function(X + size * direction), function(X - size * direction)
        slope = float((ahead - behind).sum()) / (2 * size)
        found = float((pullback(np.ones_like(outputs))[0] * direction).sum())
        np.testing.assert_allclose(found, slope, rtol=2e-2, atol=1e-3)
        for variable in layer.trainable_variables:
            variable.assign(variable.value * 1.5 + 0.1)


def test_on_kerass_backend_the_layer_itself_runs() -> None:
    layer = dense()
    x = keras.ops.convert_to_tensor(X)
    layer(x)
    function = xg.function(layer)
    expected = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(function(x)), expected)


def test_a_layer_without_weights_is_captured_wherever_it_is_called() -> None:
    layer = keras.layers.Activation("softplus")
    function = xg.function(lambda x: 2 * layer(x), native=False)
    np.testing.assert_allclose(function(X), 2 * np.log1p(np.exp(X)), rtol=1e-5)


def test_a_layer_in_training_is_refused() -> None:
    layer = keras.layers.Dropout(0.5)
    function = xg.function(lambda x: layer(x, training=True), native=False)
    with pytest.raises(xg.errors.TraceError, match="in training"):
        function(X)


def test_an_audit_asks_for_the_gradients_of_a_layer_s_weights() -> None:
    report = xg.audit(dense(), X, laws=["derivative", "linear"])
    assert report.ok and "kernel float32[3, 2]" in report.inputs
    assert report.inputs.count(",") == 4  # no weight stands there twice


class Centered(keras.layers.Layer):
    """Has a weight that is trained, and two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.dense = keras.layers.Dense(3, activation="gelu")
        self.frozen = keras.layers.Dense(2, trainable=False)

    def call(self, x: Any) -> Any:
        return self.frozen(self.dense(self.norm(x)))


class Reversible(keras.layers.Layer):
    """Two halves, each changed by a function of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.f = [keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)]
        self.g = keras.Sequential([keras.layers.LayerNormalization(), keras.layers.Dense(2)])

    def call(self, x: Any) -> Any:
        a, b = x[:, :1], x[:, 1:]
        change = b
        for layer in self.f:
            change = layer(change)
        a = a + change
        return keras.ops.concatenate([a, b + self.g(a)], axis=-1)


def functional() -> Any:
    x = keras.Input((3,))
    shared = keras.layers.Dense(3, activation="tanh")
    y = keras.ops.concatenate([shared(shared(x)), x], axis=-1)
    return keras.Model(x, keras.layers.LayerNormalization()(y) * 2.0)


def by_keras(layer: Any, x: Any) -> dict[str, Any]:
    """Return the gradients of half the sum of squares of a layer's output, by its weights' paths,
    as Keras's backend has them.
    """
    weights = layer.trainable_variables
    name = keras.backend.backend()
    if name == "torch":
        import torch

        y = layer(torch.as_tensor(x))
        found = torch.autograd.grad(0.5 * (y**2).sum(), [each.value for each in weights])
    elif name == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = 0.5 * tf.reduce_sum(layer(x) ** 2)
        found = tape.gradient(loss, [each.value for each in weights])
    else:
        import jax

        others = [each.value for each in layer.non_trainable_variables]

        def loss_of(values: Any) -> Any:
            return 0.5 * (layer.stateless_call(values, others, x)[0] ** 2).sum()

        found = jax.grad(loss_of)([each.value for each in weights])
    pairs = zip(weights, found, strict=True)
    return {each.path: keras.ops.convert_to_numpy(value) for each, value in pairs}


@pytest.mark.parametrize("make", [*MAKERS, Centered, Reversible, functional])
@pytest.mark.parametrize("is_on_arrays", [False, True])
def test_a_layer_apart_is_a_function_of_its_trained_weights(make: Any, is_on_arrays: bool) -> None:
    keras.utils.set_random_seed(0)
    layer = make()
    layer(keras.ops.convert_to_tensor(X))
    for variable in layer.variables:
        variable.assign(variable.value + 0.25)
    expected, gradients = on_keras(layer), by_keras(layer, X)
    to = "numpy" if is_on_arrays else keras.backend.backend()
    apply, parameters = xg.convert(layer, to=to)
    for variable in layer.variables:  # whose weights are no one else's
        variable.assign(variable.value * 3.0)
    assert parameters.keys() == gradients.keys()
    y, pull = xg.vjp(apply, parameters, X if is_on_arrays else keras.ops.convert_to_tensor(X))
    np.testing.assert_allclose(as_array(y), expected, rtol=1e-4, atol=1e-6)
    of_parameters, _ = pull(y)
    for name, slope in gradients.items():
        np.testing.assert_allclose(as_array(of_parameters[name]), slope, rtol=1e-3, atol=1e-5)


EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_the_casts_of_a_policy_are_in_the_graph(policy: str) -> None:
    keras.utils.set_random_seed(0)
    layer = keras.Sequential(
        [
            keras.layers.LayerNormalization(dtype=policy),
            keras.layers.Dense(4, activation="silu", dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.Dense(2, dtype=policy),
        ]
    )
    dtype = layer(X).dtype
    head = keras.Sequential([layer, keras.layers.Dense(3, dtype="float32")])
    expected, gradients = on_keras(head), by_keras(head, X)
    apply, parameters = xg.convert(layer, to="numpy")
    assert str(apply(parameters, X).dtype) == keras.backend.standardize_dtype(dtype)
    apply, parameters = xg.convert(head, to="numpy")
    y, pull = xg.vjp(apply, parameters, X)
    close = EPS[policy.removeprefix("mixed_")]
    np.testing.assert_allclose(y, expected, rtol=8 * close, atol=8 * close)
    of_parameters, _ = pull(y)
    for name, slope in gradients.items():
        assert of_parameters[name].dtype == slope.dtype
        found, slope = (np.asarray(each, np.float32) for each in (of_parameters[name], slope))
        np.testing.assert_allclose(found, slope, rtol=8 * close, atol=8 * close * abs(slope).max())


def test_a_layer_without_weights_of_a_mixed_policy_computes_in_it() -> None:
    layer = keras.layers.Activation("tanh", dtype="mixed_bfloat16")
    y, pull = xg.vjp(xg.function(layer), X)
    assert str(y.dtype) == "bfloat16"
    assert pull(y)[0].dtype == X.dtype
    with pytest.raises(xg.RuleError, match=r"runs on every framework as xg.convert\(obj\)"):
        xg.convert(layer, to="numpy")


def as_array(tensor: Any) -> np.ndarray[Any, Any]:
    return tensor if isinstance(tensor, np.ndarray) else keras.ops.convert_to_numpy(tensor)


def test_a_model_of_several_inputs_is_captured_with_its_merging_layers() -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    product = keras.layers.Multiply()([keras.layers.Dense(3)(a), b])
    model = keras.Model({"a": a, "b": b}, [keras.ops.sum(product, axis=-1), a - product])
    function = xg.function(model, native=False)
    found = function({"a": X, "b": X + 1})
    expected = model({"a": X, "b": X + 1})
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, as_array(other), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_functional", [False, True])
def test_a_mask_that_layers_hand_on_is_refused(is_functional: bool) -> None:
    layers = [keras.layers.Masking(), keras.layers.Dense(2), keras.layers.GlobalMaxPooling1D()]
    model = keras.Sequential([keras.Input((2, 3)), *layers])
    if is_functional:
        model = keras.Model(model.inputs, model.outputs)
    with pytest.raises(xg.errors.TraceError, match="passes a mask"):
        xg.function(model, native=False)(X[None])


def test_layers_of_one_name_have_parameters_of_their_own() -> None:
    layers = [keras.layers.Dense(3, name="same", use_bias=False) for _ in range(2)]
    for layer in layers:
        layer(X)
    apply, parameters = xg.convert(Both(*layers), to="numpy")
    assert [*parameters] == ["same/kernel", "same/kernel'"]
    y, pull = xg.vjp(apply, parameters, X)
    first, second = (as_array(layer.kernel.value) for layer in layers)
    np.testing.assert_allclose(y, X @ first @ second, rtol=1e-4, atol=1e-6)
    of_parameters, _ = pull(np.ones_like(y))
    np.testing.assert_allclose(
        of_parameters["same/kernel'"], (X @ first).T @ np.ones_like(y), rtol=1e-4, atol=1e-6
    )


class Both:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_a_custom_gradient_around_a_layer_says_that_its_weights_get_none() -> None:
    layer = dense()
    layer(X)
    doubled = xg.function(lambda x: layer(x), lambda grad_out, x: 2.0 * x)
    name, weights = keras.backend.backend(), [each.value for each in layer.trainable_variables]
    if name == "jax":
        import jax

        def loss(weights: Any) -> Any:
            pairs = zip(layer.trainable_variables, weights, strict=True)
            with keras.StatelessScope(state_mapping=list(pairs)):
                return doubled(jax.numpy.asarray(X)).sum()

        with pytest.raises(xg.MultigradError, match="waits for a gradient"):
            jax.grad(loss)(weights)
    elif name == "torch":
        import torch

        with pytest.warns(xg.NativeRuleWarning, match="reads besides its arguments"):
            doubled(torch.tensor(X)).sum().backward()
        assert all(each.grad is None for each in weights)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            y = doubled(tf.constant(X))
        with pytest.warns(xg.NativeRuleWarning, match="reads besides its arguments"):
            assert tape.gradient(y, weights) == [None, None]
