"""A compiled train step depends on what it read: a layer's own rule wins whatever is around it, and
whatever else changes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")


class Counted:
    """How often a layer was called in the train steps of a model: compiled ones call it while they
    are traced.
    """

    def __init__(self, layer: Any) -> None:
        self.calls = 0
        call = layer.call

        def counting(inputs: Any) -> Any:
            self.calls += 1
            return call(inputs)

        layer.call = counting


def test_a_layer_with_a_rule_of_its_own_trains_on_under_any_use(
    xk: ModuleType, network: Any
) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 1.0})
    model = network.build(layer)
    derivative = network.surrogates["triangular"]
    with xg.use("scale", {"s": 1234.0}):
        network.check(model, derivative)
    counted = Counted(layer)
    for n in range(3):
        with xg.use("scale", {"s": 1235.0 + n}, key=n):
            network.check(model, derivative)
    with xg.use("rectangular", {"a": -1235.0}):
        network.check(model, derivative)
    import keras

    assert keras.config.backend() == "torch" or counted.calls == 0


@pytest.mark.usefixtures("registry_as_found")
def test_a_rule_registered_anew_between_two_fits_leaves_a_step_of_others_valid(
    xk: ModuleType, network: Any
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


def test_a_function_that_holds_an_activation_is_followed_or_refused(
    xk: ModuleType, network: Any
) -> None:
    act = xg.activation("Heaviside")
    layer = xk.CustomGradient(xg.function(lambda x: act(x) * 1.0))
    model = network.build(layer)
    for rule in ("triangular", "rectangular"):
        with xg.use(rule):
            try:
                network.check(model, network.surrogates[rule])
            except xg.StaleTraceError:
                import keras

                assert keras.config.backend() == "tensorflow"
                assert rule == "rectangular"
                network.reset(model)
                model.make_train_function(force=True)
                network.check(model, network.surrogates[rule])


def test_a_layer_of_the_rule_in_force_is_evaluated_under_any(xk: ModuleType, network: Any) -> None:
    model = network.build(xk.Activation("Heaviside"))
    outputs = []
    for rule in ("triangular", "rectangular"):
        with xg.use(rule):
            outputs.append(model.predict(network.x, verbose=0))
            model.evaluate(network.x, network.y, verbose=0)
    np.testing.assert_array_equal(*outputs)
