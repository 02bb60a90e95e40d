"""A check in every traced graph of `tf.function`; `jit.py` has `xg.jit`, which needs none.

A tf.function's cache cannot be keyed from outside. So each graph that depends on the rule in force
around it, or on the meaning of a name, captures a value, whose type is `CheckSpec`. While the graph
is traced, `on_read` and `on_depend` write into it what the graph depends on. At every call
TensorFlow casts the captured value to its type, which compares that with what is in force, and
raises.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from traceback import walk_stack
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
from tensorflow.python.saved_model import save_context

from multigrad.core.backend.contract import Reader
from multigrad.core.rules.activation import Activation
from multigrad.core.rules.context import CURRENT, ActiveRules
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.core.trace.active_rules import Moving, NumberRead
from multigrad.core.trace.lookups import Lookup
from multigrad.errors import StaleTraceError, TraceError, UnsupportedOp

Tensor: TypeAlias = tf.Tensor
# The attribute of a graph that holds its check, and the key of the captured value.
GUARD = "multigrad_rule_in_force"
# Exporters trace functions of their own into files, in which a captured check would be an input.
EXPORTERS = ("keras.src.export.litert", "keras.src.export.onnx", "tensorflow.lite.python")

# AutoGraph would convert our code when a tf.function calls it, the capture of rules included.
OURS = ("multigrad", "multigrad_tensorflow")
autograph.CONVERSION_RULES = (*map(autograph.DoNotConvert, OURS), *autograph.CONVERSION_RULES)


# --- regions of `tf.recompute_grad`, which run forward again within backward ----------------------
class RegionUse(NamedTuple):
    """A `use` block that was entered.

    Attributes:
        token: that of its rules.
        graph: the graph that was being traced then; None in eager code.
        before: the active rules before it.
        tape: that of the region that was running again; None if none was.
    """

    token: str
    graph: Any
    before: ActiveRules
    tape: Any


# From the outside in; `on_enter` adds one, and removes it at the block's end.
ENTRIES: contextvars.ContextVar[tuple[RegionUse, ...]] = contextvars.ContextVar(
    "multigrad_tensorflow_entries", default=()
)
# The regions that were noted, by the id of what identifies each.
REGIONS: OrderedDict[int, Any] = OrderedDict()


def may_be_recomputed() -> bool:
    """Return whether a region may be around this call: its first forward stops recording."""
    return bool(REGIONS) or pywrap_tfe.TFE_Py_TapeSetIsStopped()


def regions_around() -> tuple[Sequence[Any], Any, Any]:
    """Return the regions around this call, if any, as `note_regions` does."""
    return note_regions() if may_be_recomputed() else ((), None, None)


@provided
def note_regions() -> tuple[Sequence[Any], Any, Any]:
    """Note the regions around this call. Return those in their first run, inside out; the one that
    runs again, if any, as those around it do not matter; the tape of its run.
    """
    raise UnsupportedOp(f"a rule within tf.recompute_grad {NEEDS_ENGINE}")


@provided
def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in a region that may run again."""
    raise UnsupportedOp(f"a rule within tf.recompute_grad {NEEDS_ENGINE}")


def of_first_run(key: Any, make: Callable[[], Any]) -> Any:
    """Return a new value; in a region that runs again, that of its first run."""
    first_runs, rerun, _ = regions_around()
    value = rerun.recalled[key] if rerun is not None and key in rerun.recalled else make()
    for region in first_runs:
        region.recalled[key] = value
    return value


READER = Reader(may_be_recomputed, call_noted)


