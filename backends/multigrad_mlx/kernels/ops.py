"""MLX's kernel table, op to callable. Symbols that are left out are written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from multigrad.backend import Op, compositions, ops, scanning

from ..attach import NO_FLOAT8
from . import arrays, elementwise

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **arrays.OPS,
}
# Ops made of others come first, so that a kernel of MLX replaces them.
OPS = {**compositions(OWN, elementwise.widened, arrays.positions), **OWN}

scan = scanning(list, mx.stack, lambda like, shape: mx.zeros(shape, like.dtype))

NO_KERNEL = "mlx 0.32 has no such kernel"
UNSUPPORTED: dict[Op, str | dict[str, str]] = dict.fromkeys(
    (
        ops.NDTRI,
        ops.LGAMMA,
        ops.DIGAMMA,
        ops.POLYGAMMA,
        ops.I0E,
        ops.I1E,
        ops.EXPM,
    ),
    NO_KERNEL,
)
UNSUPPORTED[ops.CAST] = dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), NO_FLOAT8)
