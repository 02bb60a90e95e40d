"""The meaning in ops of primitives that hold jaxprs: branches, loops, linear solves.

| primitive | recorded as |
|---|---|
| `cond` | all branches, and a choice among their results by the value of the index |
| `scan` | one op, or its turns one after the other if they are few, or no op takes them |
| `while` | its turns as long as the condition is known, else one op |
| `custom_linear_solve` | the solver's steps |

`CONTROL` has a function for each. It gets `run`, which records an inner jaxpr: `traced.py` passes
it in, as that module imports this one. `Unknown` means that the import is refused. Tests:
`tests/capture/control/test_jaxprs_read.py`, `test_loops_by_values.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, walk
from multigrad.core.ir.op import DTYPES, INT64, T, is_float
from multigrad.core.passes.simplify import rebuild
from multigrad.core.trace.trace import cast, lift
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings.control_flow import guarded as guarded_tensor
from multigrad.engine.capture.meanings.control_flow import guards_of, record_scan
from multigrad.engine.capture.meanings.loops import MOST_OPERATIONS, filled, record_loop

from ..jaxprs import inner_jaxprs, open_jaxpr, scan_parts, while_parts
from .equations import ImportScope, Operand, Unknown, integers
from .primitives import repeated

MOST_UNROLLED = 64  # operations of a loop over rows; unrolled code of that size is fast everywhere
# Records a jaxpr: (scope, jaxpr, constants, arguments) -> results.
Run = Callable[[ImportScope, Any, Sequence[Any], Sequence[Operand]], list[Operand]]


def run_closed(
    run: Run, scope: ImportScope, closed: Any, arguments: Sequence[Operand]
) -> list[Operand]:
    if closed.effects:
        raise Unknown(f"an effect inside a branch or a loop: {next(iter(closed.effects))}")
    return run(scope, closed.jaxpr, closed.consts, arguments)


def cond(run: Run, scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand]:
    """Record one of several branches by its index; an index out of range takes the last."""
    branches, (index, *arguments) = equation.params["branches"], operands
    if index.known is not None:  # only this branch is needed
        place, last = int(index.known), len(branches) - 1
        return run_closed(run, scope, branches[place if 0 <= place < last else last], arguments)
    # For each branch: whether it is taken.
    guards = guards_of(index.value, len(branches))
    branch_results = [
        run_closed(run, scope, branch, [guarded(operand, guard) for operand in arguments])
        for branch, guard in zip(branches, guards, strict=True)
    ]
    results = branch_results[-1]
    for guard, branch_result in zip(guards[:-1], branch_results, strict=False):
        results = [chosen(guard, a, b) for a, b in zip(branch_result, results, strict=True)]
    return results


def guarded(operand: Operand, taken: Any) -> Operand:
    """Return an operand whose cotangent is 0 if its branch is not taken, even where it is NaN."""
    node = operand.value.node
    if operand.known is not None or node.type.kind != "tensor" or not is_float(node.type):
        return operand
    return Operand(guarded_tensor(operand.value, taken), operand.shape)


def chosen(taken: Any, a: Operand, b: Operand) -> Operand:
    if a.value.node is b.value.node:
        return a
    return Operand(xp.where(taken, a.value, b.value), repeated([a.shape, b.shape]))


# --- loops ----------------------------------------------------------------------------------------
def count_equations(jaxpr: Any) -> int:
    """Return how many equations a jaxpr has once those inside it are unrolled."""
    total = 0
    for equation in open_jaxpr(jaxpr)[0].eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += max(1, times * sum(map(count_equations, inner_jaxprs(equation))))
    return total


def scan(run: Run, scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand]:
    length, body = equation.params["length"], equation.params["jaxpr"]
    if not isinstance(length, int):
        raise Unknown(f"a loop of {length} turns")
    if length * count_equations(body) > MOST_UNROLLED:
        try:
            return _record_scan_op(run, scope, equation, operands)
        except (TypeError, Unknown) as error:  # for example, a turn draws or carries a key
            if length * count_equations(body) > MOST_OPERATIONS:
                raise Unknown(str(error)) from error
    return _unroll_scan(run, scope, equation, operands)


def _unroll_scan(
    run: Run, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    params, n_carry = equation.params, equation.params["num_carry"]
    constants, carry, arrays = scan_parts(params, operands)
    _, _, variables = scan_parts(params, equation.invars)
    rows = [
        _rows(scope, operand, tuple(variable.aval.shape))
        for operand, variable in zip(arrays, variables, strict=True)
    ]
    turns: list[list[Operand]] = []
    for i in range(params["length"])[:: -1 if params["reverse"] else 1]:
        arguments = [*constants, *carry, *(row(i) for row in rows)]
        results = run_closed(run, scope, params["jaxpr"], arguments)
        carry = results[:n_carry]
        turns.append(results[n_carry:])
    if params["reverse"]:
        turns.reverse()
    outputs = equation.outvars[n_carry:]
    columns = zip(*turns, strict=True) if turns else ([] for _ in outputs)
    return [
        *carry,
        *(
            _stack(scope, list(column), tuple(variable.aval.shape))
            for column, variable in zip(columns, outputs, strict=True)
        ),
    ]


def _record_scan_op(
    run: Run, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    """Record a loop over the first axis as one op.

    Raises:
        TypeError, Unknown: a turn asserts something or draws, or a dtype is not carried.
    """
    params, avals = equation.params, [variable.aval for variable in equation.outvars]
    n_carry = params["num_carry"]
    constants, carry, arrays = scan_parts(params, operands)
    # The outputs are the carry, then the stacked results.
    carry_avals = avals[:n_carry]
    row_avals = [variable.aval for variable in scan_parts(params, equation.invars)[2]]
    examples_before = dict(scope.examples)

    def turn(values: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        arguments = [Operand(v, tuple(a.shape)) for v, a in zip(values, carry_avals, strict=True)]
        pairs = zip(rows, row_avals, strict=False)  # without rows, a counter takes their place
        arguments += [Operand(value, tuple(aval.shape[1:])) for value, aval in pairs]
        results = run_closed(run, scope, params["jaxpr"], [*constants, *arguments])
        out_avals = [variable.aval for variable in params["jaxpr"].jaxpr.outvars]
        tensors = [as_carried(scope, o, aval) for o, aval in zip(results, out_avals, strict=True)]
        return tensors[:n_carry], tensors[n_carry:]

    try:
        initial = [as_carried(scope, o, aval) for o, aval in zip(carry, carry_avals, strict=True)]
        pairs = zip(arrays, row_avals, strict=True)
        rows = [as_carried(scope, operand, aval) for operand, aval in pairs]
        if not rows:
            counter = lift(scope.trace, np.arange(params["length"], dtype=np.int32))
            rows = [scope.trace.value(counter)]
        outputs = record_scan(scope.trace, initial, rows, turn, params["reverse"])
    finally:  # values of a turn do not exist outside it
        scope.examples = examples_before
    return [Operand(v, tuple(a.shape)) for v, a in zip(outputs, avals, strict=True)]


def _rows(scope: ImportScope, operand: Operand, shape: tuple[Any, ...]) -> Callable[[int], Operand]:
    # An operand may be of length 1 where `shape` is longer: what it broadcasts to.
    def row(i: int) -> Operand:
        if operand.known is not None:
            return scope.lift(operand.known[i])
        if operand.shape and operand.shape[0] == 1 and shape[0] != 1:
            return Operand(xp.getitem(operand.value, 0), operand.shape[1:])
        return Operand(xp.getitem(scope.whole(operand, shape), i), shape[1:])

    return row


def _stack(scope: ImportScope, column: list[Operand], shape: tuple[Any, ...]) -> Operand:
    if not column:
        raise Unknown("a loop of no turns")
    arrays = [operand.known for operand in column]
    if all(each is not None for each in arrays):
        return scope.lift(np.stack([np.broadcast_to(each, shape[1:]) for each in arrays]))
    parts = [scope.whole_tensor(operand, shape[1:]) for operand in column]
    return Operand(xp.stack(parts, 0), shape)


def while_(run: Run, scope: ImportScope, equation: Any, operands: list[Operand]) -> list[Operand]:
    condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    condition_constants, body_constants, carry = while_parts(equation.params, operands)
    if condition.out_avals[0].shape:  # a condition for each example
        return _record_while_op(run, scope, equation, operands)
    turns = 0
    while True:
        (goes_on,) = run_closed(run, scope, condition, [*condition_constants, *carry])
        if goes_on.known is None:
            return _record_while_op(
                run, scope, equation, [*condition_constants, *body_constants, *carry]
            )
        if not goes_on.known:
            return carry
        turns += 1
        size = count_equations(body)
        if turns * size > MOST_OPERATIONS:
            raise Unknown(
                f"a loop of {turns} turns with {size} operations each: at most {MOST_OPERATIONS} "
                "operations are unrolled"
            )
        carry = run_closed(run, scope, body, [*body_constants, *carry])


def _record_while_op(
    run: Run, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    params = equation.params
    condition_constants, body_constants, carry = while_parts(params, operands)
    mapped_shape = tuple(params["cond_jaxpr"].out_avals[0].shape)  # the axes of `vmap`
    avals = [variable.aval for variable in equation.outvars]
    examples_before = dict(scope.examples)

    def as_tensors(carried_operands: Sequence[Operand]) -> list[Any]:
        return [as_carried(scope, o, aval) for o, aval in zip(carried_operands, avals, strict=True)]

    def as_operands(values: Sequence[Any]) -> list[Operand]:
        return [Operand(v, tuple(a.shape)) for v, a in zip(values, avals, strict=True)]

    # Each example has a condition then: the loop runs while one of them holds, and examples that
    # have ended keep their carry, as in jax's lowering (jax/_src/lax/control_flow/loops.py).
    def each_goes_on(values: Sequence[Any]) -> Any:
        (condition,) = run_closed(
            run, scope, params["cond_jaxpr"], [*condition_constants, *as_operands(values)]
        )
        return as_carried(scope, condition, params["cond_jaxpr"].out_avals[0])

    def goes_on(values: Sequence[Any]) -> Any:
        return xp.any(each_goes_on(values)) if mapped_shape else each_goes_on(values)

    def turn(values: Sequence[Any]) -> list[Any]:
        arguments = [*body_constants, *as_operands(values)]
        new_carry = as_tensors(run_closed(run, scope, params["body_jaxpr"], arguments))
        if not mapped_shape:
            return new_carry
        mask = each_goes_on(values)
        carry_after = []
        for new, old, aval in zip(new_carry, values, avals, strict=True):
            axes = range(len(mapped_shape), len(aval.shape))
            carry_after.append(xp.where(functools.reduce(xp.expand_dims, axes, mask), new, old))
        return carry_after

    try:
        return as_operands(record_loop(scope.trace, as_tensors(carry), goes_on, turn))
    except TypeError as error:
        raise Unknown(str(error)) from error
    finally:  # values of a turn do not exist outside it
        scope.examples = examples_before


def as_carried(scope: ImportScope, operand: Operand, aval: Any) -> Any:
    """Return a tensor in the dtype and shape of a loop's carry."""
    shape, dtype = tuple(aval.shape), scope.dtype_name(aval.dtype)
    # `dtype_name` narrows int64 unless 64 bits are switched on. That suits integers made here; an
    # int64 argument keeps its dtype.
    if operand.value.node.type.dtype == INT64:
        dtype = INT64
    if dtype not in (T, *DTYPES):
        raise Unknown(f"a loop that carries {dtype}")
    if operand.value.node.type.kind == "scalar":
        like = scope.examples.get(shape)
        return filled(scope.trace, operand.value, dtype, integers(shape) if like is None else like)
    return cast(scope.whole(operand, shape), dtype)


