"""TensorFlow's rows: op to callable. An op with a symbol that is left out is written infix.

A loop that values end is `tf.while_loop`; see `multigrad/graph/ops/arrays/loops.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.backend import compositions
from multigrad.graph.ir.op import Op
from multigrad.graph.ops.arrays.loops import changed

from ..distributed import collectives
from . import arrays, elementwise

Tensor: TypeAlias = Any
Function = Callable[..., Any]

OWN: dict[Op, Callable[..., Any]] = {
    **elementwise.OPS,
    **arrays.OPS,
    **collectives.OPS,
}
OPS = {**compositions(OWN, elementwise.widened), **OWN}
NAMES = elementwise.NAMES

UNSUPPORTED: dict[Op, str] = {}


# --- loops ---------------------------------------------------------------------------------------
def while_loop(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    """Turn while the condition holds.

    Raises:
        TypeError: a turn changes a dtype or a shape.
    """
    tensors = tuple(map(tf.convert_to_tensor, carry))

    def goes_on(*values: Tensor) -> Tensor:
        return condition(*values, *constants)

    def turn(*values: Tensor) -> tuple[Tensor, ...]:
        after = body(*values, *constants)
        return tuple(kept(old, new) for old, new in zip(values, after, strict=True))

    return tuple(tf.while_loop(goes_on, turn, tensors))


def kept(old: Tensor, new: Tensor) -> Tensor:
    """Return a new value in the shape of the one before, which may be known in part."""
    if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
        raise changed(old, new)
    return new if tf.executing_eagerly() else tf.ensure_shape(new, old.shape)
