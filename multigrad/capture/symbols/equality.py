"""`x == None` and `x != None`, which ask whether there is a tensor, but of NumPy's arrays."""

from __future__ import annotations

from typing import Any

from ...trace.trace import Value
from ..code.table import habits_of


class Comparing(Value):
    """A symbol that is equal to None nowhere, where its library says so of a tensor."""

    __slots__ = ()
    __hash__ = Value.__hash__

    def __eq__(self, other: object) -> Any:
        if other is None and habits_of(self.trace).none_is_other:
            return False
        return Value.__eq__(self, other)

    def __ne__(self, other: object) -> Any:
        if other is None and habits_of(self.trace).none_is_other:
            return True
        return Value.__ne__(self, other)
