"""Functions in series, each with its own gradient."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad_conformance.under_test import pull

X = np.array([-2.0, -0.6, 0.0, 0.4, 1.7], np.float32)
ONES = np.ones_like(X)


def times(x: Any, step: Any, bits: int = 2) -> Any:
    return x * step * bits


def rounded(x: Any) -> Any:
    return xp.round(x)


def tenfold(grad_out: Any, x: Any) -> Any:
    return 10.0 * grad_out


SCALE = xg.function(times)
ROUND = xg.function(rounded, tenfold)
CHAIN = xg.compose(xg.activation("ReLU", "d(Linear)"), SCALE, ROUND)


def with_step(x: Any, step: Any) -> Any:
    return CHAIN(x, step=step)


def test_each_function_has_its_own_gradient(backend: Any) -> None:
    y, (grad,) = pull(backend, CHAIN.bind({"step": 3.0}), (X,))
    np.testing.assert_array_equal(y, np.round(np.maximum(X, 0) * 6))
    np.testing.assert_array_equal(grad, 60 * ONES)  # 10 of ROUND, 6 of SCALE, 1 of d(Linear)


def test_a_tensor_of_a_part_is_given_by_name_and_gets_its_gradient(backend: Any) -> None:
    step = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
    y, (grad, of_step) = pull(backend, with_step, (X, step))
    np.testing.assert_array_equal(y, np.round(np.maximum(X, 0) * step * 2))
    np.testing.assert_array_equal(grad, 20 * step)
    np.testing.assert_allclose(of_step, 20 * np.maximum(X, 0), rtol=1e-6)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_it_is_compiled_as_any_function(backend: Any) -> None:
    bound = CHAIN.bind({"step": 3.0})
    grad = xg.vjp(xg.jit(lambda x: bound(x)), backend.array(X))[1](backend.array(X))[0]
    np.testing.assert_allclose(backend.numpy(grad), 60 * X, rtol=1e-6)


def test_params_reach_all_parts_that_declare_them_or_the_one_that_is_named() -> None:
    twice = xg.compose(SCALE, xg.compose(SCALE, ROUND))
    x = np.float32(1.0) * ONES
    for given, expected in (
        ({"step": 3.0}, 36.0),
        ({"step": 3.0, "bits": 4}, 144.0),
        ({"step": 3.0, "times[1].bits": 5}, 90.0),
        ({"times[0].step": 1.0, "times[1].step": 3.0}, 12.0),
        ({"step": 3.0, "times[0].step": 1.0}, 12.0),
    ):
        np.testing.assert_array_equal(twice(x, **given), expected * ONES)
        np.testing.assert_array_equal(twice.bind(given)(x), expected * ONES)
    for part in (SCALE, CHAIN):  # what is bound in a part stays, also in a series
        bound = xg.compose(part.bind({"step": 1.0}), SCALE)
        np.testing.assert_array_equal(bound(x, step=3.0), 12 * ONES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "part 'times' needs 'step': give step=..., by name"),
        ({"stp": 1.0}, "no part takes 'stp'; did you mean 'step'"),
        ({"tims.step": 1.0}, "no part 'tims' .*did you mean 'times'"),
        ({"times.stop": 1.0, "step": 1.0}, "'times' takes no 'stop'; did you mean 'step'"),
    ],
)
def test_what_no_part_takes_is_answered_with_what_there_is(given: Any, message: str) -> None:
    with pytest.raises(xg.RuleError, match=message):
        CHAIN(X, **given)
    if given:
        with pytest.raises(xg.RuleError, match=message):
            CHAIN.bind(given)


def test_what_is_bound_or_given_by_position_is_refused() -> None:
    with pytest.raises(xg.RuleError, match="one argument by position, got 2"):
        CHAIN(X, X, step=1.0)
    nested = xg.compose(CHAIN.bind({"times.step": 1.0}), ROUND)
    with pytest.raises(xg.RuleError, match=r"'times\.step' is bound"):
        nested(X, **{"times.step": 2.0})
    with pytest.raises(xg.RuleError, match=r"'times\.step' is bound"):
        xg.compose(SCALE.bind({"step": 1.0}), ROUND)(X, **{"times.step": 2.0})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("clip_norm", ROUND), r"'clip_norm' is a rule.*xg\.get\('clip_norm'\)\.under"),
        ((ROUND, xg.get("triangular")), r"'triangular' is a rule, 'rounded' a Function"),
        ((ROUND, np.tanh), r"'tanh' is none; write xg\.function\(tanh\)"),
        ((), "at least one"),
    ],
)
def test_rules_and_functions_are_not_mixed(parts: Any, message: str) -> None:
    with pytest.raises(xg.RuleError, match=message):
        xg.compose(*parts)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_tensor_is_bound_to_the_whole_and_to_no_part(backend: Any) -> None:
    step = backend.array(np.array(3.0, np.float32))
    for part in (SCALE.bind({"step": step}), xg.activation("Sign", "triangular", {"width": step})):
        with pytest.raises(xg.RuleError, match=r"bound to one, (step|width): give it to the whole"):
            xg.compose(part, ROUND)
        with pytest.raises(xg.RuleError, match=r"bound to a tensor, (step|width)"):
            xg.activation(part)
    y, back = xg.vjp(lambda step: CHAIN.bind({"times.step": step})(backend.array(X)), step)
    np.testing.assert_array_equal(backend.numpy(y), np.round(np.maximum(X, 0) * 6))
    of_step = backend.numpy(back(backend.array(ONES))[0])
    np.testing.assert_allclose(of_step, 20 * np.maximum(X, 0).sum(), rtol=1e-6)


def test_it_prints_as_a_chain() -> None:
    assert repr(CHAIN) == "<Function ReLU → times → rounded>"
    nested = xg.compose(CHAIN, SCALE.bind({"bits": 4}))
    assert repr(nested) == "<Function (ReLU → times → rounded) → times(bits=4)>"
    CHAIN(X, step=3.0)
    assert xg.show(CHAIN).startswith("ReLU → times → rounded\n\n")


def test_it_is_copied_pickled_and_saved(backend: Any) -> None:
    CHAIN(X, step=3.0)
    saved = xg.from_dict(CHAIN.to_dict())
    for other in (copy.deepcopy(CHAIN), pickle.loads(pickle.dumps(CHAIN)), saved):
        assert other is saved or repr(other) == repr(CHAIN)
        y, (grad,) = pull(backend, other.bind({"step": 3.0}), (X,))
        np.testing.assert_array_equal(y, np.round(np.maximum(X, 0) * 6))
        np.testing.assert_array_equal(grad, 60 * ONES)


def test_random_parts_draw_one_after_another_from_one_key(backend: Any) -> None:
    noisy = xg.get("noise").with_params(sigma=1.0).under("Linear")
    chain = xg.compose(noisy, noisy)
    grads = [pull(backend, chain.bind(key=7), (X,))[1][0] for _ in range(2)]
    np.testing.assert_array_equal(*grads)
    first = pull(backend, noisy.bind(key=7), (X,))[1][0] - ONES
    both = grads[0] - ONES
    assert np.abs(both - 2 * first).min() > 1e-3  # no draw twice


def test_parts_draw_different_numbers_from_one_key(backend: Any) -> None:
    twice, once = xg.compose("full_jam", "full_jam"), xg.get("full_jam")
    ones = backend.array(np.ones(1000, np.float32))
    u = backend.numpy(once(None, ones, ones, key=3))
    both = backend.numpy(twice(None, ones, ones, key=3))
    np.testing.assert_array_equal(backend.numpy(twice(None, ones, ones, key=3)), both)
    second = both / u
    assert second.min() >= 0 and second.max() <= 1.0001
    assert abs(np.corrcoef(u, second)[0, 1]) < 0.2


def test_a_chain_is_a_function_to_everything_else() -> None:
    smooth = xg.compose(SCALE.bind({"step": 0.5}), xg.function(xp.tanh))
    assert xg.check(smooth, X.astype(np.float64)).ok
    act = xg.activation(xg.compose(SCALE.bind({"step": 3.0}), ROUND), "triangular")
    y, back = xg.vjp(act, X)
    np.testing.assert_array_equal(y, np.round(X * 6))
    np.testing.assert_allclose(back(ONES)[0], np.maximum(1 - np.abs(X), 0), rtol=1e-6)


# Params of one part of a composed rule, and the chain in words.


X_PARTS = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
CHAIN_PARTS = xg.compose("triangular", "scale", xg.compose("scale", "d(ReLU)"))
GIVEN = {"triangular.width": 4.0, "scale[0].s": 2.0, "scale[1].s": 3.0}
EXPECTED = G * (1 - np.abs(X_PARTS) / 4) * 6 * (X_PARTS > 0)


@pytest.fixture
def registered() -> xg.Rule:
    return xg.register("test_parts_chain")(CHAIN_PARTS)


def run(backend: Any, rule: Any, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(G), backend.array(X_PARTS), **params))


def test_a_param_of_one_part_is_named_with_it(backend: Any) -> None:
    np.testing.assert_allclose(run(backend, CHAIN_PARTS, **GIVEN), EXPECTED, rtol=1e-6)
    np.testing.assert_allclose(run(backend, CHAIN_PARTS.with_params(**GIVEN)), EXPECTED, rtol=1e-6)
    other = run(backend, CHAIN_PARTS, **{"s": 3.0, "scale[0].s": 2.0, "triangular.width": 4.0})
    np.testing.assert_allclose(other, EXPECTED, rtol=1e-6)  # over what reaches all
    for act in (xg.activation("ReLU", CHAIN_PARTS, GIVEN), xg.activation("ReLU")):
        with xg.use(CHAIN_PARTS, GIVEN):
            grad = xg.vjp(act, backend.array(X_PARTS))[1](backend.array(G))[0]
        np.testing.assert_allclose(backend.numpy(grad), EXPECTED, rtol=1e-6)


def test_another_value_is_no_other_code(backend: Any) -> None:
    first, second = (CHAIN_PARTS.with_params(**{"scale[0].s": s}).bound_rule() for s in (2.0, 5.0))
    assert first.specialization.id == second.specialization.id
    np.testing.assert_allclose(
        run(backend, CHAIN_PARTS, **{**GIVEN, "scale[0].s": 5.0}), EXPECTED * 2.5, rtol=1e-6
    )


def test_a_registered_chain_is_a_part_and_has_parts(registered: xg.Rule) -> None:
    with xg.use("test_parts_chain", GIVEN):
        grad = xg.vjp(xg.activation("ReLU"), X_PARTS)[1](G)[0]
    np.testing.assert_allclose(grad, EXPECTED, rtol=1e-6)
    outer = xg.compose("test_parts_chain", "scale")
    given = {"test_parts_chain.s": 1.0, "test_parts_chain.width": 4.0, "scale[2].s": 6.0}
    np.testing.assert_allclose(outer(None, G, X_PARTS, **given), EXPECTED, rtol=1e-6)


def test_a_peers_name_has_dots_of_its_own() -> None:
    chain = xg.compose("spikingjelly.ATan", "scale")
    expected = xg.get("spikingjelly.ATan")(None, G, X_PARTS, alpha=3.0)
    for name in ("spikingjelly.ATan.alpha", "spikingjelly.atan.alpha"):
        np.testing.assert_array_equal(chain(None, G, X_PARTS, **{name: 3.0}), expected)


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
    for make in (
        CHAIN_PARTS.with_params,
        CHAIN_PARTS.bound_rule,
        lambda **p: CHAIN_PARTS(None, G, X_PARTS, **p),
    ):
        with pytest.raises(xg.RuleError, match=message):
            make(params) if make == CHAIN_PARTS.bound_rule else make(**params)
    with pytest.raises(xg.RuleError, match=message), xg.use(CHAIN_PARTS, params):
        pass


def test_what_is_bound_is_not_set_again() -> None:
    for bound in (CHAIN_PARTS.with_params(**{"scale[0].s": 2.0}), CHAIN_PARTS.with_params(s=2.0)):
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
    assert repr(CHAIN_PARTS) == "<Rule triangular → scale → (scale → d(ReLU))>"
    assert repr(registered) == "<Rule test_parts_chain: triangular → scale → (scale → d(ReLU))>"
    shown = xg.show(CHAIN_PARTS.with_params(**{"scale[0].s": 2.0}))
    assert shown.startswith("triangular → scale(s=2.0) → (scale → d(ReLU))\n\n")


def test_parts_with_values_are_copied_pickled_and_saved() -> None:
    chain = CHAIN_PARTS.with_params(**GIVEN)
    for other in (
        copy.deepcopy(chain),
        pickle.loads(pickle.dumps(chain)),
        xg.from_dict(chain.to_dict()),
    ):
        assert repr(other) == repr(chain)
        np.testing.assert_array_equal(other(None, G, X_PARTS), chain(None, G, X_PARTS))
    loaded = xg.from_dict(CHAIN_PARTS.to_dict())
    np.testing.assert_allclose(loaded(None, G, X_PARTS, **GIVEN), EXPECTED, rtol=1e-6)
