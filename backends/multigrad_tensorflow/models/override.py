"""`xg.override` for functions of TensorFlow: rules are put on each op as a call makes it.

TensorFlow's op callbacks, those of its debugger, report ops on their thread, in eager code, in
graphs and in those of loops and branches. A `tf.function` is traced again for the rules, in a copy:
its earlier traces lack the rules, and the new ones serve only them. A graph that cannot be
traced again is refused if it holds a selected operation.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType
from typing import Any, cast
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.op_callbacks import add_op_callback, remove_op_callback

from multigrad.capture.foreign_calls import Interception
from multigrad.capture.user_code.signature import name_of
from multigrad.errors import RuleValueError
from multigrad.functions.function import Function
from multigrad.graph.support.locks import make_lock
from multigrad.models.gradient_replacement import check_fit, replace_gradient
from multigrad.models.override import Following, Meant, SelectedCalls, one_input, refuse_operation

from ..compile import FIRST, may_be_recomputed, on_call

Tensor = Any


class _Thread(threading.local):
    """The overrides that act on a thread.

    Attributes:
        acting: the overrides whose functions run, from the outside in.
        is_busy: whether a rule is being applied, whose own ops must get no rules.
        latest: the last replacement of an op's result, whose gradient is recorded already.
    """

    def __init__(self) -> None:
        self.acting: list[OverrideRules] = []
        self.is_busy = False
        self.latest: Tensor = None


THREAD = _Thread()
# By graph: the ops with a rule on them.
_changed: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class OverrideRules(SelectedCalls["CalledOp"]):
    """The rules of one `override`, and the copies of functions that were traced for them."""

    def __init__(self, name: str, rows: Iterable[tuple[CalledOp, Function]]) -> None:
        super().__init__(name, rows)
        self.by_type = {
            meant.name: (meant, rule) for meant, rule in self.rows if meant.cell is None
        }
        self.by_cell = {
            id(meant.cell): (meant, rule) for meant, rule in self.rows if meant.cell is not None
        }
        self.copies: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for interception in INTERCEPTIONS:
                stack.enter_context(interception)
            for meant, _ in self.by_cell.values():
                stack.enter_context(target(cast("CellType", meant.cell)))
            # one callback serves all overrides of a thread
            if not THREAD.acting:
                add_op_callback(on_op)
                stack.callback(remove_op_callback, on_op)
            THREAD.acting.append(self)
            stack.callback(THREAD.acting.pop)
            yield
            THREAD.latest = None

    def copy_of(self, function: Any) -> Any:
        known = self.copies.get(function)
        if known is None:
            known = self.copies[function] = function._clone(None)
        return known


# --- an op ----------------------------------------------------------------------------------------
def on_op(
    op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
) -> Any:
    """Put the selected rule, if any, on an op that was just made."""
    if THREAD.is_busy:
        return None
    type_ = op_type.decode() if isinstance(op_type, bytes) else op_type
    for acting in reversed(THREAD.acting):
        if type_ not in SILENT:
            acting.names.add(type_)
        row = acting.by_type.get(type_)
        if row is None or len(outputs) != 1 or not has_input(inputs, outputs[0]):
            continue
        acting.met.add(row[0])
        refuse_recomputed(acting, type_)
        with busy():
            again = partial(make_again, graph, type_, attrs, outputs[0].dtype)
            result = on_result(row, inputs, outputs[0], again)
        THREAD.latest = result
        if graph is not None:
            _changed.setdefault(graph, set()).add(op_name)
            return [result]
        outputs[0] = result  # eager code gets its result from this very list
        return None
    return None


def on_result(
    row: tuple[CalledOp, Function], inputs: Any, output: Tensor, again: Callable[..., Tensor]
) -> Tensor:
    """Return the result of an op, with the rule's gradient."""
    meant, rule = row
    at = input_of(meant, inputs, output)
    check_fit(rule.name, f"operation {meant.name!r}", inputs[at].shape, output.shape)
    # with other float inputs the op is made again, so that they keep their own gradients
    if len([x for x in inputs if is_float(x)]) == 1:
        return rule(inputs[at], tf.stop_gradient(output))
    held = [tf.stop_gradient(x) if i == at else x for i, x in enumerate(inputs)]
    return rule(inputs[at], again(held))


