"""Layers of Keras under rules that read their weights, and composites of such rules."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

# Keras (3.15) has no public names for them.
from keras.src.backend.common.tensor_attributes import get_tensor_attr, set_tensor_attr

from ...errors import RuleTypeError, RuleValueError
from ...graph.support.data import dataclass
from ...models.attribution.composites import Composite
from ...models.attribution.kinds import is_layer_rule, weight_axis
from ...models.attribution.layers import merge_batch_norm
from ...models.handle import Row, named
from ...models.interpose import give
from ...models.selectors import Layer
from ..base import list_leaves
from .kinds import ACTIVATIONS, READERS, Read, compute, is_addition_in_code, kind_of, read_layer
from .layers import make_run
from .operations import is_float

Tensor = Any
Call = Callable[..., Any]
MERGES = "_multigrad_merges"


def make_layer_run(layer: Any, rule: Any, merges: bool = False) -> Call:
    """Return a layer's forward under a rule of either kind, for `Changes.run`.

    Args:
        layer: the layer.
        rule: the rule.
        merges: whether a batch normalization after it makes one layer with it.

    Raises:
        RuleTypeError: the rule reads weights, and has no meaning for the layer.
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
    """Return the forward of a layer that has no weights."""

    def run(original: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = tuple(leaf for leaf in list_leaves((args, kwargs)) if is_float(leaf))
        if kwargs.get("mask") is not None or len(inputs) < (2 if kind == "addition" else 1):
            return original(*args, **kwargs)
        held = {id(x): keras.ops.stop_gradient(x) for x in inputs}

        def hold(leaf: Any) -> Any:
            return held.get(id(leaf), leaf)

        given: Any = keras.tree.map_structure(hold, (args, kwargs))
        out = original(*given[0], **given[1])
        return read_layer(layer, kind, inputs).under(rule, out)

    return run


@dataclass(frozen=True, slots=True)
class Merging:
    """What a layer computed, for a batch normalization that is merged with it."""

    rule: Any
    read: Read
    out: Tensor


def make_reading_weights(layer: Any, kind: str, rule: Any, merges: bool) -> Call:
    """Return the forward of a layer that has weights, and then its activation's."""

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
            set_tensor_attr(y, MERGES, Merging(rule, read, out))
        return y

    return run


def make_merging(layer: Any, rule: Any) -> Call:
    """Return the forward of a batch normalization, as one layer with that before it."""
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
        read, (weight, bias) = made.read, made.read.params
        dtype = weight.dtype
        numbers = [
            None if each is None else keras.ops.cast(each, dtype)
            for each in (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
        ]
        params = merge_batch_norm(
            weight, bias, *numbers, epsilon=layer.epsilon, axis=weight_axis(read.kind)
        )
        merged = Read(read.kind, read.inputs, params, read.attributes, read.order)
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
    """Return the forwards of layers by their identity, None for one that keeps all of its
    gradients; the rules of operations; and the rows of the table.

    Raises:
        RuleValueError: a name fits no layer, or nothing gets a rule.
        RuleTypeError: a rule has no meaning for the layer that it is for.
    """
    parts = [each for each in layers if each.is_leaf or kind_of(each.layer) is not None]
    runs: dict[int, Call | None] = {}
    rows: list[Row] = []
    for each in give(composite, parts, partial(kind_in, composite)):
        layer, rule = each.layer.layer, each.rule
        if each.kind == "batch_normalization" and composite.canonize:
            runs[id(layer)] = make_merging(layer, rule)
        elif rule is not None:
            runs[id(layer)] = make_layer_run(layer, rule, merges=composite.canonize)
        elif each.is_named:
            runs[id(layer)] = None
        if rule is not None:
            rows.append(each.row())
    kinds_of = {name: "relu" if name == "relu" else "activation" for name in ACTIVATIONS}
    operations = {name: composite.rule(kind) for name, kind in kinds_of.items()}
    operations = {name: rule for name, rule in operations.items() if rule is not None}
    if not rows and not operations:
        raise RuleValueError(f"composite {composite.name!r} has no rule for any layer of the model")
    return runs, operations, rows


def kind_in(composite: Composite, layer: Any) -> str | None:
    """Return the kind of a layer; additions in code count where a composite is canonized."""
    if composite.canonize and is_addition_in_code(layer):
        return "addition"
    return kind_of(layer)
