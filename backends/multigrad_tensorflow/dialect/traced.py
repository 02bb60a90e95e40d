"""The fallback for functions without a handler: the operations of the graph TensorFlow traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework.ops import EagerTensor

from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, cast, known_shape
from multigrad.engine.capture.foreign_calls import TracedCall, dtype_in, giving_reasons, record_call
from multigrad.engine.capture.symbols import is_exact_cast, own_dtype
from multigrad.engine.trace.code_trace import CodeTrace

Find = Callable[[str], Callable[..., Any] | None]
# Attributes that repeat the inputs' dtypes, and the mark of a custom gradient.
OF_TYPES = ("type", "list(type)")
NAMED_TYPES = ("DstT", "output_type")
OWN_GRADIENT = "_gradient_op_type"
DRAWS = ("StatelessM", "StatelessP", "StatelessR", "StatelessT", "StatelessS")


def record(function: Callable[..., Any], find: Find, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by the operations of its graph."""
    call = TracedCall(function, tf.Tensor, args, kwargs)
    specs = [described(x, call.trace) for x in call.given]
    with giving_reasons("TensorFlow"), tf.init_scope():
        graph = tf.__internal__.FuncGraph("call")
        with graph.as_default():
            inputs = [*map(stand_in, call.given, specs)]
            outputs, structure = optree.tree_flatten(call(*inputs), none_is_leaf=True)
        for output in outputs:
            if not (isinstance(output, tf.Tensor) or (output is None and call.has_none)):
                raise TypeError(f"it gives {output!r}, which is no tensor")
        with call.read_by("tensorflow"):
            results = GraphRun(graph, call.trace, find).results(inputs, call.given, outputs)
    return optree.tree_unflatten(structure, results)


def described(x: Any, trace: CodeTrace) -> tuple[tuple[int | None, ...], tf.DType]:
    if isinstance(x, tf.Tensor):
        return tuple(x.shape), x.dtype
    return tuple(x.shape), tf.as_dtype(dtype_in(trace, x.node.type.dtype))


def stand_in(x: Any, described_as: tuple[Any, tf.DType]) -> tf.Tensor:
    shape, dtype = described_as
    # with known numbers, as shapes may follow from them
    is_known = isinstance(x, EagerTensor)
    return tf.constant(x.numpy(), dtype) if is_known else tf.compat.v1.placeholder(dtype, shape)


class GraphRun:
    """Records the operations of a graph."""

    def __init__(self, graph: Any, trace: CodeTrace, find: Find) -> None:
        # By a tensor's name in the graph: a symbol or a known tensor.
        self.values: dict[str, Any] = {tensor.name: value for value, tensor in graph.captures}
        self._graph, self._trace, self._find = graph, trace, find

    def results(self, inputs: Any, arguments: Sequence[Any], outputs: Any) -> list[Any]:
        """Return the outputs for given inputs, and None for None."""
        self.values.update(zip((x.name for x in inputs), arguments, strict=True))
        operations = self._graph.get_operations()
        conditions = [op.inputs[0] for op in operations if op.type == "Assert"]
        needed_names = {
            op.name for op in ancestors([x.op for x in (*outputs, *conditions) if x is not None])
        }
        for op in operations:
            if op.outputs and op.outputs[0].name in self.values:
                continue
            if op.type == "Assert":
                condition = self.values[op.inputs[0].name]
                if not isinstance(condition, Value) and bool(condition):
                    continue  # it has no effect
            if op.op_def.is_stateful or op.type.startswith(DRAWS) or "PyFunc" in op.type:
                raise TypeError(f"it computes {op.type}, which has a state or an effect")
            if op.name in needed_names:
                self._compute(op)
        return [None if x is None else self.values[x.name] for x in outputs]

    def _compute(self, op: tf.Operation) -> None:
        if any(not x.shape.is_fully_defined() for x in op.outputs):
            raise TypeError(f"it computes {op.type}, whose shape follows from values")
        # known results, as of shapes, are constants of the capture
        arrays = [tf.get_static_value(x) for x in op.outputs]
        operands = [self.values[x.name] for x in op.inputs]
        if all(x is not None for x in arrays):
            results = [tf.constant(x, t.dtype) for x, t in zip(arrays, op.outputs, strict=True)]
        elif not any(isinstance(x, Value) for x in operands):
            results = evaluated(op, operands)
        elif op.type in ("PartitionedCall", "StatelessIf"):
            results = self._inlined(op, operands)
        else:
            handler = self._find(op.type)
            if handler is None or OWN_GRADIENT in op.node_def.attr:
                reason = "a gradient of its own" if handler else "no row"
                raise TypeError(f"it computes {op.type}, which has {reason}")
            operands = [  # a tensor without axes is a number
                x.numpy().item() if isinstance(x, tf.Tensor) and not x.shape.rank else x
                for x in operands
            ]
            results = handler(*in_lists(op, operands), **attributes(op))
            is_one = isinstance(results, Value | tf.Tensor | int | float)
            results = self._typed(op, [results] if is_one else [*results])
        self.values.update(zip((x.name for x in op.outputs), results, strict=False))

    def _inlined(self, op: tf.Operation, operands: Sequence[Any]) -> list[Any]:
        attribute = "f"
        if op.type == "StatelessIf":
            predicate, *operands = operands
            if isinstance(predicate, Value):
                raise TypeError(f"it computes {op.type}, a branch on values")
            attribute = "then_branch" if predicate else "else_branch"
        graph = self._graph._get_function(op.get_attr(attribute).name).graph
        return GraphRun(graph, self._trace, self._find).results(
            graph.inputs, operands, graph.outputs
        )

    def _typed(self, op: tf.Operation, values: Sequence[Any]) -> list[Any]:
        """Return results in the graph's dtypes."""
        results = []
        for value, tensor in zip(values, op.outputs, strict=False):
            if isinstance(value, Value):
                dtype, shape = dtype_in(self._trace, own_dtype(value)), known_shape(value)
                target = tensor.dtype.name
                is_exact = dtype == target or is_exact_cast(dtype, target)
                if not is_exact or shape not in (None, tuple(tensor.shape)):
                    raise TypeError(f"it computes {op.type} to {target}{tensor.shape}")
                value = cast(value, target)
            results.append(value)
        return results


