"""`multigrad.keras.CustomGradient`: Functions as layers, trained, changed, saved, and run in
another framework.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.models.models_keras import compile_gradient
from .conftest import DISTINCT_MODES

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
xp = xg.xp
HOST = os.environ.get("KERAS_BACKEND", "")
GUESTS = ("torch", "jax", "tensorflow", "numpy")
# A framework and a way of running a step.
WAYS = itertools.product(GUESTS, DISTINCT_MODES)
MARKED_WAYS = [pytest.param(*way, marks=pytest.mark.needs(way[0])) for way in WAYS]
X = np.linspace(-2.0, 3.0, 12, dtype=np.float32).reshape(4, 3)


def spike(x: Any) -> Any:
    return xp.where(x > 0, 1.0, 0.0)


def spike_triangular(grad_out: Any, x: Any) -> Any:
    return grad_out * xp.maximum(1 - xp.abs(x), 0.0)


def spike_rectangular(grad_out: Any, x: Any) -> Any:
    return grad_out * xp.where(xp.abs(x) <= 0.5, 1.0, 0.0)


def triangular() -> Any:
    return xg.function(spike, spike_triangular)


def rectangular() -> Any:
    return xg.function(spike, spike_rectangular)


def mixed(x: Any, w: Any, scale: float, *, mode: str = "plus") -> Any:
    """Two nested outputs of two tensors, a number and a word."""

    def grad(upstream: Any) -> Any:
        total = upstream["product"] + upstream["others"][0]
        return total * scale, total * 10.0, None

    product = x * w * scale
    return {"product": product, "others": [x + w if mode == "plus" else x - w]}, grad


# --- training -------------------------------------------------------------------------------------


def test_it_trains_in_models_of_every_style(network: Any, kind: str) -> None:
    model = network.build(xk.CustomGradient(triangular()), kind)
    network.check(model, network.surrogates["triangular"])


def test_a_layer_takes_what_its_function_takes_and_nests_as_it_does() -> None:
    layer = xk.CustomGradient(xg.custom_gradient(mixed))
    x, w = keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(X + 1.0)
    found = layer(x, w, 2.0, mode="minus")
    assert list(found) == ["product", "others"]
    product, other = (keras.ops.convert_to_numpy(y) for y in (found["product"], found["others"][0]))
    np.testing.assert_allclose(product, X * (X + 1.0) * 2.0, rtol=1e-6)
    np.testing.assert_allclose(other, np.full_like(X, -1.0), atol=1e-6)
    by_name = layer(x, w, scale=2.0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(by_name["others"][0]), 2 * X + 1.0)


def test_several_nested_inputs_and_outputs_train_with_their_own_gradient(
    usual_mode: dict[str, Any],
) -> None:
    def options(given: dict[str, Any]) -> Any:
        outputs, grad = mixed(given["x"], given["list"][0], given["scale"], mode=given["mode"])

        def grad_of_options(upstream: Any) -> Any:
            own = grad(upstream)
            return ({"x": own[0], "list": [own[1]], "scale": None, "mode": None},)

        return outputs, grad_of_options

    a, b = keras.Input((3,)), keras.Input((3,))
    first, second = (keras.layers.Dense(3, kernel_initializer="ones") for _ in range(2))
    layer = xk.CustomGradient(xg.custom_gradient(options))
    found = layer({"x": first(a), "list": [second(b)], "scale": 0.5, "mode": "plus"})
    assert found["product"].shape == found["others"][0].shape == (None, 3)
    model = keras.Model([a, b], [found["product"], found["others"][0]])
    model.compile(keras.optimizers.SGD(0.125), ["mse", "mse"], **usual_mode)
    zeros = np.zeros_like(X)
    model.train_on_batch([X, X * 0.1], [zeros, zeros])

    x, w = X.astype(np.float64) @ np.ones((3, 3)), 0.1 * X.astype(np.float64) @ np.ones((3, 3))
    total = 2 * (x * w * 0.5 + (x + w)) / X.size
    expected = [1 - 0.125 * X.T @ (total * 0.5), 1 - 0.125 * (0.1 * X).T @ (total * 10.0)]
    for dense, weights in zip((first, second), expected, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(dense.kernel), weights, rtol=1e-5, atol=1e-6
        )


def clipping(up: Any, h: Any) -> Any:
    return up * ((h > 0) & (h < 0.25))


def letting_back(up: Any, h: Any) -> Any:
    return up * (up * (h - np.clip(h, -0.25, 0.25)) >= 0)


CLASSES = {
    "ClippedReLU": ((0.25,), lambda h: np.clip(h, 0, 0.25), clipping),
    "ClampWithGrad": ((-0.25, 0.25), lambda h: np.clip(h, -0.25, 0.25), letting_back),
    "ClampThatLetsGradientsBack": ((-0.25, 0.25), lambda h: np.clip(h, -0.25, 0.25), letting_back),
    "RoundStraightThrough": ((), np.round, lambda up, h: up),
}


def check_step(network: Any, model: Any, forward: Any, backward: Any) -> None:
    """Compare one step of SGD with the formulas in float64."""
    network.train(model)
    network.assert_trained(model, network.step_of(forward, backward))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", CLASSES)
def test_an_autograd_function_class_trains_on_every_keras_backend(network: Any, name: str) -> None:
    from ..written import autograd_classes

    args, forward, backward = CLASSES[name]
    layer = xk.CustomGradient(xg.from_autograd_function(getattr(autograd_classes, name)))
    model = network.build(lambda h: layer(h, *args), "functional")
    check_step(network, model, forward, backward)


@pytest.mark.needs("torch")
def test_the_gradient_goes_to_the_other_of_two_inputs(network: Any) -> None:
    from ..written.autograd_classes import ReplaceGrad

    layer = xk.CustomGradient(xg.from_autograd_function(ReplaceGrad))
    model = network.build(lambda h: layer(keras.ops.sign(h), h), "functional")
    check_step(network, model, np.sign, lambda up, h: up)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("guest", [None, "numpy"])
def test_a_layer_computes_in_its_dtype_and_trains(
    network: Any, policy: str, guest: str | None
) -> None:
    layer = xk.CustomGradient(triangular(), guest, dtype=policy)
    model = network.build(layer)
    dense = keras.layers.Dense(2, dtype=policy)
    x = network.x[:, :6]
    names = [keras.backend.standardize_dtype(each(x).dtype) for each in (layer, dense)]
    assert names[0] == names[1]
    network.check(model, network.surrogates["triangular"], 1e-6 if policy == "float64" else 5e-3)


def test_it_runs_in_every_step_of_a_sequence() -> None:
    inputs = keras.Input((None, 3))
    outputs = keras.layers.TimeDistributed(xk.CustomGradient(triangular()))(inputs)
    assert outputs.shape == (None, None, 3)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 4, 3)
    found = keras.Model(inputs, outputs).predict(x, verbose=0)
    np.testing.assert_array_equal(found, (x > 0).astype(np.float32))


def test_a_mask_is_handed_on_where_the_shape_is_kept() -> None:
    words = keras.Input((4,), dtype="int32")
    first, second = (keras.layers.Embedding(5, 3, mask_zero=True)(words) for _ in range(2))
    plain = keras.layers.Embedding(5, 3)(words)
    gate = xk.CustomGradient(xg.function(lambda x, w: x * w))
    sums = xk.CustomGradient(xg.function(lambda x: xp.sum(x, axis=-1)))
    get_mask = keras.src.backend.get_keras_mask
    assert get_mask(gate(plain, first)) is get_mask(first)
    assert get_mask(gate(first, second)) is None
    assert get_mask(sums(first)) is None

    model = keras.Model(words, keras.layers.GlobalAveragePooling1D()(gate(plain, first)))
    rows = np.array([[1, 2, 0, 0], [3, 0, 0, 0]], np.int32)
    full = keras.Model(words, gate(plain, first)).predict(rows, verbose=0)
    expected = [full[0, :2].mean(0), full[1, :1].mean(0)]
    np.testing.assert_allclose(model.predict(rows, verbose=0), expected, rtol=1e-5, atol=1e-7)


# --- random draws ---------------------------------------------------------------------------------


def jammed(x: Any) -> Any:
    return x * 1.0


def jammed_backward(grad_out: Any, x: Any) -> Any:
    return grad_out * xp.rand_like(x)


@pytest.mark.parametrize("guest", [None, "numpy"])
def test_a_random_function_draws_anew_in_each_step_and_repeats_by_kerass_seed(
    network: Any, guest: str | None
) -> None:
    def run(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        model = network.build(xk.CustomGradient(xg.function(jammed, jammed_backward), guest))
        steps = []
        for _ in range(2):
            network.reset(model)
            steps.append(network.train(model)[1] - network.weights[1])
        return np.array(steps)

    one, again, other = run(1), run(1), run(2)
    assert np.abs(one[0] - one[1]).max() > 1e-4
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-4


# --- what may be assigned -------------------------------------------------------------------------


def test_a_model_whose_step_fails_keeps_its_weights(
    network: Any, usual_mode: dict[str, Any]
) -> None:
    def refuse(x: Any) -> Any:
        raise ValueError("this function refuses its input")

    model = network.build(xk.CustomGradient(triangular()), **usual_mode)
    model.layers[1].function = xg.custom_gradient(refuse)
    with pytest.raises(ValueError, match="refuses its input"):
        network.train(model)
    network.assert_trained(model, network.weights, 0.0)


def test_another_function_between_two_fits_takes_effect(
    network: Any, usual_mode: dict[str, Any]
) -> None:
    layer = xk.CustomGradient(triangular())
    model = network.build(layer, **usual_mode)
    network.check(model, network.surrogates["triangular"])
    layer.function = rectangular()
    network.check(model, network.surrogates["rectangular"])
    model.predict(network.x, verbose=0)
    layer.function = xg.function(lambda x: spike(x) * 2.0, spike_triangular)
    doubled = layer(network.x)
    assert float(np.max(np.asarray(doubled))) == 2.0
    before = model.get_weights()
    predicted = model.predict(network.x, verbose=0)
    spikes = 2.0 * (network.x @ before[0] + before[1] > 0)
    np.testing.assert_allclose(predicted, spikes @ before[2] + before[3], rtol=1e-5, atol=1e-5)


def test_what_a_callback_assigns_acts_in_the_next_epoch(network: Any) -> None:
    layer = xk.CustomGradient(triangular())
    model = network.build(layer)

    class Assign(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                network.reset(model)
                layer.function, layer.backend = rectangular(), "numpy"

    network.fit(model, Assign(), size=len(network.x), epochs=2)
    network.assert_trained(model, network.step(network.surrogates["rectangular"]))


@pytest.mark.parametrize(("guest", "mode"), MARKED_WAYS, indirect=["mode"])
def test_another_framework_between_two_fits_gives_the_same_step(
    network: Any, guest: str, mode: dict[str, Any]
) -> None:
    layer = xk.CustomGradient(triangular())
    model = network.build(layer, **mode)
    network.check(model, network.surrogates["triangular"])
    layer.backend = guest
    if HOST == "tensorflow" and mode.get("jit_compile") and guest != HOST:
        network.reset(model)
        with pytest.raises(xg.UnsupportedOp, match=r"jit_compile=False"):
            network.train(model)
    else:
        network.check(model, network.surrogates["triangular"])
    layer.backend = None
    layer.function = rectangular()
    network.check(model, network.surrogates["rectangular"])


def test_code_that_was_compiled_by_hand_follows_or_refuses() -> None:
    layer = xk.CustomGradient(triangular())
    gradient = compile_gradient(layer)
    np.testing.assert_allclose(gradient(X), np.maximum(1 - abs(X), 0), rtol=1e-6)
    layer.function = rectangular()
    if HOST == "tensorflow":
        with pytest.raises(xg.StaleTraceError, match="another rule, function or backend"):
            gradient(X)
    else:
        np.testing.assert_array_equal(gradient(X), abs(X) <= 0.5)


def test_a_rule_in_force_around_fit_is_no_affair_of_the_layer(network: Any) -> None:
    model = network.build(xk.CustomGradient(triangular()))
    with xg.use("rectangular"):
        network.check(model, network.surrogates["triangular"])
        model.evaluate(network.x, network.y, verbose=0)
    model.evaluate(network.x, network.y, verbose=0)
    network.check(model, network.surrogates["triangular"])


# --- another framework ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sequential", "subclass"])
@pytest.mark.needs("torch")
def test_what_only_torch_can_run_trains_under_every_keras_backend(network: Any, kind: str) -> None:
    from ..written.autograd_classes import BranchesOnValues

    layer = xk.CustomGradient(xg.from_autograd_function(BranchesOnValues), "torch", name="gate")
    model = network.build(layer, kind)

    def backward(up: Any, h: Any) -> Any:
        return up * 2 if h.sum() > 0 else up

    check_step(network, model, np.tanh, backward)
    with pytest.raises(xg.TraceError, match=r"layer 'gate' cannot be saved.*BranchesOnValues"):
        layer.get_config()


@pytest.mark.needs("jax")
@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["auto", "eagerly"])
def test_a_function_of_jax_trains_under_every_keras_backend(
    network: Any, mode: dict[str, Any]
) -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def cube_root(x: Any) -> Any:
        return jnp.cbrt(x)

    def forward(x: Any) -> Any:
        return jnp.cbrt(x), x

    def backward(x: Any, g: Any) -> Any:
        return (g * jnp.exp(-(x**2)),)

    cube_root.defvjp(forward, backward)
    layer = xk.CustomGradient(xg.from_custom_vjp(cube_root), "jax")
    model = network.build(layer, **mode)
    check_step(network, model, np.cbrt, lambda up, h: up * np.exp(-(h**2)))


# --- code that nobody can look into ---------------------------------------------------------------


def test_a_model_trains_through_opaque_code() -> None:
    square = xg.opaque(lambda x: x * x, lambda grad_out, x: 2 * x * grad_out, result="x")
    inputs = keras.Input((2,))
    dense = keras.layers.Dense(3, kernel_initializer="ones", use_bias=False)
    model = keras.Model(inputs, xk.CustomGradient(square)(dense(inputs)))
    model.compile(optimizer=keras.optimizers.SGD(0.125), loss="mse", jit_compile=False)
    model.fit(np.ones((4, 2), np.float32), np.zeros((4, 3), np.float32), epochs=1, verbose=0)
    # y = (1 + 1) ** 2 = 4, loss = mean y**2; d/dw = 2 * 4 * 2 * 2 / 3 = 32 / 3 for each weight
    kernel = keras.ops.convert_to_numpy(dense.kernel)
    np.testing.assert_allclose(kernel, np.full((2, 3), 1 - 4 / 3), rtol=1e-6)
