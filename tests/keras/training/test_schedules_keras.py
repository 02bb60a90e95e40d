"""Schedules as params of Keras's layers and optimizers: the Variable follows, and so does what is
saved; `Anneal()` steps them in `fit`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
KERAS_BACKEND = os.environ.get("KERAS_BACKEND")


def make_width() -> Any:
    return xg.schedule.linear(3.0, 0.5, steps=40)


def number(variable: Any) -> float:
    return float(keras.ops.convert_to_numpy(variable.value))


def build(network: Any, width: Any, **options: Any) -> Any:
    return network.build(xk.Activation("Heaviside", "triangular", {"width": width}), **options)


def layer_of(model: Any) -> Any:
    return next(layer for layer in model.layers if isinstance(layer, xk.Activation))


def test_fit_with_a_schedule_is_fit_with_its_numbers(network: Any) -> None:
    width = make_width()
    scheduled, annealed = build(network, width), build(network, 2.0)
    network.fit(scheduled, xk.Anneal())
    network.fit(annealed, xk.Anneal("width", make_width()))
    batches = -(-len(network.x) // 8)
    assert width.count == batches
    variable = layer_of(scheduled).params.variables["width"]
    assert number(variable) == pytest.approx(width.value)  # of the step after the last one, too
    network.assert_trained(scheduled, network.trained(annealed), 0.0)


def test_a_step_of_ones_own_callback_acts_too(network: Any) -> None:
    width = make_width()
    stepped, annealed = build(network, width), build(network, make_width())
    step = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: width.step())
    network.fit(stepped, step)
    network.fit(annealed, xk.Anneal())
    network.assert_trained(stepped, network.trained(annealed), 0.0)


def test_a_layer_whose_rule_has_it_bound_follows_it(network: Any) -> None:
    width = make_width()
    rule = xg.get("triangular").with_params(width=width)
    model = network.build(xk.Activation("Heaviside", rule))
    network.fit(model, xk.Anneal(per="epoch"), epochs=2)
    assert width.count == 2
    assert number(layer_of(model).params.variables["width"]) == pytest.approx(width.value)


def test_a_file_has_the_schedule_and_its_step(network: Any, tmp_path: Path) -> None:
    width = make_width()
    model = build(network, width)
    width.step(4)
    model.save(tmp_path / "model.keras")
    width.step()
    params = layer_of(keras.models.load_model(tmp_path / "model.keras")).params
    schedule = params.schedules["width"]
    assert (schedule.count, number(params.variables["width"])) == (4, pytest.approx(2.75))
    schedule.step()
    assert number(params.variables["width"]) == pytest.approx(2.6875)


def test_weights_have_the_step_and_a_layer_without_a_schedule_takes_its_number(
    network: Any, tmp_path: Path
) -> None:
    width, other = make_width(), make_width()
    model = build(network, width)
    width.step(4)
    model.save_weights(tmp_path / "a.weights.h5")
    build(network, other).load_weights(tmp_path / "a.weights.h5")
    assert other.count == 4
    plain = build(network, 1.0)
    plain.load_weights(tmp_path / "a.weights.h5")
    assert number(layer_of(plain).params["width"]) == pytest.approx(2.75)


def test_a_number_assigned_ends_the_schedule(network: Any) -> None:
    width = make_width()
    params = layer_of(build(network, width)).params
    params["width"] = 3.0
    width.step()
    assert number(params.variables["width"]) == 3.0
    params["width"] = width
    assert number(params.variables["width"]) == pytest.approx(width.value)
    assert repr(width) in repr(params)


def test_an_optimizers_rule_follows_a_schedule(network: Any) -> None:
    norm = xg.schedule.linear(1.0, 0.5, steps=10)
    optimizer = xk.apply_to_gradients(keras.optimizers.SGD(0.1), "clip_norm", {"max_norm": norm})
    model = build(network, 2.0)
    model.compile(optimizer, "mse")
    network.fit(model, xk.Anneal())
    assert norm.count > 0
    assert number(optimizer.params["max_norm"]) == pytest.approx(norm.value)
    saved = type(optimizer).from_config(optimizer.get_config())
    assert saved.params.schedules["max_norm"].count == norm.count


def test_bad_schedules_are_refused(network: Any) -> None:
    @xg.register("branches_in_keras_schedules", override=True)
    def branches(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out if width > 1.0 else 2.0 * grad_out

    with pytest.raises(xg.RuleError, match="'width' is part of the rule's code"):
        xk.Activation("Heaviside", branches, {"width": make_width()})
    with pytest.raises(xg.RuleError, match=r"a function of the step is xg\.schedule\.of\(f\)"):
        build(network, keras.optimizers.schedules.ExponentialDecay(2.0, 10, 0.9))
    with pytest.raises(xg.RuleError, match="two Anneal callbacks step linear"):
        network.fit(build(network, make_width()), xk.Anneal(), xk.Anneal("width"))
    with pytest.raises(xg.RuleError, match="nothing to step"):
        network.fit(build(network, 1.0), xk.Anneal())
    leaves = xg.schedule.linear(1.0, -9.0, steps=3)
    model = build(network, leaves)
    with pytest.raises(xg.MultigradError, match="'width' is >= 0"):
        network.fit(model, xk.Anneal())
    assert all(np.isfinite(each).all() for each in network.trained(model))


# Schedules of layers and optimizers come back by every door of Keras and of its backends, and
# training goes on as if nothing had been.


def make_model(network: Any, width: Any) -> Any:
    """Return a model whose Variables have the same names each time."""
    keras.utils.clear_session()
    norm = xg.schedule.linear(1.0, 0.1, steps=40)
    model = network.build(xk.Activation("Heaviside", "triangular", {"width": width}, name="act"))
    optimizer = xk.apply_to_gradients(keras.optimizers.Adam(0.05), "clip_norm", {"max_norm": norm})
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


def carry_state_tree(model: Any, other: Any, path: Path) -> None:
    other.set_state_tree(model.get_state_tree("numpy_array"))


def carry_own(model: Any, other: Any, path: Path) -> None:
    """Bring the state over as the framework does."""
    if KERAS_BACKEND == "tensorflow":
        import tensorflow as tf

        tf.train.Checkpoint(model=model).write(str(path / "a"))
        tf.train.Checkpoint(model=other).read(str(path / "a")).assert_consumed()
    else:
        held = [keras.ops.convert_to_numpy(each) for each in model.optimizer.variables]
        other.load_state_dict(model.state_dict())
        other.optimizer.set_weights(held)


CARRY = [carry_state_tree, *([carry_own] if KERAS_BACKEND in ("tensorflow", "torch") else [])]


@pytest.mark.parametrize("carry", CARRY)
def test_what_restores_variables_restores_schedules(
    network: Any, tmp_path: Path, carry: Any
) -> None:
    model = make_model(network, make_width())
    network.fit(model, xk.Anneal(), epochs=1)
    width = make_width()
    other = make_model(network, width)
    carry(model, other, tmp_path)
    assert width.state_dict() == {"count": 4}
    assert other.get_layer("act").get_config()["params"]["width"]["count"] == 4
    for each in (model, other):
        network.fit(each, xk.Anneal(), epochs=1)
    network.assert_trained(other, network.trained(model), 0.0)
    assert (width.count, other.optimizer.params.schedules["max_norm"].count) == (8, 8)


def test_a_schedule_stepped_by_hand_goes_on_from_what_was_restored(network: Any) -> None:
    model = make_model(network, make_width())
    network.fit(model, xk.Anneal(), epochs=1)
    width = make_width()
    other = make_model(network, width)
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
    network: Any, tmp_path: Path, given: str, anneal_first: bool
) -> None:
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    def make() -> tuple[Any, list[Any]]:
        if given == "function":
            return make_model(network, 1.0), [xk.Anneal("width", make_width())]
        return make_model(network, make_width()), [xk.Anneal(per="epoch")]

    whole, callbacks = make()
    network.fit(whole, *callbacks, epochs=3)
    for interruption in ([Interrupt()], []):
        model, callbacks = make()
        callbacks.append(keras.callbacks.BackupAndRestore(tmp_path / "backup"))
        ordered = callbacks if anneal_first else callbacks[::-1]
        try:
            network.fit(model, *ordered, *interruption, epochs=3)
        except KeyboardInterrupt:
            continue
        network.assert_trained(model, network.trained(whole), 0.0)


def test_weights_of_another_rule_are_refused_by_name_and_cost_nothing(
    network: Any, tmp_path: Path
) -> None:
    width = make_width()
    model = make_model(network, width)
    width.step(3)
    model.save_weights(tmp_path / "a.weights.h5")
    other = network.build(xk.Activation("Heaviside", "rectangular", name="act"))
    with pytest.raises(Exception, match=r"'act' has the params \['a', 'b'\].*another rule"):
        other.load_weights(tmp_path / "a.weights.h5")
    plain = network.build(xk.Activation("Heaviside", "triangular", {"width": 2.0}, name="act"))
    plain.save_weights(tmp_path / "b.weights.h5")
    model = make_model(network, width)
    model.load_weights(tmp_path / "b.weights.h5")  # it has no step, so the schedule keeps its own
    assert width.count == 3
    found = model.get_layer("act").params.variables["width"]
    assert float(np.asarray(found)) == pytest.approx(width.value)
