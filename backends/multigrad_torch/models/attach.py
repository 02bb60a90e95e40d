"""`xg.attach` for torch modules: plans which rule acts on which module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from multigrad.errors import ActsNowhereWarning, RuleTypeError, RuleValueError
from multigrad.models.attach import Attachment
from multigrad.models.attribution.composites import Composite, entry_of
from multigrad.models.attribution.kinds import is_layer_rule
from multigrad.models.selectors import (
    Choice,
    HeldFunction,
    Layer,
    Row,
    choose,
    choose_by_kind,
    empty_message,
    hold,
    may_merge,
    not_called,
)

from .call_rule import CallRule, PlainRule, rule_of_calls, rule_of_operation
from .layer_kinds import OPERATIONS, kind_of
from .layer_rule import (
    LayerInterceptor,
    PlainRuleOnLayer,
    RuleByOrder,
    RuleOnCallsInside,
    RuleOnHeldFunction,
    RuleOnMergedNorm,
)
from .mode_entry import ModeEntry, ModePause, ModeRoot, may_call
from .override import OperationMode, find_operation, operation_names
from .swapped_classes import Acting, put_on, take_off

# What is to act on which module, and the module's name.
Planned: TypeAlias = tuple[Acting, nn.Module, str]


def attach_rules(model: nn.Module, rules: Any) -> Attachment:
    """Attach all rules to layers and operations of a module, or none if one of them is wrong."""
    original = getattr(model, "_orig_mod", None)
    # torch.compile wraps a module: rules go on the module itself.
    if original is not None and type(model).__name__ == "OptimizedModule":
        model = original
    layers = layers_of(model)
    if isinstance(rules, Composite):
        for layer in layers:
            refuse_scripted(layer.names[0], layer.layer)
        plan, rows = plan_composite(model, layers, rules)
    else:
        choices, operations = choose(
            rules, layers, find_operation, operation_names(), functions_of(layers)
        )
        plan = plan_layers(choices)
        ruled = [
            (choice.row(), acting, id(module))
            for choice, (acting, module, _) in zip(choices, plan, strict=True)
        ]
        call_rules = {
            each.operation: rule_of_operation(each.operation, each.rule) for each in operations
        }
        mode = OperationMode(call_rules, given=rules)
        plan += plan_operations(model, layers, mode)
        rows = partial(rows_now, ruled, [each.row() for each in operations], mode)
    actings = {acting: None for acting, _, _ in plan}
    return Attachment(rows, partial(put, plan), partial(undo, actings))


def put(plan: Sequence[Planned], handle: Attachment) -> None:
    # The model's root, the last if there is one, knows best what is there already.
    for acting, module, name in (*plan[-1:], *plan[:-1]):
        acting.refuse(module, name)
    for acting, module, name in plan:
        acting.handle = handle
        put_on(module, acting, name)


def undo(acting: Iterable[Acting]) -> None:
    for each in acting:
        take_off(each)
        each.handle = None


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the modules of a model, each once, with all of its names."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        modules[id(module)] = module
        names.setdefault(id(module), []).append(name)
    return [
        Layer(tuple(names[key]), module, is_leaf=not any(True for _ in module.children()))
        for key, module in modules.items()
    ]


def plan_layers(choices: list[Choice]) -> list[Planned]:
    """Return the plan for chosen layers and functions: the rule that acts on each."""
    acting: dict[Any, LayerInterceptor] = {}
    plan: list[Planned] = []
    for choice in choices:
        layer, rule = choice.layer.layer, choice.rule
        name = choice.layer.names[0]
        if isinstance(layer, HeldFunction):
            refuse_scripted(name, layer.layer)
            function = RuleOnHeldFunction(PlainRule(rule), layer.attribute)
            plan.append((function, layer.layer, name))
            continue
        refuse_scripted(name, layer)
        # One object per rule: layers that share it also share its classes and compiled code.
        key = rule if isinstance(rule, str) else id(rule)
        if key not in acting:
            acting[key] = acting_for_rule(rule)
        plan.append((acting[key], layer, name))
    return plan


def functions_of(layers: list[Layer]) -> list[Layer]:
    """Return the functions that modules hold as attributes, such as a block's F.relu."""
    return [
        hold(layer, attribute, value)
        for layer in layers
        for attribute, value in vars(layer.layer).items()
        if callable(value)
        and not attribute.startswith("_")
        and attribute != "forward"
        and not isinstance(value, nn.Module | type)
    ]


