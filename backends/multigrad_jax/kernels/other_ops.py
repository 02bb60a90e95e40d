"""The rows of JAX's kernel table that elementwise rules and reductions need not: indices, products,
matrices, orders, and what shards exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.rows import compositions
from multigrad.core.ir.op import Op

from .. import distributed
from ..core.kernels import elementwise
from ..core.kernels import ops as core
from . import arrays, shapes

OWN: dict[Op, Callable[..., Any]] = {**arrays.OPS, **distributed.OPS, **core.OWN}
# Computed in float32 for 16-bit floats and rounded once.
WIDE = (
    *(ops.CUMSUM, ops.CUMPROD, ops.LOGCUMSUMEXP, ops.DISCOUNTED_SUM, ops.CONV, ops.EINSUM),
    *(ops.CHOLESKY, ops.TRIANGULAR_SOLVE, ops.SOLVE, ops.INV, ops.PINV, ops.DET, ops.LOGABSDET),
    *(ops.SIGNDET, ops.EXPM, ops.LU, ops.SVD, ops.SVDVALS, ops.EIGH, ops.EIGVALSH, ops.QR),
    ops.FFT,
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, shapes.positions), **OWN}
