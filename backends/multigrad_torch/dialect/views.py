"""Torch's dialect, views: which of its functions never copy, so that an update goes both ways.

What may be either, such as `reshape`, depends on how a tensor lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from multigrad.capture.code.binding import handlers
from multigrad.capture.meanings import arrays
from multigrad.trace.trace import Value, copy_of, mark_view
from multigrad.trace.xp import all as xp

from . import asked
from .families import parts
from .schemas import TENSOR, TORCH

Tensor = Any


def viewing(record: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what records the same, each step of it a view for certain."""

    @wraps(record)
    def certain(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = record(x, *args, **kwargs)
        step = result
        while isinstance(step, Value) and step is not x:
            step.is_certain = True
            step = step.base
        return result

    return certain


view, view_as = viewing(arrays.view), viewing(arrays.view_as)
diagonal = viewing(parts.METHODS["diagonal"])
expand = viewing(asked.expand)
linalg_diagonal = viewing(parts.ALIASES[torch.linalg.diagonal])


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write into the diagonal of a matrix; of more axes torch takes one diagonal through all."""
    if len(asked.lengths_of(x)) != 2 or wrap:
        raise TypeError("fill_diagonal_ of other than a matrix, or with wrap")
    diagonal(x)[...] = fill_value
    return x


# --- other orders of axes -------------------------------------------------------------------------
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return same(input) if lacks_axes(input, dim0, dim1) else xp.swapaxes(input, dim0, dim1)


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    is_whole = lacks_axes(input, source, destination)
    return same(input) if is_whole else xp.moveaxis(input, source, destination)


def transpose_method(x: Tensor, *axes: Any, **named: Any) -> Tensor:
    """Two axes exchanged, where the method is torch's."""
    if named or (len(axes) == 2 and arrays.habits_for(x, "transpose").exchanges_two):
        return transpose(x, *axes, **named)
    return arrays.transpose(x, *axes)


def lacks_axes(x: Tensor, *dims: Any) -> bool:
    """Return whether a tensor has no axes, where these are such as torch takes for that one: its
    rank is a fact then.
    """
    return all(type(dim) is int and dim in (0, -1) for dim in dims) and x.ndim == 0


def same(x: Tensor) -> Tensor:
    """Return another name of a tensor, in the same memory."""
    view = copy_of(x)
    mark_view(view, x, True)
    return view


SWAPPED: dict[Any, str] = {__name__: "transpose: swapaxes(axis0=dim0, axis1=dim1)"}
OF_TENSORS = TENSOR.called(SWAPPED)
METHODS: dict[str, Callable[..., Any]] = {
    "swapaxes": OF_TENSORS[torch.Tensor.swapaxes],
    **handlers(
        {
            __name__: """
                diagonal; expand; fill_diagonal_; movedim: moveaxis movedim; transpose:
                swapdims; transpose_method: transpose; view; view_as
            """,
        }
    ),
}
ALIASES: dict[Any, Callable[..., Any]] = {
    **TORCH.called(SWAPPED),
    **OF_TENSORS,
    **TORCH.taking_the_same(
        {
            __name__: """
                diagonal; linalg_diagonal: linalg.diagonal; movedim: moveaxis movedim;
                transpose: swapdims transpose
            """,
        }
    ),
    **TENSOR.taking_the_same(
        {
            __name__: """
                diagonal; movedim: moveaxis movedim; transpose: swapdims transpose;
                view; view_as
            """,
        }
    ),
}
