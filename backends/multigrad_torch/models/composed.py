"""Composites on torch modules: each leaf gets the rule for its kind, each call in code as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from multigrad.errors import RuleValueError
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import has_weight, is_layer_rule
from multigrad.models.handle import Row, named
from multigrad.models.selectors import Layer

from .layer_acting import InsideActing, LayerActing, MergedActing, OnLayer
from .layer_kinds import OPERATIONS, kind_of
from .layer_rules import CallRule, rule_of_calls
from .operation_acting import OnModel, OperationsActing, make_mode, may_call
from .rule_over import PlainRule
from .swapped_classes import Acting, acting_on, original_class


def plan_composite(
    model: nn.Module, layers: Sequence[Layer], composite: Composite
) -> tuple[list[tuple[Acting, nn.Module, str]], list[Row]]:
    """Return what is to act on which modules, and the rows of its table.

    Raises:
        RuleValueError: a layer has a rule already, or nothing gets one.
    """
    leaves = [layer for layer in layers if layer.is_leaf]
    kinds = [kind_of(leaf.layer) for leaf in leaves]
    names = [leaf.names[0] for leaf in leaves]
    chosen = composite.choose(zip(names, kinds, strict=True))
    merged = merges(kinds, chosen) if composite.canonize else {}
    calls = make_mode(model, layers, rules_of_calls(composite))
    within = OperationsActing(calls)
    made: dict[Any, OnLayer] = {}
    plan: list[tuple[Acting, nn.Module, str]] = []
    rows: list[Row] = []
    for i, (leaf, kind, rule) in enumerate(zip(leaves, kinds, chosen, strict=True)):
        module, name = leaf.layer, leaf.names[0]
        is_named = any(fnmatchcase(name, pattern) for pattern in composite.names)
        if kind is None and rule is None and not is_named:
            if may_call(module, set(calls.rules)):
                plan.append((within, module, name))
            continue
        if any(isinstance(each, OnLayer) for each in acting_on(module)):
            raise RuleValueError(f"layer {name!r} has a rule already: detach that first")
        key = id(rule), i in merged.values(), id(chosen[merged[i]]) if i in merged else None
        if key not in made:
            made[key] = make(rule, merges=i in merged.values())
            if i in merged:
                own = made[key] if rule is not None else None
                made[key] = MergedActing(chosen[merged[i]], own)
        plan.append((made[key], module, name))
        if rule is not None or i in merged:
            said = f"{named(chosen[merged[i]])} (merged)" if i in merged else named(rule)
            rows.append(Row(name, original_class(module).__name__, said, kind or "by name"))
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


def merges(kinds: Sequence[str | None], chosen: Sequence[Any]) -> dict[int, int]:
    """Return, by the positions of batch normalizations, those of the layers right before them,
    which a rule that reads weights is for.
    """
    return {
        i: i - 1
        for i, kind in enumerate(kinds)
        if kind == "batch_normalization"
        and i > 0
        and has_weight(kinds[i - 1])
        and is_layer_rule(chosen[i - 1])
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
