"""Graphs as C: one loop over the elements for all that a graph computes of tensors of one shape.

For ops that are the same bits wherever they run (IEEE 754 arithmetic, comparisons, choices), as a
loop in C does what the ops one by one do, with no memory in between. 16-bit floats are computed in
float32 and rounded once. A mask that forward keeps for backward is packed to bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import ops
from ..graph.ir.graph import Graph, Node
from ..graph.ir.op import Op
from ..graph.ir.types import BOOL, T
from ..graph.passes.scalars import on_numbers


class CannotFuseError(Exception):
    """Why a graph is no loop in C, in a few words."""


# Threads; and what C keeps besides results is not looked at.
FLAGS = ("-fopenmp", "-fno-trapping-math")
# By dtype: how it lies in memory, and how it is computed.
STORED = {"float32": "float", "float64": "double", "bfloat16": "uint16_t", "float16": "_Float16"}
COMPUTED = {"float32": "float", "float64": "double", "bfloat16": "float", "float16": "float"}

# Operands are names, so that an expression may read one twice. Of a number and a tensor the number
# stands last, as frameworks take it.
INFIX = {
    op: f"{{}} {symbol} {{}}"
    for op, symbol in {
        ops.ADD: "+", ops.SUB: "-", ops.MUL: "*", ops.DIV: "/", ops.LT: "<", ops.LE: "<=",
        ops.GT: ">", ops.GE: ">=", ops.EQ: "==", ops.NE: "!=", ops.AND: "&", ops.OR: "|",
        ops.XOR: "^",
    }.items()
}  # fmt: skip
ROWS: dict[Op, str] = {
    **INFIX,
    ops.NEG: "-{}",
    ops.NOT: "!{}",
    ops.ABS: "FABS({})",
    ops.SQUARE: "{0} * {0}",
    ops.SQRT: "SQRT({})",
    ops.RSQRT: "1 / SQRT({})",
    ops.RECIPROCAL: "1 / {}",
    ops.FLOOR: "FLOOR({})",
    ops.CEIL: "CEIL({})",
    ops.TRUNC: "TRUNC({})",
    ops.ROUND: "RINT({})",
    ops.COPYSIGN: "COPYSIGN({}, {})",
    ops.WHERE: "{} ? {} : {}",
    # NaN of either side comes through; of equals, which zeros of two signs are, the second.
    ops.MAXIMUM: "({0} > {1} || {0} != {0}) ? {0} : {1}",
    ops.MINIMUM: "({0} < {1} || {0} != {0}) ? {0} : {1}",
    ops.CLIP: "CLIP({}, {}, {})",
    ops.SIGN: "{0} != {0} ? {0} : (R)(({0} > 0) - ({0} < 0))",
    ops.ISNAN: "{0} != {0}",
    ops.ISINF: "FABS({}) == INFINITY",
    ops.ISFINITE: "FABS({}) < INFINITY",
    ops.HEAVISIDE: "(R)({} > 0)",
    ops.RELU: "{0} < 0 ? 0 : {0}",
    ops.RELU6: "CLIP({}, 0, 6)",
    ops.LEAKY_RELU: "{0} > 0 ? {0} : {0} * (R){slope}",
    ops.STOP_GRADIENT: "{}",
    # All tensors have one shape.
    ops.SUM_TO: "{0}",
    ops.BROADCAST_TO: "{0}",
}
LIMITS = {ops.MAXIMUM: "{0} < {1} ? {1} : {0}", ops.MINIMUM: "{0} > {1} ? {1} : {0}"}

BEGIN = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
#define CHUNK 4096
#define CLIP(x, low, high) ((x) < (low) ? MIN(low, high) : MIN(x, high))
#define MIN(x, high) ((x) > (high) ? (high) : (x))

static inline void unpack(uint8_t *restrict mask, const uint8_t *restrict bits, int64_t n) {
    for (int64_t i = 0; 8 * i < n; i++) {
        uint64_t spread = (bits[i] * 0x0101010101010101u) & 0x0102040810204080u;
        spread = ((spread + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
        memcpy(mask + 8 * i, &spread, 8);
    }
}

static inline void pack(uint8_t *restrict bits, const uint8_t *restrict mask, int64_t n) {
    for (int64_t i = 0; 8 * i < n; i++) {
        uint64_t bytes;
        memcpy(&bytes, mask + 8 * i, 8);
        bits[i] = (bytes * 0x8040201008040201u) >> 56;
    }
}
"""
WIDTHS = {"float": "f", "double": ""}
AS_IT_IS = """
static inline R load(S x) { return x; }
static inline S store(R x) { return x; }
"""
BFLOAT16 = """
static inline R load(S x) {
    uint32_t bits = (uint32_t)x << 16;
    R value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline S store(R x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
"""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A graph as a function of C.

    Attributes:
        name: the function's: `name(pointers, numbers, n, threads)`.
        source: its definition.
        inputs: the names of the tensors that it reads; their pointers come first.
        numbers: what it takes of numbers.
        count: of what it computes on each element; 0: it copies.
    """

    name: str
    source: str
    inputs: tuple[str, ...]
    numbers: tuple[Node, ...]
    count: int

    def values(
        self, params: Mapping[str, float], own: Mapping[Op, Callable[..., Any]]
    ) -> list[float]:
        """Return the numbers for values of the params; `own`: a backend's ops on numbers."""
        known: dict[Node, Any] = {}

        def value(node: Node) -> Any:
            if node not in known:
                known[node] = _value(node, params, own, value)
            return known[node]

        found = map(value, self.numbers)
        return [math.nan if each is None else float(each) for each in found]


