"""What ops of floats are on integers, made of ops that stay among integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import ops
from ..ir.op import Op

Tensor = Any
Apply = Callable[..., Any]  # of trace.py


def itself(apply: Apply, x: Tensor) -> Tensor:
    return x


def larger(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MAXIMUM, a, b)


def smaller(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MINIMUM, a, b)


def remainder_of_first(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    """The remainder with the sign of the dividend."""
    rest = apply(
        ops.REMAINDER, apply(ops.ABS, a), apply(ops.ABS, b) if hasattr(b, "node") else abs(b)
    )
    return apply(ops.MUL, rest, apply(ops.SIGN, a))


ON_INTEGERS: Mapping[Op, Callable[..., Any]] = {
    **dict.fromkeys((ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC), itself),
    ops.FMAX: larger,
    ops.FMIN: smaller,
    ops.FMOD: remainder_of_first,
}
