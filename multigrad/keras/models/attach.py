"""`multigrad.keras.attach`: rules on the layers and operations of an existing Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras

# Keras (3.15) has no public names for these.
from keras.src.backend.common.tensor_attributes import get_tensor_attr, set_tensor_attr

from ...errors import RuleTypeError, RuleValueError
from ...graph.support.class_bases import dataclass
from ...models.attachment import Attachment, Row, named
from ...models.attribution.composites import Composite
from ...models.attribution.kinds import (
    is_layer_rule,
    kind_of_function,
)
from ...models.gradient_replacement import replacement_for
from ...models.selectors import (
    Choice,
    HeldFunction,
    Layer,
    OperationChoice,
    choose,
    choose_by_kind,
    match,
    refuse_empty,
    refuse_second,
)
from ..base import list_leaves
from ..compiled_steps import HOST, find_compiled, renew_steps
from .interception import LayerRules, RuledLayer, make_run, ruled_layer
from .layer_kinds import (
    ACTIVATIONS,
    READERS,
    Read,
    callers_of,
    compute,
    is_addition_in_code,
    kind_of,
    list_functions,
    list_layers,
    operation_held,
    read_layer,
    refuse_cells,
)
from .operations import (
    OPERATION_OF_NAME,
    find_operation,
    is_float,
    replace_functions,
    restore_functions,
)


def refuse_other_models(model: Any) -> None:
    if not isinstance(model, keras.Operation):
        raise RuleTypeError(
            f"expected a model or layer of Keras, got a {type(model).__qualname__}: "
            "xg.attach takes models of torch too"
        )


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
    refuse_other_models(model)
    layers = list_layers(model)
    known = {id(each.layer) for each in layers}
    if isinstance(rules, Composite):
        runs, acting, rows = plan_composite(layers, rules)
        selectors, within = None, {}
    else:
        choices, operations = choose(
            rules, layers, find_operation, OPERATION_OF_NAME, list_functions(layers)
        )
        within = rules_within(choices, layers)
        runs = {
            id(each.layer.layer): make_layer_run(each.layer.layer, each.rule)
            for each in choices
            if not isinstance(each.layer.layer, HeldFunction)
        }
        refuse_cells(layers, runs.keys())
        acting = rules_of(operations)
        rows = [each.row() for each in (*choices, *operations)]
        selectors = list({id(each.selector): each.selector for each in choices}.values())
    is_built = all(getattr(each.layer, "built", True) for each in layers)

    def find_late() -> list[str]:
        late = [each for each in list_layers(model) if id(each.layer) not in known]
        return [each.names[0] for each in late if selects(selectors, each)]

    handle = LayerRules(model, acting, None if is_built else find_late, within)
    if selectors is None:
        # A composite's operations need not be called: its rules are for kinds.
        vars(handle.called).update(dict.fromkeys(acting, True))
    parts = [ruled_layer(each.layer) for each in layers]
    refuse_twice(handle, runs, parts)
    # Layers with sublayers may be computed again in backward, after the handle was detached.
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
    """Return whether a layer is selected; by a composite, whether it has a kind."""
    if selectors is None:
        return kind_of(layer.layer) is not None
    return any(match(selector, [layer]) for selector in selectors)


def put(
    parts: Sequence[RuledLayer], handle: LayerRules, runs: Mapping[int, Any], watches: bool
) -> None:
    """Attach a handle to layers."""
    if watches:
        replace_functions(handle)
    for part in parts:
        part.handles.append(handle)
        if id(part.layer) in runs:
            part.run, part.forward_handle = runs[id(part.layer)], handle
        part.update_methods()
    renew(parts, handle)


def take(parts: Sequence[RuledLayer], handle: LayerRules) -> None:
    """Detach a handle from layers."""
    # first: a compiled step that still runs must notice
    handle.superseded = True
    for part in parts:
        if handle in part.handles:
            part.handles.remove(handle)
        if part.forward_handle is handle:
            part.run = part.forward_handle = None
        part.update_methods()
    renew(parts, handle)
    restore_functions(handle)


def renew(parts: Sequence[RuledLayer], handle: LayerRules) -> None:
    renew_steps(find_compiled([handle.model, *(part.layer for part in parts)]))
    # a user's own tf.function knows nothing of the rules
    if HOST.compiler.forget_traces is not None:
        HOST.compiler.forget_traces([each.value for each in getattr(handle.model, "variables", ())])


def rules_of(operations: Sequence[OperationChoice]) -> dict[str, Any]:
    for choice in operations:
        if is_layer_rule(choice.rule):
            raise RuleTypeError(
                f"rule {named(choice.rule)!r} reads what layers hold, and {choice.selector!r} is "
                "an operation: select layers, by a type or a name"
            )
        replacement_for(choice.rule)
    return {each.operation: each.rule for each in operations}


def rules_within(choices: Sequence[Choice], layers: Sequence[Layer]) -> dict[int, dict[str, Any]]:
    """Return rules for functions that layers hold, by the calling layer's identity."""
    rules: dict[int, dict[str, Any]] = {}
    for choice in choices:
        held = choice.layer.layer
        if not isinstance(held, HeldFunction):
            continue
        replacement_for(choice.rule)
        operation = operation_held(choice.layer.names[0], held)
        for caller in callers_of(held, layers):
            rules.setdefault(id(caller), {})[operation] = choice.rule
    return rules


