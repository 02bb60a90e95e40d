"""Loops over the first axis as one op with a derivative (`xp.scan`, `xp.fori_loop`), and branches
on values: `xp.cond`, and `cond`, `switch` and `case` of the libraries.

Every alternative is recorded, and `where` chooses one result by its guard, a bool without axes:

    cond(x > 0, log, neg)      guards: [x > 0, not (x > 0)]
                               where(x > 0, log(guarded(x)), neg(guarded(x)))

An alternative that is not taken may give NaN or inf, which times zero is NaN. So the values that it
reads pass no cotangent there, as in JAX's vmapped branches
(jax/_src/lax/control_flow/conditionals.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.discovery import backend_among
from ....core.ir.graph import Graph, Node, Region, dependents, walk
from ....core.ir.op import (
    FLOATS,
    INPUT_SHAPE,
    INT32,
    SCALAR_SHAPE,
    UNKNOWN,
    T,
    Type,
    dtype_name,
    is_float,
)
from ....core.ops.numerics import as_numpy_dtype
from ....core.passes.simplify import substitute
from ....core.support.trees import optree
from ....core.trace.trace import NeedsConcrete, Value, cast, known_shape, lift, one_axis
from ....core.trace.xp import all as xp
from ....errors import UnsupportedOp
from ...trace.code_trace import CodeTrace, ask_for
from ...trace.derived.scans import loop_values
from .loops import (
    CarriedNumbers,
    as_tensor,
    carried_symbols,
    check_types_kept,
    count_effects,
    find_constants,
    find_trace,
    guess_dtype,
    make_inputs,
    make_region,
    run_loop,
    widen_until_kept,
    without_lengths,
)
from .parts import shape_of

Tensors = Sequence[Value]
# (carry, rows) -> the next carry, and what the turn gives.
Turn = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    keep_every: int | None = None,
) -> tuple[Any, Any]:
    """A loop over the first axis of tensors, as `jax.lax.scan` is: `carry, y = f(carry, x)` for
    each row x.

    It is one op, whose derivative is a loop the other way; what a step keeps for it is chosen by a
    minimum cut. In compiled code it is the framework's own loop.

    Examples:
        >>> xp.scan(lambda total, x: (total + x, total * x), 0.0, np.array([1.0, 2.0, 3.0]))
        (array(6.), array([0., 2., 9.]))

    Args:
        f: takes the carry and a row, and returns the next carry, of the same structure, dtypes and
            shapes, and what it gives, in any structure (None: nothing). It cannot draw.
        init: the carry at the beginning: tensors and numbers in any structure.
        xs: tensors in any structure, of one length in their first axis; None: f gets None.
        length: how many steps there are, where xs is None; with xs it must be their length.
        reverse: from the last row to the first; what is given stays in the order of the rows.
        keep_every: keep for backward the carry before every so many steps and nothing else, and
            take the steps anew from there: less memory for one forward more. None: what each step
            keeps is chosen by a minimum cut. It changes no number; outside a capture it has no
            effect.

    Returns:
        The carry after the last step, and what the steps gave, each stacked along a new first axis.

    Raises:
        TypeError: a step changes what it carries, or there is neither xs nor a length.
        ValueError: keep_every is below 1.
    """
    if keep_every is not None and index(keep_every) < 1:
        raise ValueError(f"scan keeps the carry every 1 step or more, not every {keep_every}")
    leaves, tree = optree.tree_flatten(init, none_is_leaf=False)
    rows, row_tree = optree.tree_flatten(xs, none_is_leaf=False)
    if not rows:
        if length is None:
            raise TypeError("scan takes tensors, or the number of steps: scan(f, init, length=10)")
        rows = [np.arange(length, dtype=np.int32)]
        step, f = f, lambda carry, _: step(carry, None)
        row_tree = optree.tree_structure(0)
    elif length is not None:
        shape = known_shape(rows[0]) if isinstance(rows[0], Value) else np.shape(rows[0])
        if shape and shape[0] != length:
            raise TypeError(f"scan takes length={length}, and rows of {shape[0]} steps")
    trace = find_trace((leaves, rows))
    output_trees: list[Any] = []

    def turn(carried: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        result = f(optree.tree_unflatten(tree, carried), optree.tree_unflatten(row_tree, row))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"a step of scan returns the carry and a result, not {result!r:.60}")
        leaves_after, tree_after = optree.tree_flatten(result[0], none_is_leaf=False)
        if tree_after != tree:
            raise TypeError(f"a loop that carries {tree}, and {tree_after} after a turn")
        outputs, output_tree = optree.tree_flatten(result[1], none_is_leaf=False)
        output_trees[:] = [output_tree]
        return leaves_after, outputs

    if trace is None:
        results = _scan_arrays(leaves, rows, turn, reverse)
    else:
        values = [x if isinstance(x, Value) else trace.value(lift(trace, x)) for x in rows]
        results = record_turns(
            trace, leaves, values, turn=turn, reverse=reverse, keep_every=keep_every
        )
    count = len(leaves)
    carry = optree.tree_unflatten(tree, results[:count])
    return carry, optree.tree_unflatten(output_trees[-1], results[count:])


def map_rows(f: Callable[[Any], Any], xs: Any) -> Any:
    return scan(lambda _, row: (None, f(row)), None, xs)[1]


def _scan_arrays(
    leaves: Sequence[Any], rows: Sequence[Any], turn: Callable[..., Any], reverse: bool
) -> Sequence[Any]:
    # By the backend's own loop; a Python float takes the first float dtype among the tensors.
    inputs = [*leaves, *rows]
    tensors = [x for x in inputs if not isinstance(x, bool | int | float | np.ndarray)]
    backend = backend_among(tensors or inputs)
    dtypes = [dtype_name(x.dtype) for x in (*tensors, *inputs) if hasattr(x, "dtype")]
    float_dtype = next((name for name in dtypes if name in FLOATS), "float32")
    run = backend.kernels.scan
    if run is None:
        raise UnsupportedOp(f"scan is not available on {backend.name}: it has no row for it")

    def converted(x: Any) -> Any:
        if isinstance(x, float) or (isinstance(x, int) and not isinstance(x, bool)):
            x = np.asarray(x, as_numpy_dtype(float_dtype if isinstance(x, float) else INT32))
        is_own = not isinstance(x, bool | np.ndarray) or backend.name == "numpy"
        return x if is_own else backend.tensors.from_numpy(np.asarray(x))

    def step(*values: Any) -> tuple[Any, ...]:
        carry, outputs = turn(values[: len(leaves)], values[len(leaves) :])
        return (*map(converted, carry), *map(converted, outputs))

    return run(tuple(map(converted, leaves)), tuple(map(converted, rows)), (), step, reverse)


def fori_loop(lower: int, upper: int, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """A loop that counts, as `jax.lax.fori_loop` is: `carry = body(i, carry)` for i from lower to
    upper. Where the bounds are numbers, it has a derivative: it is a `scan`.

    Examples:
        >>> xp.fori_loop(1, 4, lambda i, total: total * i, np.array([1.0, 0.5]))
        array([6., 3.])

    Args:
        lower: the first number.
        upper: the one after the last.
        body: takes a number as an integer tensor and the carry, and returns the next carry, of the
            same structure, dtypes and shapes.
        init: the carry at the beginning: tensors and numbers in any structure.

    Raises:
        TypeError: a step changes what it carries.
    """
    if isinstance(lower, Value) or isinstance(upper, Value):
        return run_loop(
            [lower, init], lambda i, _: i < upper, lambda i, carry: [i + 1, body(i, carry)]
        )[1]
    if upper <= lower:
        return init
    counts = np.arange(lower, upper, dtype=np.int32)
    return scan(lambda carry, i: (body(i, carry), None), init, counts)[0]


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All partial results of a binary operation that is associative, as
    `jax.lax.associative_scan` is: about 2 log2(n) calls of fn on whole tensors, not n of them one
    after the other.

    Examples:
        >>> xp.associative_scan(lambda a, b: a * b, np.array([1.0, 2.0, 3.0, 4.0]))
        array([ 1.,  2.,  6., 24.])

    Args:
        fn: takes two structures like elems, of any one length along the axis, the earlier first,
            and combines them element by element. That it is associative is not checked.
        elems: tensors in any structure, of one length along the axis.
        reverse: combine from the end; fn takes the later one first.
        axis: the axis along which there are elements.

    Returns:
        In the structure of elems, the results for the first element, the first two, and so on.

    Raises:
        TypeError: fn gives another structure, or the lengths differ.
    """
    leaves, tree = optree.tree_flatten(elems, none_is_leaf=False)
    if not leaves:
        raise TypeError("associative_scan takes tensors")
    values = [x for x in leaves if isinstance(x, Value)]
    ask_for("shape", values)
    axes = [one_axis(x, axis) % len(x.shape) for x in leaves]
    lengths = {x.shape[i] for x, i in zip(leaves, axes, strict=True)}
    if len(lengths) > 1:
        raise TypeError(f"associative_scan takes tensors of one length, not of {sorted(lengths)}")

    def part(of: Sequence[Any], *bounds: int | None) -> list[Any]:
        stretch = slice(*bounds)
        return [x[(*(slice(None),) * i, stretch)] for x, i in zip(of, axes, strict=True)]

    def both(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        structures = [optree.tree_unflatten(tree, each) for each in (a, b)]
        combined, combined_tree = optree.tree_flatten(fn(*structures), none_is_leaf=False)
        if combined_tree != tree:
            raise TypeError(f"an operation on {tree} that gives {combined_tree}")
        return combined

    def joined(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return [xp.concat(pair, axis=i) for *pair, i in zip(a, b, axes, strict=True)]

    def woven(a: Sequence[Any], b: Sequence[Any], length: int) -> list[Any]:
        """Interleave two sequences of elements, beginning with a."""
        half = length // 2
        pairs = [
            xp.reshape(xp.stack([x, y], axis=i + 1), (*x.shape[:i], 2 * half, *x.shape[i + 1 :]))
            for x, y, i in zip(part(a, 0, half), b, axes, strict=True)
        ]
        return joined(pairs, part(a, half, None)) if length % 2 else pairs

    def partial(of: Sequence[Any], length: int) -> list[Any]:
        # Combine neighbors, solve the half-sized problem, and fill in the even places from it.
        if length < 2:
            return list(of)
        odd = partial(both(part(of, 0, length - 1, 2), part(of, 1, None, 2)), length // 2)
        even = part(of, 0, 1)
        if length > 2:
            prefixes = odd if length % 2 else part(odd, 0, length // 2 - 1)
            even = joined(even, both(prefixes, part(of, 2, None, 2)))
        return woven(even, odd, length)

    def turned(of: Sequence[Any]) -> list[Any]:
        return [xp.flip(x, axis=i) for x, i in zip(of, axes, strict=True)] if reverse else list(of)

    return optree.tree_unflatten(tree, turned(partial(turned(leaves), *lengths)))


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where a bool holds, else `false_fun(*operands)`, as `jax.lax.cond` is.

    Where it is a tensor, both are computed and one is chosen; the other lets no cotangent through.

    Examples:
        >>> xp.cond(np.array(True), lambda x: 2 * x, lambda x: -x, np.array([1.0, 2.0]))
        array([2., 4.])

    Args:
        pred: a bool, or a tensor of one without axes.
        true_fun: takes the operands.
        false_fun: takes the operands, and returns what is nested like the other's result, of the
            same dtypes and shapes.
        operands: tensors and numbers in any structure.

    Raises:
        TypeError: the two give other structures, dtypes or shapes.
    """
    if not isinstance(pred, Value):
        return (true_fun if bool(pred) else false_fun)(*operands)
    is_true = xp.not_equal(pred, 0)
    alternatives = [lambda: true_fun(*operands), lambda: false_fun(*operands)]
    return branch([is_true, xp.logical_not(is_true)], alternatives)


# --- recording ------------------------------------------------------------------------------------
def record_turns(
    trace: CodeTrace,
    leaves: Sequence[Any],
    rows: Tensors,
    turn: Callable[..., Any],
    reverse: bool,
    keep_every: int | None = None,
) -> list[Value]:
    """Record a scan as `record_scan` does; a carried number becomes a tensor of the dtype that it
    has after a turn.
    """
    numbers = CarriedNumbers(trace, leaves)

    def typed(carried: Tensors, row: Tensors) -> tuple[list[Value], list[Value]]:
        carry_after, outputs = turn(carried, row)
        return (
            [
                _in_own_words(trace, x, dtype)
                for x, dtype in zip(numbers.after_turn(carry_after), numbers.dtypes, strict=True)
            ],
            [as_tensor(trace, x, guess_dtype(trace, x)) for x in outputs],
        )

    return numbers.record(
        lambda initial: record_scan(trace, initial, rows, typed, reverse, keep_every=keep_every)
    )


def _in_own_words(trace: CodeTrace, value: Value, dtype: str) -> Value:
    # `T`, the input's dtype, and its name are equal only once the dtype is a fact.
    own_dtype = value.node.type.dtype
    if own_dtype == dtype or T not in (own_dtype, dtype):
        return value
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return cast(value, dtype) if trace.facts["dtype"] in (own_dtype, dtype) else value


def record_scan(
    trace: CodeTrace,
    initial: Tensors,
    rows: Tensors,
    turn: Turn,
    reverse: bool = False,
    keep_every: int | None = None,
) -> list[Value]:
    """Record a scan and return its final carry and the stacked results of its turns.

    Args:
        rows: the tensors whose rows the turns take, at least one.
        keep_every: keep the carry before every so many turns, and nothing else.

    Raises:
        TypeError: a turn changes a dtype or a shape, makes an assertion or draws random numbers.
    """
    shapes = [shape for shape in map(known_shape, rows) if shape is not None]
    if len({shape[:1] for shape in shapes}) > 1 or () in shapes:
        listing = ", ".join(map(str, shapes))
        raise TypeError(f"scan takes tensors of one length in their first axis, not of {listing}")
    if keep_every is not None and keep_every > 1:
        return _record_blocks(trace, initial, rows, turn, reverse, size=keep_every)
    types = [without_lengths(value.node.type) for value in initial]
    row_types = [Type("tensor", value.node.type.dtype, UNKNOWN) for value in rows]
    effects_before = count_effects(trace)
    inputs = [*initial, *rows]
    with carried_symbols(trace, inputs, [*types, *row_types], rows=len(rows)) as symbols:
        carry_after, results = turn(symbols[: len(initial)], symbols[len(initial) :])
    if count_effects(trace) != effects_before:
        raise TypeError("a loop that asserts something or draws in a turn")
    check_types_kept(types, carry_after)
    nodes = [value.node for value in symbols]
    outputs = [value.node for value in (*carry_after, *results)]
    constants = find_constants(trace, nodes, outputs)
    operands = [*(value.node for value in inputs), *constants]
    count = len(types)
    names = [f"carry_{i}" if i < count else f"row_{i - count}" for i in range(len(nodes))]

    def make_bodies(types: Sequence[Type]) -> list[Region]:
        triples = zip(names, nodes, [*types, *row_types], strict=True)
        return [make_region("body", make_inputs([*triples], constants), outputs, trace)]

    (body,), types = widen_until_kept(types, make_bodies)
    # `recompute` makes everything but the carry too costly for the cut of the backward.
    attrs = {"body": body, "carried": len(types), "rows": len(rows), "reverse": reverse}
    attrs |= {"recompute": keep_every is not None}
    return loop_values(trace, ops.SCAN, operands, attrs)


def _record_blocks(
    trace: CodeTrace, initial: Tensors, rows: Tensors, turn: Turn, reverse: bool, size: int
) -> list[Value]:
    # An outer scan over blocks keeps its carry; an inner one recomputes the turns of a block. The
    # rest of a length that is no multiple of `size` is one shorter block at the end.
    carry_count = len(initial)
    ask_for("shape", (*initial, *rows))
    whole_rows: list[Any] = [*rows]
    length = whole_rows[0].shape[0]
    whole_length = length - length % size
    bounds = [(0, whole_length, size), (whole_length, length, length - whole_length)]
    state, parts = list(initial), list[list[Any]]()

    def block(carried: Tensors, blocks: Tensors) -> tuple[Tensors, Tensors]:
        results = record_scan(trace, carried, blocks, turn, reverse)
        return results[:carry_count], results[carry_count:]

    for start, end, step in reversed(bounds) if reverse else bounds:
        # An empty block is left out, but a scan of no rows keeps one so that results have their
        # types.
        if start == end and (parts or start == 0 < length):
            continue
        rows_of_blocks = [
            xp.reshape(x[start:end], ((end - start) // max(step, 1), step, *x.shape[1:]))
            for x in whole_rows
        ]
        results = record_scan(trace, state, rows_of_blocks, block, reverse, keep_every=1)
        state = results[:carry_count]
        stacked: list[Any] = results[carry_count:]
        parts.append([xp.reshape(y, (end - start, *y.shape[2:])) for y in stacked])
    columns = [[*column] for column in zip(*(parts[::-1] if reverse else parts), strict=True)]
    return [*state, *(xp.concat(column) if len(column) > 1 else column[0] for column in columns)]


# --- branches -------------------------------------------------------------------------------------
def guards_of(which: Value, count: int) -> list[Any]:
    """Return a guard for each alternative of a choice by number, from 0; the last takes all other
    numbers.
    """
    guards = [xp.equal(which, i) for i in range(count - 1)]
    return [*guards, xp.logical_not(functools.reduce(xp.logical_or, guards))]


def guarded(value: Value, taken: Any) -> Value:
    """Return a value whose cotangent is zero, never NaN, where its alternative is not taken."""
    return xp.where(taken, value, xp.stop_gradient(value))


def branch(guards: Sequence[Value], alternatives: Sequence[Callable[[], Any]]) -> Any:
    """Return the result of the alternative whose guard is true; a guard is a bool without axes.

    Raises:
        TypeError: the results differ in structure, shape or dtype, or an alternative asserts or
        draws.
    """
    trace = guards[0].trace
    results = [_record(trace, *each) for each in zip(guards, alternatives, strict=True)]
    # From the last alternative backwards, each guard chooses between its result and the rest.
    result, tree = results[-1]
    for guard, (leaves, structure) in zip(guards[-2::-1], results[-2::-1], strict=True):
        if structure != tree:
            raise TypeError(f"its branches return {structure} and {tree}; give them one structure")
        result = [choose(guard, a, b) for a, b in zip(leaves, result, strict=True)]
    return optree.tree_unflatten(tree, result)


def choose(taken: Any, a: Any, b: Any) -> Any:
    """Return one of two values; TypeError if they differ in shape or dtype."""
    nodes = [x.node for x in (a, b) if isinstance(x, Value)]
    if a is b or (len(nodes) == 2 and nodes[0] is nodes[1]):
        return a
    types = [node.type for node in nodes if node.type.kind == "tensor"]
    shapes = {type_.shape for type_ in types}
    if len(types) < 2 or len(shapes) > 1 or not shapes <= {INPUT_SHAPE, SCALAR_SHAPE}:
        lengths = shape_of(a), shape_of(b)
        if lengths[0] != lengths[1]:
            raise TypeError(f"its branches return the shapes {lengths[0]} and {lengths[1]}")
    dtypes = [getattr(x, "dtype", None) for x in (a, b)]
    names = {dtype_name(dtype) for dtype in dtypes if dtype is not None}
    kinds = {type(x) for x, dtype in zip((a, b), dtypes, strict=True) if dtype is None}
    if len(names) > 1 or len(kinds) > 1:
        raise TypeError(f"its branches return the dtypes {' and '.join(sorted(names))}")
    return xp.where(taken, a, b)


def _record(
    trace: CodeTrace, guard: Value, alternative: Callable[[], Any]
) -> tuple[list[Any], Any]:
    """Record an alternative and return the leaves of its result, and their structure.

    What it reads from around it is guarded afterwards.
    """
    nodes_before = set(trace.source.locations)
    effects_before = count_effects(trace)
    result = alternative()
    if count_effects(trace) != effects_before:
        raise TypeError("a branch that asserts something or draws, which only its own turn may do")
    leaves, tree = optree.tree_flatten(result, none_is_leaf=True)
    outputs = tuple(leaf.node for leaf in leaves if isinstance(leaf, Value))
    # All nodes recorded in between belong to the alternative.
    guarded_reads = {
        node: guarded(trace.value(node), guard).node
        for node in _reads(outputs, trace.source.locations.keys() - nodes_before)
    }
    graph = Graph(trace.name, (), outputs, trace.source.locations)
    graph = substitute(graph, guarded_reads)
    for node, where in graph.locations.items():
        trace.source.locations.setdefault(node, where)
    nodes = iter(graph.outputs)
    return [trace.value(next(nodes)) if isinstance(x, Value) else x for x in leaves], tree


def _reads(outputs: Iterable[Node], recorded: set[Node]) -> list[Node]:
    # The float tensors that the nodes of an alternative read from around it; constants need no
    # guard.
    nodes = walk(outputs)
    own_nodes = dependents(nodes, recorded)
    operands = [operand for node in nodes if node in own_nodes for operand in node.operands]
    return [
        node
        for node in dict.fromkeys(operands)
        if node not in own_nodes
        and node.type.kind == "tensor"
        and is_float(node.type)
        and node.op not in (ops.CONST, ops.ARRAY)
    ]
