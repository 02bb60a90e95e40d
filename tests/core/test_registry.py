"""The registry: names of rules, and what becomes of one that is taken, replaced or removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-1.0, 0.5, 2.0], np.float32)


def doubled(ctx: Any, grad_out: Any, tin: Any) -> Any:
    """Twice the gradient."""
    return grad_out * 2


def tripled(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * 3


def test_rules_are_sorted() -> None:
    assert (names := xg.rules()) == sorted(names)


def test_registered_function_becomes_a_rule_that_is_still_callable() -> None:
    rule = xg.register("doubled")(doubled)
    assert isinstance(rule, xg.Rule) and xg.get("doubled") is rule
    assert (rule.name, rule.__name__, rule.__doc__) == ("doubled", "doubled", doubled.__doc__)
    assert rule.__wrapped__ is doubled
    np.testing.assert_array_equal(rule(None, X, X), X * 2)


def test_get_returns_a_plain_callable_and_a_rule_as_they_are() -> None:
    rule = xg.register("doubled")(doubled)
    assert xg.get(doubled) is doubled
    assert xg.get(rule) is rule
    assert isinstance(xg.get("scale"), xg.Rule)


@pytest.mark.parametrize("value", [None, 3, ["scale"], ("scale",)])
def test_get_takes_nothing_else(value: Any) -> None:
    with pytest.raises(xg.RuleError, match="a rule is a name, a Rule or a function, got") as raised:
        xg.get(value)
    assert isinstance(raised.value, TypeError)


def test_taken_name_is_an_error_and_changes_nothing() -> None:
    first = xg.register("doubled")(doubled)
    with pytest.raises(xg.RuleError, match="'doubled' is registered already; pass override=True"):
        xg.register("doubled")(tripled)
    assert xg.get("doubled") is first


def test_a_rule_of_the_library_gives_way_to_a_users_but_for_those_that_0_1_0_had() -> None:
    known = xg.get("q_pseudo_spike")
    mine = xg.register("q_pseudo_spike")(doubled)
    try:
        assert xg.get("q_pseudo_spike") is mine
        with pytest.raises(xg.RuleError, match="registered already"):
            xg.register("q_pseudo_spike")(tripled)
        with pytest.raises(xg.RuleError, match="registered already"):
            xg.register("triangular")(tripled)
    finally:
        xg.unregister("q_pseudo_spike")
    assert xg.get("q_pseudo_spike") is known


def test_override_replaces_and_needs_no_old_rule() -> None:
    xg.register("doubled", override=True)(doubled)
    rule = xg.register("doubled", override=True)(tripled)
    assert xg.get("doubled") is rule
    np.testing.assert_array_equal(xg.get("doubled")(None, X, X), X * 3)


def test_unregister_removes_one() -> None:
    xg.register("doubled")(doubled)
    xg.unregister("doubled")
    assert "doubled" not in xg.rules()
    with pytest.raises(xg.RuleError, match="no rule named 'doubled'"):
        xg.get("doubled")
    with pytest.raises(xg.RuleError, match="no rule named 'doubled'"):
        xg.unregister("doubled")


def test_composed_rule_whose_part_was_removed_says_so_when_used() -> None:
    xg.register("doubled")(doubled)
    composed = xg.compose("doubled", "scale")
    xg.unregister("doubled")
    with pytest.raises(xg.RuleError, match="no rule named 'doubled'"):
        composed(None, X, X)


@pytest.mark.parametrize("name", ["", None, 3, doubled])
def test_name_must_be_a_non_empty_string(name: Any) -> None:
    with pytest.raises(xg.RuleError, match=r"write @xg.register\('my_rule'\)"):
        xg.register(name)


def two_positional(ctx: Any, grad_out: Any, **params: Any) -> Any:
    return grad_out


def none_positional(*, ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out


def star_only(*args: Any, **params: Any) -> Any:
    return args[1]


def swapped(ctx: Any, tin: Any, grad_out: Any) -> Any:
    return grad_out


def swapped_as_in_torch(ctx: Any, x: Any, grad_output: Any) -> Any:
    return grad_output


def without_ctx(grad_out: Any, tin: Any, width: float = 1.0) -> Any:
    return grad_out


def param_in_place_of_tin(ctx: Any, grad_out: Any, slope: float = 5.0) -> Any:
    return grad_out


def takes_a_key(ctx: Any, grad_out: Any, tin: Any, key: Any = None) -> Any:
    return grad_out


def positional_param(ctx: Any, grad_out: Any, tin: Any, width: float, /) -> Any:
    return grad_out * width


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (two_positional, r"takes \(ctx.*grad_out.*\).*expected \(ctx, grad_out, tin, \*\*params\)"),
        (none_positional, r"expected \(ctx, grad_out, tin, \*\*params\)"),
        (star_only, r"expected \(ctx, grad_out, tin, \*\*params\)"),
        (swapped, r"expected \(ctx, grad_out, tin.*so 'tin' would get grad_out"),
        (swapped_as_in_torch, "so 'grad_output' would get tin"),
        (without_ctx, "so 'grad_out' would get ctx"),
        (param_in_place_of_tin, "so 'slope' would get tin"),
        (takes_a_key, "no param can be called 'key'"),
        (positional_param, "'width' must be settable by name"),
        (3, "must be a function.*got int"),
        (None, "must be a function.*got NoneType"),
        (min, "no readable signature"),
    ],
)
def test_wrong_signature_registers_nothing(function: Any, message: str) -> None:
    before = xg.rules()
    with pytest.raises(xg.RuleError, match=f"rule 'wrong'.*{message}") as raised:
        xg.register("wrong")(function)
    assert isinstance(raised.value, TypeError)
    assert xg.rules() == before


def test_more_leading_params_are_params() -> None:
    def rule(context: Any, g: Any, x: Any, width: Any, *, slope: float = 2.0) -> Any:
        return g * width * slope

    made = xg.register("other_names")(rule)
    assert set(made.params) == {"width", "slope"}
    np.testing.assert_array_equal(made(None, X, X, width=3.0), X * 6)


def test_rule_registered_under_a_second_name_acts_under_both() -> None:
    first = xg.register("doubled")(doubled)
    second = xg.register("twice")(first)
    assert (first.name, second.name) == ("doubled", "twice")
    np.testing.assert_array_equal(xg.get("twice")(None, X, X), X * 2)


def test_rule_made_of_itself_is_an_error() -> None:
    xg.register("outer")(xg.compose("scale", "noise"))
    with pytest.raises(xg.RuleError, match=r"'scale' would be made of itself.*xg.get\('scale'\)"):
        xg.register("scale", override=True)(xg.compose("outer", "clip_norm"))
    xg.register("scale", override=True)(xg.compose(xg.get("scale"), xg.get("scale")))
    np.testing.assert_array_equal(xg.get("scale")(None, X, X, s=2.0), X * 4)
