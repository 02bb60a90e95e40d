"""TensorFlow's loops and branches that take functions, in ops; see `table.py`.

A loop runs in Python while its condition is a known number, as TensorFlow does eagerly; one that
ends by values becomes a loop of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from multigrad.capture.control import control, scans
from multigrad.capture.meanings.parts import rank
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

from .families.shapes import TENSORFLOW

Tensor = Any
Handler = Callable[..., Any]


def while_loop(
    cond: Handler,
    body: Handler,
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: Any = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: Any = None,
    same_structure: bool = True,
) -> Any:
    """Return the results of a loop, unrolled, or recorded if values end it.

    Raises:
        TypeError: it stops gradients, or a turn changes the structure that it carries.
    """
    if not back_prop:
        raise TypeError("a loop with back_prop=False; use tf.stop_gradient on what it returns")
    most = None if maximum_iterations is None else int(maximum_iterations)
    was_packed = False

    def step(*values: Any) -> Any:
        nonlocal was_packed
        found = body(*values)
        if len(values) == 1 and not isinstance(found, list | tuple):
            # TensorFlow unpacks a single variable unless asked to keep the structure
            was_packed = not same_structure
            found = (found,)
        tf.nest.assert_same_structure([*values], [*found])
        return found

    # the counters of a loop are eager tensors, even while a graph is built around
    with tf.init_scope():
        result = control.turns(loop_vars, cond, step, most)
    return result[0] if was_packed else result


def cond(pred: Any, true_fn: Handler, false_fn: Handler) -> Any:
    """Both ways and a choice, where no fact decides."""
    if not is_tensor(pred):
        return true_fn() if pred else false_fn()
    check_without_axes(pred)
    # both ways are recorded, and a choice
    taken = xp.not_equal(pred, 0)
    return control.branch([taken, xp.logical_not(taken)], [true_fn, false_fn])


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
    if not is_tensor(branch_index):
        at = int(branch_index)
        return ways[at if 0 <= at < len(ways) else -1]()
    check_without_axes(branch_index)
    if len(ways) == 1:
        return ways[0]()
    return control.branch(control.guards_of(branch_index, len(ways)), ways)


# --- over the first axis --------------------------------------------------------------------------
def scan(fn: Handler, elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    if initializer is not None:
        return _carried(fn, initializer, elems, reverse)[1]
    # without an initial value the first row is it
    first, others = _first(elems, reverse)
    given = _carried(fn, first, others, reverse)[1]
    return tf.nest.map_structure(
        lambda row, rows: xp.concat([rows, row[None]] if reverse else [row[None], rows], 0),
        first,
        given,
    )


def fold(fn: Handler, elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    if initializer is None:
        initializer, elems = _first(elems, reverse)
    return _carried(fn, initializer, elems, reverse)[0]


def foldr(fn: Handler, elems: Any, initializer: Any = None) -> Any:
    return fold(fn, elems, initializer, reverse=True)


def _carried(fn: Handler, initializer: Any, elems: Any, reverse: bool) -> tuple[Any, Any]:
    def step(carry: Any, row: Any) -> Any:
        after = fn(carry, row)
        return after, after

    return scans.scan(step, initializer, elems, reverse=reverse)


def _first(elems: Any, reverse: bool) -> tuple[Any, Any]:
    at, others = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    parts = [tf.nest.map_structure(lambda x, i=i: x[i], elems) for i in (at, others)]
    return parts[0], parts[1]


def is_tensor(value: Any) -> bool:
    return isinstance(value, Value) and value.node.type.kind == "tensor"


def check_without_axes(value: Value) -> None:
    if rank(value):
        raise TypeError("a branch by a tensor with axes; use tf.where(condition, x, y)")


# The loop of `tf.compat.v1` returns a single variable unpacked.
OLD_LOOP = "while_loop: compat.v1.while_loop(return_same_structure=same_structure)"
# The options name dtypes that the results have here anyway.
MAPS = "map_rows: map_fn(dtype=, fn_output_signature=)"
NAMED = TENSORFLOW.called({__name__: f"{OLD_LOOP}; scan; fold: foldl; foldr", scans: MAPS})
ALIASES: dict[Any, Handler] = TENSORFLOW.taking_the_same(
    {__name__: "while_loop; cond; switch_case; old_cond: compat.v1.cond"}
)
