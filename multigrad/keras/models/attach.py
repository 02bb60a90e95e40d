"""`multigrad.keras.attach`: rules on a Keras model that exists, of any kind."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras

from ...errors import RuleTypeError, RuleValueError
from ...models.attribution.composites import Composite
from ...models.attribution.kinds import is_layer_rule
from ...models.handle import Attachment, named
from ...models.interpose import list_rows
from ...models.over import over
from ...models.selectors import Choice, Function, Layer, OperationChoice, choose, match
from ..steps import find_compiled, renew_steps
from ..tracing import HOST
from .found import callers_of, list_functions, list_layers, operation_held, refuse_cells
from .kinds import kind_of
from .layers import Attached, Changes, changes_of
from .operations import NAMES, find_operation, unwatch, watch
from .rules import make_layer_run, plan_composite


def attach(model: Any, rules: Mapping[Any, Any] | Composite) -> Attachment:
    """Put rules on layers and operations of an existing Keras model.

    Examples:
        >>> import keras, multigrad.keras
        >>> model = keras.Sequential([keras.layers.Input((2,)), keras.layers.ReLU(name="gate")])
        >>> with multigrad.keras.attach(model, {keras.layers.ReLU: "guided"}) as handle:
        ...     print(handle)
        name  kind  rule    selector
        ----------------------------
        gate  ReLU  guided  ReLU

    Args:
        model: a Keras model or layer of any kind, fitted, compiled, loaded or new. It is changed in
            place until the handle is detached; its weights, files, configs and pickles stay as they
            are, and its compiled steps are recompiled.
        rules: `{selector: rule}`. A selector is an operation ("relu", which is `keras.ops.relu` and
            `keras.activations.relu`), wherever Keras or a layer of the model calls it; a pattern
            for layers' names, dotted in nested models ("resnet50.conv*_relu"); a type of layers; a
            predicate of a layer, or of its name and the layer; or a tuple of these. Or one of
            `xg.composites`, whose rules for activations also act on operations.

    Returns:
        A handle: a context manager with `.detach()`, which prints as a table of what was changed.

    Raises:
        RuleValueError: a selector matches nothing, a layer is meant by two rules, or no call of the
            model comes to an operation (then).
        RuleError: a rule is unknown, or needs a param.
        RuleTypeError: it is not a Keras model or layer; a layer takes several tensors, or none that
            has a gradient (when it is called).
    """
    if not isinstance(model, keras.Operation):
        raise RuleTypeError(
            f"expected a model or layer of Keras, got a {type(model).__qualname__}: "
            "xg.attach takes models of torch too"
        )
    layers = list_layers(model)
    known = {id(each.layer) for each in layers}
    if isinstance(rules, Composite):
        runs, acting, rows = plan_composite(layers, rules)
        selectors, within = None, {}
    else:
        choices, operations = choose(rules, layers, find_operation, NAMES, list_functions(layers))
        within = rules_within(choices, layers)
        runs = {
            id(each.layer.layer): run_of(each)
            for each in choices
            if not isinstance(each.layer.layer, Function)
        }
        refuse_cells(layers, runs.keys())
        acting, rows = rules_of(operations), list_rows(choices, operations)
        selectors = list({id(each.selector): each.selector for each in choices}.values())
    is_built = all(getattr(each.layer, "built", True) for each in layers)

    def find_late() -> list[str]:
        late = [each for each in list_layers(model) if id(each.layer) not in known]
        return [each.names[0] for each in late if selects(selectors, each)]

    handle = Attached(model, acting, None if is_built else find_late, within)
    if selectors is None:
        # A composite's rules are for operations that may be called.
        vars(handle.called).update(dict.fromkeys(acting, True))
    parts = [changes_of(each.layer) for each in layers]
    refuse_twice(handle, runs, parts)
    # They tell of layers that are computed again in backward, after the handle was detached.
    holders = () if HOST.compiler.recall is None else {id(e.layer) for e in layers if not e.is_leaf}
    changed = [
        part
        for part in parts
        if acting
        or id(part.layer) in runs
        or id(part.layer) in within
        or id(part.layer) in holders
        or (part.layer is model and not is_built)
    ]
    watches = bool(acting or within)
    return Attachment(
        rows, partial(put, changed, handle, runs, watches), partial(take, changed, handle)
    )


def selects(selectors: Sequence[Any] | None, layer: Layer) -> bool:
    """Return whether a layer is meant; by a composite, whether it is of a kind."""
    if selectors is None:
        return kind_of(layer.layer) is not None
    return any(match(selector, [layer]) for selector in selectors)


def run_of(choice: Choice) -> Any:
    """Return a layer's forward under its rule.

    Raises:
        RuleError: the rule is unknown, or needs a param.
        RuleTypeError: it has no meaning for the layer.
    """
    if not is_layer_rule(choice.rule):
        over(choice.rule)
    return make_layer_run(choice.layer.layer, choice.rule)


def put(parts: Sequence[Changes], handle: Attached, runs: Mapping[int, Any], watches: bool) -> None:
    """Let a handle act on layers."""
    if watches:
        watch(handle)
    for part in parts:
        part.handles.append(handle)
        if id(part.layer) in runs:
            part.run, part.owner = runs[id(part.layer)], handle
        part.renew()
    renew(parts, handle)


def take(parts: Sequence[Changes], handle: Attached) -> None:
    """Let a handle act on layers no more, as far as it does."""
    handle.superseded = True
    for part in parts:
        if handle in part.handles:
            part.handles.remove(handle)
        if part.owner is handle:
            part.run = part.owner = None
        part.renew()
    renew(parts, handle)
    unwatch(handle)


def renew(parts: Sequence[Changes], handle: Attached) -> None:
    """Let all be recompiled in which these layers were compiled."""
    renew_steps(find_compiled([handle.model, *(part.layer for part in parts)]))
    if HOST.compiler.forget_traces is not None:
        HOST.compiler.forget_traces([each.value for each in getattr(handle.model, "variables", ())])


def rules_of(operations: Sequence[OperationChoice]) -> dict[str, Any]:
    """Return the rule of each operation.

    Raises:
        RuleError: a rule is unknown, or needs a param.
        RuleTypeError: one reads weights.
    """
    for choice in operations:
        if is_layer_rule(choice.rule):
            raise RuleTypeError(
                f"rule {named(choice.rule)!r} reads what layers hold, and {choice.selector!r} is "
                "an operation: select layers, by a type or a name"
            )
        over(choice.rule)
    return {each.operation: each.rule for each in operations}


def rules_within(choices: Sequence[Choice], layers: Sequence[Layer]) -> dict[int, dict[str, Any]]:
    """Return the rules of the functions that layers hold: by the identities of the layers that call
    them, by operation.

    Raises:
        RuleError: a rule is unknown, or needs a param.
        RuleValueError: a function is no operation, or another of the layer's functions is the same.
    """
    rules: dict[int, dict[str, Any]] = {}
    for choice in choices:
        held = choice.layer.layer
        if not isinstance(held, Function):
            continue
        over(choice.rule)
        operation = operation_held(choice.layer.names[0], held)
        for caller in callers_of(held, layers):
            rules.setdefault(id(caller), {})[operation] = choice.rule
    return rules


def refuse_twice(handle: Attached, runs: Mapping[int, Any], parts: Sequence[Changes]) -> None:
    """Refuse what has a rule already, by another handle.

    Raises:
        RuleValueError: it has one.
    """
    for part in parts:
        shown = f"layer {part.layer.name!r}"
        if part.owner is not None and id(part.layer) in runs:
            raise RuleValueError(f"{shown} has a rule already: detach that one first")
        own = handle.rules_in(part.layer)
        for other in part.handles:
            for name in other.rules_in(part.layer).keys() & own.keys():
                raise RuleValueError(
                    f"operation {name!r} has a rule already in {shown}: detach that one first"
                )
