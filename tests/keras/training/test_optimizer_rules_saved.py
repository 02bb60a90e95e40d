"""A rule around an optimizer is saved with the model, and goes on with the same numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.models.linear_keras import Ruled, assert_close, linear, sgd, train

pytestmark = pytest.mark.needs("keras")


# --- saving ---------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[str]:
    name = "keras_test_soft_sign"

    @xg.register(name)
    def soft_sign(ctx: Any, grad_out: Any, tin: Any, bend: float = 1.0) -> Any:
        return grad_out / (bend + abs(grad_out))

    yield name
    xg.unregister(name)


@pytest.mark.parametrize("kind", ["by name", "composed", "random", "static"])
def test_a_saved_model_goes_on_training_with_the_same_numbers(
    ruled: Ruled, registered: str, kind: str, tmp_path: Path
) -> None:
    import keras

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
    import keras

    def bend(ctx: Any, grad_out: Any, tin: Any, by: float = 2.0) -> Any:
        return by * xg.xp.tanh(grad_out)

    model = linear(ruled(ruled(sgd(), registered, {"bend": 0.5}), bend, {"by": 3.0}))
    model.save(tmp_path / "model.keras")
    expected = train(model, epochs=2)
    rule = xg.get(registered)
    xg.unregister(registered)
    try:
        loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
        assert_close(train(loaded, epochs=2), expected)
        assert float(loaded.optimizer.params["by"]) == 3.0
    finally:
        xg.register(registered)(rule.function)


def test_a_saved_model_under_loss_scaling_goes_on_with_the_same_numbers(
    ruled: Ruled, tmp_path: Path
) -> None:
    import keras

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
    import keras

    first, second = (linear(ruled(keras.optimizers.Adam(0.01), "scale")) for _ in range(2))
    train(first, epochs=2)
    second.set_weights(first.get_weights())
    second.optimizer.build(second.trainable_variables)
    values = [keras.ops.convert_to_numpy(v) for v in first.optimizer.variables]
    second.optimizer.set_weights(values)
    assert_close(train(second), train(first), tolerance=0)
