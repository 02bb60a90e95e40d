"""The smallest inputs that still break a law, and lines to copy that show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..look.subject import as_array, is_float_array

MOST_TRIES = 60  # audits of one law
MOST_SHOWN = 16  # elements of an array in lines to copy
# How code makes a tensor from numbers and the name of a dtype, after an import.
MADE = {
    "torch": ("import torch", "torch.tensor({}, dtype=torch.{})"),
    "jax": ("import jax.numpy as jnp", 'jnp.array({}, "{}")'),
    "tensorflow": ("import tensorflow as tf", 'tf.constant({}, "{}")'),
}
IN_NUMPY = ("import numpy as np", 'np.array({}, "{}")')


def smallest(
    inputs: Sequence[Any], breaks: Callable[[Sequence[Any]], bool], seconds: float
) -> list[Any]:
    """Return inputs with fewer elements and rounder numbers that break what these do.

    Args:
        breaks: whether a law is broken with inputs.
        seconds: no further ones are tried after these.
    """
    best = [as_array(each) for each in inputs]
    tries, end = MOST_TRIES, time.monotonic() + seconds
    while True:
        # From the largest step again after each success.
        for candidate in _simpler(best):
            if not tries or time.monotonic() > end:
                return best
            tries -= 1
            if breaks(candidate):
                best = candidate
                break
        else:
            return best


def _simpler(inputs: list[Any]) -> Iterator[list[Any]]:
    for axis in (0, -1):
        # Arrays of one length are cut together, as batches and their weights are.
        lengths = {x.shape[axis] for x in inputs if isinstance(x, np.ndarray) and x.ndim}
        if len(lengths) == 1 and max(lengths) > 1:
            length = max(lengths)
            for shorter_length in (1, length // 2):
                if shorter_length < length:
                    yield [_cut(x, axis, shorter_length) for x in inputs]
    # Fewer elements did not break it: rounder numbers, in one array at a time.
    for place, x in enumerate(inputs):
        for simpler in _rounder(x) if isinstance(x, np.ndarray) and is_float_array(x) else ():
            if simpler.tobytes() != x.tobytes():
                yield [simpler if n == place else each for n, each in enumerate(inputs)]


def _cut(x: Any, axis: int, length: int) -> Any:
    has_axes = isinstance(x, np.ndarray) and x.ndim
    return np.take(x, range(length), axis=axis) if has_axes else x


def _rounder(x: Any) -> Iterator[Any]:
    # Ones are simplest, then whole numbers, then numbers with one digit.
    if np.all(x == 1):
        return
    yield np.ones_like(x)
    wide = x.astype(np.float64)
    for digits in (0, 1):
        yield np.round(wide, digits).astype(x.dtype)


def lines_to_copy(
    fn: Any, home: str, law: str, inputs: Sequence[Any], surrogate: Any
) -> tuple[str, ...]:
    """Return a program of at most 6 lines that audits one law with inputs."""
    import_line, constructor = MADE.get(home, IN_NUMPY)
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "<>")
    is_named = isinstance(module, str) and "<" not in name and "." not in name
    lines = [import_line, "import multigrad as xg"]
    if is_named and module not in ("__main__", "builtins"):
        lines.append(f"from {module} import {name}")
    arguments = repr(fn) if isinstance(fn, str) else name if is_named else "fn"
    large_names = []
    for n, x in enumerate(inputs):
        if not isinstance(x, np.ndarray | np.generic):
            arguments += f", {text}" if len(text := repr(x)) <= 40 and "\n" not in text else ", ..."
        elif x.size <= MOST_SHOWN:
            arguments += f", {constructor.format(x.tolist(), x.dtype)}"
        else:
            large_names.append(f"x{n}")
            arguments += f", x{n}"
    if large_names:
        lines.append(f"{', '.join(large_names)} = ...  # as above")
    if surrogate is not None:
        arguments += f", surrogate={getattr(surrogate, '__name__', surrogate)}"
    return (*lines, f'print(xg.audit({arguments}, laws=["{law}"]))')