def evaluated(op: tf.Operation, operands: Sequence[Any]) -> Any:
    attrs: list[Any] = []
    for each in op.op_def.attr:
        value = op.get_attr(each.name)
        attrs += [each.name, value.as_datatype_enum if isinstance(value, tf.DType) else value]
    # at once and eagerly, though a graph is being read
    name = op.type.encode()
    return execute.execute(name, len(op.outputs), list(operands), tuple(attrs), context.context())


def ancestors(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    operations, stack = set(ops), list(ops)
    while stack:
        sources = {x.op for x in stack.pop().inputs} - operations
        operations |= sources
        stack += sources
    return operations


def in_lists(op: tf.Operation, operands: Sequence[Any]) -> list[Any]:
    """Return the inputs of an operation, with those of one list grouped."""
    lists: list[Any] = []
    remaining = iter(operands)
    for each in op.op_def.input_arg:
        if each.number_attr:
            lists.append([next(remaining) for _ in range(op.get_attr(each.number_attr))])
        elif each.type_list_attr:
            lists.append([next(remaining) for _ in op.get_attr(each.type_list_attr)])
        else:
            lists.append(next(remaining))
    return lists


def attributes(op: tf.Operation) -> dict[str, Any]:
    """Return the attributes of an operation that differ from the defaults."""
    counts = {each.number_attr for each in op.op_def.input_arg}
    values = {}
    for each in op.op_def.attr:
        is_option = each.type not in OF_TYPES or each.name in NAMED_TYPES
        value_def = op.node_def.attr[each.name]
        is_default = each.HasField("default_value") and value_def == each.default_value
        if is_option and each.name not in counts and not is_default:
            value = op.get_attr(each.name)
            values[each.name] = value.decode() if isinstance(value, bytes) else value
    return values


# --- calls that no stand-in sees: an object of a library holds the function ----------------------
# TensorFlow's own dispatcher is a fallback: it calls us after its function has refused the
# arguments with a TypeError or ValueError, as for a symbolic value. If a function calls others, the
# inner ones come first.
# Functions of TensorFlow call these on their arguments first, so that they must not be handled.
ASKED_INSIDE = (tf.rank, tf.shape, tf.size)


class Dispatcher(tf.__internal__.dispatch.GlobalOpDispatcher):
    """Records a captured function that was called with symbolic values.

    Attributes:
        public: the table's public function, by each function that it wraps and by itself.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self.public = {
            inner: function
            for function in functions
            if function not in ASKED_INSIDE
            for inner in unwrap(function)
        }

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Return the result, or NOT_SUPPORTED for the next dispatcher."""
        function = self.public.get(op)
        if function is None or not any(map(is_symbolic, (*args, *kwargs.values()))):
            return self.NOT_SUPPORTED
        return record_call("tensorflow", function, tuple(args), dict(kwargs))


def is_symbolic(argument: Any) -> bool:
    """Return whether an argument is a symbolic value, or a list of some."""
    items = argument if isinstance(argument, list | tuple) else (argument,)
    return any(isinstance(item, Value) for item in items)


def unwrap(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)
