"""A rule's graph as a JavaScript function, for pages that draw curves by themselves.

The table of a backend, in small: an op is an expression of `a`, `b`, `c` for one element, `$name`
an attribute. Arrays have one axis; numbers are doubles. What has no row is no function: the page
then has the picture alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import BOOL, WHOLE, Op
from multigrad.errors import UnsupportedOp

RUNTIME = Path(__file__).with_name("runtime.js")
ROWS: Mapping[Op, str] = {
    ops.ADD: "a + b",
    ops.SUB: "a - b",
    ops.MUL: "a * b",
    ops.DIV: "a / b",
    ops.NEG: "-a",
    ops.POW: "power(a, b)",
    ops.SQUARE: "a * a",
    ops.SQRT: "Math.sqrt(a)",
    ops.RSQRT: "1 / Math.sqrt(a)",
    ops.RECIPROCAL: "1 / a",
    ops.CBRT: "Math.cbrt(a)",
    ops.MAXIMUM: "Math.max(a, b)",
    ops.MINIMUM: "Math.min(a, b)",
    ops.FMAX: "a !== a ? b : b !== b ? a : Math.max(a, b)",
    ops.FMIN: "a !== a ? b : b !== b ? a : Math.min(a, b)",
    ops.ABS: "Math.abs(a)",
    ops.SIGN: "Math.sign(a)",
    ops.COPYSIGN: "isNegative(b) ? -Math.abs(a) : Math.abs(a)",
    ops.FLOOR: "Math.floor(a)",
    ops.CEIL: "Math.ceil(a)",
    ops.ROUND: "round(a)",
    ops.TRUNC: "Math.trunc(a)",
    ops.FRAC: "a - Math.trunc(a)",
    ops.FLOOR_DIVIDE: "floorDivide(a, b)",
    ops.REMAINDER: "remainder(a, b)",
    ops.FMOD: "a % b",
    ops.HYPOT: "Math.hypot(a, b)",
    ops.ATAN2: "Math.atan2(a, b)",
    ops.LERP: "Math.abs(c) < 0.5 ? a + c * (b - a) : b - (1 - c) * (b - a)",
    ops.EXP: "Math.exp(a)",
    ops.EXPM1: "Math.expm1(a)",
    ops.EXP2: "2 ** a",
    ops.LOG: "Math.log(a)",
    ops.LOG1P: "Math.log1p(a)",
    ops.LOG2: "Math.log2(a)",
    ops.LOG10: "Math.log10(a)",
    ops.LOGADDEXP: "logAddExp(a, b)",
    ops.XLOGY: "a === 0 && b === b ? 0 : a * Math.log(b)",
    ops.XLOG1PY: "a === 0 && b === b ? 0 : a * Math.log1p(b)",
    ops.SIN: "Math.sin(a)",
    ops.COS: "Math.cos(a)",
    ops.TAN: "Math.tan(a)",
    ops.ASIN: "Math.asin(a)",
    ops.ACOS: "Math.acos(a)",
    ops.ATAN: "Math.atan(a)",
    ops.DEG2RAD: "a * (Math.PI / 180)",
    ops.RAD2DEG: "a * (180 / Math.PI)",
    ops.SINH: "Math.sinh(a)",
    ops.COSH: "Math.cosh(a)",
    ops.TANH: "Math.tanh(a)",
    ops.ASINH: "Math.asinh(a)",
    ops.ACOSH: "Math.acosh(a)",
    ops.ATANH: "Math.atanh(a)",
    ops.ERF: "erf(a)",
    ops.ERFC: "erfc(a)",
    ops.NDTR: "0.5 * erfc(-a * Math.SQRT1_2)",
    ops.SINC: "a === 0 ? 1 : Math.sin(Math.PI * a) / (Math.PI * a)",
    ops.SIGMOID: "sigmoid(a)",
    ops.LOG_SIGMOID: "-softplus(-a)",
    ops.LOGIT: "Math.log(a / (1 - a))",
    ops.SILU: "a * sigmoid(a)",
    ops.SOFTPLUS: "softplus(a)",
    ops.MISH: "a * Math.tanh(softplus(a))",
    ops.RELU: "Math.max(a, 0)",
    ops.RELU6: "clip(a, 0, 6)",
    ops.LEAKY_RELU: "a >= 0 ? a : a * $slope",
    ops.ELU: "elu(a, $alpha)",
    ops.CELU: "a > 0 ? a : $alpha * Math.expm1(a / $alpha)",
    ops.SELU: "1.0507009873554805 * elu(a, 1.6732632423543772)",
    ops.GELU: "gelu(a, $approximate)",
    ops.SQUAREPLUS: "squareplus(a, $b)",
    ops.SPARSE_PLUS: "a >= 1 ? a : 0.25 * (clip(a, -1, 1) + 1) ** 2",
    ops.SPARSE_SIGMOID: "0.5 * (clip(a, -1, 1) + 1)",
    ops.SOFT_SIGN: "a / (1 + Math.abs(a))",
    ops.TANH_SHRINK: "a - Math.tanh(a)",
    ops.SOFT_SHRINK: "Math.abs(a) <= $lambd ? 0 : a - Math.sign(a) * $lambd",
    ops.HARD_SHRINK: "Math.abs(a) <= $lambd ? 0 : a",
    ops.THRESHOLD: "a <= $threshold ? $default : a",
    ops.HARD_TANH: "clip(a, $min, $max)",
    ops.HARD_SIGMOID: "clip(a + 3, 0, 6) / 6",
    ops.HARD_SILU: "a * (clip(a + 3, 0, 6) / 6)",
    ops.HEAVISIDE: "a > 0 ? 1 : 0",
    ops.LT: "a < b",
    ops.LE: "a <= b",
    ops.GT: "a > b",
    ops.GE: "a >= b",
    ops.EQ: "a === b",
    ops.NE: "a !== b",
    ops.AND: "a && b",
    ops.OR: "a || b",
    ops.XOR: "a !== b",
    ops.NOT: "!a",
    ops.ISNAN: "a !== a",
    ops.ISINF: "Math.abs(a) === Infinity",
    ops.ISFINITE: "Number.isFinite(a)",
    ops.SIGNBIT: "isNegative(a)",
    ops.CLIP: "clip(a, b, c)",
    ops.WHERE: "a ? b : c",
    ops.FULL_LIKE: "b",
    ops.STOP_GRADIENT: "a",
    ops.OUTPUT: "a",
    ops.UNIFORM_LIKE: "random()",
    ops.NORMAL_LIKE: "normal(random)",
    ops.BERNOULLI_LIKE: "random() < c ? 1 : 0",
    ops.RADEMACHER_LIKE: "random() < 0.5 ? 1 : -1",
    ops.EXPONENTIAL_LIKE: "-Math.log1p(-random())",
    ops.GUMBEL_LIKE: "-Math.log(-Math.log(Math.max(random(), 1e-300)))",
}
# Of all elements of an array, which a graph may take along its last axis as well.
REDUCTIONS: Mapping[Op, str] = {
    ops.SIZE: "a.length",
    ops.DIM: "a.length",
    ops.SUM: "sum(a)",
    ops.MEAN: "mean(a)",
    ops.MAX: "a.reduce((one, other) => Math.max(one, other))",
    ops.MIN: "a.reduce((one, other) => Math.min(one, other))",
    ops.PROD: "a.reduce((one, other) => one * other, 1)",
    ops.ANY: "a.some(Boolean)",
    ops.ALL: "a.every(Boolean)",
    ops.COUNT_NONZERO: "a.filter(Boolean).length",
    ops.NORM: "norm(a, $ord)",
    ops.VAR: "variance(a, $correction)",
    ops.STD: "Math.sqrt(variance(a, $correction))",
    ops.MEDIAN: "quantile(a, 0.5)",
    ops.QUANTILE: "quantile(a, $q)",
}
# Elementwise ops without a row, and why.
LACKING: Mapping[Op, str] = dict.fromkeys(
    (
        ops.ERFINV, ops.NDTRI, ops.LOG_NDTR, ops.LGAMMA, ops.DIGAMMA, ops.POLYGAMMA, ops.I0E,
        ops.I1E,
    ),
    "JavaScript has no such function, and no rule asks for it",
) | dict.fromkeys(
    (
        ops.BITWISE_AND, ops.BITWISE_OR, ops.BITWISE_XOR, ops.BITWISE_INVERT,
        ops.BITWISE_LEFT_SHIFT, ops.BITWISE_RIGHT_SHIFT, ops.NEXTAFTER, ops.NAN_TO_NUM,
    ),
    "it depends on the dtype, and a page has doubles alone",
)  # fmt: skip
WHOLE_AXES = (None, 0, -1, (0,), (-1,))


def emit(graph: Graph, output: int = 0) -> str:
    """Return a graph as the text of a function `(inputs, random) => array`: `inputs` is an object
    of arrays and numbers by the graph's names, `random` gives uniforms on [0, 1).
    """
    result = graph.outputs[output]
    words: dict[Node, str] = {}
    lines = []
    for node in Graph(graph.name, graph.inputs, (result,)).nodes:
        word = short_word(node)
        if word is None:
            word = f"v{len(lines)}"
            lines.append(f"const {word} = {expression(node, words)};")
        words[node] = word
    return f"(p, random) => {{ {' '.join(lines)} return {words[result]}; }}"


def short_word(node: Node) -> str | None:
    """Return what stands for an input or a number; None: it is computed."""
    if node.op is ops.CONST:
        return literal(node.attr("value"))
    if node.op is ops.INPUT:
        return f"p.{node.attr('name')}" if node.type.kind != "key" else "null"
    return "null" if node.op is ops.FOLD_IN else None


def expression(node: Node, words: Mapping[Node, str]) -> str:
    given = [words[operand] for operand in node.operands]
    attrs = dict(node.attrs)
    if node.op is ops.CAST:
        kind = attrs["dtype"]
        row = "Boolean(a)" if kind == BOOL else "Math.trunc(a)" if kind in WHOLE else "Number(a)"
        return f"each((a) => {row}, {given[0]})"
    if node.op in REDUCTIONS and attrs.get("axis") in WHOLE_AXES and node.operands[0].type.shape:
        return f"((a) => {fill(REDUCTIONS[node.op], attrs)})({given[0]})"
    if node.op not in ROWS:
        raise UnsupportedOp(f"{node.op.name} has no row in JavaScript")
    names = ", ".join("abc"[: len(given)])
    return f"each(({names}) => {fill(ROWS[node.op], attrs)}, {', '.join(given)})"


def fill(row: str, attrs: Mapping[str, Any]) -> str:
    """Return a row with the values of its attributes."""
    return re.sub(r"\$(\w+)", lambda found: literal(attrs[found[1]]), row)


def literal(value: Any) -> str:
    """Return a number, bool or string as JavaScript writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        number = float(value)
        if math.isinf(number):
            return "Infinity" if number > 0 else "-Infinity"
        return "NaN" if math.isnan(number) else repr(value)
    raise UnsupportedOp(f"{value!r:.40} has no word in JavaScript")
