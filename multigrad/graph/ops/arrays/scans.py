"""Loops over the first axis of tensors: a turn for each row, as `jax.lax.scan` has it.

A turn maps the carry, a row of each tensor that is scanned, and constants to the next carry and a
row of each result. How many turns there are is the length of the first axis, so reverse mode knows
what it keeps: `multigrad/trace/derived/scans.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.graph import Node, Region, make_node
from ...ir.types import UNKNOWN, T, Type
from ..attributes import REGION, count, flag
from ..numerics import Array, as_numpy_dtype
from ..properties import LINEAR, Degree, is_zero, spread
from ..table import op
from .loops import changed, fits, keeps, meaning_of

__all__ = ["SCAN"]

Function = Callable[..., Any]
Shape = tuple[int, ...]


# --- its type -------------------------------------------------------------------------------------
def scanned(
    *types: Type, body: Region, carried: int, rows: int, position: int, **attrs: bool
) -> Type:
    """The type of what is carried, after the last turn, or of rows stacked.

    Raises:
        TypeError: the region does not take these values, or a turn changes a dtype or a shape.
    """
    inputs, after = body.graph.inputs, body.graph.outputs
    if len(inputs) != len(types) or carried + rows > len(inputs) or not rows:
        raise TypeError(f"its body takes {len(inputs)} values, not {len(types)}")
    if not (carried <= len(after) and position < len(after)):
        raise TypeError(f"its body gives {len(after)} values, and carries {carried}")
    for i, (node, given) in enumerate(zip(inputs, types, strict=True)):
        own = node.type
        is_row = carried <= i < carried + rows
        alike = (own.kind, own.dtype) == (given.kind, given.dtype) if is_row else fits(given, own)
        if not alike or (is_row and own.kind != "tensor"):
            raise TypeError(f"its body takes {own}, not {given}")
    for before, new in zip(inputs[:carried], after, strict=False):
        if before.type.kind != "tensor" or not keeps(new.type, before.type):
            raise TypeError(f"a turn makes {new.type} of {before.type}")
    if position < carried:
        return inputs[position].type
    row = after[position].type
    if row.kind != "tensor":
        raise TypeError(f"a turn gives {row}, which is no tensor")
    return Type("tensor", row.dtype, UNKNOWN)


# --- its meaning ----------------------------------------------------------------------------------
def turn_rows(
    carry: Sequence[Array],
    rows: Sequence[Sequence[Array]],
    constants: Sequence[Any],
    body: Function,
    reverse: bool,
    stack: Callable[[list[Array]], Array],
) -> tuple[Array, ...]:
    """Return the carry after a turn for each row, and what the turns gave, stacked.

    Args:
        rows: of each tensor that is scanned, its rows, at least one.
        stack: stacks arrays along a new first axis.

    Raises:
        TypeError: a turn changes a dtype or a shape.
    """
    state = tuple(carry)
    own, gathered = len(state), []
    turns = zip(*rows, strict=True)
    for row in reversed([*turns]) if reverse else turns:
        found = body(*state, *row, *constants)
        check_kept(state, found)
        state = found[:own]
        gathered.append(found[own:])
    if reverse:
        gathered.reverse()
    return (*state, *(stack([*column]) for column in zip(*gathered, strict=True)))


def check_kept(carry: Sequence[Array], found: Sequence[Array]) -> None:
    """Raise TypeError where a turn changes a dtype or a shape of what is carried."""
    for i, old in enumerate(carry):
        new = found[i]
        if old.dtype != new.dtype or old.shape != new.shape:
            raise changed(old, new)


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

    Raises:
        TypeError: at a call; a turn changes a dtype or a shape.
        ValueError: at a call; the lengths of the first axes differ.
    """

    def run(
        carry: Sequence[Array],
        rows: Sequence[Array],
        constants: Sequence[Any],
        body: Function,
        reverse: bool,
    ) -> tuple[Array, ...]:
        if length_of(rows):
            own = [unstack(x) for x in rows]
            return turn_rows(carry, own, constants, body, reverse=reverse, stack=stack)
        found = body(*carry, *(zeros(x, tuple(x.shape[1:])) for x in rows), *constants)
        return (*carry, *(zeros(y, (0, *y.shape)) for y in found[len(carry) :]))

    return run


run = scanning(list, np.stack, lambda like, shape: np.zeros(shape, like.dtype))