def make_again(graph: Any, type_: str, attrs: Any, dtype: Any, inputs: list[Tensor]) -> Tensor:
    """Return the result of the same op on other inputs."""
    if graph is not None:
        pairs = dict(zip(attrs[::2], attrs[1::2], strict=True))
        made = graph._create_op_internal(type_, inputs, [dtype], attrs=pairs)
        _changed.setdefault(graph, set()).add(made.name)
        return made.outputs[0]
    results = execute.quick_execute(type_, 1, inputs, attrs, context.context())
    if execute.must_record_gradient():
        execute.record_gradient(type_, inputs, attrs, results)
    return results[0]


def refuse_recomputed(acting: OverrideRules, operation: str) -> None:
    """Raise for an operation that will run again in backward, without the override."""
    caller = sys._getframe() if may_be_recomputed() else None
    while caller is not None and caller.f_code is not CALL:
        if caller.f_code is FIRST:
            raise RuleValueError(
                f"function {acting.name!r} calls operation {operation!r} within tf.recompute_grad, "
                "which runs it again in backward, where the rule would not act. Write "
                "tf.recompute_grad(xg.override(f, rules)) of the function inside"
            )
        caller = caller.f_back


@contextmanager
def busy() -> Iterator[None]:
    """Mark the ops made meanwhile as ours, not the function's."""
    THREAD.is_busy = True
    try:
        yield
    finally:
        THREAD.is_busy = False


