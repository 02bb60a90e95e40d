"""Ops that are made of others: `made_of` is a function `(xp, *operands, **attrs)` of other ops and
Python's operators. A backend without a row of its own computes that, with its rows for `xp`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..ir.op import REQUIRED, Op
from .numerics import Array, widened
from .table import DECLARED, function

Row = Callable[..., Any]


class Composed:
    """The meaning in NumPy of an op that has none but what it is made of."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *operands: Array, **attrs: Any) -> Array:
        return self.function(*operands, **attrs)

    @functools.cached_property
    def function(self) -> Row:
        """The composition, of the meanings of its parts."""
        row = DECLARED[self.name]
        return widened(compose(row, {part: part.numpy for part in parts_of(row)}))


def composite(name: str, made_of: Any, vjp: Any, doc: str, args: str = "x", /, **more: Any) -> Op:
    """Declare an elementwise op with a float result that means what it is made of.

    Without a VJP its derivative is that of the composition.
    """
    return function(name, Composed(name), vjp, doc, args, made_of=made_of, **more)


def compose(row: Op, rows: Mapping[Op, Row]) -> Row:
    """Return what an op is made of as a function, of a backend's rows for its parts."""
    parts = {part.in_xp: rows.get(part, part.on_numbers) for part in parts_of(row)}
    return functools.partial(row.made_of, SimpleNamespace(**parts))  # type: ignore[arg-type]


@functools.cache
def parts_of(row: Op) -> tuple[Op, ...]:
    """Return the ops that a composition calls, as it runs with each of its samples."""
    asked = _Asked()
    operands = [Sample()] * len(row.operands)
    samples = [
        attr.samples or (((),) if attr.default is REQUIRED else (attr.default,))
        for attr in row.attrs.values()
    ]
    assert row.made_of is not None
    for values in itertools.product(*samples):
        row.made_of(asked, *operands, **dict(zip(row.attrs, values, strict=True)))
    return tuple(asked.parts)


class Sample:
    """What a composition is given for its operands, and what their functions give: no value of a
    tensor decides which ops it calls.
    """

    ndim, shape, dtype = 1, (1,), np.dtype("float32")

    def itself(self, *others: Any) -> Sample:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = itself
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __neg__ = __getitem__ = itself
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __invert__ = itself
    __eq__ = __ne__ = itself  # type: ignore[assignment]
    __hash__ = object.__hash__


class _Asked:
    """What a composition is given for `xp`, to see what it asks for."""

    def __init__(self) -> None:
        self.parts: dict[Op, None] = {}

    def __getattr__(self, name: str) -> Row:
        row = _by_name(len(DECLARED)).get(name)
        if row is None:
            raise AttributeError(f"no op is called xp.{name}: an op is made of others")
        self.parts[row] = None
        return _sample


@functools.lru_cache(maxsize=1)
def _by_name(count: int) -> dict[str, Op]:
    """Return the ops by their names in `xg.xp`, of which there are so many now."""
    return {row.in_xp: row for row in DECLARED.values()}


def _sample(*operands: Any, **attrs: Any) -> Sample:
    return Sample()
