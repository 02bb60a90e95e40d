"""`xg.attach` for torch modules: plans which rule acts on which module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from multigrad.errors import RuleTypeError
from multigrad.models.attribution.composites import Composite
from multigrad.models.attribution.kinds import has_weight, is_layer_rule
from multigrad.models.interpose import (
    MOST_NAMES,
    Attachment,
    Choice,
    HeldFunction,
    Layer,
    OperationChoice,
    Row,
    choose,
    choose_by_kind,
    hold,
    named,
    refuse_empty,
    refuse_second,
)

from ..compile.checkpoint_regions import is_second_run
from .call_rule import (
    CallRule,
    PlainRule,
    is_compiling,
    rule_of_calls,
    rule_of_operation,
    stack_length,
)
from .layer_kinds import OPERATIONS, kind_of
from .layer_rule import FunctionActing, InsideActing, LayerActing, MergedActing, OnLayer
from .override import (
    HARDTANH,
    OperationMode,
    check_met,
    find_inner,
    find_operation,
    functions_calling,
    is_entered,
    operation_names,
    stack_at,
)
from .swapped_classes import (
    Acting,
    Method,
    acting_on,
    is_parametrized,
    original_class,
    put_on,
    take_off,
)

Planned = tuple[Acting, nn.Module, str]


def attach_rules(model: nn.Module, rules: Any) -> Attachment:
    """Attach all rules to layers and operations of a module, or none if one of them is wrong."""
    compiled = getattr(model, "_orig_mod", None)
    # torch.compile wraps a module: rules go on the module itself.
    if compiled is not None and type(model).__name__ == "OptimizedModule":
        model = compiled
    layers = layers_of(model)
    if isinstance(rules, Composite):
        for layer in layers:
            refuse_scripted(layer.names[0], layer.layer)
        plan, rows = plan_composite(model, layers, rules)
    else:
        choices, operations = choose(
            rules, layers, find_operation, operation_names(), functions_of(layers)
        )
        plan = [*plan_layers(choices), *plan_operations(model, layers, operations)]
        rows = [each.row() for each in (*choices, *operations)]
    return Attachment(rows, partial(put, plan), partial(undo, [acting for acting, *_ in plan]))


def put(plan: Sequence[Planned]) -> None:
    for acting, module, name in plan:
        put_on(module, acting, name)


def undo(acting: Iterable[Acting]) -> None:
    for each in dict.fromkeys(acting):
        take_off(each)


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
    """Return the plan for chosen layers and functions: the rule that acts on each.

    Raises:
        RuleValueError: one of them has a rule already.
        RuleTypeError: one has code that is not Python.
    """
    acting: dict[Any, OnLayer] = {}
    plan: list[Planned] = []
    for choice in choices:
        layer, rule = choice.layer.layer, choice.rule
        name = choice.layer.names[0]
        if isinstance(layer, HeldFunction):
            plan.append((over_function(name, layer, rule), layer.layer, name))
            continue
        refuse_scripted(name, layer)
        refuse_ruled(name, layer)
        # One object per rule: layers that share it also share its classes and compiled code.
        key = rule if isinstance(rule, str) else id(rule)
        if key not in acting:
            acting[key] = make(rule)
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


def over_function(name: str, function: HeldFunction, rule: Any) -> FunctionActing:
    """Return an object that applies a rule to a function held by a module.

    Raises:
        RuleTypeError: the module has code that is not Python.
        RuleValueError: the function has a rule already.
    """
    refuse_scripted(name, function.layer)
    for other in acting_on(function.layer):
        if isinstance(other, FunctionActing) and other.attribute == function.attribute:
            refuse_second(f"function {name!r}", other.rule.name)
    return FunctionActing(PlainRule(rule), function.attribute)


def refuse_ruled(name: str, layer: nn.Module) -> None:
    """Raise for a layer that has a rule already."""
    for other in acting_on(layer):
        if isinstance(other, OnLayer):
            refuse_second(f"layer {name!r}", other.rule_name)


def plan_operations(
    model: nn.Module, layers: list[Layer], operations: list[OperationChoice]
) -> list[Planned]:
    """Return the plan that lets a mode see the operations in each module.

    Raises:
        RuleValueError: an operation has a rule already.
        RuleTypeError: a module has code that is not Python.
    """
    if not operations:
        return []
    for layer in layers:
        refuse_scripted(layer.names[0], layer.layer)
    rules = {each.operation: rule_of_operation(each.operation, each.rule) for each in operations}
    mode = make_mode(model, layers, rules)
    within, quiet, root = OperationsActing(mode), QuietActing(mode), RootActing(mode)
    plan: list[Planned] = []
    for layer in layers:
        if may_call(layer.layer, set(rules)):
            plan.append((within, layer.layer, layer.names[0]))
        elif layer.is_leaf:
            plan.append((quiet, layer.layer, layer.names[0]))
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
) -> tuple[list[Planned], list[Row]]:
    """Return which rule acts on which module, and the rows of the table to print."""
    leaves = [layer for layer in layers if layer.is_leaf]
    choices = choose_by_kind(composite, leaves, kind_of)
    merged = merges(choices) if composite.canonize else {}
    calls = make_mode(model, layers, rules_of_calls(composite))
    within = OperationsActing(calls)
    made: dict[Any, OnLayer] = {}
    plan: list[Planned] = []
    rows: list[Row] = []
    for i, each in enumerate(choices):
        rule, module, name = each.rule, each.layer.layer, each.layer.names[0]
        # A leaf of no known kind: rules act on the operations that its code calls.
        if each.kind is None and rule is None and not each.is_named:
            if may_call(module, set(calls.rules)):
                plan.append((within, module, name))
            continue
        refuse_ruled(name, module)
        before = choices[merged[i]].rule if i in merged else None
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
        refuse_empty(composite)
    return [*plan, (OnModel(calls), model, "")], rows


def make(rule: Any, merges: bool = False) -> OnLayer:
    if rule is None or is_layer_rule(rule):
        return InsideActing(rule, merges)
    return LayerActing(PlainRule(rule))


def merges(choices: Sequence[Choice]) -> dict[int, int]:
    """Return the positions of batch normalizations, with those of the layers to merge with."""
    return {
        i: i - 1
        for i, each in enumerate(choices)
        if each.kind == "batch_normalization"
        and i > 0
        and has_weight(choices[i - 1].kind)
        and is_layer_rule(choices[i - 1].rule)
    }


def rules_of_calls(composite: Composite) -> Mapping[str, CallRule]:
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


# --- operations' rules: methods of modules run within the mode that sees the calls ----------------
pop_mode = torch._C._pop_torch_function_stack
push_mode = torch._C._push_on_torch_function_stack


class ActingByMode(Acting):
    def __init__(self, mode: OperationMode) -> None:
        super().__init__()
        self.mode = mode

    def goes_inside(self, other: Acting) -> bool:
        return isinstance(other, ActingByMode) and other.mode in self.mode.around


class OnModel(ActingByMode):
    """Acts on the root of the model that a mode is for."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__(mode)
        mode.roots = self.all_modules


