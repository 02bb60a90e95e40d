"""Composed rules: order, params of the parts, bindings, nesting, names looked up when used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)


def shift(ctx: Any, grad_out: Any, tin: Any, by: float = 1.0) -> Any:
    return grad_out + by


def times(ctx: Any, grad_out: Any, tin: Any, s: float = 10.0) -> Any:
    return grad_out * s


def greedy(ctx: Any, grad_out: Any, tin: Any, **params: Any) -> Any:
    return grad_out + sum(params.values())


def freegrad_style(ctx: Any, grad_out: Any, tin: Any, by: float = 1.0, **_: Any) -> Any:
    return grad_out - by


def run(backend: Any, rule: Any, **params: Any) -> Any:
    return backend.numpy(rule(None, backend.array(G), backend.array(X), **params))


def test_parts_are_applied_first_to_last(backend: Any) -> None:
    np.testing.assert_array_equal(run(backend, xg.compose(shift, times)), (G + 1) * 10)
    np.testing.assert_array_equal(run(backend, xg.compose(times, shift)), G * 10 + 1)


def test_composed_rule_acts_under_an_activation(backend: Any) -> None:
    rule = xg.compose("clip_norm", "rectangular", times)
    wanted = G / np.linalg.norm(G) * (np.abs(X) <= 0.5) * 2
    with xg.use(rule, {"s": 2.0}):
        y, grad_in = backend.vjp(xg.activation("ReLU"), X, G)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    np.testing.assert_allclose(grad_in, wanted, rtol=1e-6)


def test_param_reaches_every_part_that_declares_it(backend: Any) -> None:
    rule = xg.compose(shift, times, shift)
    np.testing.assert_array_equal(run(backend, rule, by=2.0, s=3.0), (G + 2) * 3 + 2)
    assert set(rule.params) == {"by", "s"}


def test_strict_part_is_not_given_a_param_of_another(backend: Any) -> None:
    # FreeGrad passes all params to all parts, so that one without **_ fails.
    np.testing.assert_array_equal(run(backend, xg.compose("scale", shift), s=2.0), G * 2 + 1)


def test_parts_keep_their_own_defaults(backend: Any) -> None:
    def other_shift(ctx: Any, grad_out: Any, tin: Any, by: float = 5.0) -> Any:
        return grad_out + by

    rule = xg.compose(shift, other_shift)
    np.testing.assert_array_equal(run(backend, rule), G + 6)
    np.testing.assert_array_equal(run(backend, rule, by=2.0), G + 4)


def test_parts_may_bind_the_same_param_differently(backend: Any) -> None:
    window = xg.get("rectangular")
    rule = xg.compose(window.with_params(a=0.0, b=1.0), window.with_params(a=-2.0, b=0.5))
    np.testing.assert_array_equal(run(backend, rule), G * ((X >= 0) & (X <= 0.5)))
    half_bound = xg.compose(window.with_params(a=0.0), window)
    given = run(backend, half_bound, a=0.5, b=1.0)
    np.testing.assert_array_equal(given, G * ((X >= 0.5) & (X <= 1)))


def test_param_that_every_part_has_bound_is_not_settable() -> None:
    rule = xg.compose(xg.get("scale").with_params(s=2.0), "clip_norm")
    with pytest.raises(xg.RuleError, match="param 's' is bound by with_params"):
        rule(None, G, X, s=3.0)


def test_param_that_no_part_takes_is_an_error() -> None:
    rule = xg.compose("clip_norm", "noise")
    with pytest.raises(
        xg.RuleError, match=r"compose\(clip_norm, noise\).*no param 'sgima'; did you"
    ):
        xg.use(rule, {"sgima": 0.1}).__enter__()


def test_composed_rule_binds_for_all_its_parts(backend: Any) -> None:
    rule = xg.compose(shift, times, shift).with_params(by=2.0)
    np.testing.assert_array_equal(run(backend, rule, s=3.0), (G + 2) * 3 + 2)
    with pytest.raises(xg.RuleError, match="'by' is bound"):
        rule(None, G, X, by=1.0)


def test_required_param_of_a_part_is_required() -> None:
    rule = xg.compose("scale", lambda ctx, g, x, width: g * width)
    with pytest.raises(xg.RuleError, match="needs a value for param 'width'"):
        rule(None, G, X)
    np.testing.assert_array_equal(rule(None, G, X, width=2.0), G * 2)


def test_part_with_params_receives_everything_that_is_given(backend: Any) -> None:
    rule = xg.compose(times, greedy)
    np.testing.assert_array_equal(run(backend, rule, s=2.0, other=0.5), G * 2 + 2.5)


def test_freegrad_style_part_takes_unknown_names(backend: Any) -> None:
    rule = xg.compose(freegrad_style, times)
    np.testing.assert_array_equal(run(backend, rule, by=2.0, nobody=1.0), (G - 2) * 10)


def test_composed_rules_nest(backend: Any) -> None:
    inner = xg.compose(shift, times)
    rule = xg.compose(inner.with_params(s=2.0), inner, shift)
    assert rule.name == "compose(compose(shift, times), compose(shift, times), shift)"
    np.testing.assert_array_equal(run(backend, rule, by=3.0), ((G + 3) * 2 + 3) * 10 + 3)


def test_composed_rule_may_be_registered(backend: Any) -> None:
    registered = xg.register("shift_and_scale")(xg.compose(shift, "scale"))
    assert registered.name == "shift_and_scale"
    given = run(backend, xg.get("shift_and_scale"), s=2.0)
    np.testing.assert_array_equal(given, (G + 1) * 2)
    given = run(backend, xg.compose("shift_and_scale", times), s=2.0)
    np.testing.assert_array_equal(given, (G + 1) * 4)


def test_name_inside_is_looked_up_when_it_is_used(backend: Any) -> None:
    xg.register("mine")(shift)
    rule = xg.compose("mine", times)
    nested = xg.compose(rule, times)
    np.testing.assert_array_equal(run(backend, rule), (G + 1) * 10)
    xg.register("mine", override=True)(greedy)
    np.testing.assert_array_equal(run(backend, rule), G * 10)
    np.testing.assert_array_equal(run(backend, nested), G * 100)


def test_rule_entered_before_an_override_stays_what_it_was(backend: Any) -> None:
    xg.register("mine")(shift)
    rule, act = xg.compose("mine", times), xg.activation("Linear")
    with xg.use(rule):
        xg.register("mine", override=True)(greedy)
        np.testing.assert_array_equal(backend.vjp(act, X, G)[1], (G + 1) * 10)  # captured only now
    with xg.use(rule):
        np.testing.assert_array_equal(backend.vjp(act, X, G)[1], G * 10)


def test_single_part_is_that_part(backend: Any) -> None:
    np.testing.assert_array_equal(run(backend, xg.compose("scale"), s=2.0), G * 2)


def test_compose_without_parts_is_an_error() -> None:
    with pytest.raises(
        xg.RuleError, match=r"compose needs at least one rule.*compose\('clip_norm'"
    ):
        xg.compose()


@pytest.mark.parametrize("part", ["no such rule", 3, None])
def test_unknown_part_is_an_error_at_once(part: Any) -> None:
    with pytest.raises(xg.RuleError, match=r"no rule named|a rule is a name"):
        xg.compose("scale", part)


def test_what_a_composition_binds_reaches_the_graphs_of_its_parts(backend: Any) -> None:
    def repeated(ctx: Any, grad_out: Any, tin: Any, n: int = 3, width: float = 1.0) -> Any:
        for _ in range(n if width < 2 else n + 1):
            grad_out = grad_out * 0.5
        return grad_out

    inner = xg.compose("scale", repeated).with_params(n=1)
    rule = xg.compose(inner, "straight_through").with_params(width=3.0)
    np.testing.assert_array_equal(run(backend, rule, s=8.0), G * 2)
