"""Composites on torch modules: each leaf gets the rule for its kind, each call in code as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from multigrad.errors import RuleValueError
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import has_weight, is_layer_rule
from multigrad.models.handle import Row, named
from multigrad.models.interpose import Given, give
from multigrad.models.selectors import Layer

from .layer_acting import InsideActing, LayerActing, MergedActing, OnLayer
from .layer_kinds import OPERATIONS, kind_of
from .layer_rules import CallRule, rule_of_calls
from .operation_acting import OnModel, OperationsActing, make_mode, may_call
from .rule_over import PlainRule
from .swapped_classes import Acting, acting_on


def plan_composite(
    model: nn.Module, layers: Sequence[Layer], composite: Composite
) -> tuple[list[tuple[Acting, nn.Module, str]], list[Row]]:
    """Return what is to act on which modules, and the rows of its table.

    Raises:
        RuleValueError: a layer has a rule already, or nothing gets one.
    """
    leaves = [layer for layer in layers if layer.is_leaf]
    given = give(composite, leaves, kind_of)
    merged = merges(given) if composite.canonize else {}
    calls = make_mode(model, layers, rules_of_calls(composite))
    within = OperationsActing(calls)
    made: dict[Any, OnLayer] = {}
    plan: list[tuple[Acting, nn.Module, str]] = []
    rows: list[Row] = []
    for i, each in enumerate(given):
        rule, module, name = each.rule, each.layer.layer, each.layer.names[0]
        if each.kind is None and rule is None and not each.is_named:
            if may_call(module, set(calls.rules)):
                plan.append((within, module, name))
            continue
        if any(isinstance(acting, OnLayer) for acting in acting_on(module)):
            raise RuleValueError(f"layer {name!r} has a rule already: detach that first")
        before = given[merged[i]].rule if i in merged else None
        key = id(rule), i in merged.values(), id(before)
        if key not in made:
            made[key] = make(rule, merges=i in merged.values())
            if i in merged:
                made[key] = MergedActing(before, made[key] if rule is not None else None)
        plan.append((made[key], module, name))
        if rule is not None or i in merged:
            rows.append(each.row(f"{named(before)} (merged)" if i in merged else ""))
    holders = [layer for layer in layers if not layer.is_leaf]
    plan += [
        (within, layer.layer, layer.names[0])
        for layer in holders
        if may_call(layer.layer, set(calls.rules))
    ]
    if not rows and not holders:
        raise RuleValueError(f"composite {composite.name!r} has no rule for any layer of the model")
    return [*plan, (OnModel(calls), model, "")], rows


def make(rule: Any, merges: bool) -> OnLayer:
    """Return what acts on a leaf under a rule; under None it keeps its gradient."""
    if rule is None or is_layer_rule(rule):
        return InsideActing(rule, merges)
    return LayerActing(PlainRule(rule))


def merges(given: Sequence[Given]) -> dict[int, int]:
    """Return, by the positions of batch normalizations, those of the layers right before them,
    which a rule that reads weights is for.
    """
    return {
        i: i - 1
        for i, each in enumerate(given)
        if each.kind == "batch_normalization"
        and i > 0
        and has_weight(given[i - 1].kind)
        and is_layer_rule(given[i - 1].rule)
    }


def rules_of_calls(composite: Composite) -> Mapping[str, CallRule]:
    """Return the rules for operations that are called in code."""
    rules = {
        name: composite.rule(row.kind)
        for name, row in OPERATIONS.items()
        if composite.canonize or row.kind != "addition"
    }
    made: dict[int, CallRule] = {}
    for rule in rules.values():
        if rule is not None and id(rule) not in made:
            made[id(rule)] = rule_of_calls(rule)
    return {name: made[id(rule)] for name, rule in rules.items() if rule is not None}
