"""The table of TensorFlow functions that have a meaning in ops.

TensorFlow has no protocol for symbolic values, so a rule gets stand-ins for its modules and
functions; other calls come through TensorFlow's own dispatcher, in `traced.py`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor, SymbolicTensor
from tensorflow.python.util import nest

from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, is_symbolic_tensor
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import (
    Calls,
    Classes,
    Dialect,
    Gradients,
    Habits,
    Names,
    OwnTrace,
    Tensors,
    find_dialect,
)
from multigrad.engine.capture.meanings import complexes, control_flow, loops
from multigrad.engine.capture.meanings.creation import TraceBound
from multigrad.engine.capture.meanings.parts import rank
from multigrad.engine.capture.name_tables import AliasesAndMore, common, named
from multigrad.engine.capture.symbols import SymbolicShape
from multigrad.engine.capture.values.attributes import NUMBERS, PRIVATE, refusals
from multigrad.engine.capture.values.methods import identity
from multigrad.engine.capture.values.oracle import StandInCall, TypeOracle, run_each
from multigrad.engine.trace.code_trace import CodeTrace

from .. import importers
from . import arrays, elementwise, gradients, linalg, operations, traced
from .arrays import TENSORFLOW
from .traced import is_symbolic

Handler = Callable[..., Any]


# --- loops and branches that take functions -------------------------------------------------------
# A loop runs in Python while its condition is a known number, as TensorFlow does eagerly; one that
# ends by values becomes a loop of the graph.
def while_loop(
    cond: Handler,
    body: Handler,
    loop_vars: Any,
    back_prop: bool,
    maximum_iterations: Any,
    same_structure: bool = True,
) -> Any:
    """Return the results of a loop, unrolled, or recorded if values end it."""
    if not back_prop:
        raise TypeError("a loop with back_prop=False; use tf.stop_gradient on what it returns")
    most_turns = None if maximum_iterations is None else int(maximum_iterations)
    was_packed = False

    def step(*values: Any) -> Any:
        nonlocal was_packed
        results = body(*values)
        if len(values) == 1 and not isinstance(results, list | tuple):
            # TensorFlow unpacks a single variable unless asked to keep the structure
            was_packed = not same_structure
            results = (results,)
        tf.nest.assert_same_structure([*values], [*results])
        return results

    # the counters of a loop are eager tensors, even while a graph is built around
    with tf.init_scope():
        result = loops.run_loop(loop_vars, cond, step, most_turns)
    return result[0] if was_packed else result


def cond(pred: Any, true_fn: Handler, false_fn: Handler) -> Any:
    """Both ways and a choice, where no fact decides."""
    if not is_symbolic_tensor(pred):
        return true_fn() if pred else false_fn()
    check_without_axes(pred)
    # both ways are recorded, and a choice
    is_true = xp.not_equal(pred, 0)
    return control_flow.branch([is_true, xp.logical_not(is_true)], [true_fn, false_fn])


def old_cond(
    pred: Any, true_fn: Handler, false_fn: Handler, strict: bool, fn1: Any, fn2: Any
) -> Any:
    result = cond(pred, true_fn or fn1, false_fn or fn2)
    # `tf.compat.v1` takes a single result out of its list
    is_single = isinstance(result, list | tuple) and len(result) == 1 and not strict
    return result[0] if is_single else result


def switch_case(branch_index: Any, branch_fns: Any, default: Any) -> Any:
    """Record all ways and a choice by an index; an index out of range takes the last way."""
    functions = branch_fns
    if not isinstance(branch_fns, Mapping) and not callable(branch_fns[0]):
        functions = dict(branch_fns)
    if isinstance(functions, Mapping):
        functions = [functions[i] for i in sorted(functions)]
        if sorted(dict(branch_fns)) != [*range(len(functions))]:
            raise TypeError("branch_fns whose keys are not 0, 1, 2 and so on")
    ways = [*functions, *([] if default is None else [default])]
    if not is_symbolic_tensor(branch_index):
        place = int(branch_index)
        return ways[place if 0 <= place < len(ways) else -1]()
    check_without_axes(branch_index)
    if len(ways) == 1:
        return ways[0]()
    return control_flow.branch(control_flow.guards_of(branch_index, len(ways)), ways)


def scan(fn: Handler, elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    if initializer is not None:
        return _carried(fn, initializer, elems, reverse)[1]
    # without an initial value the first row is it
    first_row, other_rows = _first(elems, reverse)
    rows_after = _carried(fn, first_row, other_rows, reverse)[1]
    return tf.nest.map_structure(
        lambda row, rows: xp.concat([rows, row[None]] if reverse else [row[None], rows], 0),
        first_row,
        rows_after,
    )


def fold(fn: Handler, elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    if initializer is None:
        initializer, elems = _first(elems, reverse)
    return _carried(fn, initializer, elems, reverse)[0]


foldr = functools.partial(fold, reverse=True)


def _carried(fn: Handler, initializer: Any, elems: Any, reverse: bool) -> tuple[Any, Any]:
    def step(carry: Any, row: Any) -> Any:
        result = fn(carry, row)
        return result, result

    return control_flow.scan(step, initializer, elems, reverse=reverse)


def _first(elems: Any, reverse: bool) -> tuple[Any, Any]:
    place, remaining = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    parts = [tf.nest.map_structure(lambda x, i=i: x[i], elems) for i in (place, remaining)]
    return parts[0], parts[1]


def check_without_axes(value: Value) -> None:
    if rank(value):
        raise TypeError("a branch by a tensor with axes; use tf.where(condition, x, y)")


# --- the replica context of `tf.distribute` -------------------------------------------------------
SUM = tf.distribute.ReduceOp.SUM
ADVICE = (
    "Replicas tell each other all_reduce('SUM', x), all_reduce('MEAN', x), all_gather(x, axis), "
    "xg.xp.all_max(x)"
)


class ReplicaContext:
    """A stand-in for the replica context: its exchanges, as ops over shards."""

    def __init__(self, trace: CodeTrace) -> None:
        self._trace = trace

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sums or the means over all replicas, in the structure of `value`."""
        self._refuse_options("all_reduce", options)
        kind = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op.value
        is_sum = tf.distribute.ReduceOp(kind) is SUM

        def reduce(x: Value) -> Value:
            self._refuse_constant("all_reduce", x)
            total = xp.all_sum(x)
            return total if is_sum else total / xp.all_sum(xp.ones_like(xp.sum(x)), of=x)

        return optree.tree_map(reduce, value)  # pyright: ignore[reportArgumentType]

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return the values of all replicas joined along an axis, in the structure of `value`."""
        self._refuse_options("all_gather", options)

        def gather(x: Value) -> Value:
            self._refuse_constant("all_gather", x)
            return xp.all_gather(x, axis=axis)

        return optree.tree_map(gather, value)  # pyright: ignore[reportArgumentType]

    def _refuse_options(self, name: str, options: Any) -> None:
        if options is not None:
            raise self._trace.error(f"gives {name} options: leave them to the strategy")

    def _refuse_constant(self, name: str, x: Any) -> None:
        if not isinstance(x, Value):
            raise self._trace.error(f"calls {name} of {x!r:.60}, on which no input has a bearing")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._trace.error(f"asks the replica context for {name}, which has no op. {ADVICE}")


def accept(function: Handler, handler: Handler) -> Handler:
    """Return a handler that gets shapes as numbers, unless it accepts open shapes."""
    if getattr(handler, "meaning", None) in arrays.TAKES_SHAPES:
        return handler

    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(v, SymbolicShape) for v in (*args, *kwargs.values())):
            args = tuple(map(fixed, args))
            kwargs = {word: fixed(value) for word, value in kwargs.items()}
            if not any(map(is_symbolic, (*args, *kwargs.values()))):
                return function(*args, **kwargs)
        return handler(*args, **kwargs)

    return call


def fixed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, SymbolicShape) else value


def set_shape(x: Value, shape: Any) -> None:
    """Do nothing: a rule works for every shape."""


def undecorated(func: Handler | None = None, *args: Any, **options: Any) -> Any:
    return undecorated if func is None else func


def camel_case(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))


# Names of TensorFlow's own for ops.
NAMES = """
    add: raw.AddV2; mul: scalar_mul; div: realdiv raw.Div raw.RealDiv; round: round raw.Round;
    remainder: raw.FloorMod; fmod: truncatemod raw.Mod raw.TruncateMod; nextafter: raw.NextAfter;
    log_sigmoid: math.log_sigmoid
