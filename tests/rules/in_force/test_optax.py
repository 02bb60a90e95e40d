"""`multigrad.optax.apply_rule`: a rule on gradients among optax's transformations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine import random

from ...harness.hidden import python

jax: Any = pytest.importorskip("jax")
optax: Any = pytest.importorskip("optax")
jnp = jax.numpy

pytestmark = pytest.mark.needs("jax", "optax")

Tensor: TypeAlias = Any

G = {
    "w": np.array([[3.0, 4.0], [0.0, 12.0]], np.float32),
    "b": np.array([0.3, -0.4], np.float32),
}


def apply_rule(*args: Any, **kwargs: Any) -> Any:
    from multigrad.compat.optax import apply_rule

    return apply_rule(*args, **kwargs)


def updates(transformation: Any, grads: Any = G, steps: int = 1, jitted: bool = False) -> list[Any]:
    """Give what the transformation makes of the same gradients, step by step."""
    update = jax.jit(transformation.update) if jitted else transformation.update
    state, found = transformation.init(grads), []
    for _ in range(steps):
        updated, state = update(grads, state)
        found.append(updated)
    return found


def assert_equal(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=tolerance
        )


@pytest.mark.parametrize("jitted", [False, True])
def test_numbers_are_those_of_optaxs_own_transformations(jitted: bool) -> None:
    # clip_norm is per leaf, as clipping by the norm of a block of one leaf is.
    root = {"w": np.sqrt(4.0), "b": np.sqrt(2.0)}
    for rule, params, theirs in [
        ("scale", {"s": -0.5}, optax.scale(-0.5)),
        ("gradient_reversal", None, optax.scale(-1.0)),
        ("centralize", {"dim": -1}, None),
    ]:
        (ours,) = updates(apply_rule(rule, params), jitted=jitted)
        if theirs is None:
            expected = {k: g - g.mean(-1, keepdims=True) for k, g in G.items()}
        else:
            (expected,) = updates(theirs)
        assert_equal(ours, expected)
    (ours,) = updates(apply_rule("clip_norm", {"max_norm": 0.25}), jitted=jitted)
    for name, leaf in G.items():
        one = {name: leaf}
        (by_norm,) = updates(optax.clip_by_global_norm(0.25), one)
        (by_rms,) = updates(optax.clip_by_block_rms(0.25 / root[name]), one)
        assert_equal({name: ours[name]}, by_norm)
        assert_equal({name: ours[name]}, by_rms)


def test_none_empty_and_nested_trees_keep_their_structure() -> None:
    tree = {"a": [jnp.ones(2), None, (jnp.ones(1),)], "b": {}, "c": None}
    (found,) = updates(apply_rule("scale", {"s": 2.0}), tree)
    assert_equal(found, {"a": [jnp.full(2, 2.0), None, (jnp.full(1, 2.0),)], "b": {}, "c": None})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_leaves_keep_their_dtype_also_under_a_schedule(dtype: str) -> None:
    grads = {"w": jnp.ones(3, dtype), "v": jnp.ones(3, "float32")}
    schedule = optax.linear_schedule(2.0, 4.0, 2)
    for found in updates(apply_rule("scale", {"s": schedule}), grads, steps=2, jitted=True):
        assert found["w"].dtype == dtype
        assert found["v"].dtype == "float32"


def test_schedules_follow_the_count_without_a_retrace() -> None:
    traces = []
    optimizer = optax.chain(
        apply_rule("clip_norm", {"max_norm": optax.linear_schedule(1.0, 0.0, 4)}), optax.sgd(1.0)
    )

    @jax.jit
    def update(grads: Any, state: Any) -> Any:
        traces.append(1)
        return optimizer.update(grads, state)

    state = optimizer.init(G)
    for step in range(4):
        found, state = update(G, state)
        max_norm = 1.0 - step / 4
        norms = {name: max(np.linalg.norm(g), max_norm) for name, g in G.items()}
        assert_equal(found, {name: -g * max_norm / norms[name] for name, g in G.items()}, 2e-6)
    assert len(traces) == 1


def test_random_rules_draw_by_key_count_and_leaf() -> None:
    for key in (7, (0, 7), jax.random.key(7)):
        for jitted in (False, True):
            found = updates(apply_rule("full_jam", key=key), steps=3, jitted=jitted)
            for step in range(3):
                at_step = random.fold_in(random.key_from_int(7), step)
                expected = {
                    name: G[name] * random.uniform(random.fold_in(at_step, n), G[name].shape, "f4")
                    for n, name in enumerate(sorted(G))
                }
                assert_equal(found[step], expected)


def test_scan_and_vmap_run_over_the_state() -> None:
    transformation = apply_rule("full_jam", key=7)
    expected = updates(transformation, steps=3)
    state = transformation.init(G)

    def step(state: Any, _: None) -> tuple[Any, Any]:
        updated, state = transformation.update(G, state)
        return state, updated

    state, scanned = jax.lax.scan(step, state, None, 3)
    assert int(state.count) == 3
    for n in range(3):
        assert_equal(jax.tree.map(lambda leaf, n=n: leaf[n], scanned), expected[n])

    keys = jnp.array([[0, 7], [0, 8]], jnp.uint32)
    start = transformation.init(G)
    mapped = jax.vmap(lambda key: transformation.update(G, start._replace(key=key))[0])(keys)
    for n, key in enumerate((7, 8)):
        (one,) = updates(apply_rule("full_jam", key=key))
        assert_equal(jax.tree.map(lambda leaf, n=n: leaf[n], mapped), one)


def test_gradients_pass_through_an_update() -> None:
    transformation = apply_rule("gradient_reversal", {"alpha": 3.0})
    state = transformation.init(G["b"])
    found = jax.grad(lambda g: transformation.update(g, state)[0].sum())(G["b"])
    np.testing.assert_allclose(found, np.full(2, -3.0))


def test_masked_leaves_are_left_alone() -> None:
    transformation = optax.masked(apply_rule("scale", {"s": 2.0}), {"w": True, "b": False})
    (found,) = updates(transformation, jitted=True)
    assert_equal(found, {"w": 2 * G["w"], "b": G["b"]})


def test_groups_of_leaves_have_rules_of_their_own() -> None:
    rules = {"weights": apply_rule("scale", {"s": 2.0}), "biases": apply_rule("scale", {"s": 3.0})}
    transformation = optax.partition(rules, {"w": "weights", "b": "biases"})
    (found,) = updates(transformation, jitted=True)
    assert_equal(found, {"w": 2 * G["w"], "b": 3 * G["b"]})


def test_hyperparameters_are_injected() -> None:
    def scaled(s: Any) -> Any:
        return apply_rule("scale", {"s": s})

    transformation = optax.inject_hyperparams(scaled)(s=2.0)
    state, update = transformation.init(G), jax.jit(transformation.update)
    found, state = update(G, state)
    assert_equal(found, {name: 2 * g for name, g in G.items()})
    state.hyperparams["s"] = jnp.asarray(5.0)
    found, state = update(G, state)
    assert_equal(found, {name: 5 * g for name, g in G.items()})


def test_without_a_rule_the_one_in_force_for_params_acts() -> None:
    transformation = apply_rule()
    state, update = transformation.init(G), jax.jit(transformation.update)
    for jitted in (transformation.update, update):
        assert_equal(jitted(G, state)[0], G)
        with xg.use("scale", {"s": 2.0}, scope="params"):
            assert_equal(jitted(G, state)[0], {name: 2 * g for name, g in G.items()})
        with xg.use("scale", {"s": 3.0}, scope="activations"):
            assert_equal(jitted(G, state)[0], G)
        assert_equal(jitted(G, state)[0], G)
    with xg.use("full_jam", scope="params"):
        assert_equal(updates(apply_rule(key=7))[0], updates(apply_rule("full_jam", key=7))[0])


def test_a_name_that_is_registered_anew_is_followed() -> None:
    name = "optax_test_times"

    @xg.register(name)
    def first(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 2.0 * grad_out

    import jax

    transformation = apply_rule(name)
    state, update = transformation.init(G), jax.jit(transformation.update)
    assert_equal(update(G, state)[0], {name: 2 * g for name, g in G.items()})

    @xg.register(name, override=True)
    def second(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 3.0 * grad_out

    assert_equal(update(G, state)[0], {name: 3 * g for name, g in G.items()})


def test_wrong_arguments_are_said_at_once() -> None:
    with pytest.raises(xg.RuleError, match="did you mean 'clip_norm'"):
        apply_rule("clip_nrom")
    with pytest.raises(xg.RuleError, match="max_nrom"):
        apply_rule("clip_norm", {"max_nrom": 1.0})
    with pytest.raises(xg.RuleError, match=r"params are a dict, .*, got float 1.0"):
        apply_rule("clip_norm", 1.0)
    with pytest.raises(xg.RuleError, match="need a rule"):
        apply_rule(None, {"max_norm": 1.0})
    with pytest.raises(xg.RuleError, match=r"'noise' is random.*key="):
        apply_rule("noise")
    with pytest.raises(TypeError, match="'dim' is an int"):
        apply_rule("centralize", {"dim": optax.constant_schedule(0)})

    def branching(ctx: Any, grad_out: Any, tin: Any, p: float = 2.0) -> Any:
        return grad_out * grad_out if p == 2.0 else grad_out

    with pytest.raises(xg.RuleError, match="cannot follow a schedule"):
        apply_rule(branching, {"p": optax.constant_schedule(2.0)})
    with pytest.raises(xg.GradientError, match="int32"):
        updates(apply_rule("scale"), {"w": np.ones(2, np.int32)})


def test_optax_is_imported_when_a_transformation_is_made_and_not_before() -> None:
    code = """
import sys
import multigrad, multigrad.optax
assert "optax" not in sys.modules and "jax" not in sys.modules
multigrad.optax.apply_rule("scale")
assert sys.modules["optax"].__name__ == "optax" and hasattr(sys.modules["optax"], "chain")
"""
    python("-c", code)


def test_without_optax_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["optax"] = None
import multigrad.optax
try:
    multigrad.optax.apply_rule("scale")
except ImportError as error:
    print(type(error).__name__, error)
"""
    output = python("-c", code)
    assert output.startswith("BackendNotFound")
    assert "pip install optax" in output


def test_a_rules_param_as_a_keyword_is_told_with_what_to_write() -> None:
    with pytest.raises(xg.RuleError, match=r'write params={"max_norm": 1.0}'):
        apply_rule("clip_norm", max_norm=1.0)
