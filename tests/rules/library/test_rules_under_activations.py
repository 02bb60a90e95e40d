"""A rule under an activation is a Function, and a Function can be bound to numbers and a key."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-1.5, -0.25, 0.0, 0.5, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 0.5, 1.0], np.float32)


def pull(backend: Any, f: Any, *numbers: Any) -> tuple[Any, Any]:
    y, pullback = xg.vjp(f, backend.array(X), *numbers)
    return backend.numpy(y), backend.numpy(pullback(backend.array(G))[0])


@pytest.mark.parametrize("name", ["triangular", "rectangular", "clip_norm", "d(ReLU)"])
@pytest.mark.parametrize("forward", ["Heaviside", "relu"])
def test_it_does_what_the_activation_does(backend: Any, name: str, forward: str) -> None:
    expected = pull(backend, xg.activation(forward, name))
    for function in (xg.get(name).under(forward), xg.get(name).under(forward).bind()):
        for given, wanted in zip(pull(backend, function), expected, strict=True):
            np.testing.assert_array_equal(given, wanted)


def test_params_follow_the_tensor_by_position_or_by_name(backend: Any) -> None:
    spike = xg.get("triangular").under("Heaviside")
    _, expected = pull(backend, xg.activation("Heaviside", "triangular", {"width": 2.0}))
    bound = spike.bind({"width": 2.0})
    for f in (lambda x: spike(x, 2.0), lambda x: spike(x, width=2.0), bound):
        np.testing.assert_array_equal(pull(backend, f)[1], expected)
    wider = xg.get("triangular").with_params(width=2.0).under("Heaviside")
    np.testing.assert_array_equal(pull(backend, wider)[1], expected)


@pytest.mark.parametrize("name", ["full_jam", "noise"])
def test_a_key_makes_its_draws_those_of_use(backend: Any, name: str) -> None:
    act = xg.activation("Linear")
    with xg.use(name, key=7):
        expected = [pull(backend, act)[1] for _ in range(2)]
    bound = xg.get(name).under("Linear").bind(key=7)
    for wanted in expected:
        np.testing.assert_array_equal(pull(backend, bound)[1], wanted)


def test_a_random_rule_repeats_its_draws_by_its_key(backend: Any) -> None:
    act = xg.activation("Linear")

    def draw(key: int) -> Any:
        with xg.use("full_jam", key=key):
            return pull(backend, act)[1] / G

    np.testing.assert_array_equal(draw(7), draw(7))
    assert not np.array_equal(draw(7), draw(8))
    assert (draw(7) >= 0).all() and (draw(7) <= 1).all()


def test_a_function_of_the_users_own_is_bound_the_same_way(backend: Any) -> None:
    scaled = xg.function(lambda x, by: x * by, lambda grad_out, x, by: (grad_out * by * 10.0, None))
    np.testing.assert_array_equal(pull(backend, scaled.bind({"by": 0.5}))[0], X * 0.5)
    np.testing.assert_array_equal(pull(backend, scaled.bind({"by": 0.5}))[1], G * 5.0)


def test_a_rule_that_runs_as_it_is_does_so_under_an_activation(backend: Any) -> None:
    rule = xg.register("as it is here", native=True)(lambda ctx, g, x, by=2.0: g * by)
    np.testing.assert_array_equal(pull(backend, rule.under("ReLU"))[1], G * 2)
    np.testing.assert_array_equal(pull(backend, rule.under("ReLU").bind({"by": 4.0}))[1], G * 4)


def test_it_is_looked_at_and_saved_as_any_function(tmp_path: Any) -> None:
    spike = xg.get("triangular").under("Heaviside")
    spike(X)
    assert "heaviside(tin)" in xg.show(spike) and "class triangular_under_Heaviside" in xg.source(
        spike, "numpy"
    ).replace("def forward", "class triangular_under_Heaviside")
    assert xg.parity(spike, X, backends=["numpy"]).ok
    xg.save(spike, tmp_path / "spike.json")
    for again in (xg.load(tmp_path / "spike.json"), pickle.loads(pickle.dumps(spike))):
        y, pullback = xg.vjp(again, X, 2.0)
        np.testing.assert_array_equal(y, X > 0)
        np.testing.assert_array_equal(pullback(G)[0], G * np.maximum(1 - abs(X) / 2, 0))


def test_a_keyed_function_inside_of_another_keeps_its_key(backend: Any) -> None:
    noisy = xg.custom_gradient(lambda x: (x + xg.xp.rand_like(x), lambda up: up))
    expected = backend.numpy(noisy.keyed(7)(backend.array(X)))
    inner = noisy.keyed(7)
    outer = xg.custom_gradient(lambda x: (inner(x) * 1.0, lambda up: up))
    np.testing.assert_array_equal(backend.numpy(outer(backend.array(X))), expected)
