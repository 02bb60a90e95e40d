"""Graphs as kernels: one function over the elements for all that a graph computes of them.

    Graph ─► Layouts ─► Arrangement ─► Parts ────► Kernel
             shapes     which line     tensors,    the source, by the
                        in which loop  loops       template of a `Language`

Kernels are for ops with the same bits wherever they run (IEEE 754 arithmetic, comparisons,
choices), so that a kernel does what the ops do one by one, without memory in between, and for
reductions, which are at least as exact. 16-bit floats are computed in float32 and rounded once. A
mask that forward keeps for backward is packed to bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....core import ops
from ....core.ir.graph import Graph, Node, make_node
from ....core.ir.op import BOOL, Op, T
from ....core.passes.simplify import on_numbers, rebuild
from .passes import (
    COLUMN,
    FULL,
    ONE,
    REDUCTIONS,
    ROW,
    SIZES,
    WHOLE,
    Arrangement,
    CannotFuseError,
    KernelLayout,
    Layouts,
    Loop,
    LoopStep,
    Total,
    in_sums,
)

# By dtype: the dtype in which a kernel computes.
COMPUTED = {
    "float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32",
}  # fmt: skip
# Operands are names, so that an expression may read one twice.
INFIX = {
    op: f"{{}} {symbol} {{}}"
    for op, symbol in {
        ops.ADD: "+", ops.SUB: "-", ops.MUL: "*", ops.LT: "<", ops.LE: "<=", ops.GT: ">",
        ops.GE: ">=", ops.EQ: "==", ops.NE: "!=", ops.AND: "&", ops.OR: "|", ops.XOR: "^",
    }.items()
}  # fmt: skip
# Ops that need no code in a kernel.
SAME = dict.fromkeys((ops.STOP_GRADIENT, ops.BROADCAST_TO), "{0}")


class KernelTensor(NamedTuple):
    """A tensor that a kernel reads or writes, under the name `value`.

    Attributes:
        name: the input's; "" for a result.
        is_mask, is_packed: whether it holds bools, one byte or one bit each.
        layout: relative to the elements.
        is_reduced: whether a reduction feeds it.
    """

    name: str
    value: str
    is_mask: bool
    is_packed: bool
    layout: KernelLayout
    is_reduced: bool


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """The language of kernels: expressions, statements, a template.

    Attributes:
        rows: expressions of operands, by op.
        template: a kernel's definition.
        by_number: the same for a tensor and a number, as last operand, where that differs.
        line, mask_line: the statement that names an expression.
        to_number: a mask as a number.
        rounded: a number rounded to the dtype, where that is of 16 bits.
        reductions: those of `passes.REDUCTIONS` that it has.
    """

    rows: Mapping[Op, str]
    template: Callable[[Parts], str]
    by_number: Mapping[Op, str] = field(default_factory=dict)
    line: str = "{} = {}"
    mask_line: str = "{} = {}"
    to_number: str = "{}"
    rounded: str = "{}"
    reductions: Collection[Op] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The content of a kernel: `loops` compute the results from the inputs and from numbers.

    The numbers are s0, s1, ...; also c0, c1, ..., rounded to the dtype, for comparisons, and d0,
    d1, ..., in double, for exponents.

    Attributes:
        dtype: that of the tensors in memory.
        numbers: how many there are.
    """

    name: str
    dtype: str
    inputs: tuple[KernelTensor, ...]
    results: tuple[KernelTensor, ...]
    numbers: int
    loops: tuple[Loop, ...]

    @property
    def steps(self) -> list[LoopStep]:
        return [step for loop in self.loops for step in loop]

    @property
    def totals(self) -> list[Total]:
        return [total for step in self.steps for total in step.totals]

    @property
    def is_by_rows(self) -> bool:
        """Whether it needs to know where a row ends."""
        kinds = [each.layout.kind for each in (*self.inputs, *self.results)]
        return not {ROW, COLUMN}.isdisjoint([*kinds, *[total.kind for total in self.totals]])

    @property
    def repeats(self) -> bool:
        """Whether a costly function is computed more than once for each element."""
        lines = [line for step in self.steps if step.space == FULL for line in step.lines]
        calls = [line for line in lines if "WHOLE(" in line]
        return len(calls) > len(set(calls))


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A graph as a function.

    Attributes:
        parts: what it is made of; the tensors are its arguments, inputs first.
        source: its definition.
        numbers: the scalars that it takes.
        sizes: those that are the size or a length of a tensor, with its layout.
        ranks: how many axes the elements must have, if that matters.
        row_axes: how many of them, at the end, are a row.
    """

    parts: Parts
    source: str
    numbers: tuple[Node, ...]
    sizes: Mapping[Node, KernelLayout]
    ranks: Collection[int]
    row_axes: int

    @property
    def name(self) -> str:
        return self.parts.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple([place.name for place in self.parts.inputs])

    def values(
        self,
        params: Mapping[str, float],
        own: Mapping[Op, Callable[..., Any]],
        shape: tuple[int, ...],
    ) -> list[float]:
        """Return the numbers for these params and this shape; `own`: a backend's ops on numbers."""
        values: dict[Node, Any] = {}
        for node, layout in self.sizes.items():
            lengths = layout.shape(shape)
            values[node] = math.prod(lengths) if node.op is ops.SIZE else lengths[node.attr("axis")]

        def value(node: Node) -> Any:
            if node in values:
                return values[node]
            if node.op is ops.CONST:
                return node.attr("value")
            if node.op is ops.INPUT:
                return params[node.attr("name")]
            operands, own_function = tuple(map(value, node.operands)), own.get(node.op)
            if own_function is not None:
                values[node] = own_function(*operands)
            else:
                values[node] = on_numbers(node.op, operands, dict(node.attrs))
            return values[node]

        numbers = map(value, self.numbers)
        return [math.nan if each is None else float(each) for each in numbers]


