"""`multigrad.keras.attach`: rules on the layers and operations of an existing Keras model.

Selectors or a composite become a plan: the forwards of layers, the rules on operations. `put`
adds the handle to the layers that the plan concerns, and `take` removes it; a layer's calls, and
those of operations within them, are intercepted in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras

# Keras (3.15) has no public names for these.
from keras.src.backend.common.tensor_attributes import get_tensor_attr, set_tensor_attr

from ..core.support.trees import Tensor
from ..errors import RuleTypeError, RuleValueError
from ..models.attach import Attachment
from ..models.attribution.composites import Composite
from ..models.attribution.kinds import has_meaning, is_layer_rule, kind_of_function
from ..models.gradient_replacement import named, replacement_for
from ..models.selectors import (
    GAP,
    Choice,
    HeldFunction,
    Layer,
    OperationChoice,
    Row,
    choose,
    choose_by_kind,
    empty_message,
    match,
    may_merge,
    not_called,
    refuse_second,
    shared_message,
    shares_relevance,
    unfit_message,
)
from .base import list_leaves
from .compiled_steps import HOST, find_compiled, renew_steps
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
    FIRST,
    OPERATION_OF_NAME,
    Call,
    CalledOperations,
    LayerRules,
    RuledLayer,
    find_operation,
    is_float,
    make_run,
    replace_functions,
    replace_leaves,
    restore_functions,
    ruled_layer,
    run_free,
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
        rules: as for `xg.attach`. The operation "relu" is `keras.ops.relu`, wherever Keras or a
            layer of the model calls it; names are dotted in nested models ("resnet50.conv*_relu");
            a composite's rules for activations also act on operations.

    Returns and raises what `xg.attach` does; a layer that takes several tensors, or none that has a
    gradient, is a RuleTypeError when it is called.
    """
    if not isinstance(model, keras.Operation):
        raise RuleTypeError(
            f"expected a model or layer of Keras, got a {type(model).__qualname__}: "
            "xg.attach takes models of torch too"
        )
    layers = list_layers(model)
    by_kind = isinstance(rules, Composite)
    plan = plan_composite(layers, rules) if by_kind else plan_selectors(layers, rules)
    handle = LayerRules(model, plan.operations, within=plan.within, called=plan.called)
    handle.given = rules if by_kind else dict(rules)
    is_built = all(getattr(each.layer, "built", True) for each in layers)
    if not is_built:
        handle.find_late_layers = partial(find_late_layers, model, layers, plan.selectors)
    concerned = {*plan.forwards, *plan.within}
    if HOST.compiler.recall is not None:
        # Layers with sublayers may be computed again in backward, after the handle was detached.
        concerned |= {id(each.layer) for each in layers if not each.is_leaf}
    concerns_all = plan.operations or handle.notes_calls
    targets = [
        each.layer
        for each in layers
        if concerns_all or id(each.layer) in concerned or (each.layer is model and not is_built)
    ]
    changed: list[RuledLayer] = []
    return Attachment(
        partial(rows_now, layers, plan, handle),
        partial(put, targets, handle, plan.forwards, changed),
        partial(take, changed, handle),
        partial(forget_compiled, changed, handle),
    )


@dataclass(frozen=True, slots=True)
class AttachmentPlan:
    """What `attach` puts on a model.

    Attributes:
        forwards: by the identity of a layer, its forward under a rule (`RuledLayer.run`); None: a
            composite names the layer to have no rule.
        operations: a rule by an operation's name, for all layers.
        within: the same for single layers, by their identity.
        rows: of the handle's table, each with the layer that it is about, or None.
        selectors: those that chose layers; None: a composite did, by kind.
        called: what calls show; of a composite, also which layer they called first, and what a
            batch normalization was merged with.
    """

    forwards: Mapping[int, Call | None]
    operations: dict[str, Any]
    within: dict[int, dict[str, Any]]
    rows: Sequence[tuple[Row, Any]]
    selectors: Sequence[Any] | None
    called: CalledOperations = field(default_factory=CalledOperations)


def plan_selectors(layers: Sequence[Layer], rules: Mapping[Any, Any]) -> AttachmentPlan:
    choices, operations = choose(
        rules, layers, find_operation, OPERATION_OF_NAME, list_functions(layers)
    )
    operations_within = rules_within(choices, layers)
    forwards = {
        id(each.layer.layer): make_layer_run(each.layer.layer, each.rule)
        for each in choices
        if not isinstance(each.layer.layer, HeldFunction)
    }
    refuse_cells(layers, forwards.keys())
    return AttachmentPlan(
        forwards,
        rules_of(operations),
        operations_within,
        rows=[
            *((each.row(), each.layer.layer) for each in choices),
            *((each.row(), None) for each in operations),
        ],
        selectors=list({id(each.selector): each.selector for each in choices}.values()),
    )


