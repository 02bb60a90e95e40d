"""The rule over one call, of a layer's forward or of an operation: which of three kinds it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from multigrad.errors import RuleTypeError
from multigrad.models.attribution.kinds import has_meaning, is_layer_rule
from multigrad.models.gradient_replacement import named

from .layer_kinds import OPERATIONS
from .plain_rule import PlainRule
from .weight_rule import WeightRule

Call = Callable[..., Any]


class OwnGradient:
    """No rule: a call keeps its own gradient, whatever rules the model around it has."""

    name = "own"

    def call(
        self, name: str, func: Call, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return func(*args, **kwargs)


CallRule: TypeAlias = PlainRule | WeightRule | OwnGradient
OWN = OwnGradient()


def rule_of_calls(rule: Any, merges: bool = False) -> CallRule:
    """Return an object that applies a rule to calls of an operation; None means no rule."""
    if rule is None:
        return OWN
    return WeightRule(rule, merges) if is_layer_rule(rule) else PlainRule(rule)


def rule_of_operation(operation: str, rule: Any) -> CallRule:
    row = OPERATIONS.get(operation)
    if is_layer_rule(rule) and (row is None or row.read is None):
        known = ", ".join(name for name, row in OPERATIONS.items() if row.read is not None)
        raise RuleTypeError(
            f"rule {named(rule)!r} reads what layers hold and has no meaning for operation "
            f"{operation!r} (operations: {known})"
        )
    return WeightRule(rule) if is_layer_rule(rule) else PlainRule(rule, (operation,))


def rules_inside(rule: Any, merges: bool = False) -> Mapping[str, CallRule]:
    """Return a rule for calls within a layer; where it has no meaning, their own gradients."""
    weights = rule_of_calls(rule, merges)
    reads = is_layer_rule(rule)
    return {
        name: weights if reads and row.read is not None and has_meaning(rule, row.kind) else OWN
        for name, row in OPERATIONS.items()
    }
