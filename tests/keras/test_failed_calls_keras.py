"""A call that fails changes nothing: layers, models and optimizers of Keras at every step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..support.failures import Row, fail_everywhere

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
X = np.array([[-1.5, 0.2, 0.7, 2.0]], np.float32)


def number(x: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(x)).tolist()


# --- rules on models ------------------------------------------------------------------------------


def network() -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(3, activation="relu", name="first"),
            keras.layers.ReLU(name="gate"),
            keras.layers.Dense(2, name="last"),
        ]
    )


def look_at_model(model: Any) -> Any:
    from keras.src import backend

    layers = model[0] if isinstance(model, tuple) else model
    return (
        [
            (type(each), *(id(vars(each).get(name)) for name in ("call", "quantized_call")))
            for each in layers._flatten_layers(include_self=False)
        ],
        {name: id(value) for name, value in vars(backend.nn).items() if callable(value)},
    )


def attaching(make: Callable[[], Any]) -> Callable[[], Row[Any]]:
    def row() -> Row[Any]:
        wanted = network()
        outputs = number(wanted(X))

        def check(model: Any) -> None:
            with xg.attach(model, make()):
                assert number(model(X)) == outputs
            assert number(model(X)) == outputs

        return Row(network, lambda model: xg.attach(model, make()), look_at_model, check)

    return row


def detach() -> Row[Any]:
    plain = look_at_model(network())

    def make() -> Any:
        model = network()
        return model, xg.attach(model, {"relu": "guided", "last": xg.attribution.epsilon()})

    def check(given: Any) -> None:
        given[1].detach()
        assert look_at_model(given) == plain

    return Row(make, lambda given: given[1].detach(), lambda given: given[1].rows, check)


# --- layers ---------------------------------------------------------------------------------------


def quantize() -> Row[Any]:
    def make() -> Any:
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(3)
        layer.build((None, 4))
        return xg.quantize(layer, activations="lsq_plus", bits=3, sample=X)

    wanted = make()
    outputs, names = number(wanted(X)), [each.name for each in wanted.weights]

    def check(layer: Any) -> None:  # what a call that failed has built stays, and is whole
        assert number(layer(X)) == outputs
        assert [each.name for each in layer.weights] == names

    return Row(make, lambda layer: layer(X), lambda layer: layer.layer.name, check)


def look_at_layer(layer: Any) -> Any:
    params = layer.params
    return (
        layer.rule,
        layer.backend,
        {name: (id(each), number(each)) for name, each in params.variables.items()},
        {name: (id(each), each.count) for name, each in params.schedules.items()},
        [id(each) for each in layer.variables],
    )


def assigning(
    name: str, value: Callable[[], Any], rule: str = "rectangular", **params: Any
) -> Callable[[], Row[Any]]:
    def row() -> Row[Any]:
        import multigrad.keras

        def make() -> Any:
            given = {key: each() if callable(each) else each for key, each in params.items()}
            layer = multigrad.keras.Activation("Heaviside", rule=rule, params=given)
            layer(X)
            return layer

        def act(layer: Any) -> None:
            setattr(layer, name, value())

        wanted = make()
        act(wanted)

        def check(layer: Any) -> None:
            act(layer)
            assert layer.rule == wanted.rule
            assert repr(layer.params) == repr(wanted.params)
            assert len(layer.variables) == len(wanted.variables)
            assert number(layer(X)) == [[0.0, 1.0, 1.0, 1.0]]

        return Row(make, act, look_at_layer, check)

    return row


def falling() -> Any:
    return xg.schedule.linear(-2.0, -1.0, steps=3)


def rising() -> Any:
    return xg.schedule.linear(1.0, 2.0, steps=3)


def optimizer() -> Row[Any]:
    import multigrad.keras

    def act(inner: Any) -> Any:
        return multigrad.keras.apply_to_gradients(inner, "clip_norm", {"max_norm": 1.0})

    def check(inner: Any) -> None:
        assert act(inner).loss_scale_factor == 8.0
        assert inner.loss_scale_factor is None

    return Row(
        lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
        act,
        lambda inner: (inner.loss_scale_factor, sorted(vars(inner))),
        check,
    )


ROWS: dict[str, Callable[[], Row[Any]]] = {
    "attach_type": attaching(lambda: {"gate": "guided"}),
    "attach_operation": attaching(lambda: {"relu": "guided"}),
    "attach_weights": attaching(lambda: {"last": xg.attribution.epsilon()}),
    "detach": detach,
    "quantize": quantize,
    "rule": assigning("rule", lambda: "arctan"),
    "no_rule": assigning("rule", lambda: None, a=falling),
    "params": assigning("params", lambda: {"b": 3.0}, b=2.0),
    "schedule": assigning("params", lambda: {"a": -1.0, "b": rising()}, a=falling, b=2.0),
    "backend": assigning("backend", lambda: "numpy"),
    "optimizer": optimizer,
}


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_a_call_that_is_interrupted_at_any_step_changes_nothing(
    make: Callable[[], Row[Any]],
) -> None:
    gc.freeze()  # `attach` looks for compiled models among all objects, of frameworks not again
    try:
        fail_everywhere(make(), last=25, most=5)
    finally:
        gc.unfreeze()


def test_an_optimizer_whose_rule_is_refused_keeps_its_loss_scale() -> None:
    inner = keras.optimizers.SGD(0.1, loss_scale_factor=8.0)
    with pytest.raises(xg.RuleError):
        xk.apply_to_gradients(inner, "noise", key="seven")
    assert inner.loss_scale_factor == 8.0


def test_params_that_a_rule_does_not_take_leave_those_that_it_has() -> None:
    layer = xk.Activation("Heaviside", rule="rectangular", params={"a": falling()})
    before = look_at_layer(layer)
    for params in ({"a": -1.0, "b": "wide"}, {"a": 2.0, "b": 1.0}, {"slope": 1.0}):
        with pytest.raises(xg.MultigradError):
            layer.params = params
        assert look_at_layer(layer) == before


def test_an_annealed_number_that_one_layer_refuses_is_given_to_none() -> None:
    def scaled(ctx: Any, grad_out: Any, tin: Any, s: float = 0.5) -> Any:
        return s * grad_out

    free = xg.register("fails_free")(scaled)
    bound = xg.register("fails_bound", ranges={"s": "< 1"})(scaled)
    layers = [xk.Activation("ReLU", rule=rule) for rule in (free, bound)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    moved = xg.schedule.linear(2.0, 3.0, steps=4)
    moved.step(3)
    with pytest.raises(xg.RuleError, match="param 's' is < 1"):
        model.fit(X, np.ones((1, 1)), verbose=0, callbacks=[xk.Anneal("s", moved)])
    assert [number(each.params["s"]) for each in layers] == [0.5, 0.5]
    assert moved.count == 3
