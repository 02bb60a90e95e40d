"""torch's kernel table, op to callable. Symbols that are left out are written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.backend.rows import compositions
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from .. import distributed
from . import arrays, elementwise
from .elementwise import SCALAR_LEFT, SCALAR_RIGHT

__all__ = ["OPS", "SCALAR_LEFT", "SCALAR_RIGHT", "UNSUPPORTED"]

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **arrays.OPS,
    **distributed.OPS,
}
# Computed in float32 for 16-bit floats and rounded once, as torch's kernels either lack 16 bits or
# round more than once (torch 2.13, CPU: log_softmax up to 0.9 eps, a product of 1001 numbers 47).
WIDE = (
    *(ops.CBRT, ops.DIGAMMA, ops.POLYGAMMA, ops.NDTRI, ops.LOG_NDTR, ops.I0E, ops.I1E),
    *(ops.SQUAREPLUS, ops.HARD_SHRINK, ops.GLU, ops.LOG_SOFTMAX, ops.LOGSUMEXP, ops.PROD),
    *(ops.LOGCUMSUMEXP, ops.DISCOUNTED_SUM, ops.FFT, ops.CHOLESKY, ops.TRIANGULAR_SOLVE),
    *(ops.SOLVE, ops.INV, ops.PINV, ops.DET, ops.LOGABSDET, ops.SIGNDET, ops.EXPM, ops.LU),
    *(ops.SVD, ops.SVDVALS, ops.EIGH, ops.EIGVALSH, ops.QR),
)
OWN |= {op: elementwise.widened(OWN[op]) for op in WIDE}
OPS = {**compositions(OWN, elementwise.widened, arrays.positions), **OWN}
NAMES = f"{elementwise.NAMES}; {arrays.NAMES}"

UNSUPPORTED: dict[Op, str] = {}
