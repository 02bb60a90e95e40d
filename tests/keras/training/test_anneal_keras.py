"""A callback changes a rule's number in every batch, and the compiled step stays what it is."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")


def halve(step: int) -> float:
    return 2.0 * 0.5**step


def train_by_formulas(network: Any, widths: list[float], size: int) -> list[Any]:
    """Give the weights after one epoch of steps on `size` rows each, the k-th with the k-th
    width.
    """
    x, y, before = network.x, network.y, network.weights
    try:
        for k, width in enumerate(widths):
            rows = slice(k * size % len(x), k * size % len(x) + size)
            network.x, network.y = x[rows], y[rows]
            network.weights = network.step(
                lambda hidden, w=width: network.surrogates["triangular"](hidden, w)
            )
        return network.weights
    finally:
        network.x, network.y, network.weights = x, y, before


def test_every_batch_has_the_value_of_its_step(network: Any, mode: dict[str, Any]) -> None:
    model = network.build(xk.Activation("Heaviside", rule="triangular"), **mode)
    network.fit(model, xk.Anneal("width", halve), epochs=2)
    network.assert_trained(model, train_by_formulas(network, [halve(step) for step in range(8)], 8))


def test_the_count_goes_on_in_the_next_fit(network: Any) -> None:
    layer = xk.Activation("Heaviside", rule="triangular")
    model = network.build(layer)
    callback = xk.Anneal("width", halve)
    for _ in range(2):
        network.fit(model, callback)
    network.assert_trained(model, train_by_formulas(network, [halve(step) for step in range(8)], 8))
    assert dict(layer.params.numbers()) == {"width": halve(7)}


def test_several_steps_in_one_execution_have_the_value_of_the_first(network: Any) -> None:
    if os.environ["KERAS_BACKEND"] == "torch":
        pytest.skip("Keras on torch has no steps_per_execution")
    layer = xk.Activation("Heaviside", rule="triangular")
    model = network.build(layer, steps_per_execution=2)
    network.fit(model, xk.Anneal("width", halve))
    widths = [halve(step) for step in (0, 0, 2, 2)]
    network.assert_trained(model, train_by_formulas(network, widths, 8))


def test_an_epoch_has_one_value(network: Any) -> None:
    model = network.build(xk.Activation("Heaviside", rule="triangular"))
    network.fit(model, xk.Anneal("width", halve, per="epoch"), size=16, epochs=3)
    widths = [halve(epoch) for epoch in (0, 0, 1, 1, 2, 2)]
    network.assert_trained(model, train_by_formulas(network, widths, 16))


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A function that tells how often a train step was traced."""
    if os.environ["KERAS_BACKEND"] == "torch":
        from torch._dynamo.utils import counters

        counters.clear()
        yield lambda: counters["stats"]["unique_graphs"]
        counters.clear()
        return
    calls = []
    original = keras.layers.Dense.call

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(keras.layers.Dense, "call", call)
    yield lambda: len(calls)


def test_annealing_in_every_batch_traces_nothing_anew(
    network: Any, traces: Callable[[], int]
) -> None:
    model = network.build(xk.Activation("Heaviside", rule="triangular"), jit_compile=True)
    network.fit(model, xk.Anneal("width", halve), epochs=2)
    known = traces()
    assert known > 0
    network.fit(model, xk.Anneal("width", lambda step: 1.0 + 0.125 * step), epochs=3)
    assert traces() == known


@pytest.mark.parametrize(
    ("moment", "size", "epochs"),
    [("on_epoch_begin", 32, 3), ("on_train_batch_begin", 8, 1)],
    ids=["an epoch", "a batch"],
)
def test_an_assignment_in_a_callback_of_the_users_own_is_followed(
    network: Any, usual_mode: dict[str, Any], moment: str, size: int, epochs: int
) -> None:
    layer = xk.Activation("Heaviside", rule="triangular")
    model = network.build(layer, **usual_mode)

    def narrow(number: int, logs: Any = None) -> None:
        if moment == "on_epoch_begin":
            layer.params["width"] = halve(number)
        else:
            layer.params = {"width": halve(number)}

    network.fit(model, keras.callbacks.LambdaCallback(**{moment: narrow}), size=size, epochs=epochs)
    steps = epochs * len(network.x) // size
    expected = train_by_formulas(network, [halve(step) for step in range(steps)], size)
    network.assert_trained(model, expected)


