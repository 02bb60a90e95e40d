"""What a call itself says of its dtypes: whose they are to be, in code that mentions no framework;
and whether it is made of several ops here. In 16 bits the library may round such a one once, where
our ops would do so at each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.types import BOOL, FLOATS, T
from ...graph.passes.facts import LIBRARY, ON_NUMBERS
from ...trace.owners import OF_CODE, TENSORS, UNDECIDED, meet_numpy, rely_on_library
from ...trace.trace import NeedsConcrete, Trace, Value
from ..symbols.dtypes import is_tensor, own_dtype, steps_between
from ..symbols.items import is_number
from .oracle import KINDS, leaves_of

JUMPS = (ops.FLOOR_DIVIDE,)


def meet_call(trace: Trace, given: Any) -> None:
    """Note what the arguments of a call say.

    Raises:
        NeedsConcrete: the library that the tensors are of has to be known.
    """
    if trace.types_of not in UNDECIDED:  # as most code
        return
    is_lent = trace.types_of != TENSORS or ON_NUMBERS in trace.facts
    if is_lent and any(isinstance(x, np.ndarray) for x in leaves_of(given)):
        meet_numpy(trace)
    elif _depends_on_library(trace, given):
        rely_on_library(trace)
        if trace.types_of not in OF_CODE and LIBRARY not in trace.facts:
            raise NeedsConcrete(LIBRARY)


def _depends_on_library(trace: Trace, given: Any) -> bool:
    """Return whether what libraries give for a call may be of other dtypes."""
    if trace.types_of == TENSORS and LIBRARY in trace.facts:
        return False  # nobody asks any more
    if trace.is_in("bfloat16"):
        return True
    leaves = leaves_of(given)
    symbols = [x for x in leaves if isinstance(x, Value)]
    others = [x for x in leaves if not isinstance(x, Value)]
    is_open = any(own_dtype(x) != T for x in symbols if is_tensor(x) and not is_number(x))
    return is_open or any(hasattr(x, "dtype") for x in others)


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
