"""Toy's rows: op to callable. MULTIGRAD_TOY_BREAKS names an op whose results are made wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import toy

from multigrad.backend import Op, ops

UNSUPPORTED = {
    ops.EINSUM: "toy 0.1 has no einsum",
    ops.LGAMMA: {"bfloat16": "toy 0.1 has no such kernel"},
}


def on_arrays(op: Op) -> Callable[..., Any]:
    """Return an op's NumPy meaning as a function of toy's arrays."""
    call = functools.partial(toy.compute, op.numpy)
    is_broken = op.name == os.getenv("MULTIGRAD_TOY_BREAKS")
    return functools.partial(slightly_off, call) if is_broken else call


def slightly_off(call: Callable[..., Any], *operands: Any, **attrs: Any) -> Any:
    """Return what a function returns, with a small relative error."""
    result = call(*operands, **attrs)
    return toy.Array((result.numpy() * 1.001).astype(result.dtype))


OPS = {op: on_arrays(op) for op in ops.CALLABLE_OPS if op is not ops.EINSUM}