def plan_operations(model: nn.Module, layers: list[Layer], mode: OperationMode) -> list[Planned]:
    """Return the plan that lets a mode see the operations in each module."""
    if not mode.rules and not mode.notes_gaps:
        return []
    for layer in layers if mode.rules else ():
        refuse_scripted(layer.names[0], layer.layer)
    entry, pause, root = ModeEntry(mode), ModePause(mode), ModeRoot(mode)
    plan: list[Planned] = []
    # Without a rule for an operation the root alone has to see them, until gaps were noted.
    for layer in layers if mode.rules else ():
        if may_call(layer.layer, set(mode.rules)):
            plan.append((entry, layer.layer, layer.names[0]))
        elif layer.is_leaf:
            plan.append((pause, layer.layer, layer.names[0]))
    # The root last, around everything else: it checks that each rule has acted.
    return [*plan, (root, model, "")]


def refuse_scripted(name: str, module: nn.Module) -> None:
    """Raise an error for a module whose forward is not Python code."""
    if isinstance(module, torch.jit.ScriptModule):
        raise RuleTypeError(
            f"layer {name or '(model)'!r} is a {type(module).__name__}: scripted and traced code "
            "cannot be changed. Attach to the module that it was made of"
        )


# --- composites on torch modules ------------------------------------------------------------------
def plan_composite(
    model: nn.Module, layers: Sequence[Layer], composite: Composite
) -> tuple[list[Planned], Callable[[], list[Row]]]:
    """Return which rule acts on which module, and what returns the rows of the table to print."""
    leaves = [layer for layer in layers if layer.is_leaf]
    choices = choose_by_kind(composite, leaves, kind_of)
    mode = CompositeMode(composite, rules_of_calls(composite), (each.kind for each in choices))
    entry = ModeEntry(mode)
    acting_by_rule: dict[Any, LayerInterceptor] = {}
    plan: list[Planned] = []
    rows: list[RuledRow] = []
    for each in choices:
        rule, module, name = each.rule, each.layer.layer, each.layer.names[0]
        merges = may_merge(each, composite)
        has_rules = each.is_named or each.by_order is not None or merges or rule is not None
        # A leaf of no kind that has a rule: rules act on the operations that its code calls.
        if not has_rules and (each.kind is None or composite.rule(each.kind) is None):
            if may_call(module, set(mode.rules)):
                plan.append((entry, module, name))
            continue
        key = id(each) if each.by_order is not None else id(rule), merges
        if key not in acting_by_rule and merges:
            acting_by_rule[key] = RuleOnMergedNorm(None if rule is None else acting_for_rule(rule))
        elif key not in acting_by_rule and each.by_order is not None:
            either = [acting_for_rule(rule, composite.canonize) for rule in each.by_order]
            acting_by_rule[key] = RuleByOrder(mode, either)
        elif key not in acting_by_rule:
            acting_by_rule[key] = acting_for_rule(rule, composite.canonize)
        acting = acting_by_rule[key]
        plan.append((acting, module, name))
        if rule is not None or merges or each.by_order is not None:
            rows.append((each.row(), acting, id(module)))
    plan += [
        (entry, layer.layer, layer.names[0])
        for layer in layers
        if not layer.is_leaf and may_call(layer.layer, set(mode.rules))
    ]
    if not rows and all(acting is not entry for acting, _, _ in plan):
        raise RuleValueError(empty_message(composite, mode.kinds))
    mode.layers = rows
    return [*plan, (ModeRoot(mode), model, "")], partial(rows_now, rows, (), mode)


