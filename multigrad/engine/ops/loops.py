"""Loops in graphs: `while_loop`, which values end, and `scan` over the first axis of tensors.

They follow `jax.lax`. A turn maps the carry, tensors that keep their dtypes and shapes, to the next
carry; all else that the body and the condition read is the same at every turn. The number of turns
of a while loop is known only at run time, so it has no derivative in reverse mode, which would have
to keep every turn. A scan turns once for each row and also stacks a row of each result, so reverse
mode knows what to keep: `multigrad/engine/trace/derived/scans.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ...core.ir.graph import Graph, Node, Region, make_node
from ...core.ir.op import BOOL, FLOATS, UNKNOWN, Attr, T, Type, count, flag, instance_of
from ...core.ops.numerics import RELEASE, Array, as_numpy_dtype
from ...core.ops.properties import LINEAR, ZERO, Degree, spread
from ...core.ops.table import Cotangents, op

__all__ = ["SCAN", "WHILE_LOOP"]

Function = Callable[..., Any]
Shape = tuple[int, ...]
REGION = Attr(instance_of(Region))
OF_A_LOOP = (
    "the derivative of a loop that goes on by values, which has none: how many turns reverse mode "
    "would keep is not known. Give the function a gradient of its own, or the loop a number of "
    "turns that is known"
)


def key_of_loop(node: Node, *but: str) -> tuple[Any, ...]:
    """Return a key that all nodes of one loop share, each another of its results; `but`: also
    those of loops that differ in these attributes.
    """
    return node.operands, tuple([pair for pair in node.attrs if pair[0] not in ("position", *but)])


# --- loops that values end ------------------------------------------------------------------------
def carried(*types: Type, condition: Region, body: Region, position: int) -> Type:
    """Return the type of one carried tensor, or raise TypeError: the regions do not take these
    values, or a turn changes a dtype or a shape.
    """
    inputs, results = body.graph.inputs, body.graph.outputs
    if not position < len(results) <= len(inputs):
        raise TypeError(f"its body takes {len(inputs)} values and gives {len(results)}")
    tests = condition.graph.outputs
    if len(tests) != 1 or tests[0].type.dtype != BOOL:
        raise TypeError("its condition is one bool")
    for graph in (condition.graph, body.graph):
        expected = [node.type for node in graph.inputs]
        if len(expected) != len(types) or not all(map(fits, types, expected)):
            raise TypeError(f"its {graph.name} takes {_listed(expected)}, not {_listed(types)}")
    check_turn(inputs, results)
    return inputs[position].type


def check_turn(inputs: Sequence[Node], after: Sequence[Node]) -> None:
    """Raise TypeError if a turn changes the type of a carried tensor."""
    for input_node, next_node in zip(inputs, after, strict=False):
        if input_node.type.kind != "tensor" or not keeps(next_node.type, input_node.type):
            raise TypeError(f"a turn makes {next_node.type} of {input_node.type}")


def fits(given: Type, expected: Type) -> bool:
    """Return whether a region that expects one type takes a value of the other."""
    is_alike = (given.kind, given.dtype) == (expected.kind, expected.dtype)
    return is_alike and expected.shape in (given.shape, UNKNOWN)


def keeps(new: Type, before: Type) -> bool:
    """Return whether a turn keeps a type; an unknown shape is checked at run time."""
    return fits(new, before) or fits(before, new)


def _listed(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))


class Endless(Exception):
    """A loop has turned more often than it may."""


# None: no limit. A limit holds in the context of `turning_at_most` only, which the proof uses for
# loops on made-up numbers.
_most_turns: ContextVar[int | None] = ContextVar("multigrad_most_turns", default=None)


@contextmanager
def turning_at_most(turns: int) -> Iterator[None]:
    """Make loops in this context raise `Endless` after so many turns."""
    # Not by `set_within`: ops stand on data alone.
    token = _most_turns.set(turns)
    try:
        yield
    finally:
        _most_turns.reset(token)


def run_while(
    carry: tuple[Array, ...], constants: tuple[Array, ...], condition: Function, body: Function
) -> tuple[Array, ...]:
    """Turn while the condition holds; a comparison with NaN is false, and ends the loop.

    Raise TypeError if a turn changes a dtype or a shape, Endless if it turns too often.
    """
    body = limited(body)
    while condition(*carry, *constants):
        previous, carry = carry, body(*carry, *constants)
        if RELEASE < (2, 0):
            carry = tuple(map(as_narrow, previous, carry))
        check_kept(previous, carry)
    return carry


def as_narrow(old: Any, new: Any) -> Any:
    """Return a NumPy 1 scalar in its old dtype: arithmetic with Python numbers widens it there."""
    if not isinstance(new, np.ndarray | np.generic) or new.shape != () or old.shape != ():
        return new
    return new.astype(old.dtype) if new.dtype.kind == old.dtype.kind else new


def limited(body: Function) -> Function:
    """Return the body of a loop, wrapped to raise `Endless` if there is a limit."""
    limit = _most_turns.get()
    if limit is None:
        return body
    turns = iter(range(limit))

    def counted(*values: Any) -> Any:
        if next(turns, None) is None:
            raise Endless(f"a loop has not ended after {limit:,} turns on numbers that are made up")
        return body(*values)

    return counted


def changed(old: Any, new: Any) -> TypeError:
    return TypeError(
        f"a turn of a loop makes {new.dtype} of shape {tuple(new.shape)} of {old.dtype} of shape "
        f"{tuple(old.shape)}; what is carried keeps both"
    )


def while_loop(*values: Array, condition: Region, body: Region, position: int) -> Array:
    return turn_by(meaning_of, values, condition, body)[position]


def turn_by(
    meaning: Callable[[Region], Function], values: Sequence[Array], condition: Region, body: Region
) -> tuple[Array, ...]:
    """Return the final carried values of a loop; `meaning` makes a function of a region."""
    # The first values are carried; the rest are constants.
    n, values = len(body.graph.outputs), tuple(values)
    goes_on, turn = meaning(condition), meaning(body)
    return run_while(values[:n], values[n:], lambda *v: goes_on(*v)[0], turn)


def meaning_of(region: Region) -> Function:
    """Return a NumPy function that computes a region, op by op."""

    def compute(*values: Array) -> tuple[Array, ...]:
        inputs = dict(zip(region.graph.inputs, values, strict=True))
        # Inputs of the rule's dtype T tell the meaning of T; float32 if there are none.
        samples = [value for node, value in inputs.items() if node.type.dtype == T]
        return run_graph(region.graph, inputs, samples[0].dtype if samples else "float32")

    return compute


def run_graph(graph: Graph, inputs: Mapping[Node, Any], dtype: Any) -> tuple[Any, ...]:
    """Return a graph's outputs, op by op; T is `dtype`."""
    value_of = dict(inputs)
    for node in graph.nodes:
        if node.op.name == "const":
            value_of[node] = node.attr("value")
        elif node.op.name == "call":  # a function with its own gradient; operand 0 is its value
            value_of[node] = value_of[node.operands[0]]
        elif node not in value_of:
            attrs = dict(node.attrs)
            if attrs.get("dtype") in (T, *FLOATS):
                attrs["dtype"] = as_numpy_dtype(dtype if attrs["dtype"] == T else attrs["dtype"])
            value_of[node] = node.op.numpy(*(value_of[o] for o in node.operands), **attrs)
    return tuple(value_of[node] for node in graph.outputs)


