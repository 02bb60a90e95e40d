"""The layers of a Keras model: names, the memory they keep, kinds, and what each computes.

`multigrad.models.attribution.kinds` defines the kinds, and `kind_of` finds that of a layer. A rule
that reads weights gets a call of a layer as a `Read`, which the row of `READERS` makes for the
kind: inputs, parameters and attributes, in the terms of `KINDS`. These have channels first and
Keras has them last, so tensors are transposed around the rule (`Read.under`).
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.layers.convolutional.base_conv_transpose import BaseConvTranspose
from keras.src.layers.convolutional.base_depthwise_conv import BaseDepthwiseConv
from keras.src.layers.merging.base_merge import Merge
from keras.src.layers.pooling.base_pooling import BasePooling
from keras.src.ops.numpy import Add as AddOperation

from ..core.backend.discovery import load_backend
from ..errors import RuleTypeError, RuleValueError
from ..models.attribution.kinds import LayerCall, check_bounds, kind_of_function
from ..models.layer_memory import WHOLE, Residual, Within
from ..models.selectors import HeldFunction, Layer, hold
from .compiled_steps import BACKEND
from .operations import OPERATION_OF_FUNCTION, OPERATION_OF_NAME, children_of

# --- the layers under their dotted names ----------------------------------------------------------
# Keras names layers within the model that holds them, so nested models may repeat a name.
# The attributes of Keras's layers that are functions, which `activation="relu"` sets.
ATTRIBUTES = ("activation", "recurrent_activation")


def list_layers(model: Any) -> list[Layer]:
    """Return a model and all that it calls: layers of all depths, and the `keras.ops` nodes of
    functional models.

    A layer's names are its dotted paths from the model down ("resnet50.conv1_relu"), then its own
    name where no other layer of the model has it.
    """
    by_id: dict[int, Any] = {}
    paths: dict[int, list[str]] = {}

    def visit(layer: Any, path: str, ancestors: tuple[int, ...]) -> None:
        if id(layer) in ancestors:
            return  # a cycle: it holds a layer that holds it
        by_id[id(layer)] = layer
        paths.setdefault(id(layer), []).append(path)
        for child in children_of(layer):
            own = [child.name, *(a for a in ATTRIBUTES if getattr(layer, a, None) is child)]
            for name in own:
                inner = f"{path}.{name}" if path else name
                visit(child, inner, (*ancestors, id(layer)))

    visit(model, "", ())
    owners = Counter(layer.name for layer in by_id.values() if layer is not model)
    layers = []
    for key, layer in by_id.items():
        own = [layer.name] if layer is not model and owners[layer.name] == 1 else []
        names = tuple(dict.fromkeys(paths[key] + own))
        layers.append(Layer(names, layer, is_leaf=not children_of(layer)))
    return layers


def list_functions(layers: Sequence[Layer]) -> list[Layer]:
    return [
        hold(each, attribute, function)
        for each in layers
        for attribute in ATTRIBUTES
        if callable(function := getattr(each.layer, attribute, None))
        and function is not keras.activations.linear
        and not isinstance(function, keras.Operation)
    ]


def operation_held(name: str, held: HeldFunction) -> str:
    operation = (
        OPERATION_OF_FUNCTION.get(held.function) if inspect.isfunction(held.function) else None
    )
    if operation is None or operation not in OPERATION_OF_NAME.values():
        label = getattr(held.function, "__name__", type(held.function).__name__)
        raise RuleValueError(
            f"{name!r} is {label!r}, which is no operation that Keras computes: select the layer, "
            "or an operation that the function calls"
        )
    functions = {a: getattr(held.layer, a, None) for a in ATTRIBUTES if a != held.attribute}
    for attribute, function in functions.items():
        if function is held.function:
            raise RuleValueError(
                f"{name!r} and its {attribute!r} are both {operation!r}, which cannot be told "
                f"apart within the layer: select the layer, or the operation {operation!r}"
            )
    return operation


def callers_of(held: HeldFunction, layers: Sequence[Layer]) -> list[Any]:
    """Return the layers that call an activation, such as a recurrent layer's cell."""
    # the recurrent layer itself calls it if one kernel computes all steps
    cell = getattr(held.layer, "cell", held.layer)
    recurrent_layers = [each.layer for each in layers if getattr(each.layer, "cell", None) is cell]
    return [cell, *recurrent_layers]


