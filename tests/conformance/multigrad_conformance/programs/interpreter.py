"""The float64 interpreter: what a graph of the rule IR means, node by node, with a bound for every
element.

A row without a meaning of its own here has that of its NumPy function in float64 (`meaning.py`), so
that a new row takes part at once; that function is right by the tests of ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import T

from .. import oracles
from ..oracles import finfo, slack
from .bounded import (
    BOOL,
    EXACT,
    INT32,
    INT64,
    INTEGERS,
    SMALL,
    Bounded,
    as_dtype,
    known,
    meet,
    narrowed,
    number,
    unknown_where,
    widened,
)
from .kernels import arrays, convolutions, elementwise, integers, linalg, selection, shapes
from .kernels.elementwise import KERNELS
from .meaning import by_meaning

# What a compiler may make of ops that meet: XLA's algebra keeps their value, but not the range on
# the way. It takes log(exp(x)) for x, also where exp(x) overflows or is 0, and a / (b / c) for a c
# / b, also where a c overflows. What comes out there is declared as a difference of kind
# "compiled", and is not known here.


def taken_back(node: Node, operands: tuple[Any, ...], result: Any) -> Any:
    """A result as later ops see it: an infinity that was made of finite numbers may not be one
    there, nor the zero of an exponential.
    """
    if node.op.name not in KERNELS or result.dtype in EXACT:
        return result
    finite = functools.reduce(np.logical_and, [np.isfinite(x.value) for x in operands])
    out = np.isinf(result.value) | ((node.op is ops.EXP) & (result.value == 0))
    return unknown_where(result, out & finite)


def regrouped(node: Node, values: Mapping[Node, Any], result: Any) -> Any:
    """A result, unknown where a product that may be formed instead of its operands is out of
    range.
    """
    for x, y in products(node):
        result = unknown_where(result, out_of_range(values[x], values[y], result.dtype))
    return result


def products(node: Node) -> list[tuple[Node, Node]]:
    """The operands' operands that may be multiplied first."""
    if node.op is ops.POW and node.operands[0].op is ops.EXP:
        return [(node.operands[0].operands[0], node.operands[1])]  # exp(x) ** y is exp(x y)
    parts = quotient(node)
    if parts is None:
        return []
    above, below = parts
    over = quotient(above) if above is not None else None
    under = quotient(below)
    if over and under:  # (a / b) / (c / d) is (a d) / (b c)
        pairs = [(over[0], under[1]), (over[1], under[0])]
    elif over:  # (a / b) / c is a / (b c)
        pairs = [(over[1], below)]
    else:  # a / (b / c) is (a c) / b
        pairs = [(above, under[1])] if under else []
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def quotient(node: Node) -> tuple[Node | None, Node] | None:
    """What is divided by what; None for one."""
    if node.op is ops.RECIPROCAL:
        return None, node.operands[0]
    return (node.operands[0], node.operands[1]) if node.op is ops.DIV else None


def out_of_range(x: Bounded, y: Bounded, dtype: Any) -> Any:
    product = x.size * y.size
    least = np.abs(x.value) * np.abs(y.value)
    in_range = (least >= slack(dtype)) | (x.value == 0) | (y.value == 0)
    return ~((product < 0.99 * float(finfo(dtype).max)) & in_range)


DTYPES = {
    "bool": BOOL,
    "int32": INT32,
    "int64": INT64,
    **{dtype.name: dtype for dtype in SMALL},
    **{dtype.name: dtype for dtype in oracles.DTYPES},
}
WIDE = arrays.WIDE | linalg.WIDE | convolutions.WIDE
ROWS = shapes.SHAPES | arrays.ROWS  # these take numbers as they are


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any],
    dtype: Any,
    backend: str = "",
    regroups: bool = False,
) -> list[Bounded]:
    """Return what the outputs are for these inputs (arrays, numbers, keys), on all backends or on
    one.

    Args:
        regroups: it runs the whole graph by a compiler that regroups ops.
    """
    values: dict[Node, Any] = {}
    given: dict[Node, Any] = {}  # the values as later nodes see them
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            given[node] = values[node] = evaluate(node, given, inputs, np.dtype(dtype), backend)
            if regroups and node.operands:
                values[node] = regrouped(node, given, values[node])
                operands = tuple(given[operand] for operand in node.operands)
                given[node] = taken_back(node, operands, values[node])
    return [values[node] for node in graph.outputs]


def evaluate(
    node: Node, values: Mapping[Node, Any], inputs: Mapping[str, Any], dtype: Any, backend: str
) -> Any:
    """Return the value of one node whose operands are done."""
    if node.op is ops.CONST:
        return number(node.attr("value"), dtype)
    if node.op is ops.INPUT:
        given = inputs[node.attr("name")]
        if node.type.kind == "scalar":
            return number(given, dtype)
        return given if node.type.kind == "key" else known(given)
    operands = tuple(values[operand] for operand in node.operands)
    if node.type.kind == "scalar":
        return evaluate_scalar(node, operands, dtype, backend)
    if node.type.kind == "key":
        return arrays.fold(*operands, **dict(node.attrs))
    return evaluate_tensor(node, operands, resolve(node.type.dtype, dtype), backend)


def resolve(name: str, dtype: Any) -> Any:
    return dtype if name == T else DTYPES[name]


def evaluate_scalar(node: Node, operands: tuple[Bounded, ...], dtype: Any, backend: str) -> Bounded:
    if node.op in (ops.DIM, ops.SIZE):
        shape = operands[0].shape
        return number(shape[node.attr("axis")] if node.op is ops.DIM else math.prod(shape), dtype)
    wide = number(0.5, dtype).dtype
    if node.type.dtype != "bool" and node.op is not ops.WHERE:
        operands = tuple(as_dtype(x, wide) for x in operands)
    kind = {"bool": BOOL, "int": INT32, "float": wide}[node.type.dtype]
    result = evaluate_tensor(node, operands, wide, backend)
    value = result.value.astype(np.int64) if kind == INT32 else result.value
    return Bounded(value, result.error, kind, result.signed, weak=True)


def evaluate_tensor(node: Node, operands: tuple[Any, ...], result: Any, backend: str) -> Bounded:
    name, attrs = node.op.name, dict(node.attrs)
    if name == "array":
        return known(attrs["value"].as_numpy(result))
    if name in ROWS:
        return ROWS[name](*operands, **attrs)
    if name in ("cast", "full_like"):
        return selection.SPECIAL[name](*operands, dtype=result)
    tensors = [x.dtype for x in operands if not x.weak and x.dtype != BOOL]
    operands = meet(operands, tensors[0] if tensors else result)
    if name in selection.MASKS:
        return selection.MASKS[name](*operands)
    if name in selection.SPECIAL:
        return selection.SPECIAL[name](*operands, **attrs)
    if result in INTEGERS and name in integers.ELEMENTWISE:
        return integers.evaluate(name, operands, result)
    if result in INTEGERS and name in integers.REDUCTIONS:
        return integers.REDUCTIONS[name](*operands, **attrs)
    if name in WIDE:
        return narrowed(WIDE[name](*map(widened, operands), **attrs), result)
    if name in elementwise.KERNELS:
        return elementwise.evaluate(name, operands, attrs, result, backend)
    return by_meaning(node.op, operands, attrs, result)