class OperationsActing(ActingByMode):
    def wrap(self, original: type, name: str, method: Method) -> Method:
        if inspect.isgeneratorfunction(method):
            return method
        if name != "forward" and original.__module__.startswith("torch.nn."):
            return method
        mode = self.mode

        @functools.wraps(method)
        def within(*args: Any, **kwargs: Any) -> Any:
            if is_entered(mode) or (not is_compiling() and is_second_run()):
                # A region that runs again has entered the mode by itself.
                return method(*args, **kwargs)
            inner = find_inner(mode) if stack_length() else None
            if inner is None:
                with mode:
                    return method(*args, **kwargs)
            with mode, inner:  # the inner model's rules go first
                return method(*args, **kwargs)

        return within


class QuietActing(ActingByMode):
    """Layers of torch without operations of the mode run without it: a look costs at each call."""

    def around_forward(self, original: type, method: Method) -> Method:
        mode = self.mode

        def forward(*args: Any, **kwargs: Any) -> Any:
            listens = is_compiling() or mode.seen is not None
            if listens or stack_length() != 1 or stack_at(0) is not mode:
                return method(*args, **kwargs)
            # Only the mode is suspended: tensor subclasses still see the calls.
            pop_mode()
            try:
                return method(*args, **kwargs)
            finally:
                push_mode(mode)

        return forward


