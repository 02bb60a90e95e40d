"""Whether two nodes have the same values, told on a sample where their ops are not the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Node, walk
from ...graph.ir.types import BOOL, SCALAR_SHAPE, WHOLE
from ...graph.passes.facts import shape_fact
from ...trace.trace import Trace
from ..calls.assumptions import evaluate

UNTOLD = (31,)  # where no fact tells a shape
CLOSE = 1e-6  # relative, in float64: formulas differ in rounding alone


def are_close(trace: Trace, a: Node | None, b: Node | None) -> bool | None:
    """Return whether two values, None for zero, are the same on a sample; None: in the shapes that
    are known they cannot be computed.
    """
    generator = np.random.default_rng(7)
    arrays: dict[str, Any] = {}
    for node in walk([each for each in (a, b) if each is not None]):
        if node.op is ops.INPUT:
            shape = trace.facts.get(shape_fact(node, "shape") or "", UNTOLD)
            is_tensor = node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE
            drawn = generator.normal(size=shape if is_tensor else ())
            whole = drawn > 0 if node.type.dtype == BOOL else abs(drawn.round())
            is_whole = node.type.dtype in (BOOL, *WHOLE)
            arrays[node.attr("name")] = whole if is_whole else drawn
    try:
        values = [0.0 if each is None else evaluate(each, arrays, "float64") for each in (a, b)]
    except Exception:  # noqa: BLE001  (whatever NumPy says of such shapes)
        return None
    return np.allclose(*values, rtol=CLOSE, atol=1e-12, equal_nan=True)