"""
IN_ORDER: dict[Any, Handler] = {
    **common(tf, tf.math, tf.math.special, tf.nn, tf.bitwise),
    **common(tf.raw_ops, spell=camel_case),
    **named(NAMES, tf, raw=tf.raw_ops),
    **operations.ALIASES,
    **{getattr(tf.signal, kind): row for kind, row in complexes.TRANSFORMS_2D.items()},
    tf.as_dtype: identity,
    tf.complex: complexes.Complex,
}
# Options that change no result.
OF_LOOPS = "parallel_iterations=, shape_invariants=, swap_memory="
HANDLERS: dict[Any, Handler] = {
    **{function: TENSORFLOW.bound(function, each) for function, each in IN_ORDER.items()},
    **elementwise.ALIASES,
    **arrays.ALIASES,
    **linalg.ALIASES,
    **TENSORFLOW.called(
        {
            # The loop of `tf.compat.v1` returns a single variable unpacked.
            __name__: f"""
                while_loop: while_loop({OF_LOOPS})
                compat.v1.while_loop({OF_LOOPS}, return_same_structure=same_structure);
                cond; switch_case; old_cond: compat.v1.cond; scan; fold: foldl; foldr
            """,
            control_flow: "map_rows: map_fn(dtype=, fn_output_signature=)",
            gradients: "gradients",
        }
    ),
}
# The private module's functions: TensorFlow Probability uses more than tf.nest has.
STRUCTURES = [each for each in vars(nest).values() if isinstance(each, FunctionType)]
ALIASES = {function: accept(function, handler) for function, handler in HANDLERS.items()}

BRANCHES = "which branches on a tensor. Use tf.where(condition, x, y)"
LOOPS = "which runs a function in a loop of TensorFlow's. Write it with functions of whole tensors"
PYTHON = "which hides what it computes. Call the function itself"
DIFFERENTIATES = "but a rule is the backward pass. Write the derivative out"
SEEDED = (
    "but the draws of a rule follow the key of xg.use(..., key=...). "
    "Use tf.random.normal(tf.shape(grad_out))"
)
CHECKS = "which looks at the values of a tensor. Check them outside the rule"
ASSERTIONS = [getattr(tf.debugging, n) for n in dir(tf.debugging) if n.startswith("assert_")]
STRATEGIES = (
    tf.distribute.get_strategy,
    tf.distribute.has_strategy,
    tf.distribute.in_cross_replica_context,
)
REFUSED: dict[Any, str] = {
    tf.case: BRANCHES,
    tf.vectorized_map: LOOPS,
    **dict.fromkeys((tf.numpy_function, tf.py_function), PYTHON),
    tf.hessians: DIFFERENTIATES,
    **dict.fromkeys(
        (
            tf.random.stateless_normal,
            tf.random.stateless_truncated_normal,
            tf.random.stateless_uniform,
        ),
        SEEDED,
    ),
    **dict.fromkeys((tf.Assert, tf.debugging.check_numerics, *ASSERTIONS), CHECKS),
    **dict.fromkeys(STRATEGIES, f"whose answer is another one outside the strategy. {ADVICE}"),
    tf.boolean_mask: "whose result has a length that nobody knows. Use tf.where(mask, tensor, 0.0)",
}

# Attributes of `tf.Tensor` that no symbol answers, and why.
GRAPHS = "which is of TensorFlow's own graphs"
UNANSWERED = {
    PRIVATE: "_* OVERLOADABLE_OPERATORS __div__ __rdiv__ __nonzero__ __tf_tracing_type__",
    GRAPHS: "consumers eval experimental_ref graph name op ref value_index",
    NUMBERS: "cpu gpu numpy",
}

PAIRED = type(tf.custom_gradient(identity))
# Ops whose float64 kernels use constants or series in float32.
SINGLE = 2.0**-23
SINGLE_INSIDE = (
    "celu", "digamma", "elu", "erf", "erfc", "gelu", "hard_sigmoid", "hard_silu", "i0e", "i1e",
    "leaky_relu", "lgamma", "log_ndtr", "ndtr", "ndtri", "polygamma", "selu",
)  # fmt: skip


def of_keras(function: Any) -> Handler:
    """Return the handler of a function of Keras, as in `tf.keras.losses`, if Keras is imported."""
    keras = find_dialect("keras")
    if keras is None:
        raise KeyError(function)
    return keras.names.aliases[function]


def stand_in_tensor(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return tf.cast(tf.fill(shape, number), dtype)


def run_untraced(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    """Run calls now, outside graphs and tapes."""
    names = [getattr(call.function, "__name__", "") for call in calls]
    traced_calls = [c for c in calls if c.function not in ALIASES and find_traced(c.function)]
    # Only recorded in a graph: kernels of convolutions and Fourier transforms end the process where
    # ranks or lengths do not fit (2.21), and a function without a handler may have an effect.
    if traced_calls or any("conv" in name or "fft" in name for name in names):
        with tf.Graph().as_default():
            return run_each(calls, stand_in_tensor)
    with tf.init_scope():
        return run_each(calls, stand_in_tensor)


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name, False) if isinstance(x, tf.Tensor | tf.Variable) else None


# The dtype of a call is found by the call itself, on tensors of one element.
TYPES = TypeOracle(stand_in_tensor, run_untraced, dtype_of_leaf, lambda: None, promotes=False)


def find_operation(kind: str) -> Handler | None:
    return operations.find_operation(kind, ALIASES)


def find_traced(function: Any) -> Handler | None:
    module = getattr(function, "__module__", None) or ""
    is_own = isinstance(function, FunctionType) and module.startswith("tensorflow.")
    return own_trace(function) if is_own else None


def own_trace(function: Handler) -> Handler:
    return OwnTrace(traced.record, function, find_operation)


DIALECT = Dialect(
    names=Names(
        aliases=AliasesAndMore(ALIASES, "keras", of_keras),
        methods={"get_shape": operator.attrgetter("shape"), "set_shape": set_shape},
        # These act without symbolic arguments too: on a shape, a dtype, a function.
        hidden={
            tf.zeros: ALIASES[tf.zeros],
            tf.ones: ALIASES[tf.ones],
            tf.function: undecorated,
            tf.recompute_grad: undecorated,
            tf.GradientTape: gradients.Tape,
            # it has no tensor arguments
            tf.distribute.get_replica_context: TraceBound(ReplicaContext),
        },
        refused=REFUSED,
        shown="tf",
        trees=frozenset(STRUCTURES),
    ),
    tensors=Tensors(
        tensor=tf.Tensor,
        dtype=tf.as_dtype,
        device="/device:CPU:0",
        mutable=False,
        shape_class=tf.TensorShape,
    ),
    classes=Classes(
        classes=(EagerTensor, SymbolicTensor),
        refusals=refusals(UNANSWERED),
    ),
    calls=Calls(
        protocol=False,
        at_once=tf.init_scope,
        finds=find_traced,
        other_way=find_traced,
        own_trace=own_trace,
    ),
    gradients=Gradients(
        wrappers={type(tf.function(identity)): "python_function", PAIRED: "_f"},
        paired=(PAIRED,),
        own_gradients={PAIRED: importers.with_own_gradient},
        interceptions=importers.INTERCEPTIONS,
        passes=gradients.watching_variables,
    ),
    types=TYPES,
    # Its erfinv is off by up to 82,137 ulp of float32 (2.21).
    habits=Habits(
        lists_are_tensors=True,
        inexact={**dict.fromkeys(SINGLE_INSIDE, SINGLE), "erfinv": 82_137 * SINGLE, "expm": 1e-8},
        whole="int32",
        overwritten_too=True,
    ),
)
traced.Dispatcher(ALIASES).register()
