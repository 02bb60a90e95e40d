"""Training in Keras: the first step of SGD is the one that the formulas give."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..conftest import KINDS, MODES

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")


@pytest.mark.parametrize(
    ("kind", "every_mode"),
    [*((kind, "auto") for kind in KINDS), *(("sequential", mode) for mode in list(MODES)[1:])],
    indirect=True,
)
def test_first_step_uses_the_layers_own_rule(
    network: Any, kind: str, every_mode: dict[str, Any]
) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    model = network.build(layer, kind, **every_mode)
    network.check(model, lambda x: network.surrogates["triangular"](x, 2.0))


@pytest.mark.usefixtures("whole_step")
def test_first_step_uses_the_rule_that_use_puts_in_force(
    network: Any, mode: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Heaviside"), **mode)
    with xg.use("rectangular"):
        network.check(model, network.surrogates["rectangular"])


def make_half_window() -> Any:
    """Give a rule that no test has used before, so that it is captured where it is first called."""

    def half_window(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return xg.xp.where(abs(tin) <= width, 0.5 * grad_out, 0.0)

    return half_window


@pytest.mark.parametrize(
    ("method", "options"), [("fit", {}), ("train_on_batch", {"jit_compile": True})]
)
def test_a_function_of_the_users_own_is_a_rule(
    network: Any, method: str, options: dict[str, Any]
) -> None:
    layer = xk.Activation("Heaviside", rule=make_half_window(), params={"width": 0.5})
    model = network.build(layer, **options)
    if method == "fit":
        network.train(model)
    else:
        model.train_on_batch(network.x, network.y)
    expected = network.step(lambda x: 0.5 * network.surrogates["rectangular"](x))
    network.assert_trained(model, expected)


def test_a_composed_rule_applies_its_parts_in_series(network: Any) -> None:
    rule = xg.compose("triangular", xg.get("rectangular").with_params(a=-0.25, b=0.5))
    model = network.build(xk.Activation("Heaviside", rule=rule))
    triangle, window = network.surrogates["triangular"], network.surrogates["rectangular"]
    network.check(model, lambda x: triangle(x) * window(x, -0.25, 0.5))


@pytest.fixture
def float64() -> Iterator[None]:
    """Losses and optimizers take Keras's default dtype; JAX has 64 bits only on request."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    with ExitStack() as stack:
        stack.callback(keras.config.set_floatx, before)
        if keras.config.backend() == "jax":
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


@pytest.mark.usefixtures("float64")
def test_float64_trains_in_float64(network: Any) -> None:
    layer = xk.Activation("Tanh", rule="triangular", dtype="float64")
    outputs = keras.ops.convert_to_numpy(layer(network.x.astype(np.float64)))
    np.testing.assert_allclose(outputs, np.tanh(network.x.astype(np.float64)), rtol=1e-15)

    network.x, network.y = network.x.astype(np.float64), network.y.astype(np.float64)
    model = network.build(xk.Activation("Heaviside", rule="triangular", dtype="float64"))
    # Keras's own losses (3.15) pass through float32 on jax and torch: 3e-9 is lost without us.
    tolerance = 1e-13 if keras.config.backend() == "tensorflow" else 1e-8
    network.check(model, network.surrogates["triangular"], tolerance)


def test_unknown_dimensions_train(network: Any, usual_mode: dict[str, Any]) -> None:
    inputs = keras.Input((None, 8))
    first, last = keras.layers.Dense(6), keras.layers.Dense(3)
    hidden = xk.Activation("Heaviside", rule="triangular")(first(inputs))
    assert hidden.shape == (None, None, 6)
    model = keras.Model(inputs, last(hidden))
    model.compile(keras.optimizers.SGD(network.rate), "mse", **usual_mode)
    expected = network.step(network.surrogates["triangular"])
    for steps in (4, 8):  # the same rows, in sequences of another length
        network.reset(model)
        model.train_on_batch(network.x.reshape(-1, steps, 8), network.y.reshape(-1, steps, 3))
        network.assert_trained(model, expected)


def test_a_mask_passes_through() -> None:
    tokens = keras.Input((None,))
    embedded = keras.layers.Embedding(5, 4, mask_zero=True)(tokens)
    pooled = keras.layers.GlobalAveragePooling1D()(xk.Activation("ReLU", "triangular")(embedded))
    model = keras.Model(tokens, pooled)
    padded, short = np.array([[1, 2, 0, 0]]), np.array([[1, 2]])
    np.testing.assert_array_equal(model.predict(padded, verbose=0), model.predict(short, verbose=0))


def test_several_steps_fused_into_one_graph_use_the_rule(network: Any) -> None:
    if os.environ["KERAS_BACKEND"] == "torch":
        pytest.skip("Keras on torch has no steps_per_execution")
    options = {"steps_per_execution": 2}
    fused = network.build(xk.Activation("Heaviside", rule="triangular"), **options)
    single = network.build(xk.Activation("Heaviside", rule="triangular"))
    for model in (fused, single):
        network.fit(model, epochs=2)
    network.assert_trained(fused, network.trained(single))


@pytest.mark.parametrize("shape", [(), (0, 4), (5,), (2, 3, 4)])
def test_any_shape_goes_through(shape: tuple[int, ...]) -> None:
    x = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(np.float32)
    layer = xk.Activation("Heaviside", rule="triangular")
    y = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x)))
    np.testing.assert_array_equal(y, (x > 0).astype(np.float32))
    assert layer(keras.KerasTensor((None, *shape))).shape == (None, *shape)


def test_wrong_arguments_are_said_when_the_layer_is_made() -> None:
    with pytest.raises(ValueError, match="no activation 'Heavyside'; did you mean 'Heaviside'"):
        xk.Activation("Heavyside")
    with pytest.raises(xg.RuleError, match="no rule named 'triangluar'"):
        xk.Activation("ReLU", rule="triangluar")
    with pytest.raises(TypeError, match="has no param 'widht'; did you mean 'width'"):
        xk.Activation("ReLU", rule="triangular", params={"widht": 1.0})
    with pytest.raises(xg.RuleError, match="need a rule"):
        xk.Activation("ReLU", params={"width": 1.0})
