"""Schedules of layers and optimizers come back by every door of Keras and of its backends, and
training goes on as if nothing had been.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")

BACKEND = os.environ.get("KERAS_BACKEND")


def make_width() -> Any:
    return xg.schedule.linear(3.0, 0.5, steps=40)


def make_model(network: Any, xk: ModuleType, width: Any) -> Any:
    """Return a model whose Variables have the same names each time."""
    import keras

    keras.utils.clear_session()
    norm = xg.schedule.linear(1.0, 0.1, steps=40)
    model = network.build(xk.Activation("Heaviside", "triangular", {"width": width}, name="act"))
    optimizer = xk.apply_to_gradients(keras.optimizers.Adam(0.05), "clip_norm", {"max_norm": norm})
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


def fit(network: Any, model: Any, callbacks: list[Any], epochs: int) -> None:
    model.fit(
        network.x,
        network.y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )


def carry_state_tree(model: Any, other: Any, path: Path) -> None:
    other.set_state_tree(model.get_state_tree("numpy_array"))


def carry_own(model: Any, other: Any, path: Path) -> None:
    """Bring the state over as the framework does."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.train.Checkpoint(model=model).write(str(path / "a"))
        tf.train.Checkpoint(model=other).read(str(path / "a")).assert_consumed()
    else:
        import keras

        held = [keras.ops.convert_to_numpy(each) for each in model.optimizer.variables]
        other.load_state_dict(model.state_dict())
        other.optimizer.set_weights(held)


CARRY = [carry_state_tree, *([carry_own] if BACKEND in ("tensorflow", "torch") else [])]


@pytest.mark.parametrize("carry", CARRY)
def test_what_restores_variables_restores_schedules(
    xk: ModuleType, network: Any, tmp_path: Path, carry: Any
) -> None:
    model = make_model(network, xk, make_width())
    fit(network, model, [xk.Anneal()], epochs=1)
    width = make_width()
    other = make_model(network, xk, width)
    carry(model, other, tmp_path)
    assert width.state_dict() == {"count": 4}
    assert other.get_layer("act").get_config()["params"]["width"]["count"] == 4
    for each in (model, other):
        fit(network, each, [xk.Anneal()], epochs=1)
    for ours, theirs in zip(network.trained(other), network.trained(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (width.count, other.optimizer.params.schedules["max_norm"].count) == (8, 8)


def test_a_schedule_stepped_by_hand_goes_on_from_what_was_restored(
    xk: ModuleType, network: Any
) -> None:
    model = make_model(network, xk, make_width())
    fit(network, model, [xk.Anneal()], epochs=1)
    width = make_width()
    other = make_model(network, xk, width)
    other.set_state_tree(model.get_state_tree("numpy_array"))
    width.step()
    assert width.count == 5
    params = other.get_layer("act").params
    assert float(np.asarray(params.variables["width"])) == pytest.approx(width.value)
    params["width"] = make_width()  # a new one begins where it stands itself
    assert params.schedules["width"].count == 0
    params["width"] = 2.0
    assert not [v.path for v in other.non_trainable_variables if "count" in v.path]


# A function's step was read before the model was back, a schedule was saved before its step.
@pytest.mark.parametrize(("given", "anneal_first"), [("schedule", False), ("function", True)])
def test_a_fit_that_was_interrupted_goes_on_wherever_anneal_stands_among_callbacks(
    xk: ModuleType, network: Any, tmp_path: Path, given: str, anneal_first: bool
) -> None:
    import keras

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    def make() -> tuple[Any, list[Any]]:
        if given == "function":
            return make_model(network, xk, 1.0), [xk.Anneal("width", make_width())]
        return make_model(network, xk, make_width()), [xk.Anneal(per="epoch")]

    whole, callbacks = make()
    fit(network, whole, callbacks, epochs=3)
    for interruption in ([Interrupt()], []):
        model, callbacks = make()
        callbacks.append(keras.callbacks.BackupAndRestore(tmp_path / "backup"))
        ordered = callbacks if anneal_first else callbacks[::-1]
        try:
            fit(network, model, [*ordered, *interruption], epochs=3)
        except KeyboardInterrupt:
            continue
        for ours, theirs in zip(network.trained(model), network.trained(whole), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_weights_of_another_rule_are_refused_by_name_and_cost_nothing(
    xk: ModuleType, network: Any, tmp_path: Path
) -> None:
    width = make_width()
    model = make_model(network, xk, width)
    width.step(3)
    model.save_weights(tmp_path / "a.weights.h5")
    other = network.build(xk.Activation("Heaviside", "rectangular", name="act"))
    with pytest.raises(Exception, match=r"'act' has the params \['a', 'b'\].*another rule"):
        other.load_weights(tmp_path / "a.weights.h5")
    plain = network.build(xk.Activation("Heaviside", "triangular", {"width": 2.0}, name="act"))
    plain.save_weights(tmp_path / "b.weights.h5")
    model = make_model(network, xk, width)
    model.load_weights(tmp_path / "b.weights.h5")  # it has no step, so the schedule keeps its own
    assert width.count == 3
    found = model.get_layer("act").params.variables["width"]
    assert float(np.asarray(found)) == pytest.approx(width.value)
