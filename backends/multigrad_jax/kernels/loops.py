"""Loops of JAX: `lax.while_loop` and `lax.scan`; see `multigrad/engine/ops/loops.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from ..distributed import vary_alike

Tensor: TypeAlias = Any
Function = Callable[..., Any]


def while_loop(
    carry: tuple[Tensor, ...], constants: tuple[Any, ...], condition: Function, body: Function
) -> tuple[Tensor, ...]:
    state = vary_alike(tuple(map(jnp.asarray, carry)), constants)
    lengths, tensors = apart(constants)
    goes_on, turn, _ = loop_functions(condition, body, lengths)
    return lax.while_loop(goes_on, turn, (state, tensors))[0]


def scan(
    carry: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    constants: tuple[Any, ...],
    body: Function,
    reverse: bool,
) -> tuple[Tensor, ...]:
    state = vary_alike(tuple(map(jnp.asarray, carry)), (*rows, *constants))
    lengths, tensors = apart(constants)
    turn = loop_functions(None, body, lengths)[2]
    (last_state, _), results = lax.scan(turn, (state, tensors), tuple(rows), reverse=reverse)
    return (*last_state, *results)


def apart(constants: tuple[Any, ...]) -> tuple[tuple[int | None, ...], tuple[Tensor, ...]]:
    """Return the lengths among constants, which are part of a loop's key, and its tensors, which
    are carried: so jax gets the same function objects again and compiles once.
    """
    lengths = tuple(c if isinstance(c, int) else None for c in constants)
    return lengths, tuple(None if isinstance(c, int) else c for c in constants)


@functools.lru_cache(maxsize=1024)
def loop_functions(
    condition: Function | None, body: Function, lengths: tuple[int | None, ...]
) -> tuple[Function, Function, Function]:
    """Return the condition and turn of a while loop as jax takes them, and the turn of a scan."""

    def constants(tensors: Any) -> list[Any]:
        pairs = zip(lengths, tensors, strict=True)
        return [tensor if length is None else length for length, tensor in pairs]

    def goes_on(values: Any) -> Tensor:
        carry, tensors = values
        assert condition is not None
        return condition(*carry, *constants(tensors))

    def row_turn(values: Any, row: Any) -> Any:
        carry, tensors = values
        results = body(*carry, *row, *constants(tensors))
        # jax needs each turn to keep the dtypes of the carry
        pairs = zip(results[: len(carry)], carry, strict=True)
        new_carry = tuple(jnp.asarray(new, old.dtype) for new, old in pairs)
        return (new_carry, tensors), tuple(map(jnp.asarray, results[len(carry) :]))

    def turn(values: Any) -> Any:
        return row_turn(values, ())[0]

    return goes_on, turn, row_turn
