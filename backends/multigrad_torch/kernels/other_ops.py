"""The rows of torch's kernel table that elementwise rules and reductions need not: of indices,
products, matrices, orders, and what processes exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core import ops
from multigrad.core.backend.rows import compositions
from multigrad.core.ir.op import Op

from .. import distributed
from ..core.kernels import elementwise, random
from ..core.kernels.ops import OWN
from . import arrays

OTHERS: dict[Op, Callable[..., Any]] = {**random.OPS, **arrays.OPS, **distributed.OPS}
# In float32 for 16-bit floats, as in `ops.py`.
WIDE = (
    *(ops.LOGCUMSUMEXP, ops.DISCOUNTED_SUM, ops.FFT, ops.CHOLESKY, ops.TRIANGULAR_SOLVE),
    *(ops.SOLVE, ops.INV, ops.PINV, ops.DET, ops.LOGABSDET, ops.SIGNDET, ops.EXPM, ops.LU),
    *(ops.SVD, ops.SVDVALS, ops.EIGH, ops.EIGVALSH, ops.QR),
)
OTHERS |= {op: elementwise.widened(OTHERS[op]) for op in WIDE}
OPS = {**OTHERS, **OWN}
OPS = {**compositions(OPS, elementwise.widened, arrays.positions), **OPS}