def refuse_twice(handle: LayerRules, runs: Mapping[int, Any], parts: Sequence[RuledLayer]) -> None:
    """Raise for a layer or operation that has a rule by another handle."""
    for part in parts:
        shown = f"layer {part.layer.name!r}"
        if part.forward_handle is not None and id(part.layer) in runs:
            refuse_second(shown)
        own = handle.rules_in(part.layer)
        for other in part.handles:
            for name in other.rules_in(part.layer).keys() & own.keys():
                refuse_second(f"operation {name!r}", where=f" in {shown}")


# --- layers of Keras under rules that read their weights ------------------------------------------
Tensor = Any
Call = Callable[..., Any]
MERGES = "_multigrad_merges"


def make_layer_run(layer: Any, rule: Any, merges: bool = False) -> Call:
    """Return a layer's forward under a rule of either kind, for `RuledLayer.run`.

    Args:
        merges: whether a batch normalization after it is merged with it.
    """
    if not is_layer_rule(rule):
        return make_run(layer, rule)
    kind = "addition" if is_addition_in_code(layer) else kind_of(layer)
    if kind is None or kind not in READERS or getattr(layer, "quantization_mode", None) is not None:
        reason = "is quantized" if kind in READERS else "is of no kind that such rules are for"
        raise RuleTypeError(
            f"rule {named(rule)!r} reads what layers hold, and layer {layer.name!r} "
            f"({type(layer).__name__}) {reason} (kinds: {', '.join(READERS)})"
        )
    if kind in ("addition", "average_pooling"):
        return make_reading(layer, kind, rule)
    return make_reading_weights(layer, kind, rule, merges)


def make_reading(layer: Any, kind: str, rule: Any) -> Call:
    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = tuple(leaf for leaf in list_leaves((args, kwargs)) if is_float(leaf))
        if kwargs.get("mask") is not None or len(inputs) < (2 if kind == "addition" else 1):
            return original(*args, **kwargs)
        # the layer computes on stopped tensors, so that only the rule's gradient flows
        held = {id(x): keras.ops.stop_gradient(x) for x in inputs}

        def hold(leaf: Any) -> Any:
            return held.get(id(leaf), leaf)

        given: Any = keras.tree.map_structure(hold, (args, kwargs))
        out = original(*given[0], **given[1])
        return read_layer(layer, kind, inputs).under(rule, out)

    return run


@dataclass(frozen=True, slots=True)
class MergedLayer:
    """A layer's inputs and output, for a batch normalization that is merged with it."""

    rule: Any
    read: Read
    out: Tensor


def make_reading_weights(layer: Any, kind: str, rule: Any, merges: bool) -> Call:
    """Return the forward of a layer with weights, with its activation after the rule."""

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["inputs"]
        if not is_float(x):
            return original(*args, **kwargs)
        read = read_layer(layer, kind, (x,))
        out = compute(layer, keras.ops.stop_gradient(x))
        y = read.under(rule, out)
        if layer.activation not in (None, keras.activations.linear):
            return layer.activation(y)
        if merges:
            # the normalization finds what it is merged with on its input tensor
            set_tensor_attr(y, MERGES, MergedLayer(rule, read, out))
        return y

    return run


def make_merging(layer: Any, rule: Any) -> Call:
    """Return the forward of a batch normalization merged with the layer before it."""
    own = None if rule is None else make_layer_run(layer, rule)

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["inputs"]
        made = get_tensor_attr(x, MERGES)
        if made is None or layer.axis not in channels_of(made.read, x):
            return original(*args, **kwargs) if own is None else own(original, args, kwargs)
        if kwargs.get("training") and layer.trainable:
            raise RuleValueError(
                f"layer {layer.name!r} can be merged where it uses its running statistics: call "
                "the model with training=False, or make the composite with canonize=False"
            )
        given = (made.out, *args[1:]) if args else ()
        if not args:
            kwargs = {**kwargs, "inputs": made.out}
        dtype = made.read.params[0].dtype
        statistics = [
            None if each is None else keras.ops.cast(each, dtype)
            for each in (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
        ]
        merged = made.read.merged(*statistics, epsilon=layer.epsilon)
        return merged.under(made.rule, original(*given, **kwargs))

    return run


def channels_of(read: Read, x: Tensor) -> tuple[int, ...]:
    """Return the axis of the channels, counted from either end."""
    if read.kind == "linear" or read.order is not None:
        return len(x.shape) - 1, -1
    return 1, 1 - len(x.shape)


# --- composites -----------------------------------------------------------------------------------
def plan_composite(
    layers: Sequence[Layer], composite: Composite
) -> tuple[dict[int, Call | None], dict[str, Any], list[Row]]:
    """Return the forwards of layers by identity, the rules of operations, and the table's rows."""
    parts = [each for each in layers if each.is_leaf or kind_of(each.layer) is not None]
    runs: dict[int, Call | None] = {}
    rows: list[Row] = []
    for each in choose_by_kind(composite, parts, partial(kind_in, composite)):
        layer, rule = each.layer.layer, each.rule
        if each.kind == "batch_normalization" and composite.canonize:
            runs[id(layer)] = make_merging(layer, rule)
        elif rule is not None:
            runs[id(layer)] = make_layer_run(layer, rule, merges=composite.canonize)
        elif each.is_named:
            # named without a rule: it keeps its own gradient, of operations too
            runs[id(layer)] = None
        if rule is not None:
            rows.append(each.row())
    operations = {name: composite.rule(kind_of_function(name)) for name in ACTIVATIONS}
    operations = {name: rule for name, rule in operations.items() if rule is not None}
    if not rows and not operations:
        refuse_empty(composite)
    return runs, operations, rows


def kind_in(composite: Composite, layer: Any) -> str | None:
    """Return the kind of a layer; additions in code count if a composite is canonized."""
    if composite.canonize and is_addition_in_code(layer):
        return "addition"
    return kind_of(layer)