def check_dtype(dtype: str) -> None:
    if dtype not in COMPUTED:
        raise CannotFuseError(f"dtype {dtype}")


def write_kernel(
    name: str,
    graph: Graph,
    dtype: str,
    language: Language,
    packed: Collection[str] = (),
    packs: Collection[int] = (),
    layouts: Mapping[str, KernelLayout] | None = None,
) -> Kernel:
    """Return a graph as a kernel, or raise CannotFuseError for an op, dtype or shape without one.

    Args:
        dtype: the dtype that T means.
        packed: the names of masks among the inputs that are packed to bits.
        packs: the positions of masks among the outputs that are to be packed.
        layouts: the layouts of the inputs; by default all have the shape of the elements.
    """
    check_dtype(dtype)
    # In terms of ops that kernels have.
    graph = rebuild(rebuild(graph, limit_in_turn), in_sums)
    input_names = [node.attr("name") for node in graph.nodes if node.op is ops.INPUT]
    geometry = Layouts(graph, dict.fromkeys(input_names, WHOLE) if layouts is None else layouts)
    writer = _KernelWriter(graph, dtype, language, geometry)
    lines = {node: line for node in graph.nodes if (line := writer.line(node))}
    loops = Arrangement(graph, geometry, writer.names, lines).loops()
    read_values = {value for loop in loops for step in loop for value in step.reads}

    def place(name: str, node: Node, is_packed: bool) -> KernelTensor:
        is_reduced = geometry.passes[node] + geometry.turns[node] > 0
        return KernelTensor(
            name,
            value=writer.names[node],
            is_mask=is_mask(node),
            is_packed=is_packed,
            layout=geometry.of[node],
            is_reduced=is_reduced,
        )

    inputs = [
        place(node.attr("name"), node, node.attr("name") in packed)
        for node in geometry.of
        if node.op is ops.INPUT and writer.names[node] in read_values
    ]
    results = [place("", node, i in packs) for i, node in enumerate(graph.outputs)]
    count = len(writer.numbers)
    parts = Parts(name, dtype, tuple(inputs), tuple(results), numbers=count, loops=loops)
    sizes = {node: geometry.sized(node) for node in graph.nodes if node.op in SIZES}
    numbers, source = tuple(writer.numbers), language.template(parts)
    return Kernel(parts, source, numbers, sizes, ranks=geometry.ranks, row_axes=geometry.row_axes)


def limit_in_turn(node: Node) -> Node:
    """Return a clip between tensors as two limits, through which their NaN propagates too."""
    if node.op is not ops.CLIP or all(each.type.kind == "scalar" for each in node.operands[1:]):
        return node
    x, low, high = node.operands
    return make_node(
        ops.MINIMUM, (make_node(ops.MAXIMUM, (x, low), {}, node.type), high), {}, node.type
    )


