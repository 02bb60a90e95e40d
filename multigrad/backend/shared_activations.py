"""Activations that are the same composition in every framework that lacks a kernel of its own, or
whose kernel gives other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..graph import ops
from ..graph.ir.op import Op
from ..graph.ops.elementwise.activations import SELU_ALPHA, SELU_SCALE

Row = Callable[..., Any]
Tensor = Any
ROOT_HALF, GELU_SCALE = math.sqrt(0.5), math.sqrt(2 / math.pi)
# What a composition is made of, where that is more than arithmetic.
MADE_OF: dict[Op, tuple[Op, ...]] = {
    ops.RELU6: (ops.CLIP,),
    ops.LEAKY_RELU: (ops.WHERE,),
    ops.CELU: (ops.WHERE, ops.EXPM1, ops.MINIMUM),
    ops.SELU: (ops.WHERE, ops.EXPM1, ops.MINIMUM),
    ops.GELU: (ops.TANH, ops.ERFC),
    ops.SILU: (ops.SIGMOID,),
    ops.MISH: (ops.TANH, ops.SOFTPLUS),
    ops.LOGIT: (ops.LOG, ops.LOG1P),
    ops.SQUAREPLUS: (ops.WHERE, ops.HYPOT, ops.ABS),
    ops.SPARSE_PLUS: (ops.WHERE, ops.CLIP),
    ops.SOFT_SHRINK: (ops.WHERE, ops.COPYSIGN),
    ops.HARD_SHRINK: (ops.WHERE,),
    ops.THRESHOLD: (ops.WHERE,),
}


def rectifiers(rows: Mapping[Op, Row], widened: Callable[[Row], Row]) -> dict[str, Row]:
    """Return rectifiers and exponential units by their ops' names."""
    where, clip = rows.get(ops.WHERE, missing), rows.get(ops.CLIP, missing)
    expm1, minimum = rows.get(ops.EXPM1, missing), rows.get(ops.MINIMUM, missing)

    def relu6(x: Tensor) -> Tensor:
        return clip(x, 0.0, 6.0)

    @widened
    def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
        return where(x > 0, x, slope * x)

    # Where x is above 0 it does not count, and must not overflow: its gradient would be 0 * inf.
    @widened
    def celu(x: Tensor, *, alpha: float) -> Tensor:
        return where(x > 0, x, alpha * expm1(minimum(x, 0.0) / alpha))

    @widened
    def selu(x: Tensor) -> Tensor:
        below = SELU_SCALE * SELU_ALPHA * expm1(minimum(x, 0.0))
        return where(x > 0, SELU_SCALE * x, below)

    @widened
    def sparse_plus(x: Tensor) -> Tensor:
        inside = clip(x, -1.0, 1.0) + 1.0
        return where(x >= 1.0, x, 0.25 * inside * inside)

    return locals()


def smooth(rows: Mapping[Op, Row], widened: Callable[[Row], Row]) -> dict[str, Row]:
    """Return smooth activations by their ops' names."""
    where, absolute = rows.get(ops.WHERE, missing), rows.get(ops.ABS, missing)
    tanh, erfc, hypot = (rows.get(op, missing) for op in (ops.TANH, ops.ERFC, ops.HYPOT))
    sigmoid, softplus = rows.get(ops.SIGMOID, missing), rows.get(ops.SOFTPLUS, missing)
    log, log1p = rows.get(ops.LOG, missing), rows.get(ops.LOG1P, missing)

    @widened
    def gelu(x: Tensor, *, approximate: bool) -> Tensor:
        if approximate:
            inner = GELU_SCALE * (x + 0.044715 * x * x * x)
            return 0.5 * x * (1.0 + tanh(inner))
        return 0.5 * x * erfc(-ROOT_HALF * x)

    @widened
    def silu(x: Tensor) -> Tensor:
        return x * sigmoid(x)

    @widened
    def mish(x: Tensor) -> Tensor:
        return x * tanh(softplus(x))

    @widened
    def logit(x: Tensor) -> Tensor:
        return log(x) - log1p(-x)

    @widened
    def squareplus(x: Tensor, *, b: float) -> Tensor:
        # The square is not formed, and below zero the two terms would cancel.
        root = hypot(x, b**0.5)
        return where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (absolute(x) + root))

    return locals()


def cut(rows: Mapping[Op, Row], widened: Callable[[Row], Row]) -> dict[str, Row]:
    """Return what is cut at a number, by the names of ops; compared before that is rounded."""
    where, copysign = rows.get(ops.WHERE, missing), rows.get(ops.COPYSIGN, missing)

    @widened
    def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
        inside = (x >= -lambd) & (x <= lambd)
        return where(inside, 0.0, x - copysign(lambd, x))

    @widened
    def hard_shrink(x: Tensor, *, lambd: float) -> Tensor:
        return where((x >= -lambd) & (x <= lambd), 0.0, x)

    @widened
    def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
        return where(x <= threshold, default, x)

    return locals()


def missing(*args: Any, **attrs: Any) -> Any:
    """Stand for a row that a backend does not have: what is made of it is not offered."""
    raise AssertionError("a composition of a row that there is not")


def activations(rows: Mapping[Op, Row], widened: Callable[[Row], Row]) -> dict[Op, Row]:
    """Return the activations for which a backend has all that they are made of."""
    made = {**rectifiers(rows, widened), **smooth(rows, widened), **cut(rows, widened)}
    return {op: made[op.name] for op, parts in MADE_OF.items() if all(p in rows for p in parts)}
