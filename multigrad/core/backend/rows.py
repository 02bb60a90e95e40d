"""Rows of backends: tables made of the rows in their files and of rows that all share; and fast
kernels, rows that a backend declares next to its ops, for code without derivatives.

A fast row either rewrites a node into one of the backend's own kernels or says how an op writes
over a temporary that nothing else holds. It keeps each bit of each result, or says that it rounds
less often; it gives its measured reason and can be turned off: `with
multigrad.engine.lowering.patterns.without("torch.in_place"):`, or
MULTIGRAD_WITHOUT="torch.in_place,numpy.blocks" in the environment. The last functions find graphs
for which several backends have a faster kernel; each lowers them itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from .. import ops
from ..ir.graph import Graph, Node, make_node
from ..ir.op import FLOAT_SCALAR, Op, Type
from ..ops.table import compose, parts_of
from ..passes.simplify import rebuild
from ..support.records import record

Row = Callable[..., Any]
Tensor = Any
OF_RULES = frozenset(ops.rows_in(ops.CORE_FAMILIES).values())


class LateRows(MutableMapping[Op, Any]):
    """A table by op whose other rows are found as they are asked for.

    Args:
        rows: those of the ops of rules.
        find: gives the row of another op, and loads the file that it is in; None: there is none.
    """

    def __init__(self, rows: Mapping[Op, Any], find: Callable[[Op], Any]) -> None:
        self._rows, self._find = dict(rows), find

    def get(self, op: Op, default: Any = None) -> Any:
        if op not in self._rows:
            row = self._find(op)
            if row is None:
                return default
            self._rows[op] = row
        return self._rows[op]

    def __contains__(self, op: object) -> bool:
        return isinstance(op, Op) and self.get(op) is not None

    def __getitem__(self, op: Op) -> Any:
        row = self.get(op)
        if row is None:
            raise KeyError(op)
        return row

    def __setitem__(self, op: Op, row: Any) -> None:
        self._rows[op] = row

    def __delitem__(self, op: Op) -> None:
        del self._rows[op]

    def __iter__(self) -> Iterator[Op]:
        for op in (*ops.CALLABLE_OPS, ops.MEMORY):
            self.get(op)
        return iter(self._rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_of_others(op: Op) -> bool:
    """Return whether an op is of a family that rules do not need."""
    return op not in OF_RULES and "." not in op.name  # a backend's own kernels are of none


def is_draw(op: Op) -> bool:
    """Return whether an op draws random numbers, or makes a key to draw them with."""
    return op.random or op.name == "fold_in"


def rows_of(functions: Mapping[str, Any], among: Iterable[Op] | None = None) -> dict[Op, Row]:
    """Return the functions in a file that are named after their ops: `abs`, or `abs_`.

    Args:
        among: the ops that are meant; all, unless it says so.
    """
    among = ops.CALLABLE_OPS if among is None else among
    spellings = ((op, name) for op in among for name in (op.name, f"{op.name}_"))
    rows = {op: functions[name] for op, name in spellings if name in functions}
    file = functions.get("__name__")  # none where these are the locals of a function
    # What a file imports of ours may have an op's name by chance, as `random_keys.part` has.
    return {op: row for op, row in rows.items() if file is None or not _is_of_core(row)}


def _is_of_core(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("multigrad.")


def composing(
    rows: Mapping[Op, Row],
    load: Callable[[], Mapping[Op, Row]],
    widened: Callable[[Row], Row],
    draws: Callable[[], Mapping[Op, Row]] | None = None,
) -> LateRows:
    """Return a table that composes the rows which it lacks of those that it has.

    Args:
        load: gives the rows of other families than those of rules; their files load with it.
        draws: gives the rows of random draws, for which no others need to load; None: `load` does.
    """

    def find(op: Op) -> Row | None:
        find_rows = draws if draws is not None and is_draw(op) else load
        row = find_rows().get(op) if is_of_others(op) else None
        return composed_row(op, table, widened) if row is None else row

    table = LateRows(rows, find)
    return table


def composed_row(op: Op, rows: Mapping[Op, Row], widened: Callable[[Row], Row]) -> Row | None:
    """Return the row of an op that is composed of others; None where one of these has none."""
    if op.made_of is None:
        return None
    if any(part not in rows and part.symbol is None for part in parts_of(op)):
        return None
    row = compose(op, rows)
    if not op.rounds:
        return row
    if not op.random:
        return widened(row)

    def draw_like(key: Any, x: Any) -> Any:
        # Only x is widened: the key, which comes first, is no tensor of floats.
        return widened(functools.partial(row, key))(x)

    return draw_like


# --- fast kernels ---------------------------------------------------------------------------------
ENVIRONMENT = "MULTIGRAD_WITHOUT"
# What `without` has turned off; it is read when code is lowered, not when it runs.
DISABLED: ContextVar[frozenset[str]] = ContextVar("disabled", default=frozenset())
Rewrite = Callable[[Node], Node | None]


@record()
class Pattern:
    """A node that has a faster kernel.

    Attributes:
        name: "<backend>.<what it is>".
        reason: what was measured.
        rewrites: for each op, what gives a node of it in terms of the backend's own kernels, or
            None where it does not fit. A row without any asks `enabled(name)` where it is used.
        rewrite_graph: the same for what takes a look at a whole graph; these come first.
        rounds: whether it rounds otherwise than the ops where no number is prepared; then the
            results of `xg.lower` have other bits without the row.
    """

    name: str
    reason: str
    rewrites: Mapping[Op, Rewrite] = field(default_factory=dict)
    rewrite_graph: Callable[[Graph], Graph] | None = None
    rounds: bool = False


@record()
class FastKernels:
    """A backend's fast rows.

    Attributes:
        patterns: the rewrites, in order, and the rows that are switches only.
        kernels: callables of the backend's own ops; each returns new memory.
        in_place: per op, for each operand, `f(operand, *others, **attrs)` that writes the result
            over the operand; None where there is none. Its switch is "<backend>.in_place".
        into: per op, `f(*operands, out=place)` that writes the result to a place of its dtype and
            shape, or into new memory where that is None; its first operand is a tensor.
        turns: `(carry, rows, constants, body, reverse, turn, assumed, held)`, a scan whose turns
            write into what it gives. `turn` is like `body`, but takes further arguments: for each
            of its results a place, or None. It may count on the carry's keeping its shapes, and
            on those rows having the shape of a carry that `assumed` pairs. `held` pairs results
            with the carried value that each is, unchanged. Its switch is "<backend>.turns".
        constants: operands of ops, by position, where a number is better prepared as a tensor; its
            switch is "<backend>.constants".
        by_op: the rewrites of the patterns, in order, with the names of their rows.
    """

    patterns: tuple[Pattern, ...] = ()
    kernels: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    in_place: MutableMapping[Op, tuple[Callable[..., Any] | None, ...]] = field(
        default_factory=dict
    )
    into: Mapping[Op, Callable[..., Any]] = field(default_factory=dict)
    turns: Callable[..., Any] | None = None
    constants: Mapping[Op, tuple[int, ...]] = field(default_factory=dict)
    by_op: Mapping[Op, Sequence[tuple[str, Rewrite]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Looked up for each node of a graph, where a walk over all rows would be slow.
        by_op: dict[Op, list[tuple[str, Rewrite]]] = {}
        for row in self.patterns:
            for op, rewrite in row.rewrites.items():
                by_op.setdefault(op, []).append((row.name, rewrite))
        object.__setattr__(self, "by_op", by_op)


def kernel(name: str, operands: str, result: Callable[..., Type]) -> Op:
    # In emitted graphs only, so it needs no VJP and no meaning in NumPy.
    return Op(
        name,
        tuple(operands.split()),
        {},
        coerce="raw",
        result=result,
        numpy=_structural,
        vjp=None,
        doc=name,
    )


def taking(kernel: Op, fits: Callable[[Node], bool] = lambda node: True) -> Rewrite:
    """Return the rewrite of nodes that fit into a kernel of the same operands."""
    return lambda node: make_node(kernel, node.operands, {}, node.type) if fits(node) else None


def _structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("a backend's own kernel has no meaning in NumPy")


def disabled() -> frozenset[str]:
    """Return the names of the rows that are turned off here."""
    text = os.environ.get(ENVIRONMENT, "")
    return DISABLED.get() | {word.strip() for word in text.split(",") if word.strip()}


def enabled(name: str) -> bool:
    return name not in disabled()


# The Euclidean norm of all elements.
WHOLE = {"axis": None, "keepdims": False, "ord": 2}
# What may be computed of a norm in Python, and where such a number may meet a tensor.
IN_PYTHON = (ops.MAXIMUM, ops.MINIMUM, ops.DIV, ops.MUL, ops.ADD, ops.SUB)
MEETING = (ops.MUL, ops.DIV, ops.ADD, ops.SUB)


def is_tensor(node: Node) -> bool:
    return node.type.kind == "tensor"


def is_number(node: Node, value: float) -> bool:
    return node.op is ops.CONST and node.attr("value") == value


def is_zero(node: Node) -> bool:
    """Return whether a value is the number +0."""
    # By repr, because -0.0 equals 0.0.
    return node.op is ops.CONST and repr(node.attr("value")) in ("0", "0.0", "False")


def is_whole_norm(node: Node) -> bool:
    return node.op is ops.NORM and dict(node.attrs) == WHOLE


def square_products(node: Node) -> Node | None:
    u, v = node.operands
    return make_node(ops.SQUARE, (u,), {}, node.type) if u is v else None


def find_one_plus_square(node: Node) -> tuple[Node, Node] | None:
    """Return (x, number) if a node is 1 + (number x)^2."""
    if node.op is not ops.ADD:
        return None
    for number_one, square in (node.operands, node.operands[::-1]):
        is_square = square.op is ops.SQUARE or square.op is ops.MUL
        inner = square.operands[0] if is_square else square
        if not is_number(number_one, 1) or not is_square or inner is not square.operands[-1]:
            continue
        if inner.op is ops.MUL:
            for number, x in (inner.operands, inner.operands[::-1]):
                if not is_tensor(number) and is_tensor(x):
                    return x, number
    return None


def find_scaled_quotient(node: Node) -> tuple[Node, Node, Node] | None:
    """Return (x, number, divisor) if a product is x * (number / divisor)."""
    for x, quotient in (node.operands, node.operands[::-1]):
        if quotient.op is ops.DIV:
            number, divisor = quotient.operands
            if not is_tensor(number) and is_tensor(divisor) and x.type == divisor.type:
                return x, number, divisor
    return None


def take_norms_as_numbers(graph: Graph, kernel: Op) -> Graph:
    """Return a graph with norms as numbers, by `kernel`, if they only become factors of tensors."""
    numbers: set[Node] = set()
    if ops.NORM in graph.ops:
        numbers.update(filter(is_whole_norm, graph.nodes))
    if not numbers:
        return graph
    for node in graph.nodes:
        if node in numbers or numbers.isdisjoint(node.operands):
            continue
        # A function of such numbers only is a number too.
        are_numbers = all(o in numbers or not is_tensor(o) for o in node.operands)
        if are_numbers and node.op in IN_PYTHON:
            numbers.add(node)
        elif node.op not in MEETING:
            # A norm meets an op that needs a tensor: all stay tensors.
            return graph
    if not numbers.isdisjoint(graph.outputs):
        return graph

    def change(node: Node) -> Node:
        return make_node(kernel, node.operands, {}, FLOAT_SCALAR) if is_whole_norm(node) else node

    return rebuild(graph, change)
