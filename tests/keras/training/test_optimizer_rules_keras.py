"""`multigrad.keras.apply_to_gradients`: the optimizer's steps see the gradients after the rule."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.graph import random

from ...harness.models.linear_keras import (
    RATE,
    Ruled,
    W,
    assert_close,
    clip,
    gradients,
    linear,
    sgd,
    step,
    train,
)

pytestmark = pytest.mark.needs("keras")


# --- numbers --------------------------------------------------------------------------------------


def test_first_step_of_spikes_is_that_of_the_formulas_with_the_rule(
    xk: ModuleType, ruled: Ruled, network: Any, mode: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Heaviside", rule="triangular"))
    model.compile(ruled(sgd(), "clip_norm", {"max_norm": 0.1}), "mse", **mode)
    stepped = network.step(network.surrogates["triangular"])
    expected = [
        w - RATE * clip((w - s) / network.rate)
        for w, s in zip((w.astype(np.float64) for w in network.weights), stepped, strict=True)
    ]
    network.reset(model)
    assert_close(network.train(model), expected)


def test_params_are_assigned_between_fits_and_batches_without_a_retrace(
    xk: ModuleType, ruled: Ruled, mode: dict[str, Any]
) -> None:
    import keras

    calls: list[Any] = []

    class Count(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            calls.append(x)
            return x

    optimizer = ruled(sgd(), "scale", {"s": 1.0})

    anneal = xk.Anneal("s", lambda step: float(step))  # steps 0 and 1 were made before
    model = linear(optimizer, (Count(),), **mode)
    assert_close(train(model), step(lambda g: g))
    before = len(calls)
    model.layers[-1].set_weights([W, np.zeros(3)])
    optimizer.params["s"].assign(3.0)
    assert_close(train(model), step(lambda g: 3 * g))
    model.layers[-1].set_weights([W, np.zeros(3)])
    weights = [W.astype(np.float64), np.zeros(3)]
    for s, rows in [(2.0, slice(0, 8)), (3.0, slice(8, 16))]:
        found = zip(weights, gradients(weights, rows), strict=True)
        weights = [w - RATE * s * g for w, g in found]
    assert_close(train(model, batch_size=8, callbacks=[anneal]), weights)
    traced = os.environ["KERAS_BACKEND"] == "tensorflow" or "jit_compile" not in mode
    if os.environ["KERAS_BACKEND"] != "torch" and traced and not mode.get("run_eagerly"):
        assert len(calls) - before <= 1  # another batch size, and nothing else


def test_static_params_are_plain_and_numbers_are_variables_that_do_not_train(ruled: Ruled) -> None:
    import keras

    optimizer = ruled(sgd(), "centralize", {"dim": 0})
    assert optimizer.params["dim"] == 0
    assert not optimizer.variables or "dim" not in {v.name for v in optimizer.variables}
    optimizer = ruled(sgd(), "clip_norm", {"max_norm": keras.Variable(0.5)})
    assert set(optimizer.params) == {"max_norm", "eps"}
    assert all(not variable.trainable for variable in optimizer.params.values())
    assert float(optimizer.params["max_norm"]) == 0.5


def test_params_of_a_composed_rule_are_those_on_which_its_parts_agree(ruled: Ruled) -> None:
    optimizer = ruled(sgd(), xg.compose("scale", "clip_norm"))
    optimizer.params["max_norm"].assign(0.1)
    optimizer.params["s"].assign(1000.0)
    assert_close(train(linear(optimizer)), step(lambda g: clip(1000 * g)))


def test_bound_params_are_not_settable_and_act(ruled: Ruled) -> None:
    optimizer = ruled(sgd(), xg.get("scale").with_params(s=2.0))
    assert dict(optimizer.params) == {}
    assert_close(train(linear(optimizer)), step(lambda g: 2 * g))


def test_a_param_that_the_rules_python_code_looks_at_stays_a_plain_number(ruled: Ruled) -> None:
    def power(ctx: Any, grad_out: Any, tin: Any, p: float = 2.0, s: float = 1.0) -> Any:
        return s * (grad_out * grad_out if p == 2.0 else grad_out)

    optimizer = ruled(sgd(), power, {"p": 2.0, "s": 3.0})
    assert optimizer.params["p"] == 2.0
    optimizer.params["s"].assign(4.0)
    assert_close(train(linear(optimizer)), step(lambda g: 4 * g * g))


def test_a_rule_that_runs_as_it_is_has_plain_params(ruled: Ruled) -> None:
    import keras

    def soften(ctx: Any, grad_out: Any, tin: Any, by: float = 2.0) -> Any:
        return by * keras.ops.tanh(grad_out)

    rule = xg.register("keras_test_soften", native=True)(soften)
    try:
        optimizer = ruled(sgd(), rule, {"by": 3.0})
        assert dict(optimizer.params) == {"by": 3.0}
        assert_close(train(linear(optimizer)), step(lambda g: 3 * np.tanh(g)))
    finally:
        xg.unregister("keras_test_soften")


def test_random_rules_draw_by_key_step_and_gradient(ruled: Ruled, mode: dict[str, Any]) -> None:
    weights = [W.astype(np.float64), np.zeros(3)]
    for s in range(2):
        key = random.fold_in(random.key_from_int(7), s)
        jams = [
            random.uniform(random.fold_in(key, n), w.shape, np.float32)
            for n, w in enumerate(weights)
        ]
        found = zip(weights, gradients(weights), jams, strict=True)
        weights = [w - RATE * g * jam for w, g, jam in found]
    assert_close(train(linear(ruled(sgd(), "full_jam", key=7), **mode), epochs=2), weights)


def test_random_rules_without_a_key_follow_keras_seeds(ruled: Ruled) -> None:
    import keras

    trained = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        trained.append(train(linear(ruled(sgd(), "noise")))[0])
    np.testing.assert_array_equal(trained[0], trained[1])
    assert np.abs(trained[0] - trained[2]).max() > 1e-3


def test_rules_that_draw_nothing_take_nothing_from_keras_seeds(ruled: Ruled) -> None:
    import keras

    keras.utils.set_random_seed(1)
    expected = keras.random.uniform((3,))
    keras.utils.set_random_seed(1)
    ruled(sgd(), "clip_norm")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(keras.random.uniform((3,))),
        keras.ops.convert_to_numpy(expected),
    )


def test_applied_twice_the_last_given_rule_acts_first(ruled: Ruled) -> None:
    inner = ruled(sgd(), "clip_norm", {"max_norm": 0.1})
    outer = ruled(inner, "scale", {"s": 1000.0})
    assert_close(train(linear(outer)), step(lambda g: clip(1000 * g)))
    assert int(outer.iterations) == 1


# --- what changes, and what is wrong --------------------------------------------------------------


def test_a_name_that_is_registered_anew_is_followed_or_refused(
    ruled: Ruled, usual_mode: dict[str, Any], is_fixed: bool
) -> None:
    name = "keras_test_times"

    @xg.register(name)
    def first(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 2.0 * grad_out

    try:
        model = linear(ruled(sgd(), name), **usual_mode)
        assert_close(train(model), step(lambda g: 2 * g))

        @xg.register(name, override=True)
        def second(ctx: Any, grad_out: Any, tin: Any) -> Any:
            return 3.0 * grad_out

        model.layers[-1].set_weights([W, np.zeros(3)])
        if is_fixed:
            with pytest.raises(xg.StaleTraceError):
                train(model)
        else:
            assert_close(train(model), step(lambda g: 3 * g))
    finally:
        xg.unregister(name)


def test_use_of_scope_params_around_fit_acts_by_itself_on_torch(usual_mode: dict[str, Any]) -> None:
    model = linear(sgd(), **usual_mode)
    by_itself = os.environ["KERAS_BACKEND"] == "torch"
    factors = (3.0, 5.0) if by_itself else (1.0, 1.0)
    for s, factor in zip((3.0, 5.0), factors, strict=True):
        model.layers[-1].set_weights([W, np.zeros(3)])
        with xg.use("scale", {"s": s}, scope="params"):
            assert_close(train(model), step(lambda g, factor=factor: factor * g))
    model.layers[-1].set_weights([W, np.zeros(3)])
    assert_close(train(model), step(lambda g: g))


def test_stateless_apply_sees_the_rule(ruled: Ruled) -> None:
    import keras

    weight = keras.Variable(np.ones(2))
    optimizer = ruled(sgd(), "scale", {"s": 4.0})
    optimizer.build([weight])
    values = [v.value for v in optimizer.variables]
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        with pytest.raises(ValueError, match="stateless_apply is not supported"):
            optimizer.stateless_apply(values, [keras.ops.ones(2)], [weight.value])
        return
    (stepped,), state = optimizer.stateless_apply(values, [keras.ops.ones(2)], [weight.value])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(stepped), np.full(2, 0.5))
    assert len(state) == len(values)


def test_the_name_of_an_optimizer_will_do(ruled: Ruled) -> None:
    import keras

    assert isinstance(ruled("adamw", "clip_norm").inner_optimizer, keras.optimizers.AdamW)


def test_wrong_arguments_are_said_at_once(ruled: Ruled) -> None:
    import keras

    with pytest.raises(xg.RuleError, match="did you mean 'clip_norm'"):
        ruled(sgd(), "clip_nrom")
    with pytest.raises(xg.RuleError, match="max_nrom"):
        ruled(sgd(), "clip_norm", {"max_nrom": 1.0})
    with pytest.raises(xg.RuleError, match="needs a rule"):
        ruled(sgd(), None)
    with pytest.raises(xg.RuleError, match="key must be"):
        ruled(sgd(), "full_jam", key="seven")
    for wrong in (None, 0.1, keras.layers.Dense(1)):
        with pytest.raises(TypeError, match="takes a Keras optimizer"):
            ruled(wrong, "clip_norm")
    for optimizer in (sgd(), ruled(sgd(), "scale")):
        optimizer.build([keras.Variable(np.ones(2))])
        with pytest.raises(ValueError, match="is built already"):
            ruled(optimizer, "clip_norm")
    optimizer = ruled(sgd(), "scale")
    with pytest.raises(AttributeError):
        optimizer.rule = "clip_norm"
    with pytest.raises(KeyError, match=r"no param 'S'; did you mean 's'"):
        optimizer.params["S"]