def custom_linear_solve(
    run: Run, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    """Record the solver of a linear equation, with its stopped gradients removed.

    jax differentiates the equation, not the solver. The derivative of the solver's steps is the
    same, to any order, unless it stops gradients, as jax's own does before it factors a matrix. The
    proof compares gradients, so it finds a solver that does not solve the equation.
    """
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    constants = operands[start : start + lengths.solve]
    right_sides = operands[start + lengths.solve + lengths.transpose_solve :]
    results = run(scope, jaxprs.solve.jaxpr, jaxprs.solve.consts, [*constants, *right_sides])
    given = walk([each.value.node for each in (*operands[: lengths.matvec], *right_sides)])
    graph = Graph("solve", (), tuple(each.value.node for each in results))
    nodes = rebuild(graph, without_stop, dict(zip(given, given, strict=True))).outputs
    pairs = zip(nodes, results, strict=True)
    return [Operand(scope.trace.value(node), each.shape) for node, each in pairs]


def without_stop(node: Node) -> Node:
    return node.operands[0] if node.op is ops.STOP_GRADIENT else node


def platform_index(
    run: Run, scope: ImportScope, equation: Any, operands: list[Operand]
) -> list[Operand]:
    """Return the index of the branch for all platforms, as a graph has none; else the first one."""
    platforms = equation.params["platforms"]
    return [scope.lift(np.int32(platforms.index(None) if None in platforms else 0))]


CONTROL: dict[str, Callable[[Run, ImportScope, Any, list[Operand]], list[Operand]]] = {
    "cond": cond,
    "custom_linear_solve": custom_linear_solve,
    "platform_index": platform_index,
    "scan": scan,
    "while": while_,
}
