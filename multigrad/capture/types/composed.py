"""Calls of a library that are made of several ops here: in 16 bits it may round once, where our ops
would do so at each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...graph import ops
from ...graph.ir.types import BOOL, FLOATS, T
from ...trace.trace import Value
from ..symbols.dtypes import own_dtype, steps_between
from .oracle import KINDS, leaves_of

JUMPS = (ops.FLOOR_DIVIDE,)


def is_one_step(result: Any, operands: Iterable[Any]) -> bool:
    """Return whether a result is known to be one op of T and numbers, without a search."""
    if not isinstance(result, Value) or result.node.op in JUMPS:
        return False
    nodes = []
    for x in operands:
        if isinstance(x, Value) and x.node.type.dtype not in FLOATS:
            nodes.append(x.node)
        elif type(x) not in KINDS:
            return False
    return not [each for each in result.node.operands if each.operands and each not in nodes]


def is_composed(result: Any, given: Any) -> bool:
    """Return whether to round a result of these arguments at each step is not to round it once."""
    operands = {x.node for x in leaves_of(given) if isinstance(x, Value)}
    made = [x.node for x in leaves_of(result) if isinstance(x, Value) and own_dtype(x) == T]
    steps = [step for node in made for step in steps_between(node, operands)]
    # Of a number that 16 bits round, the quotient is another one.
    jumps = any(s.op in JUMPS and any(o.op is ops.CONST for o in s.operands) for s in steps)
    # Where elements are only chosen nothing is rounded but, before, the numbers beside them.
    rounds = any(s.type.dtype != BOOL and s.op is not ops.WHERE for s in steps)
    return jumps or (rounds and len(steps) > len(made))
