"""`multigrad.keras.apply_to_gradients`: the optimizer's steps see the gradients after the rule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine import random

from ...harness.models.linear_keras import (
    RATE,
    Ruled,
    W,
    X,
    Y,
    assert_close,
    clip,
    gradients,
    linear,
    sgd,
    step,
    train,
)

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")


# --- numbers --------------------------------------------------------------------------------------


def test_first_step_of_spikes_is_that_of_the_formulas_with_the_rule(
    ruled: Ruled, network: Any, mode: dict[str, Any]
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
    ruled: Ruled, mode: dict[str, Any]
) -> None:
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
    optimizer.params["s"] = 1000.0
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
    def soften(ctx: Any, grad_out: Any, tin: Any, by: float = 2.0) -> Any:
        return by * keras.ops.tanh(grad_out)

    rule = xg.register("keras_test_soften", native=True)(soften)
    optimizer = ruled(sgd(), rule, {"by": 3.0})
    assert dict(optimizer.params) == {"by": 3.0}
    assert_close(train(linear(optimizer)), step(lambda g: 3 * np.tanh(g)))


def jammed(found: list[Any], key: int, step: int) -> list[Any]:
    """Give gradients after "full_jam" in one step."""
    own = random.fold_in(random.key_from_int(key), step)
    return [
        g * random.uniform(random.fold_in(own, n), g.shape, np.float32) for n, g in enumerate(found)
    ]


def test_random_rules_draw_by_key_step_and_gradient(ruled: Ruled, mode: dict[str, Any]) -> None:
    weights = [W.astype(np.float64), np.zeros(3)]
    for s in range(2):
        found = zip(weights, jammed(gradients(weights), 7, s), strict=True)
        weights = [w - RATE * g for w, g in found]
    assert_close(train(linear(ruled(sgd(), "full_jam", key=7), **mode), epochs=2), weights)


def test_random_rules_without_a_key_follow_keras_seeds(ruled: Ruled) -> None:
    trained = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        trained.append(train(linear(ruled(sgd(), "noise")))[0])
    np.testing.assert_array_equal(trained[0], trained[1])
    assert np.abs(trained[0] - trained[2]).max() > 1e-3


def test_rules_that_draw_nothing_take_nothing_from_keras_seeds(ruled: Ruled) -> None:
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
    assert isinstance(ruled("adamw", "clip_norm").inner_optimizer, keras.optimizers.AdamW)


def test_wrong_arguments_are_said_at_once(ruled: Ruled) -> None:
    with pytest.raises(xg.RuleError, match="did you mean 'clip_norm'"):
        ruled(sgd(), "clip_nrom")
    with pytest.raises(xg.RuleError, match="max_nrom"):
        ruled(sgd(), "clip_norm", {"max_nrom": 1.0})
    with pytest.raises(xg.RuleError, match="params are a dict, such as"):
        ruled(sgd(), "clip_norm", 1.0)
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
        optimizer.params["S"] = 1.0
    for wrong in ("wide", None):
        with pytest.raises(TypeError, match=r"expected a number, .* got params\['s'\] = "):
            optimizer.params["s"] = wrong
    with pytest.raises(ValueError, match="'max_norm' is >= 0, got -1"):
        ruled(sgd(), "clip_norm").params["max_norm"] = -1.0
    with pytest.raises(TypeError, match="nor follows a schedule"):
        ruled(sgd(), "scale", {"s": xg.schedule.linear(1.0, 0.0, 9)}).params["s"] = 1.0


# A rule around an optimizer: the inner optimizer, loss scaling, gradients of all kinds.


# --- what the inner optimizer does ----------------------------------------------------------------


def test_the_rule_comes_before_clipping_and_weight_decay(ruled: Ruled) -> None:
    model = linear(ruled(sgd(clipnorm=0.1), "scale", {"s": 1000.0}))
    assert_close(train(model), step(lambda g: clip(1000 * g)))
    model = linear(ruled(sgd(weight_decay=0.5), "scale", {"s": 0.0}))
    assert_close(train(model), [W - W * 0.5 * RATE, np.zeros(3)])


def test_the_rule_acts_on_each_gradient_that_is_accumulated(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    optimizer = ruled(sgd(gradient_accumulation_steps=2), "clip_norm", {"max_norm": 0.1})
    model = linear(optimizer, **usual_mode)
    start = [W.astype(np.float64), np.zeros(3)]
    first, second = gradients(start, slice(0, 8)), gradients(start, slice(8, 16))
    expected = [
        w - RATE * (clip(a) + clip(b)) / 2 for w, a, b in zip(start, first, second, strict=True)
    ]
    assert_close(train(model, batch_size=8), expected)
    assert int(optimizer.iterations) == 1


def test_draws_differ_between_accumulated_gradients(ruled: Ruled) -> None:
    optimizer = ruled(sgd(gradient_accumulation_steps=2), "full_jam", key=5)
    model = linear(optimizer)
    start = [W.astype(np.float64), np.zeros(3)]
    steps = [jammed(gradients(start), 5, s) for s in range(2)]
    expected = [w - RATE * (a + b) / 2 for w, a, b in zip(start, *steps, strict=True)]
    assert_close(train(model, epochs=2), expected)


def test_averages_are_those_of_the_inner_optimizer(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    optimizer = ruled(sgd(use_ema=True, ema_momentum=0.75), "clip_norm", {"max_norm": 0.1})
    assert optimizer.use_ema
    path = [step(clip, steps) for steps in (1, 2)]
    expected = [0.75 * first + 0.25 * second for first, second in zip(*path, strict=True)]
    assert_close(train(linear(optimizer, **usual_mode), epochs=2), expected)


def test_weights_swap_with_their_averages_in_evaluation(ruled: Ruled) -> None:
    losses = []
    for wrap in (lambda optimizer: optimizer, lambda optimizer: ruled(optimizer, "scale")):
        model = linear(wrap(sgd(use_ema=True, ema_momentum=0.75)))
        history = model.fit(
            X, Y, epochs=3, batch_size=8, shuffle=False, verbose=0, validation_data=(X, Y),
            callbacks=[keras.callbacks.SwapEMAWeights()],
        )  # fmt: skip
        losses.append(history.history["val_loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Muon"])
def test_scale_by_one_changes_nothing_for_any_optimizer(ruled: Ruled, name: str) -> None:
    trained = []
    for wrap in (lambda optimizer: optimizer, lambda optimizer: ruled(optimizer, "scale")):
        optimizer = getattr(keras.optimizers, name)(0.01, weight_decay=0.1)
        trained.append(train(linear(wrap(optimizer)), epochs=3))
    assert_close(*trained, tolerance=1e-7)


def test_rates_are_scheduled_and_set_as_before(ruled: Ruled) -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [RATE, 0.0])
    optimizer = ruled(keras.optimizers.SGD(schedule), "clip_norm", {"max_norm": 0.1})
    assert_close(train(linear(optimizer), epochs=3), step(clip))
    optimizer = ruled(sgd(), "clip_norm", {"max_norm": 0.1})
    by_epoch = keras.callbacks.LearningRateScheduler(lambda epoch: RATE if epoch == 0 else 0.0)
    model = linear(optimizer)
    assert_close(train(model, epochs=2, callbacks=[by_epoch]), step(clip))
    assert float(keras.ops.convert_to_numpy(optimizer.inner_optimizer.learning_rate)) == 0.0
    optimizer.learning_rate = RATE
    model.layers[-1].set_weights([W, np.zeros(3)])
    assert_close(train(model), step(clip))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100.0)
    train(model, epochs=2, callbacks=[plateau])
    assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) < RATE


def test_variables_excluded_from_weight_decay_do_not_decay(ruled: Ruled) -> None:
    optimizer = ruled(sgd(weight_decay=0.5), "scale", {"s": 0.0})
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    assert_close(train(linear(optimizer)), [W, np.zeros(3)])


# --- loss scaling ---------------------------------------------------------------------------------


@pytest.fixture
def half_precision() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def test_compile_may_scale_the_loss_around_the_rule(
    ruled: Ruled, usual_mode: dict[str, Any], half_precision: None
) -> None:
    model = linear(ruled(sgd(), "clip_norm", {"max_norm": 0.1}), **usual_mode)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_close(train(model), step(clip), tolerance=1e-3)


def test_given_a_loss_scale_optimizer_the_rule_sees_unscaled_gradients(
    ruled: Ruled, mode: dict[str, Any]
) -> None:
    scaling = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)
    optimizer = ruled(scaling, "clip_norm", {"max_norm": 0.1})
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert_close(train(linear(optimizer, **mode)), step(clip))


def test_a_fixed_loss_scale_is_undone_before_the_rule(ruled: Ruled) -> None:
    optimizer = ruled(sgd(loss_scale_factor=1024.0), "clip_norm", {"max_norm": 0.1})
    assert_close(train(linear(optimizer)), step(clip))
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.loss_scale_factor == 1024.0


# --- gradients of other kinds ---------------------------------------------------------------------


def test_frozen_layers_stay_and_do_not_count_as_gradients(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    frozen = keras.layers.Dense(4, kernel_initializer="identity", trainable=False)
    model = linear(ruled(sgd(), "full_jam", key=7), (frozen,), **usual_mode)
    start = [W.astype(np.float64), np.zeros(3)]
    expected = [w - RATE * g for w, g in zip(start, jammed(gradients(start), 7, 0), strict=True)]
    found = train(model)
    assert_close(found[2:], expected)
    np.testing.assert_array_equal(found[0], np.eye(4))


def test_gradients_of_an_embedding_are_those_of_its_table(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    table = np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32)
    words = np.array([[0], [2], [2], [4]])
    target = np.zeros((4, 1, 3), np.float32)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(5, 3)])
    model.compile(ruled(sgd(), "clip_norm", {"max_norm": 0.1}), "mse", **usual_mode)
    model.set_weights([table])
    model.fit(words, target, batch_size=4, shuffle=False, verbose=0)
    gradient = np.zeros((5, 3))
    for word in words[:, 0]:
        gradient[word] += 2 * table[word] / 12
    assert_close(model.get_weights(), [table - RATE * clip(gradient)])


def test_gradients_that_are_none_stay_none(ruled: Ruled) -> None:
    used, unused = keras.Variable(np.ones(2)), keras.Variable(np.ones(2))
    optimizer = ruled(sgd(), "scale", {"s": 2.0})
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([keras.ops.ones(2), None], [used, unused])
    assert_close([v.numpy() for v in (used, unused)], [np.full(2, 0.75), np.ones(2)])
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply([None, None], [used, unused])


def test_what_overwrites_a_variable_is_no_gradient(ruled: Ruled) -> None:
    scale, weight = keras.Variable(np.ones(2)), keras.Variable(np.ones(2))
    scale.overwrite_with_gradient = True
    optimizer = ruled(sgd(loss_scale_factor=2.0), "scale", {"s": 4.0})
    optimizer.apply([keras.ops.ones(2) * 3, keras.ops.ones(2)], [scale, weight])
    assert_close([v.numpy() for v in (scale, weight)], [np.full(2, 3.0), np.full(2, 0.75)])


def test_gradients_in_other_dtypes_keep_theirs(ruled: Ruled) -> None:
    for dtype in ("float16", "bfloat16"):
        variable = keras.Variable(np.ones(2), dtype=dtype)
        ruled(sgd(), "scale", {"s": 2.0}).apply([keras.ops.ones(2, dtype)], [variable])
        values = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
        np.testing.assert_array_equal(values, np.full(2, 0.75))


# A rule around an optimizer is saved with the model, and goes on with the same numbers.


# --- saving ---------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> str:
    name = "keras_test_soft_sign"

    @xg.register(name)
    def soft_sign(ctx: Any, grad_out: Any, tin: Any, bend: float = 1.0) -> Any:
        return grad_out / (bend + abs(grad_out))

    return name


@pytest.mark.parametrize("kind", ["by name", "composed", "random", "static"])
def test_a_saved_model_goes_on_training_with_the_same_numbers(
    ruled: Ruled, registered: str, kind: str, tmp_path: Path
) -> None:
    rule, params = {
        "by name": (registered, {"bend": 0.5}),
        "composed": (xg.compose(registered, xg.get("clip_norm").with_params(max_norm=0.1)), None),
        "random": ("full_jam", None),
        "static": ("centralize", {"dim": 0}),
    }[kind]
    model = linear(ruled(keras.optimizers.Adam(0.01), rule, params))
    train(model, epochs=2)
    if kind == "by name":
        model.optimizer.params["bend"].assign(0.25)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded.optimizer) is type(model.optimizer)
    assert int(loaded.optimizer.iterations) == 2
    assert_close(
        [keras.ops.convert_to_numpy(v) for v in loaded.optimizer.variables],
        [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables],
        tolerance=0,
    )
    np.testing.assert_array_equal(train(loaded, epochs=2)[0], train(model, epochs=2)[0])


def test_a_saved_rule_goes_on_acting_where_nobody_knows_it(
    ruled: Ruled, registered: str, tmp_path: Path
) -> None:
    def bend(ctx: Any, grad_out: Any, tin: Any, by: float = 2.0) -> Any:
        return by * xg.xp.tanh(grad_out)

    model = linear(ruled(ruled(sgd(), registered, {"bend": 0.5}), bend, {"by": 3.0}))
    model.save(tmp_path / "model.keras")
    expected = train(model, epochs=2)
    xg.unregister(registered)
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(train(loaded, epochs=2), expected)
    assert float(loaded.optimizer.params["by"]) == 3.0


def test_a_saved_model_under_loss_scaling_goes_on_with_the_same_numbers(
    ruled: Ruled, tmp_path: Path
) -> None:
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    model = linear(ruled(ruled(scaling, "clip_norm", {"max_norm": 0.1}), "scale", {"s": 2.0}))
    train(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(train(loaded, epochs=2)[0], train(model, epochs=2)[0])


def test_numbers_assigned_after_construction_are_in_the_config(ruled: Ruled) -> None:
    optimizer = ruled(sgd(), "clip_norm", {"max_norm": 0.5}, key=3)
    optimizer.params["max_norm"].assign(0.25)
    config = optimizer.get_config()
    assert config["rule"] == "clip_norm"
    assert config["params"]["max_norm"] == 0.25
    assert config["key"] == [0, 3]
    again = type(optimizer).from_config(config)
    assert float(again.params["max_norm"]) == 0.25
    assert again.get_config() == config


# Keras on jax writes a SavedModel with TensorFlow.
EXPORTED_WITH = "torch" if os.environ.get("KERAS_BACKEND") == "torch" else "tensorflow"


@pytest.mark.needs(EXPORTED_WITH)
def test_a_trained_model_is_exported_beside_its_optimizer(ruled: Ruled, tmp_path: Path) -> None:
    model = linear(ruled(sgd(momentum=0.5), "clip_norm"))
    train(model)
    kind = "torch" if os.environ["KERAS_BACKEND"] == "torch" else "tf_saved_model"
    path = tmp_path / ("model.pt2" if kind == "torch" else "model")
    model.export(path, format=kind, verbose=False)
    assert path.exists()


def test_all_variables_are_set_at_once(ruled: Ruled) -> None:
    first, second = (linear(ruled(keras.optimizers.Adam(0.01), "scale")) for _ in range(2))
    train(first, epochs=2)
    second.set_weights(first.get_weights())
    second.optimizer.build(second.trainable_variables)
    values = [keras.ops.convert_to_numpy(v) for v in first.optimizer.variables]
    second.optimizer.set_weights(values)
    assert_close(train(second), train(first), tolerance=0)


@pytest.mark.parametrize("is_built", [True, False])
def test_weights_that_do_not_fit_change_nothing(ruled: Ruled, is_built: bool) -> None:
    optimizer = ruled(keras.optimizers.SGD(RATE, momentum=0.5), "scale", {"s": 4.0})
    if is_built:
        optimizer.build([keras.Variable(np.ones(2))])
    before = [np.array(keras.ops.convert_to_numpy(v.value)) for v in optimizer.variables]
    others = [each + 1 for each in before]
    unfit = (others[:-2], [*others, np.ones(2)], [*others[:-1], np.ones(3)])
    for weights in (*unfit, *(() if is_built else (others,))):
        with pytest.raises(ValueError, match=r"variables of the shapes|not yet been built"):
            optimizer.set_weights(weights)
    for variable, number in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable.value), number)
