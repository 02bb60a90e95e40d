"""Rules on existing functions of TensorFlow, and the memory that layers of a Keras model keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from multigrad.errors import RuleTypeError
from multigrad.models.layer_memory import WHOLE, Residual, Scopes


def is_operation(selector: Any) -> bool:
    """Return whether a selector is a function of TensorFlow or Keras."""
    module = getattr(selector, "__module__", None) or ""
    return callable(selector) and module.partition(".")[0] == "tensorflow"


# --- the memory that layers of a Keras model keep for backward ------------------------------------
# It is read from a graph of forward and gradient; nothing runs. Kept are the tensors of the forward
# that operations of the gradient read. Layers are name scopes, which TensorFlow writes to
# operations of both.

# Operations that give shapes or weights, and nothing that the forward computed.
HELD = frozenset({"Const", "Placeholder", "ReadVariableOp", "Shape", "ShapeN", "Size", "Rank"})

# Operations that share their input's memory; custom gradients end in IdentityN.
PASSING = frozenset({"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze"})


def kept_by_call(
    call: Callable[..., Any],
    weights: Sequence[Any],
    others: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> list[Residual]:
    """Return the tensors of a call that its gradient reads."""
    scopes = Scopes()

    def within(name: str, run: Any, args: Any, kwargs: Any) -> Any:
        with tf.name_scope(scopes.enter(name)):
            return run(*args, **kwargs)

    with tf.Graph().as_default() as graph:
        pairs = zip(shapes, dtypes, strict=True)
        inputs = [tf.compat.v1.placeholder(name, shape) for shape, name in pairs]
        stand_ins = [
            [tf.compat.v1.placeholder(each.dtype, each.shape) for each in group]
            for group in (weights, others)
        ]
        sources = stand_ins[0] or [each for each in inputs if each.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = call(*stand_ins, inputs, within)
        forward = graph.get_operations()
        # operations made from here on belong to the gradient
        tape.gradient(outputs, sources)
        backward = graph.get_operations()[len(forward) :]
    output_refs = {source_of(each).ref() for each in tf.nest.flatten(outputs)}
    input_refs = {each.ref() for each in inputs}
    positions = {operation: i for i, operation in enumerate(forward)}
    reading_layers: dict[Any, set[str]] = {}
    for operation in backward:
        for each in map(source_of, operation.inputs):
            is_source = each.op.type in HELD and each.ref() not in input_refs
            # what the forward computed, and inputs
            if each.op in positions and not is_source and not is_known(each):
                reading_layers.setdefault(each.ref(), set()).add(scopes.layer_of(operation.name))
    for reference in sorted(reading_layers, key=lambda ref: positions[ref.deref().op]):
        residual, layers = reference.deref(), reading_layers[reference]
        maker = None if reference in input_refs else scopes.layer_of(residual.op.name)
        consumers = [each for each in residual.consumers() if each in positions]
        if layers == {WHOLE}:  # a custom gradient, whose operations have no scope
            layers = {scopes.layer_of(each.name) for each in consumers if each.type == "IdentityN"}
        layer = maker if maker in layers or not layers else min(layers)
        if not residual.shape.is_fully_defined() or residual.dtype == tf.variant:
            raise RuleTypeError(
                f"layer {layer!r} keeps {residual.op.type}, whose size TensorFlow tells only when "
                "it runs, as of the steps of a loop: unroll=True of a recurrent layer tells it"
            )
        readers = {scopes.layer_of(each.name) for each in consumers}
        scopes.add(
            layer or WHOLE,
            maker,
            is_read_elsewhere=reference in output_refs or bool(readers - {layer}),
            shape=residual.shape.as_list(),
            dtype=residual.dtype.name,
            size=residual.shape.num_elements() * residual.dtype.size,
        )
    return scopes.rows


def source_of(x: Any) -> Any:
    """Return the tensor whose memory a tensor shares."""
    while x.op.type in PASSING:
        x = x.op.inputs[x.value_index]
    return x


def is_known(x: Any) -> bool:
    """Return whether a tensor is an integer constant of the graph, as shapes are."""
    return x.dtype.is_integer and tf.get_static_value(x) is not None
