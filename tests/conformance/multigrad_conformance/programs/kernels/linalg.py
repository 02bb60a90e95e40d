"""What linear algebra means in float64, of matrices that have every factor and inverse.

An element of a result depends on all of its operands: where anything is unknown or no number, so is
the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.graph import Node, freeze
from multigrad.core.ir.op import Op, T
from multigrad.core.passes.simplify import constant

from ..bounded import Bounded, Function, unknown_where
from ..builder import Builder
from ..meaning import by_meaning

MATRICES = (
    ops.CHOLESKY,
    ops.TRIANGULAR_SOLVE,
    ops.SOLVE,
    ops.INV,
    ops.PINV,
    ops.EXPM,
    ops.DET,
    ops.LOGABSDET,
    ops.SIGNDET,
    ops.LU,
)
ULPS = 16.0  # per row, of what the condition allows


def meaning_of(op: Op) -> Function:
    def function(*operands: Bounded, **attrs: Any) -> Bounded:
        dtype = operands[0].dtype
        if all(np.all(np.isfinite(x.value)) and not np.any(x.lost) for x in operands):
            return by_meaning(op, operands, attrs, dtype, ULPS * operands[0].shape[-1])
        identities = [np.broadcast_to(np.eye(x.shape[-2], x.shape[-1]), x.shape) for x in operands]
        value = op.numpy(*identities, **attrs)
        return unknown_where(Bounded(value, np.zeros(np.shape(value)), dtype), np.True_)

    return function


WIDE: dict[str, Function] = {op.name: meaning_of(op) for op in MATRICES}


def make(build: Builder, op: Op) -> Node:
    """An operation on matrices near a multiple of one, made of a mask."""
    like = build.float_tensor(lambda n: is_square(build.shape(n)))
    mask = build.mask(build.same_shape(like))
    quarter = build.apply(ops.FULL_LIKE, like, constant(0.25), dtype=T)
    small = build.apply(ops.WHERE, mask, quarter, constant(-0.125))
    given = build.float_tensor(lambda n: n.op is ops.INPUT)
    ones = freeze(4.0 * np.eye(build.shape(like)[-1]))
    matrix = build.apply(ops.ADD, small, build.apply(ops.ARRAY, given, dtype=T, value=ones))
    if len(op.operands) == 1:
        return build.apply(op, matrix, **build.attrs(op, matrix))
    rows = build.shape(like)[-1]
    right = build.float_tensor(lambda n: len(build.shape(n)) > 1 and build.shape(n)[-2] == rows)
    return build.apply(op, matrix, right, **build.attrs(op, matrix, right))


def is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[-1] == shape[-2]
