"""A rule around an optimizer: the inner optimizer, loss scaling, gradients of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from multigrad.graph import random

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

pytestmark = pytest.mark.needs("keras")


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
    total = [np.zeros_like(w) for w in start]
    for s in range(2):
        key = random.fold_in(random.key_from_int(5), s)
        for n, g in enumerate(gradients(start)):
            total[n] += g * random.uniform(random.fold_in(key, n), g.shape, np.float32) / 2
    assert_close(train(model, epochs=2), [w - RATE * g for w, g in zip(start, total, strict=True)])


def test_averages_are_those_of_the_inner_optimizer(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    optimizer = ruled(sgd(use_ema=True, ema_momentum=0.75), "clip_norm", {"max_norm": 0.1})
    assert optimizer.use_ema
    path = [step(clip, steps) for steps in (1, 2)]
    expected = [0.75 * first + 0.25 * second for first, second in zip(*path, strict=True)]
    assert_close(train(linear(optimizer, **usual_mode), epochs=2), expected)


def test_weights_swap_with_their_averages_in_evaluation(ruled: Ruled) -> None:
    import keras

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
    import keras

    trained = []
    for wrap in (lambda optimizer: optimizer, lambda optimizer: ruled(optimizer, "scale")):
        optimizer = getattr(keras.optimizers, name)(0.01, weight_decay=0.1)
        trained.append(train(linear(wrap(optimizer)), epochs=3))
    assert_close(*trained, tolerance=1e-7)


def test_rates_are_scheduled_and_set_as_before(ruled: Ruled) -> None:
    import keras

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
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def test_compile_may_scale_the_loss_around_the_rule(
    ruled: Ruled, usual_mode: dict[str, Any], half_precision: None
) -> None:
    import keras

    model = linear(ruled(sgd(), "clip_norm", {"max_norm": 0.1}), **usual_mode)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_close(train(model), step(clip), tolerance=1e-3)


def test_given_a_loss_scale_optimizer_the_rule_sees_unscaled_gradients(
    ruled: Ruled, mode: dict[str, Any]
) -> None:
    import keras

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
    import keras

    frozen = keras.layers.Dense(4, kernel_initializer="identity", trainable=False)
    model = linear(ruled(sgd(), "full_jam", key=7), (frozen,), **usual_mode)
    key = random.fold_in(random.key_from_int(7), 0)
    start = [W.astype(np.float64), np.zeros(3)]
    expected = [
        w - RATE * g * random.uniform(random.fold_in(key, n), g.shape, np.float32)
        for n, (w, g) in enumerate(zip(start, gradients(start), strict=True))
    ]
    found = train(model)
    assert_close(found[2:], expected)
    np.testing.assert_array_equal(found[0], np.eye(4))


def test_gradients_of_an_embedding_are_those_of_its_table(
    ruled: Ruled, usual_mode: dict[str, Any]
) -> None:
    import keras

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
    import keras

    used, unused = keras.Variable(np.ones(2)), keras.Variable(np.ones(2))
    optimizer = ruled(sgd(), "scale", {"s": 2.0})
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([keras.ops.ones(2), None], [used, unused])
    assert_close([v.numpy() for v in (used, unused)], [np.full(2, 0.75), np.ones(2)])
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply([None, None], [used, unused])


def test_what_overwrites_a_variable_is_no_gradient(ruled: Ruled) -> None:
    import keras

    scale, weight = keras.Variable(np.ones(2)), keras.Variable(np.ones(2))
    scale.overwrite_with_gradient = True
    optimizer = ruled(sgd(loss_scale_factor=2.0), "scale", {"s": 4.0})
    optimizer.apply([keras.ops.ones(2) * 3, keras.ops.ones(2)], [scale, weight])
    assert_close([v.numpy() for v in (scale, weight)], [np.full(2, 3.0), np.full(2, 0.75)])


def test_gradients_in_other_dtypes_keep_theirs(ruled: Ruled) -> None:
    import keras

    for dtype in ("float16", "bfloat16"):
        variable = keras.Variable(np.ones(2), dtype=dtype)
        ruled(sgd(), "scale", {"s": 2.0}).apply([keras.ops.ones(2, dtype)], [variable])
        values = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
        np.testing.assert_array_equal(values, np.full(2, 0.75))