def test_layers_are_chosen_by_name_or_as_objects() -> None:
    first, second = (
        xk.Activation("Heaviside", rule="triangular", name=name) for name in ("first", "second")
    )
    inner = keras.layers.Dense(3, activation=xk.activation("Tanh", "triangular", name="inner"))
    model = keras.Sequential([keras.Input((2,)), first, keras.Sequential([second, inner])])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2), np.float32), np.ones((4, 3), np.float32)

    def train(layers: Any, value: float) -> list[float]:
        callback = xk.Anneal("width", lambda step: value, layers=layers)
        model.fit(x, y, verbose=0, callbacks=[callback])
        layers = (first, second, inner.activation)
        return [layer.params.numbers()["width"] for layer in layers]

    assert train(None, 4.0) == [4.0, 4.0, 4.0]
    assert train(["first"], 2.0) == [2.0, 4.0, 4.0]
    assert train([second, "inner"], 8.0) == [2.0, 8.0, 8.0]


def test_what_cannot_be_annealed_is_said_before_the_first_step(network: Any) -> None:
    def windows(
        ctx: Any, grad_out: Any, tin: Any, count: int = 2, width: float = 1.0, slope: float = 1.0
    ) -> Any:
        for k in range(count):
            grad_out = grad_out * xg.xp.where(abs(tin) <= width / (k + 1), 1.0, 0.0)
        return grad_out * slope if slope > 0 else grad_out

    layer = xk.Activation("Heaviside", rule=windows, name="gate")
    model = network.build(layer)
    for callback, message in (
        (
            xk.Anneal("widht", halve),
            "no rule in the model has a param 'widht'; did you mean 'width'",
        ),
        (xk.Anneal("width", halve, ["gat"]), "no layer 'gat' with a rule; did you mean 'gate'"),
        (xk.Anneal("count", halve), "'count' of layer 'gate' is part of the rule's code"),
        (xk.Anneal("slope", halve), "'slope' of layer 'gate' is part of the rule's code"),
        (xk.Anneal("width", str), "the schedule gave '0' at batch 0, expected a number"),
    ):
        network.reset(model)
        with pytest.raises(xg.RuleError, match=message):
            network.fit(model, callback)
        network.assert_trained(model, network.weights, 0.0)
    with pytest.raises(TypeError, match="needs a function of the step"):
        xk.Anneal("width", 0.5)
    with pytest.raises(ValueError, match="per is 'batch' or 'epoch'"):
        xk.Anneal("width", halve, per="step")
    network.fit(model, xk.Anneal("width", halve))
    assert layer.params.numbers()["width"] == halve(3)


@pytest.mark.parametrize("place", ["layer", "optimizer"])
@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_a_number_that_the_rule_does_not_take_is_refused_before_it_trains(
    network: Any, place: str, number: float
) -> None:
    param = "width" if place == "layer" else "max_norm"
    model = network.build(xk.Activation("Heaviside", rule="triangular", name="gate"))
    if place == "optimizer":
        clipped = xk.apply_to_gradients(keras.optimizers.SGD(0.1), "clip_norm", {"max_norm": 2.0})
        model.compile(clipped, "mse")
    callback = xk.Anneal(param, lambda step: 1.0 if step == 0 else number)
    with pytest.raises(xg.RuleError, match=rf"Anneal.'{param}'.: the schedule gave .* at batch 1"):
        network.fit(model, callback)
    assert all(np.isfinite(each).all() for each in network.trained(model))