# --- what a graph depends on ----------------------------------------------------------------------
def on_enter(token: str) -> Callable[[], None]:
    """Note the graph in which a `use` is entered: inside its own graph it is part of the trace."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    _, _, tape = regions_around()  # notes regions in their first run
    entry = RegionUse(token, graph, CURRENT.get(), tape)
    return functools.partial(ENTRIES.reset, ENTRIES.set((*ENTRIES.get(), entry)))


def on_read(
    x: Tensor | None, activation: Activation | None = None, scope: str = "activations"
) -> None:
    """Capture a check in the functions being traced, as far as the rule comes from outside them."""
    if tf.executing_eagerly() or save_context.in_save_context():
        return
    entries = ENTRIES.get()
    if (entries[-1].token if entries else "") != CURRENT.get().token:
        raise StaleTraceError(
            "a tf.function is traced under a rule that was put in force before TensorFlow was "
            "imported: import tensorflow before `with xg.use(...)`"
        )
    inner_graphs: list[Any] = []
    for graph, check in find_checks():
        inner_graphs.append(graph)
        # a rule that a `use` within the graph sets is part of the trace, and needs no check
        rules_before = (e.before for e in entries if any(e.graph is each for each in inner_graphs))
        active = next(rules_before, CURRENT.get())
        if getattr(active, scope) is getattr(CURRENT.get(), scope) and check is not None:
            check.words.setdefault(scope, active.word(scope))


def on_depend(holder: Any) -> None:
    """Capture a check that a name or a layer's rule stays the same, whatever rule is in force."""
    if not tf.executing_eagerly() and not save_context.in_save_context():
        for _, check in find_checks():
            if check is not None:
                check.traced.add(holder)


def is_tracing() -> bool:
    return not tf.executing_eagerly()


def follow(moving: Moving) -> Tensor | None:
    """Return a tensor of the graph being built that has the number's value at each call.

    None in eager code, and in a graph for a file, which holds the present value.
    """
    if tf.executing_eagerly() or save_context.in_save_context() or is_exporting():
        return None
    graph = tf.compat.v1.get_default_graph()
    # branches and loop bodies cannot capture by themselves
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    if not isinstance(graph, FuncGraph):
        raise TraceError(f"a graph of TensorFlow 1 cannot follow {moving.where()}; pass a number")
    with tf.init_scope():
        value = tf.constant(moving.value, tf.float64)
    read_now = functools.partial(number_of, moving)

    def make() -> Tensor:
        refuse_backward(graph, moving.where())
        return graph.capture_call_time_value(
            read_now, tf.TensorSpec([], tf.float64), key=(GUARD, moving.serial), default_value=value
        )

    return of_first_run((GUARD, moving.serial), make)


def number_of(moving: Moving) -> Tensor:
    """Return the number's value at a call; a call in another graph gets a tensor of that graph."""
    tensor = follow(moving)
    if tensor is not None:
        return tensor
    _, rerun, _ = regions_around()
    numbers = {} if rerun is None else rerun.noted.numbers
    return tf.constant(numbers.get(moving.serial, moving.value), tf.float64)


def find_checks() -> Iterator[tuple[Any, CheckSpec | None]]:
    """Yield the graphs being traced, inner ones first, each with its check.

    A check is captured at the first request; None: the graph can have none.
    """
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        # Branches and loop bodies are called only by their function, and XLA knows none of their
        # captures.
        if isinstance(graph, ControlFlowFuncGraph):
            yield graph, None
        elif is_backward(graph):  # a call gives captures no value: gradients would be None
            if regions_around()[1] is None:  # no region runs again
                refuse_backward(graph, "a rule or a name")
            yield graph, None  # the graph of the first run has the check
        else:
            if not hasattr(graph, GUARD):
                if not isinstance(graph.outer_graph, FuncGraph) and is_exporting():
                    return
                check, empty = CheckSpec(graph.name), make_nothing()
                setattr(graph, GUARD, check)
                # One key for all graphs: a graph that calls another one then keeps its own check.
                graph.capture_call_time_value(make_nothing, check, key=GUARD, default_value=empty)
            yield graph, getattr(graph, GUARD)
        graph = graph.outer_graph


def is_backward(graph: Any) -> bool:
    return graph.name.startswith("__backward_")


def refuse_backward(graph: Any, what: str) -> None:
    if is_backward(graph):
        raise TraceError(
            f"a gradient function reads {what} while the gradients of a tf.function are traced "
            "outside it, where TensorFlow (2.21) can follow no change: take the gradient inside "
            "the tf.function"
        )


