"""The rows of TensorFlow's kernel table that elementwise rules and reductions need not: indices,
products, matrices, orders, and what shards exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.rows import compositions
from multigrad.core.ir.op import Op
from multigrad.engine.ops.families import IN_FLOAT32

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from . import arrays, shapes

OWN: dict[Op, Callable[..., Any]] = {**arrays.OPS, **distributed.OPS, **core.OWN}
WIDE = (*IN_FLOAT32, ops.CUMSUM, ops.CUMPROD, ops.CONV, ops.EINSUM, ops.MATMUL)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
