"""The rows of torch's kernel table that elementwise rules and reductions need not: of indices,
products, matrices, orders, and what processes exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core.backend.rows import compositions
from multigrad.core.ir.op import Op
from multigrad.engine.ops.families import IN_FLOAT32

from .. import distributed
from ..core.kernels import elementwise, random
from ..core.kernels.ops import OWN
from . import arrays

OTHERS: dict[Op, Callable[..., Any]] = {**random.OPS, **arrays.OPS, **distributed.OPS}
OTHERS |= {op: elementwise.widened(OTHERS[op]) for op in IN_FLOAT32}
OPS = {**OTHERS, **OWN}
OPS = {**compositions(OPS, elementwise.widened, arrays.positions), **OPS}
