"""Nodes and graphs: frozen, hash-consed SSA.

Two nodes with the same op, operands and attributes are the same object, so common subexpressions
never exist twice and identity is equality. A graph names its inputs and outputs; the nodes hold
everything else. The values of constant arrays are frozen too, and a serial number finds them again.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..support.records import record
from ..support.threads import SERIALS, make_lock
from .op import Op, Type

Attrs = tuple[tuple[str, Any], ...]
OP, OPERANDS, TYPE, LOOP = map(operator.attrgetter, ("op", "operands", "type", "loop"))


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Node:
    """One operation, `op(operands, **attrs)`; only `make_node` makes it, so equal nodes are one."""

    op: Op
    operands: tuple[Node, ...]
    attrs: Attrs
    type: Type

    @property
    def operands_read(self) -> Sequence[Node]:
        """The operands whose values it reads, not only their shapes."""
        shapes = self.op.shape_only
        operands = self.operands
        return [each for i, each in enumerate(operands) if i not in shapes] if shapes else operands

    def attr(self, name: str) -> Any:
        return dict(self.attrs)[name]

    def __repr__(self) -> str:
        return f"<{self.op.name}: {self.type}>"


class Location(NamedTuple):
    """A place in the user's source."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A pure function: `inputs` (INPUT nodes, in order) to `outputs`.

    `locations` says where in the user's source a node was written, `origin` in which dialect and
    how it was captured; they do not change what the graph means. `nodes` are those that the
    outputs need, operands before users, and `ops` theirs, by which a pass sees whether it has
    anything to do.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    locations: Mapping[Node, Location] = field(default_factory=dict)
    origin: str = ""
    nodes: tuple[Node, ...] = field(init=False, repr=False)
    ops: frozenset[Op] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", walk(self.outputs))
        object.__setattr__(self, "ops", frozenset(map(OP, self.nodes)))

    @property
    def names(self) -> list[str]:
        """The names of the inputs; an input has no other attribute."""
        return [node.attrs[0][1] for node in self.inputs]

    @property
    def loops(self) -> frozenset[str | None]:
        """What goes on in loops of the graph, of "rows" and "values"."""
        return frozenset(map(LOOP, self.ops)) - {None}

    def input(self, name: str) -> Node | None:
        """Return the input called `name`, or None."""
        attrs = (("name", name),)  # compared as a whole, without a call for each input
        for node in self.inputs:
            if node.attrs == attrs:
                return node
        return None

    def reads(self, name: str) -> bool:
        """Return whether the outputs depend on the input `name`."""
        return self.input(name) in self.nodes

    def __str__(self) -> str:
        return format_graph(self)