def acting_for_rule(rule: Any, merges: bool = False) -> LayerInterceptor:
    """Return the interceptor that applies a rule to layers; if it `merges`, it may join a batch
    normalization to the layer before.
    """
    if rule is None or is_layer_rule(rule):
        return RuleOnCallsInside(rule, merges)
    return PlainRuleOnLayer(PlainRule(rule))


def rules_of_calls(composite: Composite) -> Mapping[str, CallRule]:
    """Return a composite's rules for operations, by name; calls of one rule share an object."""
    rules = {
        name: composite.rule(row.kind)
        for name, row in OPERATIONS.items()
        if composite.canonize or row.kind != "addition"
    }
    call_rules: dict[int, CallRule] = {}
    for rule in rules.values():
        if rule is not None and id(rule) not in call_rules:
            call_rules[id(rule)] = rule_of_calls(rule, composite.canonize)
    return {name: call_rules[id(rule)] for name, rule in rules.items() if rule is not None}


# --- the operations that a model calls under a composite, and the gaps between --------------------
class CompositeMode(OperationMode):
    """Applies a composite's rules to operations, and notes those that have one, too.

    Attributes:
        kinds: those of the model's layers, for messages.
        layers: the table's rows for layers, each with what acts on it and its identity.
        first: the key of what acts on the layer that was called first; "" before a call.
    """

    def __init__(
        self, composite: Composite, rules: Mapping[str, CallRule], kinds: Iterable[str | None]
    ) -> None:
        super().__init__(rules, given=composite)
        self.composite: Composite = composite
        self.kinds = sorted({kind for kind in kinds if kind is not None})
        self.layers: Sequence[RuledRow] = ()
        self.first = ""

    def start(self, arguments: Any) -> None:
        self.first = ""  # calls of a part alone may have been before
        super().start(arguments)

    def note_ruled(self, name: str, rule: CallRule) -> None:
        kind = OPERATIONS[name].kind
        self.warn_of_first(name, kind)
        self.rows_of_calls[name, ""] = Row(name, "operation", rule.name, kind)

    def warn_of_first(self, name: str, kind: str) -> None:
        """Warn if a call in code comes before the layers of which the first has its own rule."""
        first = self.composite.first
        layers = [each for each in self.layers if entry_of(first, each[0].selector) is not None]
        is_later = any(key in acting.called for _, acting, key in layers)
        if entry_of(first, kind) is None or is_later or (name, "") in self.rows_of_calls:
            return
        warnings.warn(
            f"composite {self.composite.name!r} has a rule of its own for the first {kind}, and "
            f"the first one here is operation {name!r} in code, which has that of the others: "
            "write it as a layer",
            ActsNowhereWarning,
            stacklevel=5,
        )

    def say_missing(self) -> str:
        self.is_noting = False
        has_met = any(acting.called or acting.was_traced for _, acting, _ in self.layers)
        if not has_met and not self.count_hits():
            return empty_message(
                self.composite, {*self.kinds, *(self.seen or ())} - {"", "get", "set"}
            )
        if self.rows_of_calls and self.seen is not None:
            self.seen = None
            self.warn()
        return ""


# --- the handle's table ---------------------------------------------------------------------------
# A row for a layer, what acts on it, and the identity of its module.
RuledRow: TypeAlias = tuple[Row, Any, int]


def rows_now(layers: Sequence[RuledRow], others: Iterable[Row], mode: OperationMode) -> list[Row]:
    """Return the rows of layers, others and calls; a layer that no call has reached says so."""
    actings = [acting for _, acting, _ in layers if isinstance(acting, LayerInterceptor)]
    is_run = any(each.called for each in actings) and not any(each.was_traced for each in actings)
    rows: list[Row] = []
    for row, acting, key in layers:
        is_layer = isinstance(acting, LayerInterceptor)
        now = acting.row_now(row, key) if is_layer else row
        if now is not None:
            rows.append(
                not_called(now) if is_run and is_layer and key not in acting.called else now
            )
    return [*rows, *others, *mode.rows_of_calls.values()]