def refuse_derivative(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
    """Raise TraceError: reverse mode would need every turn."""
    raise y.trace.error(f"takes {OF_A_LOOP}", y.trace.source.locations.get(y.node))


def kept_by_turns(*shapes: Shape, position: int, **attrs: Any) -> Shape:
    return shapes[position]


WHILE_LOOP = op(
    "while_loop", "*values", numpy=while_loop, vjp=refuse_derivative, result=carried, coerce="raw",
    shape_of=kept_by_turns, loop="values", condition=REGION, body=REGION, position=count(0, 1),
    xp="", doc="A tensor that a loop carries, after it: of the carry, then of what stays the same.",
)  # fmt: skip


# --- loops over rows ------------------------------------------------------------------------------
def scanned(
    *types: Type, body: Region, carried: int, rows: int, position: int, **attrs: bool
) -> Type:
    """Return the type of a carried tensor after the last turn, or of stacked rows; raise TypeError:
    the region does not take these values, or a turn changes a dtype or a shape.
    """
    inputs, results = body.graph.inputs, body.graph.outputs
    if len(inputs) != len(types) or carried + rows > len(inputs) or not rows:
        raise TypeError(f"its body takes {len(inputs)} values, not {len(types)}")
    if not (carried <= len(results) and position < len(results)):
        raise TypeError(f"its body gives {len(results)} values, and carries {carried}")
    for i, (node, argument) in enumerate(zip(inputs, types, strict=True)):
        expected = node.type
        has_rows = argument.kind == expected.kind == "tensor" and argument.dtype == expected.dtype
        if not (has_rows if carried <= i < carried + rows else fits(argument, expected)):
            raise TypeError(f"its body takes {expected}, not {argument}")
    check_turn(inputs[:carried], results)
    if position < carried:
        return inputs[position].type
    row = results[position].type
    if row.kind != "tensor":
        raise TypeError(f"a turn gives {row}, which is no tensor")
    return Type("tensor", row.dtype, UNKNOWN)


def turn_rows(
    carry: Sequence[Array],
    rows: Sequence[Sequence[Array]],
    constants: Sequence[Any],
    body: Function,
    reverse: bool,
    stack: Callable[[list[Array]], Array],
) -> tuple[Array, ...]:
    """Return the carry after the last row, then the results of all turns, stacked.

    `rows` are those of each tensor that is scanned, at least one; `stack` stacks arrays along a new
    first axis. Raise TypeError if a turn changes a dtype or a shape.
    """
    state = tuple(carry)
    width, turn_results = len(state), []
    turns = zip(*rows, strict=True)
    for row in reversed([*turns]) if reverse else turns:
        results = body(*state, *row, *constants)
        check_kept(state, results)
        state = results[:width]
        turn_results.append(results[width:])
    if reverse:
        turn_results.reverse()
    return (*state, *(stack([*column]) for column in zip(*turn_results, strict=True)))


def check_kept(carry: Sequence[Array], found: Sequence[Array]) -> None:
    """Raise TypeError if a turn changes the dtype or shape of a carried value."""
    for i, carried in enumerate(carry):
        result = found[i]
        if carried.dtype != result.dtype or carried.shape != result.shape:
            raise changed(carried, result)


def scanning(
    unstack: Callable[[Array], Sequence[Array]],
    stack: Callable[[list[Array]], Array],
    zeros: Callable[[Array, Shape], Array],
) -> Function:
    """Return a scan that loops in Python, for a framework without its own loop.

    Args:
        unstack: gives the rows of an array.
        stack: stacks arrays along a new first axis.
        zeros: `(like, shape)`, zeros of an array's dtype.
    """

    def run(
        carry: Sequence[Array],
        rows: Sequence[Array],
        constants: Sequence[Any],
        body: Function,
        reverse: bool,
    ) -> tuple[Array, ...]:
        if length_of(rows):
            row_lists = [unstack(x) for x in rows]
            return turn_rows(carry, row_lists, constants, body, reverse=reverse, stack=stack)
        # No rows: the body runs once on zeros, only for the shapes of the results.
        results = body(*carry, *(zeros(x, tuple(x.shape[1:])) for x in rows), *constants)
        return (*carry, *(zeros(y, (0, *y.shape)) for y in results[len(carry) :]))

    return run


def zeros_of(like: Array, shape: Shape) -> Array:
    return np.zeros(shape, like.dtype)


run_scan = scanning(list, np.stack, zeros_of)


def length_of(rows: Sequence[Any]) -> int:
    lengths = {x.shape[0] for x in rows if len(x.shape)}
    if len(lengths) != 1 or any(not len(x.shape) for x in rows):
        shapes = ", ".join(str(tuple(x.shape)) for x in rows)
        raise ValueError(f"scan takes tensors of one length in their first axis, not of {shapes}")
    (length,) = lengths
    return int(length)


def scan(*values: Array, position: int, **attrs: Any) -> Array:
    return scan_by(meaning_of, values, **attrs)[position]


def scan_by(
    meaning: Callable[[Region], Function],
    values: Sequence[Array],
    body: Region,
    carried: int,
    rows: int,
    reverse: bool,
    recompute: bool = False,
) -> tuple[Array, ...]:
    values, first = tuple(values), carried + rows
    return run_scan(values[:carried], values[carried:first], values[first:], meaning(body), reverse)


def shape_of_scan(
    *shapes: Shape, body: Region, carried: int, rows: int, position: int, **attrs: bool
) -> Shape:
    """Return a carried tensor's shape, or the length and a row's shape; the body runs on zeros."""
    if position < carried:
        return shapes[position]
    first = carried + rows
    turn_shapes = [shape[1:] if carried <= i < first else shape for i, shape in enumerate(shapes)]
    pairs = zip(body.graph.inputs, turn_shapes, strict=True)
    values = [_nothing(node.type, shape) for node, shape in pairs]
    with np.errstate(all="ignore"):
        return (shapes[carried][0], *np.shape(meaning_of(body)(*values)[position]))


def _nothing(type_: Type, shape: Shape) -> Any:
    if type_.kind != "tensor":
        return np.float32(1)
    dtype = as_numpy_dtype("float32" if type_.dtype == T else type_.dtype)
    # A view of one zero takes no memory for a large shape.
    return np.broadcast_to(np.zeros((), dtype), shape)


def degree_of_scan(node: Node, degrees: list[Degree]) -> Degree:
    """Return the degree of a result in what the operands depend on, through all turns."""
    graph, carried = node.attr("body").graph, node.attr("carried")
    # A carry that begins with zeros is linear in anything.
    starts = [LINEAR if degree == ZERO else degree for degree in degrees[:carried]]
    current = [*starts, *degrees[carried:]]
    # Until nothing changes; a carried degree can only become None, and stays that.
    for _ in range(2 * carried + 1):
        degree_of = spread(graph, dict(zip(graph.inputs, current, strict=True)))
        results = [degree_of[output] for output in graph.outputs]
        pairs = zip(current[:carried], results, strict=False)
        joint = [a if b in (a, ZERO) else None for a, b in pairs]
        if joint == current[:carried]:
            break
        current[:carried] = joint
    return results[node.attr("position")]


def joined(nodes: Sequence[Node]) -> Mapping[Node, Node]:
    """Map scan nodes to nodes of a wider scan, one that begins with the same results."""
    widest: dict[tuple[Any, ...], Node] = {}
    for node in nodes:
        # Scans over the same operands, whose bodies may differ in their results.
        key = key_of_loop(node, "body")
        rival = widest.get(key)
        if rival is None or _begins(node, rival):
            widest[key] = node
    wider: dict[Node, Node] = {}
    for node in nodes:
        widest_node = widest[key_of_loop(node, "body")]
        if _begins(widest_node, node):
            attrs = {**dict(widest_node.attrs), "position": node.attr("position")}
            wider[node] = make_node(node.op, node.operands, attrs, node.type)
    return wider


def _begins(long: Node, short: Node) -> bool:
    a, b = long.attr("body").graph, short.attr("body").graph
    return a.inputs == b.inputs and a.outputs[: len(b.outputs)] == b.outputs


SCAN = op(
    "scan", "*values", numpy=scan, vjp=None, result=scanned, coerce="raw", shape_of=shape_of_scan,
    degree=degree_of_scan, loop="rows", body=REGION, carried=count(0, 1), rows=count(1),
    reverse=flag(False), recompute=flag(False), position=count(0, 1), xp="",
    doc="What a loop over rows carries, after it, or gives at each turn: of the carry, of what is "
    "scanned, then of what stays the same.",
)  # fmt: skip