def is_float(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and x.dtype.is_floating


def has_input(inputs: Sequence[Any], output: Any) -> bool:
    """Return whether a gradient can flow through an op: from floats to a float."""
    return is_float(output) and any(map(is_float, inputs))


def input_of(meant: CalledOp, inputs: Sequence[Any], output: Tensor) -> int:
    """Return the position of the input that a rule acts on: the one of the result's shape."""
    floats = [i for i, x in enumerate(inputs) if is_float(x) and not is_constant(x)]
    shape = output.shape.as_list() if output.shape.rank is not None else None
    fitting = [
        i for i in floats if inputs[i].shape.rank is None or inputs[i].shape.as_list() == shape
    ] or floats
    fitting = fitting or [next(i for i, x in enumerate(inputs) if is_float(x))]
    return one_input(meant.name, fitting, output.shape, "an operation of one tensor")


def is_constant(x: Tensor) -> bool:
    return not isinstance(x, tf.__internal__.EagerTensor) and x.op.type == "Const"


def record_gradient(op_type: Any, inputs: Any, attrs: Any, outputs: Any) -> None:
    """Record an op's own gradient, unless a rule replaced it."""
    if THREAD.latest is None or not outputs or outputs[0] is not THREAD.latest:
        _record_gradient(op_type, inputs, attrs, outputs)


_record_gradient = execute.record_gradient


# --- functions that make several ops --------------------------------------------------------------
_lock = make_lock()
_targets: dict[int, list[Any]] = {}  # by a cell's id: its function, and the number of overrides


@contextmanager
def target(cell: CellType) -> Iterator[None]:
    """Route calls of a public function of TensorFlow to us."""
    with _lock:
        row = _targets.setdefault(id(cell), [cell.cell_contents, 0])
        row[1] += 1
        cell.cell_contents = _replacement(cell, row[0])
    try:
        yield
    finally:
        with _lock:
            row[1] -= 1
            if not row[1]:
                cell.cell_contents = row[0]
                del _targets[id(cell)]


def _replacement(cell: CellType, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        acting_here = [acting for acting in reversed(THREAD.acting) if id(cell) in acting.by_cell]
        if THREAD.is_busy or not acting_here:
            return function(*args, **kwargs)
        return _call(acting_here[0], cell, function, args, kwargs)

    return call


def _call(
    acting: OverrideRules, cell: CellType, function: Callable[..., Any], args: Any, kwargs: Any
) -> Tensor:
    meant, rule = acting.by_cell[id(cell)]
    given = [*args, *kwargs.values()]
    at = next((i for i, x in enumerate(given) if isinstance(x, tf.Tensor | tf.Variable)), None)
    if at is None or not given[at].dtype.is_floating:
        return function(*args, **kwargs)
    acting.met.add(meant)
    refuse_recomputed(acting, meant.name)
    with busy():
        # the function runs on a stopped input, so that only the rule's gradient flows
        tin = tf.convert_to_tensor(given[at])
        given[at] = tf.stop_gradient(tin)
        held = dict(zip(kwargs, given[len(args) :], strict=True))
        output = function(*given[: len(args)], **held)
        return replace_gradient(rule, rule.name, f"operation {meant.name!r}", tin, output)


# --- functions that are graphs --------------------------------------------------------------------
def call_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a `tf.function`, or its copy for the rules that act."""
    acting = THREAD.acting[-1] if THREAD.acting and not THREAD.is_busy else None
    return _call_function(self if acting is None else acting.copy_of(self), *args, **kwargs)


def call_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a graph that was traced for these rules, or holds no selected op.

    Raises:
        RuleValueError: it was traced before.
    """
    for acting in THREAD.acting if not THREAD.is_busy else ():
        type_ = unchanged(self.graph, acting)
        if type_ is not None:
            raise RuleValueError(
                f"function {acting.name!r} calls the graph {self.name.decode()!r}, where operation "
                f"{type_!r} was traced before: call the tf.function or the Python function that "
                "it was made from"
            )
    return _call_graph(self, *args, **kwargs)


_call_function = polymorphic_function.Function.__call__
_call_graph = concrete_function.ConcreteFunction._call_flat
INTERCEPTIONS = (
    Interception(polymorphic_function.Function, "__call__", call_function),
    Interception(concrete_function.ConcreteFunction, "_call_flat", call_graph),
    Interception(cast("type", execute), "record_gradient", record_gradient),
)


def unchanged(graph: Any, acting: OverrideRules) -> str | None:
    """Return a selected op without a rule on it, in a graph or a nested one."""
    changed = _changed.get(graph, ())
    for op in graph.get_operations():
        if op.type not in SILENT:
            acting.names.add(op.type)
        is_meant = op.type in acting.by_type and op.name not in changed
        if is_meant and has_input(op.inputs, op.outputs[0]):
            return op.type
    for inner in graph._functions.values():
        own = getattr(inner, "graph", None)
        if isinstance(own, FuncGraph):
            type_ = unchanged(own, acting)
            if type_ is not None:
                return type_
    return None


# --- the function itself --------------------------------------------------------------------------
def override_calls(function: Callable[..., Any], rules: Mapping[Any, Any]) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls."""
    acting = Following(rules, find, partial(OverrideRules, name_of(function)))

    def overridden(*args: Any, **kwargs: Any) -> Any:
        with on_call():
            return run(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        called = function
        status = ag_ctx.control_status_ctx()
        if status.status is ag_ctx.Status.ENABLED:  # as AutoGraph would at the call
            called = tf.__internal__.autograph.tf_convert(function, status)
        return call_within(acting.now(), called, args, kwargs)

    return overridden


def call_within(acting: OverrideRules, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with acting.on():
        outputs = function(*args, **kwargs)
    acting.check()
    return outputs


CALL = call_within.__code__


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
    """Return the operation that a selector selects.

    Raises:
        RuleTypeError: it is not an operation.
        RuleValueError: TensorFlow has none of that name, or none that can be found in a call.
    """
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
    return _of_function(selector, function)


def _of_function(selector: Any, function: Callable[..., Any]) -> CalledOp:
    name = getattr(function, "__name__", type(function).__name__)
    types = types_made(function)
    if len(types) == 1:
        return CalledOp(selector, types[0])
    if not types and hasattr(tf.raw_ops, name):
        return CalledOp(selector, name)
    cell = target_of(function)
    if cell is None:
        made = f" ({', '.join(sorted(set(types)))})" if types else ""
        raise RuleValueError(
            f"{name!r} is not a single operation of TensorFlow{made}: select its ops by name"
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


def target_of(function: Any) -> CellType | None:
    """Return the closure cell of the innermost function of a decorated public one, if any."""
    cell = None
    while True:
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        held = next((name for name in HOLDERS if name in names), None)
        if held is None:
            return cell
        cell = function.__closure__[names.index(held)]
        function = cell.cell_contents
