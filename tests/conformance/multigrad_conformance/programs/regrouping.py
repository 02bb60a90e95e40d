"""What a compiler may make of ops that meet: XLA's algebra keeps their value, but not the range on
the way.

It takes log(exp(x)) for x, also where exp(x) overflows or is 0, and a / (b / c) for a c / b, also
where a c overflows. What comes out there is declared as a difference of kind "compiled", and is not
known here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from multigrad.graph import ops
from multigrad.graph.ir.graph import Node
from multigrad.testing.oracles import finfo, slack

from .bounded import EXACT, Bounded, unknown_where
from .kernels.elementwise import KERNELS


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
