"""Symbols of functions, on which their code may set attributes."""

from __future__ import annotations

from typing import Any

from ...graph import ops
from ...trace.trace import Value
from ..code.table import find_dialect
from .tracer import V

SLOTS = frozenset(Value.__slots__)


class Attributed(V):
    """A symbol of a function, which takes attributes where its library's tensors do."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SLOTS:
            return object.__setattr__(self, name, value)
        own = find_dialect(self.trace.dialect)
        if own is None or not own.tensor.__dictoffset__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if f"{name}_" in own.methods:  # torch's way to set it
            return getattr(self, f"{name}_")(value)
        if hasattr(own.tensor, name) and name not in (self.notes or {}):
            raise self.trace.error(f"sets .{name} of a tensor, which is not captured")
        if self.node.op is ops.INPUT and self.trace.in_backward:
            raise self.trace.error(
                f"sets an attribute {name!r} of its argument in backward, which the caller would "
                "see"
            )
        self.notes = {**(self.notes or {}), name: value}
