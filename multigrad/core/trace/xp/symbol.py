"""`Symbol`: what stands for a tensor while plain code runs: operators, and what every tensor says.

Methods and properties are those of `xg.xp` under their own names; the engine's symbols
(`capture/values/tracer.py`) have those of each library.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...ir.op import INPUT_SHAPE, SCALAR_SHAPE, keeps_rank
from ...passes.facts import needed_shapes, shape_fact
from ..coercion import NeedsConcrete
from ..trace import Value, known_shape
from . import all as xp


class Symbol(Value):
    """A symbolic tensor or scalar."""

    __slots__ = ()
    __hash__ = Value.__hash__

    @property
    def ndim(self) -> int:
        node, facts = self.node, self.trace.facts
        shape = node.type.shape
        if shape == SCALAR_SHAPE:
            return 0
        # One fact answers for all values of the input's rank.
        keeps = shape == INPUT_SHAPE or keeps_rank(shape)
        fact = "ndim" if keeps else shape_fact(node, "ndim")
        if fact is not None and fact in facts:
            return facts[fact]
        rank = self.trace.shapes.rank(node)
        if rank is not None:
            return rank
        missing = (fact,) if fact is not None else needed_shapes(node)
        if self.trace.facts.is_fresh and self.trace.facts.tell(missing):
            return self.ndim
        raise NeedsConcrete(*missing)

    @property
    def size(self) -> Any:
        return xp.size(self)

    @property
    def shape(self) -> Any:
        lengths = known_shape(self)
        return tuple([xp.dim(self, i) for i in range(self.ndim)]) if lengths is None else lengths

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in Value.__slots__:
            raise AttributeError(name)
        function = getattr(xp, {"clamp": "clip"}.get(name, name), None)
        if not callable(function):
            raise self.trace.error(f"reads .{name} of a tensor, which xg.xp has not")
        return partial(function, self)
