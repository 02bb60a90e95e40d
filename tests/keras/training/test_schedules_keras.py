"""Schedules as params of Keras's layers and optimizers: the Variable follows, and so does what is
saved; `Anneal()` steps them in `fit`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")

pytestmark = pytest.mark.needs("keras")


def make_width() -> Any:
    return xg.schedule.linear(2.0, 0.5, steps=10)


def number(variable: Any) -> float:
    return float(keras.ops.convert_to_numpy(variable.value))


def build(network: Any, xk: ModuleType, width: Any, **options: Any) -> Any:
    return network.build(xk.Activation("Heaviside", "triangular", {"width": width}), **options)


def layer_of(model: Any, xk: ModuleType) -> Any:
    return next(layer for layer in model.layers if isinstance(layer, xk.Activation))


def fit(network: Any, model: Any, callbacks: list[Any], epochs: int = 1) -> None:
    model.fit(
        network.x,
        network.y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )


def test_fit_with_a_schedule_is_fit_with_its_numbers(xk: ModuleType, network: Any) -> None:
    width = make_width()
    scheduled, annealed = build(network, xk, width), build(network, xk, 2.0)
    fit(network, scheduled, [xk.Anneal()])
    fit(network, annealed, [xk.Anneal("width", make_width())])
    batches = -(-len(network.x) // 8)
    assert width.count == batches
    variable = layer_of(scheduled, xk).params.variables["width"]
    assert number(variable) == pytest.approx(width.value)  # of the step after the last one, too
    for ours, theirs in zip(network.trained(scheduled), network.trained(annealed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_step_of_ones_own_callback_acts_too(xk: ModuleType, network: Any) -> None:
    width = make_width()
    stepped, annealed = build(network, xk, width), build(network, xk, make_width())
    step = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: width.step())
    fit(network, stepped, [step])
    fit(network, annealed, [xk.Anneal()])
    for ours, theirs in zip(network.trained(stepped), network.trained(annealed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_layer_whose_rule_has_it_bound_follows_it(xk: ModuleType, network: Any) -> None:
    width = make_width()
    rule = xg.get("triangular").with_params(width=width)
    model = network.build(xk.Activation("Heaviside", rule))
    fit(network, model, [xk.Anneal(per="epoch")], epochs=2)
    assert width.count == 2
    assert number(layer_of(model, xk).params.variables["width"]) == pytest.approx(width.value)


def test_a_file_has_the_schedule_and_its_step(xk: ModuleType, network: Any, tmp_path: Path) -> None:
    width = make_width()
    model = build(network, xk, width)
    width.step(4)
    model.save(tmp_path / "model.keras")
    width.step()
    params = layer_of(keras.models.load_model(tmp_path / "model.keras"), xk).params
    schedule = params.schedules["width"]
    assert (schedule.count, number(params.variables["width"])) == (4, pytest.approx(1.4))
    schedule.step()
    assert number(params.variables["width"]) == pytest.approx(1.25)


def test_weights_have_the_step_and_a_layer_without_a_schedule_takes_its_number(
    xk: ModuleType, network: Any, tmp_path: Path
) -> None:
    width, other = make_width(), make_width()
    model = build(network, xk, width)
    width.step(4)
    model.save_weights(tmp_path / "a.weights.h5")
    build(network, xk, other).load_weights(tmp_path / "a.weights.h5")
    assert other.count == 4
    plain = build(network, xk, 1.0)
    plain.load_weights(tmp_path / "a.weights.h5")
    assert number(layer_of(plain, xk).params["width"]) == pytest.approx(1.4)


def test_a_number_assigned_ends_the_schedule(xk: ModuleType, network: Any) -> None:
    width = make_width()
    params = layer_of(build(network, xk, width), xk).params
    params["width"] = 3.0
    width.step()
    assert number(params.variables["width"]) == 3.0
    params["width"] = width
    assert number(params.variables["width"]) == pytest.approx(width.value)
    assert repr(width) in repr(params)


def test_an_optimizers_rule_follows_a_schedule(xk: ModuleType, network: Any) -> None:
    norm = xg.schedule.linear(1.0, 0.5, steps=10)
    optimizer = xk.apply_to_gradients(keras.optimizers.SGD(0.1), "clip_norm", {"max_norm": norm})
    model = build(network, xk, 2.0)
    model.compile(optimizer, "mse")
    fit(network, model, [xk.Anneal()])
    assert norm.count > 0
    assert number(optimizer.params["max_norm"]) == pytest.approx(norm.value)
    saved = type(optimizer).from_config(optimizer.get_config())
    assert saved.params.schedules["max_norm"].count == norm.count


def test_bad_schedules_are_refused(xk: ModuleType, network: Any) -> None:
    @xg.register("branches_in_keras_schedules", override=True)
    def branches(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        return grad_out if width > 1.0 else 2.0 * grad_out

    with pytest.raises(xg.RuleError, match="'width' is part of the rule's code"):
        xk.Activation("Heaviside", branches, {"width": make_width()})
    with pytest.raises(xg.RuleError, match="nothing to step"):
        fit(network, build(network, xk, 1.0), [xk.Anneal()])
    leaves = xg.schedule.linear(1.0, -9.0, steps=3)
    model = build(network, xk, leaves)
    with pytest.raises(xg.MultigradError, match="'width' is >= 0"):
        fit(network, model, [xk.Anneal()])
    assert all(np.isfinite(each).all() for each in network.trained(model))
