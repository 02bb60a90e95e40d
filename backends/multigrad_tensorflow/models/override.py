"""`xg.override` for functions of TensorFlow: rules are put on each op as a call makes it.

    override_calls       returns the function with rules
      OverrideRules      the rules; within `acting` they act on what the thread calls:
        on_op            an op was made: its result gets the rule's gradient
        replaced calls   of public functions that make several ops (`replacing_cell`)
        call_function    a `tf.function` is traced again for the rules, in a copy: its earlier
                         traces lack them, and the new ones serve only them
        call_graph       a graph that cannot be traced again is refused if it holds a selected op
    find                 the operation that a selector selects

TensorFlow's op callbacks, those of its debugger, report ops on their thread, in eager code, in
graphs and in those of loops and branches.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from traceback import walk_stack
from types import CellType
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.op_callbacks import add_op_callback, remove_op_callback

from multigrad.core.rules.signature import name_of
from multigrad.core.support.threads import make_lock
from multigrad.core.trace.trace import setting
from multigrad.engine.capture.foreign_calls import Interception
from multigrad.engine.functions.function import Function
from multigrad.errors import RuleValueError
from multigrad.models.gradient_replacement import check_fit, replace_gradient
from multigrad.models.override import Following, Meant, SelectedCalls, one_input, refuse_operation

from ..core.compile import may_be_recomputed
from ..recomputed_regions import FIRST, on_call

Tensor: TypeAlias = tf.Tensor


class ThreadState(threading.local):
    """What acts on the calls of a thread.

    Attributes:
        overrides: those whose functions run, from the outside in; `acting` adds and removes them.
        is_applying: whether a rule is being applied, whose own ops must get no rules.
        latest_result: the last result that `on_op` gave to an op, whose gradient is recorded
            already; None outside overrides.
    """

    def __init__(self) -> None:
        self.overrides: list[OverrideRules] = []
        self.is_applying = False
        self.latest_result: Tensor | None = None


THREAD = ThreadState()
# By graph: the names of the ops with a rule on them.
_ops_with_rule: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class OverrideRules(SelectedCalls["CalledOp"]):
    """The rules of one `override`.

    Attributes:
        by_type: the rows by the type of an op.
        by_cell: those for functions that make several ops, by the id of the cell that holds one.
        copies: the `tf.function`s that were traced for the rules, by their originals.
    """

    def __init__(self, name: str, rows: Iterable[tuple[CalledOp, Function]]) -> None:
        super().__init__(name, rows)
        self.by_type = {op.name: (op, rule) for op, rule in self.rows if op.cell is None}
        self.by_cell = {id(op.cell): (op, rule) for op, rule in self.rows if op.cell is not None}
        self.copies: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @contextmanager
    def acting(self) -> Iterator[None]:
        with ExitStack() as stack:
            for interception in INTERCEPTIONS:
                stack.enter_context(interception)
            for op, _ in self.by_cell.values():
                stack.enter_context(replacing_cell(cast("CellType", op.cell)))
            # one callback serves all overrides of a thread
            if not THREAD.overrides:
                add_op_callback(on_op)
                stack.callback(remove_op_callback, on_op)
            THREAD.overrides.append(self)
            stack.callback(THREAD.overrides.pop)
            yield
            THREAD.latest_result = None

    def copy_of(self, function: Any) -> Any:
        copy = self.copies.get(function)
        if copy is None:
            copy = self.copies[function] = function._clone(None)
        return copy


def on_op(
    op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
) -> Any:
    if THREAD.is_applying:
        return None
    type_ = op_type.decode() if isinstance(op_type, bytes) else op_type
    for override in reversed(THREAD.overrides):
        if type_ not in SILENT:
            override.names.add(type_)
        row = override.by_type.get(type_)
        if row is None or len(outputs) != 1 or not has_input(inputs, outputs[0]):
            continue
        override.met.add(row[0])
        refuse_recomputed(override, type_)
        with setting(THREAD, is_applying=True):
            make_again = partial(make_op, graph, type_, attrs, outputs[0].dtype)
            result = apply_rule(*row, inputs, outputs[0], make_again)
        THREAD.latest_result = result
        if graph is not None:
            _ops_with_rule.setdefault(graph, set()).add(op_name)
            return [result]
        outputs[0] = result  # eager code gets its result from this very list
        return None
    return None


def apply_rule(
    operation: CalledOp,
    rule: Function,
    inputs: Any,
    output: Tensor,
    make_again: Callable[[list[Tensor]], Tensor],
) -> Tensor:
    position = input_of(operation, inputs, output)
    tin = inputs[position]
    check_fit(rule.name, f"operation {operation.name!r}", tin.shape, output.shape)
    if len([x for x in inputs if is_float(x)]) == 1:
        return rule(tin, tf.stop_gradient(output))
    # The op is made again with this input stopped, so that the others keep their own gradients.
    stopped_inputs = [tf.stop_gradient(x) if i == position else x for i, x in enumerate(inputs)]
    return rule(tin, make_again(stopped_inputs))


def make_op(graph: Any, type_: str, attrs: Any, dtype: Any, inputs: list[Tensor]) -> Tensor:
    """Return the result of an op in a graph, or run now if there is none (None)."""
    if graph is not None:
        pairs = dict(zip(attrs[::2], attrs[1::2], strict=True))
        op = graph._create_op_internal(type_, inputs, [dtype], attrs=pairs)
        _ops_with_rule.setdefault(graph, set()).add(op.name)
        return op.outputs[0]
    results = execute.quick_execute(type_, 1, inputs, attrs, context.context())
    if execute.must_record_gradient():
        execute.record_gradient(type_, inputs, attrs, results)
    return results[0]


def refuse_recomputed(override: OverrideRules, operation: str) -> None:
    """Raise for an operation that will run again in backward, without the override."""
    for caller, _ in walk_stack(sys._getframe()) if may_be_recomputed() else ():
        if caller.f_code is CALL:
            return
        if caller.f_code is FIRST:
            raise RuleValueError(
                f"function {override.name!r} calls operation {operation!r} within "
                "tf.recompute_grad, which runs it again in backward, where the rule would not act. "
                "Write tf.recompute_grad(xg.override(f, rules)) of the function inside"
            )


def is_float(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and x.dtype.is_floating


def has_input(inputs: Sequence[Any], output: Any) -> bool:
    """Return whether a gradient can flow through an op: from floats to a float."""
    return is_float(output) and any(map(is_float, inputs))


def input_of(operation: CalledOp, inputs: Sequence[Any], output: Tensor) -> int:
    """Return the position of the input that a rule acts on: the one of the result's shape."""
    floats = [i for i, x in enumerate(inputs) if is_float(x)]
    positions = [
        i
        for i in floats
        if isinstance(inputs[i], tf.__internal__.EagerTensor) or inputs[i].op.type != "Const"
    ]
    shape = output.shape.as_list() if output.shape.rank is not None else None
    candidates = [
        i for i in positions if inputs[i].shape.rank is None or inputs[i].shape.as_list() == shape
    ]
    candidates = candidates or positions or floats[:1]
    return one_input(operation.name, candidates, output.shape, "an operation of one tensor")


