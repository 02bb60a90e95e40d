"""A rule that changes after Keras has compiled its train step is followed, or it is an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")


def use_or_not(rule: str | None, **options: Any) -> Any:
    return nullcontext() if rule is None else xg.use(rule, **options)


def check_or_stale(network: Any, model: Any, derivative: Any, is_stale: bool) -> None:
    """Check a step; where the compiled one is stale, expect the error and untouched weights."""
    if not is_stale:
        network.check(model, derivative)
        return
    network.reset(model)
    with pytest.raises(xg.StaleTraceError):
        network.train(model)
    for ours, initial in zip(model.get_weights(), network.weights, strict=True):
        np.testing.assert_array_equal(ours, initial)


def test_another_rule_around_fit_is_followed_or_refused(
    xk: ModuleType, network: Any, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside"), **mode)
    for rule in ("triangular", "rectangular", None, "triangular"):
        with use_or_not(rule):
            stale = is_fixed and rule != "triangular"
            check_or_stale(network, model, network.surrogates[rule], stale)


def test_other_params_are_followed_or_refused(
    xk: ModuleType, network: Any, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside"), **mode)
    for width in (1.0, 2.0, 1.0):
        with xg.use("triangular", params={"width": width}):
            stale = is_fixed and width != 1.0
            derivative = network.surrogates["triangular"]
            check_or_stale(network, model, lambda x, w=width, d=derivative: d(x, w), stale)


@pytest.fixture
def redefinable() -> Iterator[str]:
    """The name of a rule that a test may define anew."""
    name = "keras_test_window"

    @xg.register(name)
    def first(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where(abs(tin) <= 0.5, grad_out, 0.0)

    yield name
    xg.unregister(name)


def test_a_name_that_is_registered_anew_is_followed_or_refused(
    xk: ModuleType, network: Any, redefinable: str, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside", rule=redefinable), **mode)
    network.check(model, network.surrogates["rectangular"])

    @xg.register(redefinable, override=True)
    def second(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where(abs(tin) <= 1.0, grad_out, 0.0)

    check_or_stale(network, model, lambda x: network.surrogates["rectangular"](x, -1, 1), is_fixed)


@pytest.mark.parametrize("remedy", ["make_train_function", "compile"])
def test_a_train_step_made_anew_takes_the_rule_in_force(
    xk: ModuleType, network: Any, remedy: str
) -> None:
    model = network.build(xk.Activation("Heaviside"))
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])
    for rule in ("rectangular", None, "triangular"):
        if remedy == "compile":
            model.compile(model.optimizer, model.loss)
        else:
            model.make_train_function(force=True)
        with use_or_not(rule):
            network.check(model, network.surrogates[rule])


def test_evaluate_and_predict_run_under_any_rule(
    xk: ModuleType, network: Any, mode: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Heaviside"), **mode)
    data = (network.x, network.y)
    with xg.use("triangular"):
        model.fit(*data, batch_size=32, validation_data=data, verbose=0)
        losses = [model.evaluate(*data, verbose=0)]
        outputs = [model.predict(network.x, verbose=0)]
    for rule in (None, "rectangular"):
        with use_or_not(rule):
            losses.append(model.evaluate(*data, verbose=0))
            outputs.append(model.predict(network.x, verbose=0))
    assert losses == [losses[0]] * 3
    np.testing.assert_array_equal(outputs, [outputs[0]] * 3)
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])


def test_validation_before_another_rule_does_not_fix_it(xk: ModuleType, network: Any) -> None:
    model = network.build(xk.Activation("Heaviside"))
    with xg.use("rectangular"):
        model.evaluate(network.x, network.y, verbose=0)
        model.predict(network.x, verbose=0)
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])


def test_a_model_built_under_one_rule_trains_under_another(
    xk: ModuleType, network: Any, kind: str
) -> None:
    import keras

    with xg.use("rectangular"):
        model = network.build(xk.Activation("Heaviside"), kind)
        # What `fit` does before its first step: the whole model is called without data.
        assert model.compute_output_spec(keras.KerasTensor((None, 8))).shape == (None, 3)
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])


@pytest.mark.parametrize("attribute", ["rule", "params"])
def test_a_layers_rule_cannot_be_assigned(xk: ModuleType, attribute: str) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    with pytest.raises(AttributeError, match=r"is fixed, .*[Mm]ake a new layer"):
        setattr(layer, attribute, "rectangular")
    with pytest.raises(TypeError):
        layer.params["width"] = 3.0
    assert (layer.rule, dict(layer.params)) == ("triangular", {"width": 2.0})


def needs_tensorflow_graphs() -> None:
    if os.environ.get("KERAS_BACKEND") != "tensorflow":
        pytest.skip("about TensorFlow's graphs, and Keras runs on another backend here")


def make_attacked_model(xk: ModuleType) -> Any:
    """Give a model whose test_step reports a gradient: that of the loss by the inputs."""
    import keras
    import tensorflow as tf

    class Attacked(keras.Sequential):
        def test_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum((self(x) - y) ** 2)
            return {"attack": tf.reduce_sum(tape.gradient(loss, x) ** 2)}

    model = Attacked([keras.Input((3,)), xk.Activation("Heaviside")])
    model.compile("sgd", "mse")
    return model


def test_a_gradient_taken_inside_a_test_step_follows_the_rule_or_is_refused(
    xk: ModuleType, network: Any
) -> None:
    needs_tensorflow_graphs()
    x, y = network.y, np.full_like(network.y, 0.25)
    error = 2 * ((x > 0) - 0.25)
    model = make_attacked_model(xk)
    with xg.use("triangular"):
        attack = model.evaluate(x, y, batch_size=len(x), return_dict=True, verbose=0)["attack"]
    expected = ((error * network.surrogates["triangular"](x)) ** 2).sum()
    np.testing.assert_allclose(attack, expected, rtol=1e-5)
    with xg.use("rectangular"), pytest.raises(xg.StaleTraceError):
        model.evaluate(x, y, batch_size=len(x), verbose=0)


def test_no_gradient_comes_through_a_predict_step_that_was_traced_without_a_tape(
    xk: ModuleType, network: Any
) -> None:
    needs_tensorflow_graphs()
    import tensorflow as tf

    model = network.build(xk.Activation("Heaviside", rule="triangular"))
    step = tf.function(model.predict_step, autograph=False)
    x = tf.constant(network.x)
    step((x,))
    with (
        pytest.raises(xg.StaleTraceError, match="traced without a GradientTape"),
        tf.GradientTape() as tape,
    ):
        tape.watch(x)
        tape.gradient(step((x,)), x)
