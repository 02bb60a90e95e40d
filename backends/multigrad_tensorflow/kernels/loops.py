"""Loops of TensorFlow, by `tf.while_loop`; see `multigrad/engine/ops/loops.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.engine.ops.loops import changed, turn_rows

Tensor: TypeAlias = tf.Tensor
Function = Callable[..., Any]


def while_loop(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    """Run a loop while its condition holds."""
    tensors = tuple(map(tf.convert_to_tensor, carry))

    def goes_on(*values: Tensor) -> Tensor:
        return condition(*values, *constants)

    def turn(*values: Tensor) -> tuple[Tensor, ...]:
        new_values = body(*values, *constants)
        return tuple(kept(old, new) for old, new in zip(values, new_values, strict=True))

    return tuple(tf.while_loop(goes_on, turn, tensors))


def kept(old: Tensor, new: Tensor) -> Tensor:
    """Return a new value with the static shape of the old one."""
    if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
        raise changed(old, new)
    return new if tf.executing_eagerly() else tf.ensure_shape(new, old.shape)


def scan(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Run a turn for each row: in Python in eager code, else by `tf.while_loop`."""
    state, rows = tuple(map(tf.convert_to_tensor, carry)), tuple(map(tf.convert_to_tensor, rows))
    # tf.while_loop over no rows still gives results of the right shape
    if tf.executing_eagerly() and rows[0].shape[0]:
        unstacked = [tf.unstack(x) for x in rows]
        return turn_rows(state, unstacked, constants, body, reverse=reverse, stack=tf.stack)
    length, count = tf.shape(rows[0])[0], len(state)
    zeros = [tf.zeros(tf.shape(x)[1:], x.dtype) for x in rows]
    examples = body(*state, *zeros, *constants)[count:]  # one turn on zeros, for dtypes and shapes
    arrays = [
        tf.TensorArray(y.dtype, length, element_shape=y.shape)
        for y in map(tf.convert_to_tensor, examples)
    ]

    def turn(i: Tensor, state: Any, arrays: Any) -> Any:
        position = length - 1 - i if reverse else i
        results = body(*state, *(tf.gather(x, position) for x in rows), *constants)
        new_state = tuple(kept(old, new) for old, new in zip(state, results, strict=False))
        pairs = zip(arrays, results[count:], strict=True)
        return i + 1, new_state, [array.write(position, y) for array, y in pairs]

    start = (tf.constant(0), state, arrays)
    _, last_state, arrays = tf.while_loop(lambda i, *_: i < length, turn, start)
    static_length = rows[0].shape[0]
    results = [array.stack() for array in arrays]
    return (*last_state, *(tf.ensure_shape(y, [static_length, *y.shape[1:]]) for y in results))
