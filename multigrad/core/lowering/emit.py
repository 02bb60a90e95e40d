"""Emission: a graph becomes straight-line Python source over a backend's functions.

A node used once is nested into its user's expression: a named temporary stays alive to the end of
the function and costs up to 8.6 times (NumPy, 1e6 elements) in fresh memory.

    mul(add(x, 1), y)  ─►  return (x + 1) * y        `emit_body` gives lines and results, a `Body`

An `Emission` holds the names of a whole module, which may have several bodies: those of forward, of
backward, and of each region of a loop.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UnsupportedOp
from .. import ops
from ..backend.contract import Backend
from ..backend.emitted import Body, Prepared
from ..backend.rows import FastKernels, disabled
from ..ir.graph import ArrayValue, Graph, Location, Node, count_uses
from ..ir.op import BOOL, OWNING, UNKNOWN, WHOLE, T
from ..passes.simplify import is_elementwise, rebuild, scalar_function, symbol_function
from ..support.lazy_modules import loaded, of_engine, provided

# Binding strength of infix symbols, weakest first; comparisons do not chain, so they get
# parentheses.
PRECEDENCE = {"|": 2, "^": 3, "&": 4, "+": 5, "-": 5, "*": 6, "/": 6}
COMPARISON, UNARY, ATOM = 1, 7, 9
TEXT = operator.itemgetter(0)  # of a node that is expressed
DTYPE = operator.attrgetter("type.dtype")
DEEPEST = 24  # nested calls beyond this are given a name, for the reader and for the parser


@dataclass(eq=False, repr=False)
class Emission:
    """The state of an emission for one backend: the names bound so far.

    Attributes:
        rule: whose code it is, for error messages.
        widens: as of `FunctionGraph`.
        selects: whether a product with a mask is written without a cast of the mask.
        off: the fast rows that are turned off.
        namespace: what the module's code names, by name.
        taken: names that mean something else in the code, such as those of its variables.
        serials: the next number of temporaries, by their letter.
        known: the regions of loops that have been written already; see `loops.py` of the engine.
        definitions: the source of functions that come before all other code.
        written: where the user wrote what a text computes, first the last op of it.
    """

    backend: Backend
    rule: str
    widens: bool = False
    selects: bool = False
    off: frozenset[str] = field(default_factory=disabled)
    namespace: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    serials: dict[str, itertools.count[int]] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)
    definitions: list[str] = field(default_factory=list)
    written: dict[str, tuple[Location, ...]] = field(default_factory=dict)

    def with_definitions(self, source: str) -> str:
        return "".join(self.definitions) + source

    def bind(self, name: str, value: Any) -> str:
        """Return a name under which `value` is bound in the emitted module.

        Ops of a backend's own kernels are called "<backend>.<name>".
        """
        name = name.rpartition(".")[2]
        for i in itertools.count():
            candidate = f"{name}_{i}" if i else name
            if keyword.iskeyword(candidate) or candidate in self.taken:
                continue
            if candidate not in self.namespace or self.namespace[candidate] is value:
                self.namespace[candidate] = value
                return candidate
        raise AssertionError("names never run out")


def emit_body(
    graph: Graph,
    emission: Emission,
    fast: bool = False,
    prepared: Prepared | None = None,
    into: Sequence[str] = (),
) -> Body:
    """Emit the code of a graph.

    `fast`: no derivative is taken of it and no transform is active. `prepared` gets what depends on
    params only. `into`: names of the arrays that outputs are written to.
    """
    if not graph.outputs:  # what forward keeps, where that is none but inputs
        names = tuple(graph.names)
        emission.taken.update(names)
        return Body(names, (), (), frozenset(), True)
    # Asked of the ops, before patterns replace some of them by kernels.
    elementwise = is_elementwise(graph)
    if fast:
        graph = apply_patterns(graph, emission.backend.kernels.fast, emission.off)
    if emission.selects:
        graph = rebuild(graph, by_mask)
    return Writer(graph, emission, fast, prepared, into).write(elementwise)


def apply_patterns(graph: Graph, fast: FastKernels, off: frozenset[str]) -> Graph:
    """Return the graph with a backend's own kernels, except for the rows that are off."""
    # Before rewrites of single nodes, which would hide what they look for.
    for row in fast.patterns:
        if row.rewrite_graph is not None and row.name not in off:
            graph = row.rewrite_graph(graph)

    if fast.by_op.keys().isdisjoint(graph.ops):
        return graph

    def change(node: Node) -> Node:
        rows = fast.by_op.get(node.op, ())
        if rows and not {*map(DTYPE, (node, *node.operands))}.isdisjoint(WHOLE):
            return node  # they are written for floats and bools
        for name, rewrite in rows:
            replacement = None if name in off else rewrite(node)
            if replacement is not None:
                return replacement
        return node

    return rebuild(graph, change)