def find_late_layers(
    model: Any, known: Sequence[Layer], selectors: Sequence[Any] | None
) -> list[str]:
    """Return the names of selected layers that the model made after `known` were listed."""
    identities = {id(each.layer) for each in known}
    new_layers = [each for each in list_layers(model) if id(each.layer) not in identities]
    return [each.names[0] for each in new_layers if selects(selectors, each)]


def selects(selectors: Sequence[Any] | None, layer: Layer) -> bool:
    """Return whether a layer is selected; by a composite, whether it has a kind."""
    if selectors is None:
        return kind_of(layer.layer) is not None
    return any(match(selector, [layer]) for selector in selectors)


def rows_now(layers: Sequence[Layer], plan: AttachmentPlan, handle: LayerRules) -> list[Row]:
    """Return the rows of a handle's table, with what calls of the model have shown so far."""
    notes = vars(handle.called)
    is_run = f"layer {id(handle.model)} " in notes
    rows: list[Row] = []
    for row, layer in plan.rows:
        start = f"rule of {id(layer)} "
        met = [note.removeprefix(start) for note in notes if notes[note] and note.startswith(start)]
        rule = ", ".join(filter(None, met)) if met else row.rule
        if rule:
            now = replace(row, rule=rule)
            rows.append(not_called(now) if is_run and is_unmet(layer, notes) else now)
    if isinstance(handle.given, Composite):
        rows += [
            Row(name, "operation", named(rule), kind_of_function(name) or "")
            for name, rule in handle.operations.items()
            if name in notes
        ]
    if shares_relevance(handle.given):
        # Within a layer under a rule no gradient passes but the rule's.
        ruled = tuple(f"{each.names[0]}." for each in layers if id(each.layer) in plan.forwards)
        for each in layers:
            if each.names[0].startswith(ruled):
                continue
            start = f"layer {id(each.layer)} "
            gaps = [note.removeprefix(start) for note in notes if note.startswith(start)]
            gaps += ["weights"] * (gaps == [""] and has_unread_weights(each, plan))
            if any(gaps):
                rows.append(Choice(each, None, ", ".join(filter(None, gaps))).row(GAP))
    return rows


def has_unread_weights(layer: Layer, plan: AttachmentPlan) -> bool:
    """Return whether a layer multiplies its input by weights, and no rule is on it."""
    is_free = layer.is_leaf and id(layer.layer) not in plan.forwards
    is_lookup = isinstance(layer.layer, keras.layers.Embedding)
    return is_free and not is_lookup and bool(getattr(layer.layer, "weights", ()))


def is_unmet(layer: Any, notes: Mapping[str, Any]) -> bool:
    is_function = layer is None or isinstance(layer, HeldFunction)
    return not is_function and f"layer {id(layer)} " not in notes


# --- putting a handle on layers, and taking it off ------------------------------------------------
def put(
    layers: Sequence[Any],
    handle: LayerRules,
    forwards: Mapping[int, Call | None],
    changed: list[RuledLayer],
    attachment: Attachment,
) -> None:
    """Add a handle to layers, or to none if one has such rules; list the records of the layers."""
    ruled_layers = [ruled_layer(each) for each in layers]
    refuse_twice(handle, forwards, ruled_layers)
    handle.attachment = attachment
    changed += ruled_layers
    if handle.operations or handle.within or handle.notes_calls:
        replace_functions(handle)
    for each in changed:
        each.handles.append(handle)
        if id(each.layer) in forwards:
            each.run, each.forward_handle = forwards[id(each.layer)], handle
        each.update_methods()


def take(layers: Sequence[RuledLayer], handle: LayerRules) -> None:
    # first: a compiled step that still runs must notice
    handle.superseded = True
    for each in layers:
        if handle in each.handles:
            each.handles.remove(handle)
        if each.forward_handle is handle:
            each.run = each.forward_handle = None
        each.update_methods()
    restore_functions(handle)


def forget_compiled(layers: Sequence[RuledLayer], handle: LayerRules) -> None:
    if not layers:
        return
    renew_steps(find_compiled([handle.model, *(each.layer for each in layers)]))
    # a user's own tf.function knows nothing of the rules
    if HOST.compiler.forget_traces is not None:
        HOST.compiler.forget_traces([each.value for each in getattr(handle.model, "variables", ())])


