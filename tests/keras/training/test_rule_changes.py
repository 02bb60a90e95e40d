"""A rule that changes after Keras has compiled its train step is followed, or it is an error."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.models.models_keras import compile_gradient
from ..conftest import DISTINCT_MODES, KINDS

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

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
    network.assert_trained(model, network.weights, 0.0)


def test_another_rule_around_fit_is_followed_or_refused(
    network: Any, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside"), **mode)
    for rule in ("triangular", "rectangular", None, "triangular"):
        with use_or_not(rule):
            stale = is_fixed and rule != "triangular"
            check_or_stale(network, model, network.surrogates[rule], stale)


def test_other_params_are_followed_or_refused(
    network: Any, usual_mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside"), **usual_mode)
    for width in (1.0, 2.0, 1.0):
        with xg.use("triangular", params={"width": width}):
            stale = is_fixed and width != 1.0
            derivative = network.surrogates["triangular"]
            check_or_stale(network, model, lambda x, w=width, d=derivative: d(x, w), stale)


@pytest.fixture
def redefinable() -> str:
    """The name of a rule that a test may define anew."""
    name = "keras_test_window"

    @xg.register(name)
    def first(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where(abs(tin) <= 0.5, grad_out, 0.0)

    return name


def test_a_name_that_is_registered_anew_is_followed_or_refused(
    network: Any, redefinable: str, mode: dict[str, Any], is_fixed: bool
) -> None:
    model = network.build(xk.Activation("Heaviside", rule=redefinable), **mode)
    network.check(model, network.surrogates["rectangular"])

    @xg.register(redefinable, override=True)
    def second(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where(abs(tin) <= 1.0, grad_out, 0.0)

    check_or_stale(network, model, lambda x: network.surrogates["rectangular"](x, -1, 1), is_fixed)


@pytest.mark.parametrize("remedy", ["make_train_function", "compile"])
def test_a_train_step_made_anew_takes_the_rule_in_force(network: Any, remedy: str) -> None:
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


def test_evaluate_and_predict_run_under_any_rule(network: Any, usual_mode: dict[str, Any]) -> None:
    model = network.build(xk.Activation("Heaviside"), **usual_mode)
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


def test_validation_before_another_rule_does_not_fix_it(network: Any) -> None:
    model = network.build(xk.Activation("Heaviside"))
    with xg.use("rectangular"):
        model.evaluate(network.x, network.y, verbose=0)
        model.predict(network.x, verbose=0)
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])


def test_a_model_built_under_one_rule_trains_under_another(network: Any, kind: str) -> None:
    with xg.use("rectangular"):
        model = network.build(xk.Activation("Heaviside"), kind)
        # What `fit` does before its first step: the whole model is called without data.
        assert model.compute_output_spec(keras.KerasTensor((None, 8))).shape == (None, 3)
    with xg.use("triangular"):
        network.check(model, network.surrogates["triangular"])


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*((kind, "auto") for kind in KINDS), *((KINDS[0], mode) for mode in DISTINCT_MODES[1:])],
    indirect=True,
)
def test_an_assigned_rule_acts_in_the_next_step(
    network: Any, kind: str, mode: dict[str, Any]
) -> None:
    layer = xk.Activation("Heaviside", rule="triangular")
    model = network.build(layer, kind, **mode)
    for rule in ("triangular", "rectangular", None, "triangular"):
        layer.rule = rule
        network.check(model, network.surrogates[rule])
    assert layer.rule == "triangular"


def test_assigned_params_act_in_the_next_step(network: Any, mode: dict[str, Any]) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    model = network.build(layer, **mode)
    triangle = network.surrogates["triangular"]
    network.check(model, lambda x: triangle(x, 2.0))
    layer.params = {"width": 0.5}
    network.check(model, lambda x: triangle(x, 0.5))
    layer.params["width"] = 4.0
    network.check(model, lambda x: triangle(x, 4.0))
    layer.params["width"].assign(3.0)
    network.check(model, lambda x: triangle(x, 3.0))
    layer.params = {}
    network.check(model, triangle)


def test_a_param_of_which_only_the_sign_changes_acts_in_the_next_step(network: Any) -> None:
    def toward(ctx: Any, grad_out: Any, tin: Any, slope: float = 1.0) -> Any:
        return xg.xp.where(1.0 / (slope * abs(tin)) > 0.0, grad_out, -grad_out)

    layer = xk.Activation("Heaviside", rule=toward)
    model = network.build(layer)
    for slope in (0.0, -0.0, 3.0, -0.0, 3.0, 0.0):
        # An array: TensorFlow takes the number -0.0 for 0.0.
        layer.params["slope"].assign(np.array(slope, "float32"))
        sign = np.copysign(1.0, slope)
        network.check(model, lambda x, sign=sign: np.full_like(x, sign))


def test_params_that_are_part_of_the_rules_code_are_followed_too(
    network: Any, usual_mode: dict[str, Any]
) -> None:
    def windows(
        ctx: Any, grad_out: Any, tin: Any, count: int = 1, slope: float = 1.0, width: float = 1.0
    ) -> Any:
        for k in range(count):
            grad_out = grad_out * xg.xp.where(abs(tin) <= width / (k + 1), 1.0, 0.0)
        return grad_out * slope if slope > 0 else grad_out

    layer = xk.Activation("Heaviside", rule=windows)
    model = network.build(layer, **usual_mode)
    network.check(model, lambda x: 1.0 * (abs(x) <= 1))
    layer.params["count"] = 2
    network.check(model, lambda x: 1.0 * (abs(x) <= 0.5))
    layer.params = {"count": 2, "slope": 0.5}
    network.check(model, lambda x: 0.5 * (abs(x) <= 0.5))
    layer.params["width"].assign(2.0)
    network.check(model, lambda x: 0.5 * (abs(x) <= 1))


def test_a_rule_assigned_by_a_callback_within_fit_acts(
    network: Any, usual_mode: dict[str, Any]
) -> None:
    rules = ("triangular", None, "rectangular")
    layer = xk.Activation("Heaviside", rule="full_jam")
    model = network.build(layer, **usual_mode)

    class Switch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            layer.rule = rules[epoch]

    network.fit(model, Switch(), size=32, epochs=3)
    initial = network.weights
    for rule in rules:
        network.weights = network.step(network.surrogates[rule])
    network.assert_trained(model, network.weights)
    network.weights = initial


def test_a_step_that_the_user_compiled_follows_an_assigned_rule_or_is_refused(network: Any) -> None:
    layer = xk.Activation("Heaviside", rule="triangular")
    x = network.x
    gradient = compile_gradient(layer)
    np.testing.assert_allclose(gradient(x), network.surrogates["triangular"](x), rtol=1e-6)
    layer.rule = "rectangular"
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        with pytest.raises(xg.StaleTraceError, match=r"another rule, .*: trace it anew"):
            gradient(x)
    else:
        np.testing.assert_array_equal(gradient(x), network.surrogates["rectangular"](x))


def test_a_wrong_assignment_says_so_and_changes_nothing(network: Any) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    model = network.build(layer)
    with pytest.raises(xg.RuleError, match="did you mean 'triangular'"):
        layer.rule = "triangluar"
    with pytest.raises(TypeError, match="no param 'widht'; did you mean 'width'"):
        layer.params = {"widht": 1.0}
    with pytest.raises(xg.RuleError, match="no param 'widht'; did you mean 'width'"):
        layer.params["widht"] = 1.0
    with pytest.raises(TypeError, match="width"):
        layer.params["width"] = "wide"
    with pytest.raises(AttributeError, match=r"write params\['width'\] = 1.0, not params.width"):
        layer.params.width = 1.0
    with pytest.raises(TypeError, match=r"keeps 'width'; write params\['width'\] = number"):
        del layer.params["width"]
    with pytest.raises(xg.RuleError, match="'width' is >= 0, got -2"):  # read from the tensor
        layer.params = {"width": keras.ops.convert_to_tensor(-2.0)}
    with pytest.raises(xg.BackendNotFound, match="no backend named 'torhc'; did you mean 'torch'"):
        layer.backend = "torhc"
    assert (layer.rule, layer.params.numbers(), layer.backend) == (
        "triangular",
        {"width": 2.0},
        None,
    )
    network.check(model, lambda x: network.surrogates["triangular"](x, 2.0))


def test_a_rule_registered_anew_with_other_params_is_refused(
    network: Any, redefinable: str
) -> None:
    @xg.register(redefinable, override=True)
    def narrow(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return xg.xp.where(abs(tin) <= width, grad_out, 0.0)

    layer = xk.Activation("Heaviside", rule=redefinable)
    model = network.build(layer, run_eagerly=True)
    network.check(model, lambda x: 1.0 * (abs(x) <= 1))

    @xg.register(redefinable, override=True)
    def shifted(ctx: Any, grad_out: Any, tin: Any, left: float = 0.5, right: float = 0.5) -> Any:
        return xg.xp.where((tin >= -left) & (tin <= right), grad_out, 0.0)

    with pytest.raises(xg.RuleError, match=r"was registered anew .* assign it to the layer again"):
        network.train(model)
    layer.rule = redefinable
    network.check(model, network.surrogates["rectangular"])


def needs_tensorflow_graphs() -> None:
    if os.environ.get("KERAS_BACKEND") != "tensorflow":
        pytest.skip("about TensorFlow's graphs, and Keras runs on another backend here")


def make_attacked_model() -> Any:
    """Give a model whose test_step reports a gradient: that of the loss by the inputs."""
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


def test_a_gradient_taken_inside_a_test_step_follows_the_rule_or_is_refused(network: Any) -> None:
    needs_tensorflow_graphs()
    x, y = network.y, np.full_like(network.y, 0.25)
    error = 2 * ((x > 0) - 0.25)
    model = make_attacked_model()
    with xg.use("triangular"):
        attack = model.evaluate(x, y, batch_size=len(x), return_dict=True, verbose=0)["attack"]
    expected = ((error * network.surrogates["triangular"](x)) ** 2).sum()
    np.testing.assert_allclose(attack, expected, rtol=1e-5)
    with xg.use("rectangular"), pytest.raises(xg.StaleTraceError):
        model.evaluate(x, y, batch_size=len(x), verbose=0)


def test_no_gradient_comes_through_a_predict_step_that_was_traced_without_a_tape(
    network: Any,
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


# A compiled train step depends on what it read: a layer's own rule wins whatever is around it, and
# whatever else changes.


def test_a_layer_with_a_rule_of_its_own_trains_on_under_any_use(network: Any) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 1.0})
    model = network.build(layer)
    derivative = network.surrogates["triangular"]
    with xg.use("scale", {"s": 1234.0}):
        network.check(model, derivative)
    calls, call = [], layer.call  # compiled steps call it while they are traced

    def counted(inputs: Any) -> Any:
        calls.append(inputs)
        return call(inputs)

    layer.call = counted
    for n in range(3):
        with xg.use("scale", {"s": 1235.0 + n}, key=n):
            network.check(model, derivative)
    with xg.use("rectangular", {"a": -1235.0}):
        network.check(model, derivative)
    assert keras.config.backend() == "torch" or not calls


def test_a_rule_registered_anew_between_two_fits_leaves_a_step_of_others_valid(
    network: Any,
) -> None:
    def register(number: float) -> None:
        @xg.register("test of another cell", override=True)
        def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
            return grad_out * number

    model = network.build(xk.Activation("Heaviside"))
    for number in (1.0, 2.0):  # a notebook's cell is run twice
        register(number)
        with xg.use("test of another cell", scope="params"):
            pass
        with xg.use("triangular"):
            network.check(model, network.surrogates["triangular"])


def test_a_function_that_holds_an_activation_is_followed_or_refused(network: Any) -> None:
    act = xg.activation("Heaviside")
    layer = xk.CustomGradient(xg.function(lambda x: act(x) * 1.0))
    model = network.build(layer)
    for rule in ("triangular", "rectangular"):
        with xg.use(rule):
            try:
                network.check(model, network.surrogates[rule])
            except xg.StaleTraceError:
                assert keras.config.backend() == "tensorflow"
                assert rule == "rectangular"
                network.reset(model)
                model.make_train_function(force=True)
                network.check(model, network.surrogates[rule])