def refuse_cells(layers: Sequence[Layer], chosen: Collection[int]) -> None:
    for each in layers:
        cell = getattr(each.layer, "cell", None)
        if cell is not None and id(cell) in chosen:
            raise RuleTypeError(
                f"layer {cell.name!r} ({type(cell).__name__}) is the cell of layer "
                f"{each.layer.name!r}, which takes several tensors or is computed in one kernel "
                f"with it: select layer {each.names[0]!r}, its activation, or an operation"
            )


# --- the memory that layers keep for backward, as Keras's framework reports it --------------------
def kept_by_layers(
    model: Any, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> tuple[str, list[Residual]]:
    """Return Keras's backend, and the tensors kept by one call in training.

    The call has no effects: statistics and seeds keep their values.
    """
    backend = load_backend(keras.backend.backend())
    if backend.models.kept_by_call is None:
        raise RuleTypeError(f"backend {backend.name!r} does not tell what layers of Keras keep")
    if not model.built:
        raise RuleValueError(
            f"{type(model).__name__} {model.name!r} has no weights yet, so it keeps nothing: call "
            f"it once, or {model.name}.build({shapes[0]})"
        )

    trains = "training" in inspect.signature(model.call).parameters
    options = {"training": True} if trains else {}

    groups = model.trainable_variables, model.non_trainable_variables

    def call(weights: Any, others: Any, inputs: Any, within: Within) -> Any:
        state = zip([*groups[0], *groups[1]], [*weights, *others], strict=True)
        argument = inputs[0] if len(inputs) == 1 else list(inputs)
        with layers_within(model, within), keras.StatelessScope(state_mapping=list(state)):
            return model(argument, **options)

    values = [[each.value for each in group] for group in groups]
    return backend.name, backend.models.kept_by_call(call, *values, shapes, dtypes)


@contextmanager
def layers_within(model: Any, within: Within) -> Iterator[None]:
    layers = [each for each in list_layers(model) if isinstance(each.layer, keras.Layer)]
    old_calls = [(vars(each.layer), vars(each.layer).get("call")) for each in layers]
    try:
        for each in layers:
            original = each.layer.call
            call = functools.partial(_call_within, within, each.names[0] or WHOLE, original)
            vars(each.layer)["call"] = functools.wraps(original)(call)
        yield
    finally:
        for attributes, call in old_calls:
            attributes.pop("call", None)
            if call is not None:
                attributes["call"] = call


def _call_within(within: Within, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    return within(name, call, args, kwargs)


# --- the kinds of layers --------------------------------------------------------------------------
Tensor = Any
layers = keras.layers
ACTIVATIONS = tuple(
    name for name in sorted({*OPERATION_OF_NAME.values()}) if kind_of_function(name)
)
GLOBAL_AVERAGES = (
    layers.GlobalAveragePooling1D.call,
    layers.GlobalAveragePooling2D.call,
    layers.GlobalAveragePooling3D.call,
)
STANDARD = BaseConv.convolution_op
# One row per class of layers, by the method that computes it, and one per activation that
# `kind_of_function` knows: a new layer is added only here.
BY_CALL: Mapping[Any, str] = {
    layers.Dense.call: "linear",
    BaseConv.call: "convolution",
    layers.Conv1D.call: "convolution",
    BaseDepthwiseConv.call: "convolution",
    BaseConvTranspose.call: "convolution_transpose",
    layers.BatchNormalization.call: "batch_normalization",
    **{
        each.call: kind
        for name, each in vars(layers).items()
        if (kind := kind_of_function(name)) is not None
    },
    **dict.fromkeys(GLOBAL_AVERAGES, "average_pooling"),
}


def kind_of(layer: Any) -> str | None:
    """Return the kind of a layer; None if no rule reads what it holds, or is for its activation."""
    # by its `call`, so that a subclass with a `call` of its own has no kind
    call = type(layer).call
    if call is BasePooling.call:
        return "max_pooling" if layer.pool_mode == "max" else "average_pooling"
    if call is Merge.call:
        merge = type(layer)._merge_function
        return "addition" if merge is layers.Add._merge_function else None
    if call is layers.Activation.call:
        return kind_of_function(OPERATION_OF_FUNCTION.get(layer.activation, ""))
    if getattr(type(layer), "convolution_op", STANDARD) is not STANDARD:
        return None
    return BY_CALL.get(call)


def is_addition_in_code(layer: Any) -> bool:
    """Return whether an operation of a functional model is an addition."""
    return type(layer) is AddOperation


@dataclass(frozen=True, slots=True)
class Read(LayerCall):
    """A call of a layer of Keras; `order`: its axes in the kind's order, None if equal."""

    order: tuple[int, ...] | None = None

    def under(self, rule: Any, out: Tensor) -> Tensor:
        """Return the layer's output, with a rule's gradient for its inputs."""
        function = rule.over(self.kind, **self.attributes)
        shape, ordered = tuple(out.shape), out
        if self.shape is not None:
            ordered = keras.ops.reshape(out, (-1, *self.shape))
        elif self.order is not None:
            ordered = keras.ops.transpose(out, self.order)
        inputs = self.inputs
        if self.order is not None:
            inputs = tuple(keras.ops.transpose(x, self.order) for x in inputs)
        for addend in inputs[2:]:  # an addition of several inputs goes pairwise
            inputs = (function(*inputs[:2]), addend)
        check_bounds(rule, inputs[0])
        y = function(*inputs, *self.params, ordered)
        if self.shape is not None:
            return keras.ops.reshape(y, (-1, *shape[1:]))
        if self.order is not None:
            return keras.ops.transpose(y, invert(self.order))
        return y


class WithoutActivation:
    """A layer as its own `call` sees it, with no activation."""

    activation = None

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def compute(layer: Any, *args: Any) -> Tensor:
    return type(layer).call(WithoutActivation(layer), *args)


def read_layer(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    if getattr(layer, "quantization_mode", None) is not None:
        raise refuse(layer, "its weights are quantized")
    return READERS[kind](layer, kind, inputs)


def refuse(layer: Any, reason: str) -> RuleTypeError:
    return RuleTypeError(
        f"no rule can read layer {layer.name!r} ({type(layer).__name__}): {reason}. Select it with "
        "a rule that reads no weights"
    )


def read_linear(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    params = as_tensor(layer.kernel), as_tensor(layer.bias)
    return Read(kind, inputs, params, {"layout": "in_out"})


def read_convolution(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    (x,) = inputs
    order, rank = order_of(layer, x), layer.rank
    kernel = as_tensor(layer.kernel)
    bias = as_tensor(layer.bias) if layer.use_bias else None
    dilations, strides = spread(layer.dilation_rate, rank), spread(layer.strides, rank)
    # (*sizes, in / groups, out), or of one channel each (*sizes, in, multiplier)
    groups = getattr(layer, "groups", None)
    weight = keras.ops.transpose(kernel, (rank + 1, rank, *range(rank)))
    if groups is None:
        groups, multiplier = kernel.shape[rank], kernel.shape[rank + 1]
        weight = keras.ops.transpose(kernel, (rank, rank + 1, *range(rank)))
        weight = keras.ops.reshape(weight, (groups * multiplier, 1, *kernel.shape[:rank]))
    reaches = [(k - 1) * d for k, d in zip(kernel.shape[:rank], dilations, strict=True)]
    padding = pad(layer, lengths_of(layer, x, order), strides, reaches)
    attributes = {
        "strides": strides,
        "padding": padding,
        "dilations": dilations,
        "groups": int(groups),
    }
    return Read(kind, inputs, (weight, bias), attributes, order=order)


def read_transposed(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    (x,) = inputs
    rank = layer.rank
    strides, dilations = spread(layer.strides, rank), spread(layer.dilation_rate, rank)
    if layer.output_padding is not None or set(dilations) != {1}:
        raise refuse(layer, "it has an output_padding or dilations")
    kernel = as_tensor(layer.kernel)  # (*sizes, out, in)
    weight = keras.ops.transpose(kernel, (rank + 1, rank, *range(rank)))
    bias = as_tensor(layer.bias) if layer.use_bias else None
    excess = [max(k - s, 0) for k, s in zip(kernel.shape[:rank], strides, strict=True)]
    is_same = layer.padding == "same"
    padding = tuple((n // 2, n - n // 2) if is_same else (0, 0) for n in excess)
    attributes = {"strides": strides, "padding": padding, "dilations": dilations, "groups": 1}
    return Read(kind, inputs, (weight, bias), attributes, order=order_of(layer, x))


def read_average(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    (x,) = inputs
    order = order_of(layer, x)
    lengths = lengths_of(layer, x, order)
    if type(layer).call in GLOBAL_AVERAGES:
        sizes = strides = lengths
        padding = ((0, 0),) * len(lengths)
        channels = x.shape[1 if order is None else -1]
        shape = (channels, *(1,) * len(lengths))
    else:
        sizes, strides = (spread(n, len(lengths)) for n in (layer.pool_size, layer.strides))
        padding, shape = pad(layer, lengths, strides, [n - 1 for n in sizes]), None
        if BACKEND == "torch" and any(before != after for before, after in padding):
            # `_apply_same_padding` of Keras (3.15) on torch
            raise refuse(layer, "Keras on torch repeats the last elements where it pads at one end")
    attributes = {
        "sizes": sizes,
        "strides": strides,
        "padding": padding,
        "counts_padding": False,
    }
    return Read(kind, inputs, attributes=attributes, order=order, shape=shape)


def read_addition(layer: Any, kind: str, inputs: tuple[Tensor, ...]) -> Read:
    if len({len(x.shape) for x in inputs}) > 1:
        raise refuse(layer, "its inputs have different numbers of axes")
    return Read(kind, inputs)


READERS: Mapping[str, Callable[[Any, str, tuple[Tensor, ...]], Read]] = {
    "linear": read_linear,
    "convolution": read_convolution,
    "convolution_transpose": read_transposed,
    "average_pooling": read_average,
    "addition": read_addition,
}


def as_tensor(variable: Any) -> Tensor:
    return None if variable is None else keras.ops.convert_to_tensor(variable)


def order_of(layer: Any, x: Tensor) -> tuple[int, ...] | None:
    """Return the order of axes that puts channels first; None if they are."""
    if layer.data_format == "channels_first":
        return None
    rank = len(x.shape)
    return (0, rank - 1, *range(1, rank - 1))


def invert(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def lengths_of(layer: Any, x: Tensor, order: tuple[int, ...] | None) -> tuple[int, ...]:
    lengths = tuple(x.shape[2:]) if order is None else tuple(x.shape[1:-1])
    if not all(isinstance(n, int) for n in lengths):
        raise refuse(layer, f"the lengths of its input {tuple(x.shape)} are not known")
    return lengths


def spread(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def pad(
    layer: Any, lengths: Sequence[int], strides: Sequence[int], reach: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the zeros before and after a layer's input, by Keras's word for the padding."""
    if layer.padding == "causal":
        return tuple((r, 0) for r in reach)
    if layer.padding != "same":
        return ((0, 0),) * len(lengths)
    borders = []
    for n, s, r in zip(lengths, strides, reach, strict=True):
        total = max((-(-n // s) - 1) * s + r + 1 - n, 0)
        borders.append((total // 2, total - total // 2))
    return tuple(borders)