# --- rules on operations --------------------------------------------------------------------------
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
        function = choice.layer.layer
        if not isinstance(function, HeldFunction):
            continue
        replacement_for(choice.rule)
        operation = operation_held(choice.layer.names[0], function)
        for caller in callers_of(function, layers):
            rules.setdefault(id(caller), {})[operation] = choice.rule
    return rules


def refuse_twice(
    handle: LayerRules, forwards: Mapping[int, Any], layers: Sequence[RuledLayer]
) -> None:
    for each in layers:
        subject = f"layer {each.layer.name!r}"
        if each.forward_handle is not None and id(each.layer) in forwards:
            refuse_second(subject, each.forward_handle.attachment)
        new_rules = handle.rules_in(each.layer)
        for earlier_handle in each.handles:
            for name in earlier_handle.rules_in(each.layer).keys() & new_rules.keys():
                subject = f"operation {name!r}"
                refuse_second(subject, earlier_handle.attachment, where=f" in {each.layer.name!r}")


# --- the forward of a layer under a rule ----------------------------------------------------------
# The attribute of a tensor for a batch normalization that is merged with the layer before it: that
# layer's rule, its call as the rule reads it, its output, and the `readers` of `watched`.
MERGES = "_multigrad_merges"


def make_layer_run(layer: Any, rule: Any, merges: bool = False) -> Call:
    """Return a layer's forward under a rule of either kind, for `RuledLayer.run`.

    `merges`: whether a batch normalization after it is merged with it.
    """
    if not is_layer_rule(rule):
        return make_run(layer, rule)
    kind = "addition" if is_addition_in_code(layer) else kind_of(layer)
    if kind is None or kind not in READERS or not has_meaning(rule, kind):
        subject = f"layer {layer.name!r} ({type(layer).__name__})"
        raise RuleTypeError(unfit_message(subject, named(rule), kind))
    if kind in ("addition", "average_pooling"):
        return make_reading(layer, kind, rule)
    return make_reading_weights(layer, kind, rule, merges)


def make_reading(layer: Any, kind: str, rule: Any) -> Call:
    """Return the forward of a layer without weights under a rule that reads its inputs."""

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = tuple(leaf for leaf in list_leaves((args, kwargs)) if is_float(leaf))
        if kwargs.get("mask") is not None or len(inputs) < (2 if kind == "addition" else 1):
            return original(*args, **kwargs)
        # the layer computes on stopped tensors, so that only the rule's gradient flows
        constants = [(x, keras.ops.stop_gradient(x)) for x in inputs]
        args, kwargs = replace_leaves((args, kwargs), constants)
        out = original(*args, **kwargs)
        return read_layer(layer, kind, inputs).under(rule, out)

    return run


def make_reading_weights(layer: Any, kind: str, rule: Any, merges: bool) -> Call:
    """Return the forward of a layer with weights, with its activation after the rule."""

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["inputs"]
        if not is_float(x):
            return original(*args, **kwargs)
        reading = read_layer(layer, kind, (x,))
        out = compute(layer, keras.ops.stop_gradient(x))
        y = reading.under(rule, out)
        if layer.activation not in (None, keras.activations.linear):
            return run_free(layer.activation, y, ruled_layer(layer).note)
        if merges:
            # the normalization finds what it is merged with on its input tensor
            readers = [layer.name]
            y = watched(y, readers)
            set_tensor_attr(y, MERGES, (rule, reading, out, readers))
        return y

    return run


def watched(y: Tensor, readers: Sequence[str]) -> Tensor:
    """Return the output of a layer, unchanged. What is merged with the layer takes no gradient from
    it, so backward raises for a gradient of what else reads it.

    `readers`: the layer's name, and that of what is merged with it.
    """
    compiler = HOST.compiler
    if compiler.opaque is not None and compiler.is_tracing is not None and compiler.is_tracing():
        return y  # a compiler that reads Python code cannot follow `pull`

    def pull(cotangent: Tensor, ctx: Any = None) -> tuple[Tensor]:
        if len(readers) > 1:
            raise RuleValueError(shared_message(*readers))
        return (cotangent,)

    (y,) = HOST.autodiff.attach(lambda x: ((x,), pull, ()), (y,), "watched")
    return y