def _value(
    node: Node,
    params: Mapping[str, float],
    own: Mapping[Op, Callable[..., Any]],
    value: Callable[[Node], Any],
) -> Any:
    if node.op is ops.CONST:
        return node.attr("value")
    if node.op is ops.INPUT:
        return params[node.attr("name")]
    operands = tuple(map(value, node.operands))
    mine = own.get(node.op)
    return on_numbers(node.op, operands, dict(node.attrs)) if mine is None else mine(*operands)


def begin(dtype: str) -> str:
    """Return the beginning of a file of kernels for a dtype.

    Raises:
        CannotFuseError: there are none.
    """
    if dtype not in STORED:
        raise CannotFuseError(f"dtype {dtype}")
    computed = COMPUTED[dtype]
    suffix = WIDTHS[computed]
    words = ("fabs", "sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fma")
    macros = [f"#define {word.upper()} {word}{suffix}\n" for word in words]
    types = f"typedef {computed} R;\ntypedef {STORED[dtype]} S;\n"
    return "".join((BEGIN, *macros, types, BFLOAT16 if dtype == "bfloat16" else AS_IT_IS))


def write_kernel(
    name: str,
    graph: Graph,
    dtype: str,
    rows: Mapping[Op, str],
    packed: Collection[str] = (),
    packs: Collection[int] = (),
) -> Kernel:
    """Return a graph as C.

    Args:
        name: of the function.
        graph: of tensors of one shape, and numbers.
        dtype: what T stands for.
        rows: a backend's own ops: expressions of their operands.
        packed: the names of masks among the inputs that are packed to bits.
        packs: the positions of masks among the outputs that are to be.

    Raises:
        CannotFuseError: it has an op, a dtype or a shape that this is not for.
    """
    writer = _Writer(graph, dtype, {**ROWS, **rows})
    lines = [line for node in graph.nodes for line in writer.lines(node)]
    inputs = [node for node in graph.nodes if node.op is ops.INPUT and node.type.kind == "tensor"]
    pointers, before, load, after, store = [], [], [], [], []
    for i, node in enumerate(inputs):
        is_packed = node.attr("name") in packed
        kind = "uint8_t" if writer.is_mask(node) else "S"
        pointers.append(f"const {kind} *restrict a{i} = p[{i}];")
        place = f"a{i}[first + i]"
        if is_packed:
            before.append(f"uint8_t m{i}[CHUNK];")
            before.append(f"unpack(m{i}, a{i} + first / 8, m);")
            place = f"m{i}[i]"
        value = place if writer.is_mask(node) else f"load({place})"
        load.append(f"const {writer.kind(node)} {writer.names[node]} = {value};")
    for j, node in enumerate(graph.outputs):
        kind = "uint8_t" if writer.is_mask(node) else "S"
        pointers.append(f"{kind} *restrict r{j} = p[{len(inputs) + j}];")
        value = writer.names[node]
        if j in packs:
            before.append(f"uint8_t k{j}[CHUNK];")
            store.append(f"k{j}[i] = {value};")
            after += [
                f"for (int64_t i = m; i % 8; i++) k{j}[i] = 0;",
                f"pack(r{j} + first / 8, k{j}, m);",
            ]
        else:
            store.append(f"r{j}[first + i] = {value if kind != 'S' else f'store({value})'};")
    numbers = [f"const R s{i} = (R)numbers[{i}];" for i in range(len(writer.numbers))]
    if dtype in ("bfloat16", "float16"):  # a comparison is with a number of the dtype
        numbers += [
            f"const R c{i} = load(store((R)numbers[{i}]));" for i in range(len(writer.numbers))
        ]
    else:
        numbers += [f"const R c{i} = s{i};" for i in range(len(writer.numbers))]
    source = f"""
void {name}(void **p, const double *numbers, int64_t n, int32_t threads) {{
{_indented(pointers, 4)}{_indented(numbers, 4)}\
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < (n + CHUNK - 1) / CHUNK; c++) {{
        const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;
{_indented(before, 8)}\
        for (int64_t i = 0; i < m; i++) {{
{_indented([*load, *lines, *store], 12)}\
        }}
{_indented(after, 8)}\
    }}
}}
"""
    names = tuple(node.attr("name") for node in inputs)
    return Kernel(name, source, names, tuple(writer.numbers), len(lines))