def record_gradient(op_type: Any, inputs: Any, attrs: Any, outputs: Any) -> None:
    """Record an op's own gradient, unless a rule replaced it."""
    if THREAD.latest_result is None or not outputs or outputs[0] is not THREAD.latest_result:
        _record_gradient(op_type, inputs, attrs, outputs)


_record_gradient = execute.record_gradient


# --- functions that make several ops --------------------------------------------------------------
@dataclass(slots=True)
class ReplacedCell:
    """The function that a cell held before it was replaced, and for how many overrides it is."""

    function: Callable[..., Any]
    users: int = 0


_lock = make_lock()
_replaced: dict[int, ReplacedCell] = {}  # by the cell's id


@contextmanager
def replacing_cell(cell: CellType) -> Iterator[None]:
    """Route calls of a public function of TensorFlow, which a cell holds, to us."""
    with _lock:
        entry = _replaced.setdefault(id(cell), ReplacedCell(cell.cell_contents))
        entry.users += 1
        cell.cell_contents = _replacement(cell, entry.function)
    try:
        yield
    finally:
        with _lock:
            entry.users -= 1
            if not entry.users:
                cell.cell_contents = entry.function
                del _replaced[id(cell)]


def _replacement(cell: CellType, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        candidates = (each for each in reversed(THREAD.overrides) if id(cell) in each.by_cell)
        override = None if THREAD.is_applying else next(candidates, None)
        if override is None:
            return function(*args, **kwargs)
        return call_with_rule(override, cell, function, args, kwargs)

    return call


def call_with_rule(
    override: OverrideRules, cell: CellType, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a function with the rule's gradient for its first tensor, if that is of floats."""
    operation, rule = override.by_cell[id(cell)]
    arguments = [*args, *kwargs.values()]
    tensors = (i for i, x in enumerate(arguments) if isinstance(x, tf.Tensor | tf.Variable))
    position = next(tensors, None)
    if position is None or not arguments[position].dtype.is_floating:
        return function(*args, **kwargs)
    override.met.add(operation)
    refuse_recomputed(override, operation.name)
    with setting(THREAD, is_applying=True):
        # the function runs on a stopped input, so that only the rule's gradient flows
        tin = tf.convert_to_tensor(arguments[position])
        arguments[position] = tf.stop_gradient(tin)
        by_name = dict(zip(kwargs, arguments[len(args) :], strict=True))
        output = function(*arguments[: len(args)], **by_name)
        where = f"operation {operation.name!r}"
        # TensorFlow's stubs do not know the `ndim` of its tensors
        return replace_gradient(rule, rule.name, where, cast("Any", tin), output)


# --- functions that are graphs --------------------------------------------------------------------
def call_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    if THREAD.overrides and not THREAD.is_applying:
        self = THREAD.overrides[-1].copy_of(self)
    return _call_function(self, *args, **kwargs)


def call_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a graph that was traced for these rules, or holds no selected op."""
    for override in THREAD.overrides if not THREAD.is_applying else ():
        type_ = find_without_rule(self.graph, override)
        if type_ is not None:
            raise RuleValueError(
                f"function {override.name!r} calls the graph {self.name.decode()!r}, where "
                f"operation {type_!r} was traced before: call the tf.function or the Python "
                "function that it was made from"
            )
    return _call_graph(self, *args, **kwargs)


_call_function = polymorphic_function.Function.__call__
_call_graph = concrete_function.ConcreteFunction._call_flat
INTERCEPTIONS = (
    Interception(polymorphic_function.Function, "__call__", call_function),
    Interception(concrete_function.ConcreteFunction, "_call_flat", call_graph),
    Interception(cast("type", execute), "record_gradient", record_gradient),
)


def find_without_rule(graph: Any, override: OverrideRules) -> str | None:
    """Return the type of a selected op without a rule on it, in a graph or a nested one."""
    names_with_rule = _ops_with_rule.get(graph, ())
    for op in graph.get_operations():
        if op.type not in SILENT:
            override.names.add(op.type)
        is_selected = op.type in override.by_type and op.name not in names_with_rule
        if is_selected and has_input(op.inputs, op.outputs[0]):
            return op.type
    for inner in graph._functions.values():
        inner_graph = getattr(inner, "graph", None)
        if isinstance(inner_graph, FuncGraph):
            type_ = find_without_rule(inner_graph, override)
            if type_ is not None:
                return type_
    return None


def override_calls(function: Callable[..., Any], rules: Mapping[Any, Any]) -> Callable[..., Any]:
    override_rules = Following(rules, find, partial(OverrideRules, name_of(function)))

    def overridden(*args: Any, **kwargs: Any) -> Any:
        with on_call():
            return run(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        converted_function = function
        status = ag_ctx.control_status_ctx()
        if status.status is ag_ctx.Status.ENABLED:  # as AutoGraph would at the call
            converted_function = tf.__internal__.autograph.tf_convert(function, status)
        return call_within(override_rules.now(), converted_function, args, kwargs)

    return overridden


def call_within(
    override: OverrideRules, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    with override.acting():
        outputs = function(*args, **kwargs)
    override.check()
    return outputs


CALL = call_within.__code__  # by which `refuse_recomputed` knows where the override begins


# --- the operation that a selector selects --------------------------------------------------------


ROOMS = (tf.nn, tf.math, tf)
SILENT = frozenset({"Const", "Placeholder", "Identity", "NoOp"})
# The names by which decorators of public functions close over the function.
HOLDERS = ("dispatch_target", "op", "fn")


@dataclass(frozen=True, slots=True)
class CalledOp(Meant):
    """What a selector means: the type of an op, or a function by its name.

    Attributes:
        cell: what holds the function that a public name of TensorFlow's calls, where that makes
            several ops; None: a type of op is meant.
    """

    cell: CellType | None = field(default=None, compare=False)


def find(selector: Any) -> CalledOp:
    """Return the operation that a selector selects."""
    function = selector
    if isinstance(selector, str):
        type_ = "".join(part[:1].upper() + part[1:] for part in selector.split("_"))
        if hasattr(tf.raw_ops, type_):
            return CalledOp(selector, type_)
        function = next(
            (getattr(room, selector) for room in ROOMS if hasattr(room, selector)), None
        )
    if not callable(function):
        names = [*dir(tf.nn), *dir(tf.math), *dir(tf.raw_ops)]
        refuse_operation(selector, "TensorFlow", names)
    return operation_of(selector, function)


def operation_of(selector: Any, function: Callable[..., Any]) -> CalledOp:
    name = getattr(function, "__name__", type(function).__name__)
    types = types_made(function)
    if len(types) == 1:
        return CalledOp(selector, types[0])
    if not types and hasattr(tf.raw_ops, name):
        return CalledOp(selector, name)
    cell = cell_of(function)
    if cell is None:
        hint = f" ({', '.join(sorted(set(types)))})" if types else ""
        raise RuleValueError(
            f"{name!r} is not a single operation of TensorFlow{hint}: select its ops by name"
        )
    return CalledOp(selector, name, cell)


def types_made(function: Callable[..., Any]) -> list[str]:
    """Return the types of the ops that a function makes of one array, or of two."""
    for count in (1, 2):
        # a graph only records ops, so that nothing runs; any failure means another signature
        with suppress(Exception), tf.Graph().as_default() as graph:
            inputs = [tf.compat.v1.placeholder(tf.float32, (2, 3)) for _ in range(count)]
            function(*inputs)
            return [op.type for op in graph.get_operations() if op.type not in SILENT]
    return []


def cell_of(function: Any) -> CellType | None:
    """Return the closure cell of the innermost function of a decorated public one, if any."""
    cell = None
    while True:
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        holder = next((name for name in HOLDERS if name in names), None)
        if holder is None:
            return cell
        cell = function.__closure__[names.index(holder)]
        function = cell.cell_contents