def make_by_order(layer: Any, either: Sequence[Any], called: Any, merges: bool) -> Call:
    """Return the forward of one of several layers of which the first that is called has another
    rule.
    """
    runs = [None if rule is None else make_layer_run(layer, rule, merges) for rule in either]
    words = ["" if rule is None else named(rule) for rule in either]
    key = f"{id(layer)}"

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not getattr(called, FIRST, ""):
            setattr(called, FIRST, key)
        i = int(getattr(called, FIRST) != key)
        # of a call of the whole model, after calls of its parts
        for word in (words[1 - i], words[i]):
            setattr(called, f"rule of {key} {word}", word == words[i])
        chosen = runs[i]
        return original(*args, **kwargs) if chosen is None else chosen(original, args, kwargs)

    return run


def make_merging(layer: Any, rule: Any, called: Any) -> Call:
    """Return the forward of a batch normalization merged with the layer whose output it takes."""
    run_alone = None if rule is None else make_layer_run(layer, rule)
    words, note = "" if rule is None else named(rule), f"rule of {id(layer)} "

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["inputs"]
        mark: tuple[Any, Read, Tensor, list[str]] | None = get_tensor_attr(x, MERGES)
        # the axis of the channels, counted from either end
        is_last = mark is not None and (mark[1].kind == "linear" or mark[1].order is not None)
        channels = (len(x.shape) - 1, -1) if is_last else (1, 1 - len(x.shape))
        if mark is None or layer.axis not in channels or len(mark[3]) > 1:
            setattr(called, note + words, True)
            if run_alone is None:
                return original(*args, **kwargs)
            return run_alone(original, args, kwargs)
        if kwargs.get("training") and layer.trainable:
            raise RuleValueError(
                f"layer {layer.name!r} can be merged where it uses its running statistics: call "
                "the model with training=False, or make the composite with canonize=False"
            )
        merged_rule, reading, out, readers = mark
        setattr(called, f"{note}{named(merged_rule)} (merged with {readers[0]})", True)
        readers.append(layer.name)
        if args:
            args = (out, *args[1:])
        else:
            kwargs = {**kwargs, "inputs": out}
        dtype = reading.params[0].dtype
        statistics = [
            None if each is None else keras.ops.cast(each, dtype)
            for each in (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
        ]
        merged = reading.merged(*statistics, epsilon=layer.epsilon)
        return merged.under(merged_rule, original(*args, **kwargs))

    return run


def plan_composite(layers: Sequence[Layer], composite: Composite) -> AttachmentPlan:
    parts = [each for each in layers if each.is_leaf or kind_of(each.layer) is not None]
    forwards: dict[int, Call | None] = {}
    rows: list[tuple[Row, Any]] = []
    called = CalledOperations()
    for each in choose_by_kind(composite, parts, partial(kind_in, composite)):
        layer, rule = each.layer.layer, each.rule
        merges = may_merge(each, composite) and not has_other_readers(layer, layers)
        if merges:
            forwards[id(layer)] = make_merging(layer, rule, called)
        elif each.by_order is not None:
            runs = each.by_order, called, composite.canonize
            forwards[id(layer)] = make_by_order(layer, *runs)
        elif rule is not None:
            forwards[id(layer)] = make_layer_run(layer, rule, merges=composite.canonize)
        elif each.is_named:
            # named without a rule: it keeps its own gradient, of operations too
            forwards[id(layer)] = None
        if rule is not None or merges or each.by_order is not None:
            words = " or ".join(named(rule) for rule in each.by_order or (rule,))
            rows.append((each.row(f"{words}, or merged" if merges else words), layer))
    operations = {name: composite.rule(kind_of_function(name)) for name in ACTIVATIONS}
    operations = {name: rule for name, rule in operations.items() if rule is not None}
    if not rows and not operations:
        kinds = {kind for each in parts if (kind := kind_of(each.layer)) is not None}
        raise RuleValueError(empty_message(composite, kinds))
    return AttachmentPlan(forwards, operations, {}, rows, selectors=None, called=called)


def has_other_readers(norm: Any, layers: Sequence[Layer]) -> bool:
    """Return whether in a functional model something else reads a normalization's input, too."""
    # Keras (3.15) has no public names for the graph of a functional model.
    identities = {id(each.layer) for each in layers}
    outputs = [x for each in layers for x in getattr(each.layer, "outputs", None) or ()]
    for node in getattr(norm, "_inbound_nodes", ()):
        for x in node.input_tensors:
            readers = [
                other
                for other in x._keras_history.operation._outbound_nodes
                if id(other.operation) in identities and any(x is y for y in other.input_tensors)
            ]
            if len(readers) + sum(x is y for y in outputs) > 1:
                return True
    return False


def kind_in(composite: Composite, layer: Any) -> str | None:
    """Return the kind of a layer; additions in code count if a composite is canonized."""
    if composite.canonize and is_addition_in_code(layer):
        return "addition"
    return kind_of(layer)