def is_exporting() -> bool:
    """Return whether the outermost graph is traced for a file, and never called."""
    return any(
        frame.f_globals.get("__name__", "").startswith(EXPORTERS)
        for frame, _ in walk_stack(sys._getframe())
    )


@functools.cache
def make_nothing() -> Tensor:
    with tf.init_scope():
        return tf.zeros([0], tf.int32)


class CheckSpec(tf.TensorSpec):
    """The type of a captured value, whose cast is the check: TensorFlow casts at each call.

    A call from another graph being traced casts too: a function may have been traced under another
    rule.

    Attributes:
        function: the graph's name.
        words: the rule in force around the graph, by scope; only scopes that it depends on.
        traced: what layers and names meant in the trace; each knows when it is superseded.
    """

    def __init__(self, name: str) -> None:
        # int32, which a function on DTensors accepts from any device
        super().__init__([0], tf.int32)
        self.function = name
        self.words: dict[str, str] = {}
        self.traced: set[Any] = set()

    def most_specific_common_supertype(self, others: Any) -> Any:
        """Return this spec if all were made under one rule, for `reduce_retracing`."""
        return self if all(other.meaning() == self.meaning() for other in others) else None

    def meaning(self) -> Any:
        return self.words, {each for each in self.traced if isinstance(each, Lookup)}

    def cast(self, value: Any, casting_context: Any) -> Any:
        active = CURRENT.get()
        for scope, word in self.words.items():
            if active.word(scope) != word and not save_context.in_save_context():
                raise StaleTraceError(
                    f"tf.function {self.function!r} was traced under {describe(word)}, now "
                    f"{describe(active.word(scope))} is in force. Compile with xg.jit(fn), which "
                    "retraces, or put `with xg.use(...)` inside the function. In Keras, call "
                    "model.make_train_function(force=True) before fit, or give the rule to the "
                    "layer"
                )
        for each in self.traced:
            if each.superseded:
                raise StaleTraceError(f"tf.function {self.function!r} {explain(each)}")
        if not tf.executing_eagerly() and is_exporting():
            raise TraceError(
                f"a model that is exported without gradients calls tf.function {self.function!r}, "
                "whose check of the rule in force would be an input of the file: call the "
                "function without tf.function, or export a SavedModel"
            )
        if value is make_nothing():
            return value
        return super().cast(value, casting_context)  # pyright: ignore[reportAttributeAccessIssue]

    def to_tensors(self, value: Tensor) -> list[Tensor]:
        # already cast: by default TensorFlow would cast again, and so check twice
        return [value]


def describe(token: str) -> str:
    return f"the rule {token!r}" if token else "no rule"


def explain(holder: Any) -> str:
    if isinstance(holder, NumberRead):
        return (
            f"holds {holder.number!r} for {holder.moving.where()}, where it stands at "
            f"{holder.moving.value!r}: compile with xg.jit(fn)"
        )
    advice = "trace it anew. In Keras, call model.make_train_function(force=True) before fit"
    if isinstance(holder, Lookup):
        return (
            f"was traced before the rule {holder.name!r} was redefined: compile with xg.jit(fn), "
            f"which retraces, or {advice}"
        )
    return f"was traced before a layer in it was given another rule, function or backend: {advice}"


def forget_traces(variables: Iterable[Any]) -> None:
    """Clear the traces of each `tf.function` that reads one of these variables.

    A graph cannot know of rules to come, so older traces are found by the variables that they read.
    """
    names = {each._unique_id for each in variables if isinstance(each, tf.Variable)}
    if not names:
        return
    # no registry knows all functions
    for each in gc.get_objects():
        if type(each) is not Function:
            continue
        with each._lock:
            for config in (each._variable_creation_config, each._no_variable_creation_config):
                cache = None if config is None else config.function_cache
                variable_ids = {
                    getattr(variable, "_unique_id", None)
                    for concrete in (cache.values() if cache else ())
                    for variable in concrete.graph.variables
                }
                if cache and not names.isdisjoint(variable_ids):
                    cache.clear()
