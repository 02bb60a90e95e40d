"""Toy's rows: op to callable. MULTIGRAD_TOY_BREAKS names an op whose results are made wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import toy

from multigrad.ir import ops


def on_arrays(op: ops.Op) -> Callable[..., Any]:
    """Return an op's NumPy meaning as a function of toy's arrays."""

    @functools.wraps(op.numpy)
    def call(*operands: Any, **attrs: Any) -> Any:
        return toy.compute(op.numpy, *operands, **attrs)

    return call


def slightly_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a small relative error."""

    @functools.wraps(function)
    def call(*operands: Any, **attrs: Any) -> Any:
        result = function(*operands, **attrs)
        return toy.Array((result.numpy() * 1.001).astype(result.dtype))

    return call


UNSUPPORTED: dict[ops.Op, str | Mapping[str, str]] = {
    ops.EINSUM: "toy 0.1 has no einsum",
    ops.LGAMMA: {"bfloat16": "toy 0.1 has no such kernel"},
}
OPS: dict[ops.Op, Callable[..., Any]] = {
    op: on_arrays(op) for op in ops.CALLABLE_OPS if not isinstance(UNSUPPORTED.get(op), str)
}
BROKEN = os.getenv("MULTIGRAD_TOY_BREAKS")
OPS.update({op: slightly_off(OPS[op]) for op in OPS if op.name == BROKEN})