def indented(lines: Sequence[str], spaces: int) -> str:
    return "".join([f"{' ' * spaces}{line}\n" for line in lines])


def is_mask(node: Node) -> bool:
    return node.type.dtype == BOOL


class _KernelWriter:
    def __init__(self, graph: Graph, dtype: str, language: Language, layouts: Layouts) -> None:
        self.dtype, self.language, self.layouts = dtype, language, layouts
        self.numbers: dict[Node, int] = {}
        self.names: dict[Node, str] = {}
        for node in graph.outputs:
            if node.type.kind != "tensor":
                raise CannotFuseError("a result that is a number")
            if node.type.dtype not in (T, BOOL, dtype):
                raise CannotFuseError(f"a result of dtype {node.type.dtype}")

    def line(self, node: Node) -> str:
        # Numbers are computed before the kernel runs, and have no line.
        if node.type.kind == "scalar":
            is_computed = all(operand.type.kind == "scalar" for operand in node.operands)
            if not is_computed and node.op not in SIZES:
                raise CannotFuseError(f"op {node.op.name}")
            return ""
        dtypes = (T, BOOL, self.dtype, COMPUTED[self.dtype])
        if node.type.kind != "tensor" or node.type.dtype not in dtypes:
            raise CannotFuseError(f"a value of dtype {node.type.dtype}")
        name = self.names[node] = f"v{len(self.names)}"
        if node.op is ops.INPUT:
            return ""
        line = self.language.mask_line if is_mask(node) else self.language.line
        return line.format(name, self.expression(node))

    def expression(self, node: Node) -> str:
        operands = node.operands
        is_numbers = [operand.type.kind == "scalar" for operand in operands]
        is_comparison = is_mask(node)
        # A comparison takes a number rounded to the dtype, a power takes it in double: see Parts.
        kind = "c" if is_comparison else "d" if node.op is ops.POW else "s"
        words = [self.word(operand, kind) for operand in operands]
        if node.op is ops.CAST:
            return self.cast(node, words[0])
        if self.layouts.reduces(node) and node.op not in self.language.reductions:
            raise CannotFuseError(f"op {node.op.name}, a reduction")
        if node.op in REDUCTIONS:
            if is_mask(operands[0]):
                raise CannotFuseError(f"op {node.op.name} of bools")
            return words[0]
        if node.op is ops.FULL_LIKE and not is_comparison:
            return words[1]
        row = self.language.rows.get(node.op)
        attrs = {key: repr(value) for key, value in node.attrs}
        is_known = all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) for text in attrs.values())
        if row is None or not is_known:
            raise CannotFuseError(f"op {node.op.name}")
        if is_comparison and not any(is_numbers):
            words = list(map(self.compared, operands, words))
        kinds = {self.layouts.of[each].kind for each in self.layouts.read(node)}
        if node.op is ops.POW and len(kinds - {ONE}) > 1:
            raise CannotFuseError("op pow of tensors of several shapes")
        # A base and its exponent do not change places.
        if node.op in self.language.by_number and any(is_numbers[node.op is ops.POW :]):
            row = self.language.by_number[node.op]
            words = words[::-1] if is_numbers[0] else words
        return row.format(*words, layout=self.layouts.of[node].kind, **attrs)

    def cast(self, node: Node, word: str) -> str:
        if is_mask(node):
            return f"{word} != 0"
        if is_mask(node.operands[0]):
            return self.language.to_number.format(word)
        is_wide = node.type.dtype == COMPUTED[self.dtype] != self.dtype
        return word if is_wide else self.language.rounded.format(word)

    def compared(self, operand: Node, word: str) -> str:
        # Backward may recompute in float32 what forward kept in 16 bits, as the maximum of a row.
        is_wide = operand.type.dtype not in (T, self.dtype) or self.dtype in COMPUTED.values()
        if is_wide or operand.op is ops.INPUT:
            return word
        return f"({self.language.rounded.format(word)})"

    def word(self, operand: Node, kind: str) -> str:
        if operand.type.kind != "scalar":
            return self.names[operand]
        place = self.numbers.setdefault(operand, len(self.numbers))
        return f"{kind}{place}"
