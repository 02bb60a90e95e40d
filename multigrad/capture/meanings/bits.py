"""Bits packed into bytes, and bytes unpacked into bits, as NumPy and JAX have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.types import INT32
from ...trace.trace import Value, apply, cast
from ...trace.xp import all as xp

Tensor = Any
SHIFTS = np.arange(7, -1, -1)  # of the bits of a byte, the first one first


def packbits(a: Tensor, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Eight values that are or are not 0 as a byte of bits, the last one filled up with 0."""
    rows, axis = _rows(a, axis)
    length = tuple(rows.shape)[-1]
    bits = cast(xp.not_equal(rows, 0), INT32)
    bits = xp.pad(bits, ((0, 0),) * (rows.ndim - 1) + ((0, -length % 8),))
    eights = xp.reshape(bits, (*tuple(rows.shape)[:-1], -(-length // 8), 8))
    return xp.moveaxis(cast(xp.sum(eights * (1 << _shifts(bitorder)), -1), "uint8"), -1, axis)


def unpackbits(
    a: Tensor, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Tensor:
    """The bits of bytes, 0 or 1; so many of them, or without the last ones, where `count` says so.

    Raises:
        TypeError: these are no bytes.
    """
    if isinstance(a, Value) and a.node.type.dtype != "uint8":
        raise TypeError(f"it unpacks uint8, not {a.node.type.dtype}")
    rows, axis = _rows(a, axis)
    shape = tuple(rows.shape)
    wide = cast(xp.expand_dims(rows, axis=-1), INT32)
    shifted = apply(ops.BITWISE_RIGHT_SHIFT, wide, _shifts(bitorder))
    bits = xp.reshape(apply(ops.BITWISE_AND, shifted, 1), (*shape[:-1], shape[-1] * 8))
    if count is not None:
        more = count - (0 if count < 0 else shape[-1] * 8)
        bits = xp.pad(bits, ((0, 0),) * (len(shape) - 1) + ((0, more),)) if more > 0 else bits
        bits = bits[..., :count]
    return xp.moveaxis(cast(bits, "uint8"), -1, axis)


def _rows(a: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """Return a tensor with the axis last, made flat without one, and where the axis belongs."""
    return (xp.reshape(a, -1), -1) if axis is None else (xp.moveaxis(a, axis, -1), axis)


def _shifts(bitorder: str) -> Any:
    if bitorder not in ("big", "little"):
        raise TypeError(f"a bit order of {bitorder!r}")
    return SHIFTS if bitorder == "big" else SHIFTS[::-1].copy()
