"""jax's indexed updates, `x.at[index].add(values)`, on symbolic values.

`x.at` is an `At`, whose index makes an `IndexedUpdate`; its methods return a new tensor and leave x
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from multigrad.core.ir.op import SCALAR_SHAPE
from multigrad.core.trace.trace import Value
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings.parts import holds_places
from multigrad.engine.capture.symbols import cast_in_graph
from multigrad.engine.capture.values import indexing
from multigrad.engine.capture.values.indexing import (
    add_at,
    holds_array,
    repeats,
    symbolic_if_outside,
)
from multigrad.engine.capture.values.tracer import V

from . import families

Handler = Callable[..., Any]


# What a mode means for elements outside the tensor, when they are read or written; see
# `parts.taken` and `parts.put`. None: as jax does by default.
READ = {None: None, "promise_in_bounds": None, "fill": "inside", "drop": "inside", "clip": "clip"}
WRITTEN = {**READ, "promise_in_bounds": "promised"}
# Options that only promise something, on which no result depends.
HARMLESS = ("indices_are_sorted", "unique_indices")


class At:
    """`x.at`."""

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> IndexedUpdate:
        return IndexedUpdate(self.value, index)


class IndexedUpdate:
    """`x.at[index]`."""

    __slots__ = ("index", "value")

    def __init__(self, value: V, index: Any) -> None:
        self.value = value
        self.index = index

    def get(self, *, fill_value: Any = None, **options: Any) -> Value:
        outside = READ[_read_mode(options)]
        fill = families.filling(self.value, fill_value) if outside == "inside" else None
        return indexing.picked(self.value, self.index, outside, fill)

    def set(self, values: Any, **options: Any) -> Value:
        outside = WRITTEN[_read_mode(options)]
        if outside == "promised":
            raise TypeError("x.at[...].set in the mode 'promise_in_bounds'; leave the mode out")
        x = self._copy()
        return cast_as(x, indexing.assigned(x, self.index, values, outside))

    def apply(self, ufunc: Handler, **options: Any) -> Value:
        return self._update(ufunc, [], options)

    def _put(self, compute: Handler, values: Any, **options: Any) -> Value:
        return self._update(compute, [values], options)

    add = partialmethod(_put, xp.add)
    subtract = partialmethod(_put, xp.subtract)
    multiply = mul = partialmethod(_put, xp.multiply)
    divide = partialmethod(_put, xp.divide)
    power = partialmethod(_put, xp.pow)
    min = partialmethod(_put, xp.minimum)
    max = partialmethod(_put, xp.maximum)

    def _update(self, compute: Handler, values: Sequence[Any], options: dict[str, Any]) -> Value:
        outside = WRITTEN[_read_mode(options)]
        return cast_as(self.value, self._computed(compute, values, outside))

    def _computed(self, compute: Handler, values: Sequence[Any], outside: str | None) -> Value:
        # `compute(x[index], *values)` at the index, x elsewhere.
        index = symbolic_if_outside(self.value, self.index)
        if holds_places(index):
            return self._added_at_places(index, compute, values, outside)
        x = self._copy()
        is_known = not isinstance(self.index, Value) and hasattr(self.index, "dtype")
        rows = np.asarray(self.index if is_known else None)
        if rows.ndim == 1 and rows.dtype.kind in "iu" and all(map(_is_scalar, values)):
            for row in rows.tolist():  # one after the other, as a row may occur twice
                x = indexing.assigned(x, row, compute(indexing.picked(x, row), *values))
            return x
        if indexing.is_mask(self.index):
            return indexing.assigned(x, self.index, self._picked_by_mask(x, compute, values))
        if indexing.is_whole(self.index):
            return compute(x, *values)
        if holds_array(self.index) and repeats(x, self.index):
            raise TypeError("a place updated twice; write one x.at[i] after the other")
        return indexing.assigned(x, self.index, compute(x[self.index], *values))

    def _copy(self) -> Any:
        # A value of its own: the update must not show in x.
        return self.value.trace.value(self.value.node)

    def _added_at_places(
        self, index: Any, compute: Handler, values: Sequence[Any], outside: str | None
    ) -> Value:
        # Places may repeat, and a scatter only adds up.
        sign = {xp.add: 1, xp.subtract: -1}.get(compute)
        if sign is None or len(values) != 1:
            raise TypeError("an update at symbolic places; set, add, subtract and get are known")
        x = self._copy()
        places, update = add_at(x, index, values[0] if sign == 1 else -values[0], outside)
        return indexing.assigned(x, places, update)

    def _picked_by_mask(self, x: V, compute: Handler, values: Sequence[Any]) -> indexing.Picked:
        # The values are scalars, or picked by the same mask.
        picks = [v for v in values if isinstance(v, indexing.Picked)]
        plain_values = [v for v in values if not isinstance(v, indexing.Picked)]
        is_same_mask = all(v.mask.node is self.index.node for v in picks)
        if not is_same_mask or not all(map(_is_scalar, plain_values)):
            raise x.trace.error(
                "updates a tensor at a mask by values that are not picked by the same mask. "
                "Use jnp.where(mask, value, tensor)"
            )
        operands = [v.whole if isinstance(v, indexing.Picked) else v for v in values]
        return indexing.Picked(compute(x, *operands), self.index)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Value) or value.node.type.shape == SCALAR_SHAPE


def _read_mode(options: dict[str, Any]) -> str | None:
    for name in options:
        if name != "mode" and name not in HARMLESS:
            raise TypeError(f"x.at[...] with {name}")
    mode = options.get("mode")
    if mode not in READ:
        raise TypeError(f"x.at[...] in the mode {mode!r}")
    return mode


def cast_as(x: Any, updated: Any) -> Any:
    """Return an updated tensor in the dtype of the original, if the library's types are known."""
    dtype, types = x.node.type.dtype, x.trace.types
    is_same = updated.node.type.dtype == dtype
    return updated if is_same or types is None else cast_in_graph(updated, dtype)