@provided
def by_mask(node: Node) -> Node:
    """Return a product of a float tensor and a mask without the cast of the mask."""
    return node


write_loop = of_engine(__name__, "write_loop", "a loop")


@provided
def write_into_place(writer: Writer, node: Node) -> str | None:
    """Return a call that writes an output into the array given for it; None: it cannot."""
    return None


@provided
def is_held(writer: Writer, node: Node, user: Node) -> bool:
    """Return whether a node's memory, or a view of it, is read when `user` writes over it."""
    return True


class Writer:
    """Writes one graph, node by node; lives while the body is being emitted.

    `express` returns the text of a node. What is used once is nested into its user's text; the
    rest, and every loop, becomes a line that names it.
    """

    def __init__(
        self,
        graph: Graph,
        emission: Emission,
        fast: bool,
        prepared: Prepared | None,
        into: Sequence[str] = (),
    ) -> None:
        self.graph = graph
        self.into = dict(zip(graph.outputs, into, strict=False))
        self.fast = fast
        self.emission = emission
        self.backend = emission.backend
        has_in_place = fast and f"{self.backend.name}.in_place" not in emission.off
        self.in_place = self.backend.kernels.fast.in_place if has_in_place else {}
        self.prepared = prepared
        # Scalars of params and constants alone, which `prepare` computes.
        self.of_params: set[Node] = set()
        for node in () if prepared is None else graph.nodes:
            # An input and a constant have no operands; a length has a tensor.
            if node.type.kind == "scalar" and self.of_params.issuperset(node.operands):
                self.of_params.add(node)
        self.uses = count_uses(graph)
        self.lines: list[str] = []
        self.loops: dict[Any, str] = {}  # the names of loops, by their nodes
        # Of each node that is expressed: its text, precedence and depth.
        self.done: dict[Node, tuple[str, int, int]] = {}
        self.like: str | None = None  # the tensor whose dtype T is, if any
        for node, name in zip(graph.inputs, graph.names, strict=True):
            self.done[node] = name, ATOM, 0
            emission.taken.add(name)
            if self.like is None and node.type.dtype == T:
                self.like = name
        self.asks_like = False  # whether the code mentions its dtype
        self.wide = ""  # the variable of `wide_dtype`
        self.readers: Any = None  # of each node, as `is_held` finds them

    def write(self, elementwise: bool) -> Body:
        parameters = tuple(map(TEXT, self.done.values()))
        reads = set()
        for node in self.graph.nodes:
            if node.op is ops.INPUT:
                reads.add(self.done[node][0])
            else:
                self.done[node] = self.express(node)
        if self.graph.locations:
            self.note_places()
        results = tuple(map(TEXT, map(self.done.__getitem__, self.graph.outputs)))
        if self.like is not None and self.asks_like:
            reads.add(self.like)
        return Body(parameters, tuple(self.lines), results, frozenset(reads), elementwise)

    def note_places(self) -> None:
        """Note where the user wrote what each text computes."""
        lines = dict([line.split(" = ", 1) for line in self.lines])
        nested: dict[Node, tuple[Location, ...]] = {}  # in the text of a node, which has no name
        for node in self.graph.nodes:
            own = self.graph.locations.get(node)
            inner = itertools.chain.from_iterable(map(nested.__getitem__, node.operands))
            places = tuple(dict.fromkeys(inner if own is None else (own, *inner)))
            is_loop = node.op.loop is not None
            text = self.loops[node] if is_loop else self.done[node][0]
            nested[node] = () if text in lines else places
            if places and (text in lines or not text.isidentifier()):
                self.emission.written[lines.get(text, text)] = places

    def express(self, node: Node) -> tuple[str, int, int]:
        if node.op is ops.CONST:
            return self.literal(node.attr("value"))
        if node.op.loop:
            return write_loop(self, node), ATOM, 0
        text, strength = self.call(node)
        depth = 1
        for operand in node.operands:
            depth = max(depth, 1 + self.done[operand][2])
        # A value that is used twice is computed once; the parser limits how deep calls may nest.
        if self.uses[node] > 1 or depth > DEEPEST:
            name = self.fresh()
            lines = self.prepared.lines if self.prepared and node in self.of_params else self.lines
            lines.append(f"{name} = {text}")
            return name, ATOM, 0
        return text, strength, depth

    def fresh(self, letter: str = "v") -> str:
        emission = self.emission
        for i in emission.serials.setdefault(letter, itertools.count(1)):
            name = f"{letter}{i}"
            if name not in emission.taken and name not in emission.namespace:
                emission.taken.add(name)
                return name
        raise AssertionError("names never run out")

    def literal(self, value: Any) -> tuple[str, int, int]:
        # `nan` and `inf`, as repr gives them, are no literals.
        if isinstance(value, float) and not math.isfinite(value):
            name = "nan" if math.isnan(value) else "inf"
            bound_name = self.emission.bind(name, abs(value))
            return (f"-{bound_name}", UNARY, 0) if value < 0 else (bound_name, ATOM, 0)
        return repr(value), (UNARY if repr(value).startswith("-") else ATOM), 0

    def call(self, node: Node) -> tuple[str, int]:
        """Return the code of a node that is no constant and no loop, and its precedence."""
        if node.type.kind == "scalar" and node.op.plain:
            operands = [self.hoisted_text(node, o) for o in node.operands]
            return self.infix(node.op.symbol or "", operands)
        has_kernel = node.op in (ops.DIM, ops.SIZE) or node.op in self.backend.kernels.fast.kernels
        if node.type.kind == "scalar" and not has_kernel:
            return self.scalar_call(node), ATOM
        # The fastest form that fits: into the caller's array, over an operand, with a number.
        fast_call = write_into_place(self, node) if node in self.into else None
        in_place = None if fast_call else self.in_place.get(node.op)
        if in_place is not None:
            fast_call = self.call_overwriting_operand(node, in_place)
        if fast_call is None and len(node.operands) == 2:
            fast_call = self.call_with_scalar(node)
        if fast_call is not None:
            return fast_call, ATOM
        # The backend's kernel or an infix symbol; here, as most nodes of a first call come to it.
        native = self.native(node.op)
        operands = [
            self.operand_in_tensor_dtype(node, o) if o.type.kind == "scalar" else self.done[o][:2]
            for o in node.operands
        ]
        if node.op.symbol is not None and native is INFIX:
            return self.infix(node.op.symbol, operands)
        arguments = [*map(TEXT, operands), *self.attributes(node)]
        return f"{self.emission.bind(node.op.name, native)}({', '.join(arguments)})", ATOM

    def attributes(self, node: Node) -> Sequence[str]:
        """Return the attributes of a node as arguments."""
        if not node.attrs:
            return ()
        return [f"{name}={self.attribute(name, value)}" for name, value in node.attrs]

    def scalar_call(self, node: Node) -> str:
        # A param is a number or a tensor at run time; `scalar_function` decides at the call.
        native = (
            self.backend.kernels.rows.get(node.op)
            or symbol_function(node.op)
            or self.native(node.op)
        )
        function = scalar_function(node.op, native, self.backend.kernels.open_number)
        name = self.emission.bind(f"scalar_{node.op.name}", function)
        arguments = [self.hoisted_text(node, o)[0] for o in node.operands]
        arguments += self.attributes(node)
        return f"{name}({', '.join(arguments)})"

    def call_overwriting_operand(self, node: Node, kernels: Sequence[Any]) -> str | None:
        """Return a call that writes over the first operand that nothing else holds; else None."""
        if node.op.coerce == "bool" and any(o.type.kind == "scalar" for o in node.operands):
            return None  # these kernels take no number
        for position, kernel in enumerate(kernels):
            operand = node.operands[position]
            if kernel is None or operand.type != node.type or not self.is_fresh(operand, node):
                continue
            others = (*node.operands[:position], *node.operands[position + 1 :])
            may_grow = node.type.shape == UNKNOWN and node.op.name != "put"
            if may_grow and any(o.type.kind == "tensor" for o in others):
                # The other operand may be the larger one, seen only at run time.
                if len(others) > 1:
                    continue
                native = self.native(node.op)
                plain = symbol_function(node.op) if native is INFIX else native
                kernel = write_where_it_fits(kernel, plain, position)
            # `mul_` writes over its first operand, `mul_into` over its second.
            suffix = "" if position == 0 or kernel is kernels[0] else "into"
            name = self.emission.bind(f"{node.op.name}_{suffix}", kernel)
            arguments = [self.done[operand][0]]
            arguments += [self.operand_in_tensor_dtype(node, o)[0] for o in others]
            arguments += self.attributes(node)
            return f"{name}({', '.join(arguments)})"
        return None

    def is_fresh(self, node: Node, user: Node) -> bool:
        """Return whether a node has memory of its own that nothing reads after `user`."""
        if node.type.kind != "tensor":
            return False
        if self.uses[node] != 1 and (user.op.name != "put" or is_held(self, node, user)):
            return False
        if node.op is ops.CAST:  # to its own dtype it returns its operand
            return node.operands[0].type.dtype == BOOL != node.type.dtype
        if node.op is ops.FULL_LIKE:  # of a tensor it is a view
            return user.op.name == "put" and node.operands[1].op is ops.CONST
        return self.owns_memory(node)

    def owns_memory(self, node: Node) -> bool:
        return node.op.result in OWNING or node.op in self.backend.kernels.fast.kernels

    def call_with_scalar(self, node: Node) -> str | None:
        """Return a call of the kernel for a tensor and a number; None if the backend has none."""
        for table, (tensor, scalar) in (
            (self.backend.kernels.scalar_right, node.operands),
            (self.backend.kernels.scalar_left, node.operands[::-1]),
        ):
            kernel = table.get(node.op)
            if kernel and tensor.type.kind == "tensor" and scalar.type.kind == "scalar":
                name = self.emission.bind(kernel.__name__, kernel)
                number, _ = self.operand_in_tensor_dtype(node, scalar)
                return f"{name}({self.done[tensor][0]}, {number})"
        return None

    def native(self, op: ops.Op) -> Any:
        """Return the backend's callable of an op, or raise UnsupportedOp with the reason."""
        kernels = self.backend.kernels
        if op.name in BITS and kernels.bits is not None:
            return loaded(kernels.bits[BITS.index(op.name)])
        native = kernels.exact.get(op) or kernels.rows.get(op, INFIX if op.symbol else None)
        native = kernels.fast.kernels.get(op, native)
        if native is None:
            reason = kernels.unsupported.get(op, "it has no row for it")
            raise self.lacking(op, reason)
        return native

    def lacking(self, op: ops.Op, reason: Any) -> UnsupportedOp:
        places = [place for node, place in self.graph.locations.items() if node.op is op]
        suffix = f" ({places[0]})" if places else ""
        return UnsupportedOp(
            f"rule {self.emission.rule!r}{suffix} uses {op.name}, which {self.backend.name} lacks: "
            f"{reason}"
        )

    def hoisted_text(self, user: Node, operand: Node) -> tuple[str, int]:
        """Return an operand's text: of a static scalar, the name that `prepare` gives it.

        What depends on the params alone is computed once, by `prepare`.
        """
        text, strength, _ = self.done[operand]
        if self.prepared is None or operand not in self.of_params or user in self.of_params:
            return text, strength
        as_tensor = self.is_prepared_as_tensor(user, operand)
        if operand.op is ops.CONST and not as_tensor:
            return text, strength
        return self.prepared.name(operand, text, as_tensor, self.fresh), ATOM

    def is_prepared_as_tensor(self, user: Node, operand: Node) -> bool:
        """Return whether `prepare` makes a static scalar a tensor, as the op's kernel takes it."""
        if self.prepared is None or operand not in self.of_params or user.type.kind != "tensor":
            return False
        positions = self.backend.kernels.fast.constants.get(user.op, ())
        # A prepared number has the input's dtype, which would be wrong next to integers.
        is_alike = all(o.type.dtype == T for o in user.operands if o.type.kind == "tensor")
        return is_alike and self.like is not None and user.operands.index(operand) in positions

    def operand_in_tensor_dtype(self, user: Node, operand: Node) -> tuple[str, int]:
        """Return an operand's text: a weak scalar takes the dtype of the tensor that it meets."""
        if operand.type.kind != "scalar":
            return self.done[operand][:2]
        text, strength = self.hoisted_text(user, operand)
        # None: the framework's operators take a number in the tensor's dtype.
        if self.backend.tensors.weak is None:
            return text, strength
        if self.is_prepared_as_tensor(user, operand):
            return text, strength
        # A bool, or an operand that is taken raw, has no dtype to take.
        if user.op.coerce in ("raw", "bool") or (
            user.op is ops.WHERE and operand.type.dtype == BOOL
        ):
            return text, strength
        if operand.op is ops.CONST and not self.backend.tensors.weak_literals and text != "-0.0":
            return text, strength
        weak = self.emission.bind("weak", self.backend.tensors.weak)
        dtypes = [o.type.dtype for o in user.operands if o.type.kind == "tensor"]
        dtype = next((d for d in dtypes if d != BOOL), T)
        return f"{weak}({text}, {self.attribute('dtype', dtype)})", ATOM

    def infix(self, symbol: str, operands: list[tuple[str, int]]) -> tuple[str, int]:
        if len(operands) == 1:
            text, strength = operands[0]
            return f"{symbol}{_wrap(text, strength, UNARY + 1)}", UNARY
        if symbol in PRECEDENCE:
            own_strength = PRECEDENCE[symbol]
            left = _wrap(*operands[0], own_strength)
            right = _wrap(*operands[1], own_strength + 1)  # left-associative
            return f"{left} {symbol} {right}", own_strength
        left, right = (_wrap(*operand, COMPARISON + 1) for operand in operands)
        return f"{left} {symbol} {right}", COMPARISON

    def attribute(self, name: str, value: Any) -> str:
        if name == "dtype":
            if value == T and self.like is not None:
                self.asks_like = True
                return f"{self.like}.dtype"
            if value == T:  # of a function of integers alone, as most libraries have it
                value = "float32"
            name = self.emission.bind(f"dtype_{value}", self.backend.tensors.dtype(value))
            return self.wide_dtype(name) if self.emission.widens and value == "float32" else name
        if isinstance(value, ArrayValue):
            return self.emission.bind("values", value)
        return self.literal(value)[0] if isinstance(value, float) else repr(value)

    def wide_dtype(self, float32: str) -> str:
        """Return the name of float64 where the input has that, else of float32."""
        if not self.wide:
            double = self.emission.bind("dtype_float64", self.backend.tensors.dtype("float64"))
            self.wide = self.fresh("dtype")
            self.asks_like = True
            test = f"{self.like}.dtype == {double}"
            self.lines.append(f"{self.wide} = {double} if {test} else {float32}")
        return self.wide


@functools.cache
def write_where_it_fits(kernel: Any, plain: Any, position: int) -> Any:
    """Return a kernel that writes over x, unless the other operand makes the result larger.

    `position` is that of x.
    """

    def write_over(x: Any, other: Any) -> Any:
        if not other.ndim or other.shape == x.shape:
            return kernel(x, other)
        return plain(other, x) if position else plain(x, other)

    return write_over


INFIX: Any = "written as an infix symbol"
BITS = ("pack_bits", "unpack_bits")  # masks as bits, which the engine's cuts have


def _wrap(text: str, strength: int, needed: int) -> str:
    return text if strength >= needed else f"({text})"