def _indented(lines: Sequence[str], spaces: int) -> str:
    return "".join([f"{' ' * spaces}{line}\n" for line in lines])


class _Writer:
    """Writes the nodes of a graph, each as a line that names it."""

    def __init__(self, graph: Graph, dtype: str, rows: Mapping[Op, str]) -> None:
        self.dtype, self.rows = dtype, rows
        self.numbers: dict[Node, int] = {}
        self.names: dict[Node, str] = {}
        for node in graph.outputs:
            if node.type.kind != "tensor":
                raise CannotFuseError("a result that is a number")

    def is_mask(self, node: Node) -> bool:
        return node.type.dtype == BOOL

    def kind(self, node: Node) -> str:
        return "int" if self.is_mask(node) else "R"

    def lines(self, node: Node) -> list[str]:
        """Return the line of a tensor; none for a number, which is computed before."""
        if node.type.kind == "scalar":
            if any(operand.type.kind != "scalar" for operand in node.operands):
                raise CannotFuseError(f"op {node.op.name}")
            return []
        if node.type.kind != "tensor" or node.type.dtype not in (T, BOOL, self.dtype):
            raise CannotFuseError(f"a value of dtype {node.type.dtype}")
        name = self.names[node] = f"v{len(self.names)}"
        if node.op is ops.INPUT:
            return []
        return [f"const {self.kind(node)} {name} = {self.expression(node)};"]

    def expression(self, node: Node) -> str:
        operands = node.operands
        is_numbers = [operand.type.kind == "scalar" for operand in operands]
        compares = self.is_mask(node)
        words = [self.word(operand, compares) for operand in operands]
        if node.op is ops.CAST:
            return f"{words[0]} != 0" if compares else f"(R){words[0]}"
        if node.op is ops.FULL_LIKE and not compares:
            return words[1]
        if node.op is ops.CLIP and not all(is_numbers[1:]):  # whose NaN come through
            raise CannotFuseError("op clip between tensors")
        row = self.rows.get(node.op)
        attrs = {key: repr(value) for key, value in node.attrs}
        is_known = all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) for text in attrs.values())
        if row is None or not is_known:
            raise CannotFuseError(f"op {node.op.name}")
        if node.op in LIMITS and any(is_numbers):
            row, words = LIMITS[node.op], words[::-1] if is_numbers[0] else words
        return row.format(*words, **attrs)

    def word(self, operand: Node, compares: bool) -> str:
        if operand.type.kind != "scalar":
            return self.names[operand]
        place = self.numbers.setdefault(operand, len(self.numbers))
        return f"{'c' if compares else 's'}{place}"
