"""Forward and backward in NumPy: a rival is a function that returns the output and its pullback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

import multigrad as xg

from ..cases import OURS, Case
from ..harness import Array, Rival
from ..rivals.in_numpy import RIVALS


def describe() -> str:
    return f"NumPy {np.__version__}"


def set_threads(count: int) -> None:
    """Limit the dot product, all else in NumPy is one thread; needs threadpoolctl for it."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(count)


def enter_rule(case: Case, stack: ExitStack) -> None:
    """Nothing to enter: in NumPy a lowered function carries its rule."""


def list_rivals(case: Case) -> dict[str, Rival]:
    ours = xg.lower(case.rule, "numpy", forward=case.forward)
    return {**RIVALS[case.forward, case.rule], OURS: ours.vjp}


def make_inputs(x: Array, grad_out: Array) -> tuple[Array, Array]:
    return x, grad_out


def build_step(rival: Rival, x: Array, grad_out: Array) -> Callable[[], Any]:
    def step() -> tuple[Array, Array]:
        output, pullback = rival(x)
        return output, pullback(grad_out)

    return step


def build_copy(x: Array) -> Callable[[], Any]:
    """Return a call that copies x into memory that is there."""
    target = np.empty_like(x)

    def copy() -> None:
        np.copyto(target, x)

    return copy


def count_kept_bytes(rival: Rival, x: Array, grad_out: Array) -> int:
    """Return the bytes of the arrays that the pullback holds."""
    arrays = {id(array): array.nbytes for array in find_arrays(rival(x)[1], set())}
    return sum(arrays.values())


def find_arrays(value: Any, seen: set[int]) -> Iterator[Array]:
    """Yield the memory of every array that a function can reach.

    What modules hold does not count, nor a number, prepared as an array without dimensions.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray) and value.ndim:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        yield owner
    for part in list_parts(value):
        yield from find_arrays(part, seen)


def list_parts(value: Any) -> list[Any]:
    """Return what a function or a container holds by itself."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    cells = getattr(value, "__closure__", None) or ()
    parts = [cell.cell_contents for cell in cells]
    parts += getattr(value, "__defaults__", None) or ()
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(value, type(len)):
        parts += [owner, getattr(owner, "__dict__", None)]
    return parts


def to_numpy(tensor: Array) -> Array:
    return tensor
