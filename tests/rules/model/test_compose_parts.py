"""Params of one part of a composed rule, and the chain in words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
CHAIN = xg.compose("triangular", "scale", xg.compose("scale", "d(ReLU)"))
GIVEN = {"triangular.width": 4.0, "scale[0].s": 2.0, "scale[1].s": 3.0}
EXPECTED = G * (1 - np.abs(X) / 4) * 6 * (X > 0)


@pytest.fixture
def registered() -> Iterator[xg.Rule]:
    yield xg.register("test_parts_chain")(CHAIN)
    xg.unregister("test_parts_chain")


def run(backend: Any, rule: Any, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(G), backend.array(X), **params))


def test_a_param_of_one_part_is_named_with_it(backend: Any) -> None:
    np.testing.assert_allclose(run(backend, CHAIN, **GIVEN), EXPECTED, rtol=1e-6)
    np.testing.assert_allclose(run(backend, CHAIN.with_params(**GIVEN)), EXPECTED, rtol=1e-6)
    other = run(backend, CHAIN, **{"s": 3.0, "scale[0].s": 2.0, "triangular.width": 4.0})
    np.testing.assert_allclose(other, EXPECTED, rtol=1e-6)  # over what reaches all
    for act in (xg.activation("ReLU", CHAIN, GIVEN), xg.activation("ReLU")):
        with xg.use(CHAIN, GIVEN):
            grad = xg.vjp(act, backend.array(X))[1](backend.array(G))[0]
        np.testing.assert_allclose(backend.numpy(grad), EXPECTED, rtol=1e-6)


def test_another_value_is_no_other_code(backend: Any) -> None:
    first, second = (CHAIN.with_params(**{"scale[0].s": s}).bound_rule() for s in (2.0, 5.0))
    assert first.specialization.id == second.specialization.id
    np.testing.assert_allclose(
        run(backend, CHAIN, **{**GIVEN, "scale[0].s": 5.0}), EXPECTED * 2.5, rtol=1e-6
    )


def test_a_registered_chain_is_a_part_and_has_parts(registered: xg.Rule) -> None:
    with xg.use("test_parts_chain", GIVEN):
        grad = xg.vjp(xg.activation("ReLU"), X)[1](G)[0]
    np.testing.assert_allclose(grad, EXPECTED, rtol=1e-6)
    outer = xg.compose("test_parts_chain", "scale")
    given = {"test_parts_chain.s": 1.0, "test_parts_chain.width": 4.0, "scale[2].s": 6.0}
    np.testing.assert_allclose(outer(None, G, X, **given), EXPECTED, rtol=1e-6)


def test_a_peers_name_has_dots_of_its_own() -> None:
    chain = xg.compose("spikingjelly.ATan", "scale")
    expected = xg.get("spikingjelly.ATan")(None, G, X, alpha=3.0)
    for name in ("spikingjelly.ATan.alpha", "spikingjelly.atan.alpha"):
        np.testing.assert_array_equal(chain(None, G, X, **{name: 3.0}), expected)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scale.s": 1.0}, r"has 2 parts 'scale': write one of scale\[0\]\.s, scale\[1\]\.s"),
        ({"scale[2].s": 1.0}, r"no part 'scale\[2\]' .*did you mean 'scale'"),
        ({"triangle.width": 1.0}, "no part 'triangle' .*did you mean 'triangular'"),
        ({"triangular.widht": 1.0}, "'triangular' has no param 'widht'; did you mean 'width'"),
        ({"triangular.width": "a"}, "'width' is a float, got str"),
    ],
)
def test_what_no_part_has_is_answered_with_what_there_is(params: Any, message: str) -> None:
    for make in (CHAIN.with_params, CHAIN.bound_rule, lambda **p: CHAIN(None, G, X, **p)):
        with pytest.raises(xg.RuleError, match=message):
            make(params) if make == CHAIN.bound_rule else make(**params)
    with pytest.raises(xg.RuleError, match=message), xg.use(CHAIN, params):
        pass


def test_what_is_bound_is_not_set_again() -> None:
    for bound in (CHAIN.with_params(**{"scale[0].s": 2.0}), CHAIN.with_params(s=2.0)):
        with pytest.raises(xg.RuleError, match="is bound by with_params"):
            bound.with_params(**{"scale[0].s": 3.0})
        with (
            pytest.raises(xg.RuleError, match="is bound by with_params"),
            xg.use(bound, {"scale[0].s": 3.0}),
        ):
            pass


def test_it_prints_as_a_chain_with_what_is_bound(registered: xg.Rule) -> None:
    assert repr(xg.compose("clip_norm", "noise")) == "<Rule clip_norm → noise>"
    bound = xg.compose("clip_norm", xg.get("noise").with_params(sigma=0.01))
    assert repr(bound.with_params(max_norm=2.0)) == (
        "<Rule (clip_norm → noise(sigma=0.01))(max_norm=2.0)>"
    )
    assert repr(CHAIN) == "<Rule triangular → scale → (scale → d(ReLU))>"
    assert repr(registered) == "<Rule test_parts_chain: triangular → scale → (scale → d(ReLU))>"
    shown = xg.show(CHAIN.with_params(**{"scale[0].s": 2.0}))
    assert shown.startswith("triangular → scale(s=2.0) → (scale → d(ReLU))\n\n")


def test_parts_with_values_are_copied_pickled_and_saved() -> None:
    chain = CHAIN.with_params(**GIVEN)
    for other in (
        copy.deepcopy(chain),
        pickle.loads(pickle.dumps(chain)),
        xg.from_dict(chain.to_dict()),
    ):
        assert repr(other) == repr(chain)
        np.testing.assert_array_equal(other(None, G, X), chain(None, G, X))
    loaded = xg.from_dict(CHAIN.to_dict())
    np.testing.assert_allclose(loaded(None, G, X, **GIVEN), EXPECTED, rtol=1e-6)