@record(eq=True)
class Region:
    """A graph inside a node, as the body of a loop, which reads its own inputs only.

    Regions are equal where their graphs are, and so is their `repr`, which is short.
    """

    graph: Graph = field(compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # Without locations and origin, which do not change what a graph means.
        graph = self.graph
        text = format_graph(Graph(graph.name, graph.inputs, graph.outputs)).encode()
        object.__setattr__(self, "digest", hashlib.blake2b(text, digest_size=16).hexdigest())

    def __repr__(self) -> str:
        return f"<{self.graph.name} {self.digest}>"


def regions_of(node: Node) -> list[Region]:
    return [value for _, value in node.attrs if isinstance(value, Region)]


def regions_in(graph: Graph) -> list[Region]:
    return [value for node in graph.nodes for _, value in node.attrs if type(value) is Region]


def every_node(graph: Graph) -> tuple[Node, ...]:
    inner_nodes = [node for region in regions_in(graph) for node in every_node(region.graph)]
    return (*graph.nodes, *inner_nodes)


# All nodes that are alive, found by their parts; written under `_lock` only, and emptied by the
# garbage collector.
_nodes: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_refs: dict[tuple[Any, ...], Any] = _nodes.data  # type: ignore[attr-defined]  # read without a call
_lock = make_lock()


def make_node(op: Op, operands: Iterable[Node], attrs: Mapping[str, Any], type_: Type) -> Node:
    """Return the node for this operation, an existing one if possible."""
    operands = tuple(operands)
    pairs = tuple(sorted(attrs.items())) if attrs else ()
    # repr tells 0.0 from -0.0, 1 from 1.0 and True, and makes NaN equal to itself. The parts of the
    # type are compared without a call of Python's.
    text = repr(pairs) if pairs else ""
    key = (op.name, tuple(map(id, operands)), text, type_.kind, type_.dtype, type_.shape)
    with _lock:
        reference = _refs.get(key)
        node = None if reference is None else reference()
        if node is None:
            node = _nodes[key] = Node(op, operands, pairs, type_)
        return node


def derive_node(op: Op, operands: Iterable[Node], attrs: Mapping[str, Any]) -> Node:
    """Return the node for this operation, with the type that follows from its operands."""
    operands = tuple(operands)
    return make_node(op, operands, attrs, op.result(*map(TYPE, operands), **attrs))


def with_operands(node: Node, operands: Iterable[Node]) -> Node:
    """Return a node with these operands; its type is derived again if they are different."""
    operands = tuple(operands)
    return node if operands == node.operands else derive_node(node.op, operands, dict(node.attrs))


def walk(
    outputs: Iterable[Node],
    read: Callable[[Node], Sequence[Node]] = OPERANDS,
    until: Collection[Node] = (),
) -> tuple[Node, ...]:
    """Return every node below `outputs` once, operands before users; `read`: which of them.

    None is below a node of `until`.
    """
    order: dict[Node, None] = {}
    visited: set[Node] = set()
    # By a stack, because long graphs exceed the limit of recursion.
    stack = [*outputs][::-1]
    while stack:
        node = stack[-1]
        if node in visited:
            order[stack.pop()] = None
        else:
            visited.add(node)
            if node not in until:
                stack.extend(reversed(read(node)))
    return tuple(order)


def dependents(
    nodes: Iterable[Node], sources: Iterable[Node], *, by_value: bool = False
) -> set[Node]:
    """Return the sources and which of the nodes, operands before users, are computed from them;
    `by_value`: not from their shapes alone.
    """
    reached = set(sources)
    for node in nodes:
        reads_shapes = by_value and node.op.shape_only
        if not reached.isdisjoint(node.operands_read if reads_shapes else node.operands):
            reached.add(node)
    return reached


def count_uses(graph: Graph) -> dict[Node, int]:
    """Return the number of uses of each node, as an operand and as an output."""
    uses = dict.fromkeys(graph.outputs, 0)
    for node in graph.nodes:
        for operand in node.operands:
            uses[operand] = uses.get(operand, 0) + 1
    for node in graph.outputs:
        uses[node] += 1
    return uses


def format_graph(graph: Graph) -> str:
    """Return the text form, one node a line; a region follows the first node that has it."""
    regions: set[Region] = set()
    serials = itertools.count(1)
    names = {node: dict(node.attrs)["name"] for node in graph.inputs}
    name_of = names.__getitem__
    origin = f"  # {graph.origin}" if graph.origin else ""
    inputs = [f"{dict(node.attrs)['name']}: {node.type}" for node in graph.inputs]
    lines = [f"{graph.name}({', '.join(inputs)}){origin}"]
    for node in graph.nodes:
        if node.op.name == "const":
            names[node] = repr(dict(node.attrs)["value"])
        elif node not in names:
            names[node] = f"%{next(serials)}"
            arguments, bodies = list(map(name_of, node.operands)), []
            for key, value in node.attrs:
                arguments.append(f"{key}={value!r}")
                if isinstance(value, Region) and value not in regions:
                    regions.add(value)
                    bodies += [f"    {line}" for line in format_graph(value.graph).split("\n")]
            location = f"  # {graph.locations[node]}" if node in graph.locations else ""
            result = f"{names[node]}: {node.type}"
            lines.append(f"  {result} = {node.op.name}({', '.join(arguments)}){location}")
            lines += bodies
    lines.append(f"  return {', '.join(map(name_of, graph.outputs))}")
    return "\n".join(lines)


MOST_ELEMENTS = 65_536
# Weak: an array is found while something holds it.
_arrays: WeakValueDictionary[int, ArrayValue] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class ArrayValue:
    """The values of a constant array, frozen; `repr` is equal for equal values, and short.

    Attributes:
        native: a cache of what backends made of the values, by keys of their own.
        serial: a number under which `find_array` finds it again while it lives.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    digest: str
    serial: int = field(default_factory=lambda: next(SERIALS))
    native: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} {self.digest}>"

    def as_numpy(self, dtype: Any) -> np.ndarray[Any, Any]:
        """Return the values in a NumPy dtype, read-only."""
        values = self.native.get(dtype)
        if values is None:
            view = np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)
            with np.errstate(all="ignore"):
                values = view.astype(dtype)
            values.flags.writeable = False
            self.native[dtype] = values
        return values


def freeze(array: np.ndarray[Any, Any]) -> ArrayValue:
    """Return the frozen values of a NumPy array."""
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)  # holds both, and has a buffer that NumPy reads back
    # In the native byte order, so that equal values have equal bytes.
    array = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    data = array.tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    value = ArrayValue(data, array.shape, array.dtype.name, digest)
    _arrays[value.serial] = value
    return value


def find_array(serial: int) -> ArrayValue:
    return _arrays[serial]