class RootActing(OnModel):
    """Checks after a call of the whole model that each of the mode's rules has acted."""

    def __init__(self, mode: OperationMode) -> None:
        super().__init__(mode)
        mode.advise = self.advise

    def advise(self, operation: str) -> str:
        """Return advice about an operation that the model does not call: which layers that are it
        have rules of their own.
        """
        names = [
            f"layer {name!r} ({type(module).__name__})"
            for model in self.all_modules()[:1]
            for name, module in model.named_modules()
            if any(isinstance(each, OnLayer) for each in acting_on(module))
            and may_call(module, {operation})
        ]
        more = "" if len(names) <= MOST_NAMES else ", ..."
        have = "has a rule of its own" if len(names) == 1 else "have rules of their own"
        layers = f" ({', '.join(names[:MOST_NAMES])}{more} {have})" if names else ""
        return (
            f", so its rule acts nowhere{layers}. For a layer of that name, give a predicate: "
            f"lambda name, layer: name == {operation!r}"
        )

    def around_forward(self, original: type, method: Method) -> Method:
        mode = self.mode

        def forward(*args: Any, **kwargs: Any) -> Any:
            is_inner = is_entered(mode) or (not is_compiling() and is_second_run())
            if is_inner or mode.seen is None or is_compiling():
                output = method(*args, **kwargs)
            else:
                with mode:
                    output = method(*args, **kwargs)
            if not is_inner and (is_compiling() or mode.seen is not None):
                check_met(mode)
            return output

        return forward


def make_mode(
    model: torch.nn.Module, layers: Sequence[Layer], rules: Mapping[str, CallRule]
) -> OperationMode:
    """Return the mode that applies rules to operations of a model."""
    mode = OperationMode(rules)
    parts = {id(layer.layer) for layer in layers}
    for layer in layers:
        for other in acting_on(layer.layer):
            if not isinstance(other, OperationsActing | OnModel):
                continue
            names, roots = other.mode.hits.keys() & mode.hits.keys(), other.mode.roots()
            if not names:
                continue
            # The same model is refused; if one contains the other, the inner model's rules win in
            # it.
            if any(root is model for root in roots):
                where = f" in this {original_class(model).__name__}"
            elif any(id(root) in parts for root in roots):
                put_around(other.mode, mode)
                continue
            elif any(each is model for root in roots for each in root.modules()):
                put_around(mode, other.mode)
                continue
            else:
                where = (
                    f" in layer {layer.names[0] or '(model)'!r}, by another model that shares it"
                )
            refuse_second(f"operation {min(names)!r}", where=where)
    return mode


def put_around(inner: OperationMode, outer: OperationMode) -> None:
    """Note that a model lies within another one, as long as the outer one has its rules."""
    inner.around = (*(each for each in inner.around if each.roots() and each is not outer), outer)


def may_call(module: torch.nn.Module, operations: set[str]) -> bool:
    """Return whether a module's code may call some operations; certain for torch's own layers."""
    cls = original_class(module)
    is_own = not cls.__module__.startswith("torch.nn.modules.")
    if is_own or is_parametrized(type(module)) or "forward" in vars(module):
        return True
    within = {each.__name__ for each in functions_calling(operations)}
    names = {
        each.strip("_")
        for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]
        for method in vars(base).values()
        if inspect.isfunction(method)
        for each in method.__code__.co_names
    }
    return not names.isdisjoint(operations | within | ({HARDTANH} & names))