def length_of(rows: Sequence[Any]) -> int:
    """Return how many turns there are.

    Raises:
        ValueError: the lengths of the first axes differ, or there are none.
    """
    lengths = {x.shape[0] for x in rows if len(x.shape)}
    if len(lengths) != 1 or any(not len(x.shape) for x in rows):
        told = ", ".join(str(tuple(x.shape)) for x in rows)
        raise ValueError(f"scan takes tensors of one length in their first axis, not of {told}")
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
    """Return all that a scan gives, given what makes a function of a region."""
    values, first = tuple(values), carried + rows
    return run(values[:carried], values[carried:first], values[first:], meaning(body), reverse)


# --- what else is known of it ---------------------------------------------------------------------
def shape_of_scan(
    *shapes: Shape, body: Region, carried: int, rows: int, position: int, **attrs: bool
) -> Shape:
    """That of what is carried, or of a row behind the length; the turn runs once, on nothing."""
    if position < carried:
        return shapes[position]
    first = carried + rows
    given = [shape[1:] if carried <= i < first else shape for i, shape in enumerate(shapes)]
    values = [
        _nothing(node.type, shape) for node, shape in zip(body.graph.inputs, given, strict=True)
    ]
    with np.errstate(all="ignore"):
        return (shapes[carried][0], *np.shape(meaning_of(body)(*values)[position]))


def _nothing(type_: Type, shape: Shape) -> Any:
    if type_.kind != "tensor":
        return np.float32(1)
    dtype = as_numpy_dtype("float32" if type_.dtype == T else type_.dtype)
    return np.broadcast_to(np.zeros((), dtype), shape)


def degree_of_scan(node: Node, degrees: list[Degree]) -> Degree:
    """How a result depends on what the operands depend on, through all turns."""
    graph, carried = node.attr("body").graph, node.attr("carried")
    own = [
        LINEAR if i < carried and is_zero(operand) else degree
        for i, (operand, degree) in enumerate(zip(node.operands, degrees, strict=True))
    ]
    for _ in range(2 * carried + 1):
        found = spread(graph, dict(zip(graph.inputs, own, strict=True)))
        after = [LINEAR if is_zero(output) else found[output] for output in graph.outputs]
        joined = [_both(a, b) for a, b in zip(own[:carried], after, strict=False)]
        if joined == own[:carried]:
            break
        own[:carried] = joined
    return after[node.attr("position")]


def _both(first: Degree, other: Degree) -> Degree:
    """The degree of what is the one or the other."""
    return first if first == other else None


def key_of(node: Node) -> tuple[Any, ...]:
    """Return what the nodes of one scan have in common, of which each gives another result."""
    return node.operands, tuple(pair for pair in node.attrs if pair[0] != "position")


def _but_for_results(node: Node) -> tuple[Any, ...]:
    """Return what scans have in common that may differ in what their turns give."""
    return node.operands, tuple(p for p in node.attrs if p[0] not in ("position", "body"))


def joined(nodes: Sequence[Node]) -> Mapping[Node, Node]:
    """Return for nodes of scans that begin as another does, which gives more, the same of that."""
    widest: dict[tuple[Any, ...], Node] = {}
    for node in nodes:
        alike = _but_for_results(node)
        known = widest.get(alike)
        if known is None or _begins(node, known):
            widest[alike] = node
    found: dict[Node, Node] = {}
    for node in nodes:
        wide = widest[_but_for_results(node)]
        if _begins(wide, node):
            attrs = {**dict(wide.attrs), "position": node.attr("position")}
            found[node] = make_node(node.op, node.operands, attrs, node.type)
    return found


def _begins(long: Node, short: Node) -> bool:
    """Return whether a scan gives, first, all that another of the same operands does."""
    a, b = long.attr("body").graph, short.attr("body").graph
    return a.inputs == b.inputs and a.outputs[: len(b.outputs)] == b.outputs


SCAN = op(
    "scan", "*values", numpy=scan, vjp=None, result=scanned, coerce="raw", shape_of=shape_of_scan,
    degree=degree_of_scan, body=REGION, carried=count(0, 1), rows=count(1), reverse=flag(False),
    recompute=flag(False), position=count(0, 1), xp="",
    doc="What a loop over rows carries, after it, or gives at each turn: of the carry, of what is "
    "scanned, then of what stays the same.",
)  # fmt: skip
