"""A rule on gradients as a transformation of optax.

optax is imported when a transformation is made, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.compat.optax import RuleState
from multigrad.core.rules.context import CURRENT, RuleInForce
from multigrad.core.rules.registry import unknown_keyword_error
from multigrad.core.rules.rule import Rule
from multigrad.core.rules.rule_application import apply_rule as apply_to_tensor
from multigrad.core.support.params import read_params
from multigrad.core.trace.active_rules import KeySource
from multigrad.engine.rules.gradients import GradientRule, fold_step
from multigrad.engine.trace.random_keys import Counter, normalize_key
from multigrad.errors import BackendNotFound, RuleError

from .core import compile

Tensor: TypeAlias = jax.Array


def apply_rule(
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    key: Any = None,
    **others: Never,
) -> Any:
    """Return an `optax.GradientTransformation` that applies a rule to each update, with `tin=None`.

    The rule sees one leaf at a time: `clip_norm` limits the norm of each leaf, where
    `optax.clip_by_global_norm` limits that of all of them together. Leaves keep their dtype.

    Examples:
        >>> import jax.numpy as jnp, multigrad.optax, optax
        >>> optimizer = optax.chain(
        ...     multigrad.optax.apply_rule("clip_norm", {"max_norm": 1.0}), optax.sgd(0.5)
        ... )
        >>> weights = {"w": jnp.zeros(2)}
        >>> state = optimizer.init(weights)
        >>> updates, state = optimizer.update({"w": jnp.array([3.0, 4.0])}, state)
        >>> optax.apply_updates(weights, updates)
        {'w': Array([-0.3, -0.4], dtype=float32)}

    Args:
        rule: a name, a Rule or a function; None takes the rule that `use` has in force for the
            scope "params" or "all" when an update is made (under `jax.jit`: traced).
        params: values for the rule's params: numbers, 0-d arrays, or schedules, which are called
            with the count.
        key: what random rules draw from: an int, a jax key or two uint32. The n-th leaf of update s
            draws from `fold_in(fold_in(key, s), n)`.

    Raises:
        RuleError: the rule or a param is unknown, or a random rule has no key.
        BackendNotFound: optax or jax is not installed.
    """
    if others:
        raise unknown_keyword_error(apply_rule, "apply_rule", rule, others)
    try:
        import optax
    except ModuleNotFoundError as error:
        if error.name != "optax":
            raise
        raise BackendNotFound(
            "multigrad.optax needs optax, which is not installed: pip install optax"
        ) from error
    values = read_params(params)
    if rule is None and values:
        raise RuleError(f"params {sorted(values)} need a rule to take them")
    words = None if key is None else normalize_key(key)
    schedules = {name: value for name, value in values.items() if callable(value)}
    bound_rule = None
    if rule is not None:
        bound_rule = _bind_rule(rule, values, schedules, has_key=words is not None)

    def init(parameters: Any) -> RuleState:
        return RuleState(
            jnp.zeros([], jnp.int32), None if words is None else jnp.asarray(words, jnp.uint32)
        )

    def update(
        updates: Any, state: RuleState, parameters: Any = None, **extra: Any
    ) -> tuple[Any, RuleState]:
        if bound_rule is None:
            rule_in_force = _follow_rules(state)
        else:
            numbers = {name: schedule(state.count) for name, schedule in schedules.items()}
            rule_in_force = bound_rule.at_step(numbers, state.key, state.count)

        def apply(leaf: Tensor) -> Tensor:
            leaf = jnp.asarray(leaf)
            if bound_rule is None:  # also without a rule: that is what a trace would keep
                compile.on_read(leaf, None, "params")
            if rule_in_force is None:
                return leaf
            return apply_to_tensor(rule_in_force, None, leaf, None)

        next_count = optax.safe_increment(state.count)
        return jax.tree.map(apply, updates), RuleState(next_count, state.key)

    return optax.GradientTransformationExtraArgs(init, update)


def _bind_rule(
    rule: Any,
    params: Mapping[str, Any],
    schedules: Mapping[str, Callable[[Tensor], Any]],
    has_key: bool,
) -> GradientRule:
    """Return a rule with its params, those that are schedules of the step count as at step 0."""
    start = jnp.zeros([], jnp.int32)
    start_values = {name: jnp.asarray(schedule(start)) for name, schedule in schedules.items()}
    bound_rule = GradientRule(rule, {**params, **start_values})
    for name in schedules.keys() - bound_rule.numbers.keys():
        raise RuleError(
            f"param {name!r} of rule {bound_rule.look_up().specialization.rule.name!r} decides "
            "what its Python code does, so it cannot follow a schedule; pass a number"
        )
    if bound_rule.draws and not has_key:
        raise RuleError(
            f"rule {bound_rule.look_up().specialization.rule.name!r} is random, and jax has no "
            "generator to draw from: pass key=, e.g. apply_rule(rule, key=jax.random.key(0))"
        )
    return bound_rule


def _follow_rules(state: RuleState) -> RuleInForce | None:
    rule_in_force = CURRENT.get().params
    # a key of the transformation's own takes precedence over the one given to `use`
    if rule_in_force is None or state.key is None:
        return rule_in_force
    return rule_in_force.with_draws(KeySource(fold_step(state.key, state.count), Counter()))
