"""What a symbolic tensor's attributes give while they are not fixed: a dtype, a shape, a device."""

from __future__ import annotations

import math
from typing import Any

from ...graph.ir.types import BOOL, INPUT_SHAPE, WHOLE, T
from ...graph.passes.facts import needed_shapes
from ...trace.answers import is_asked_by, place_of
from ...trace.trace import NeedsConcrete, Trace, dtype_name
from ...trace.xp import all as xp

V = Any  # of tracer.py


class SymbolicDType:
    """The dtype of a symbolic value; `T` stands for the input's, whatever it will be."""

    __slots__ = ("symbol", "trace")

    def __init__(self, symbol: str, trace: Trace | None = None) -> None:
        self.symbol = symbol
        self.trace = trace  # of the tensor that has it; None: it is written so

    def _is_open(self) -> bool:
        """Return whether a library's own dtype object may stand here, once the dtype is a fact."""
        return self.trace is not None and "dtype" not in self.trace.facts

    def __repr__(self) -> str:
        if self.trace is not None and self._is_open() and is_asked_by(self.trace.codes):
            raise NeedsConcrete("dtype")
        return f"<SymbolicDType {self.symbol}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicDType) and self.symbol == other.symbol:
            return True
        if T in (self.symbol, getattr(other, "symbol", None)) and BOOL not in (
            self.symbol,
            getattr(other, "symbol", None),
        ):
            raise NeedsConcrete("dtype")
        return self.symbol == dtype_name(other)

    def __hash__(self) -> int:
        if self._is_open():
            raise NeedsConcrete("dtype")
        return hash(self.symbol)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.trace is None:
            raise AttributeError(name)
        if not self._is_open():
            raise self.trace.error(
                f"asks a dtype for .{name}, and nothing tells which library's dtype it is"
            )
        raise NeedsConcrete("dtype")  # the library's own dtype object has it, or not

    @property
    def is_floating_point(self) -> bool:
        return self.symbol not in (BOOL, *WHOLE)


class SymbolicDevice:
    """Where the input lies; a rule stays there, wherever that is."""

    __slots__ = ("trace",)

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return "<SymbolicDevice>" if not is_asked_by(self.trace.codes) else self._refuse()

    def __eq__(self, other: object) -> bool:
        return True if isinstance(other, SymbolicDevice) else self._refuse()

    def __hash__(self) -> int:
        return self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    @property
    def type(self) -> str:
        return place_of(self.trace)

    def _refuse(self) -> Any:
        if self.trace.kind != "rule" and place_of(self.trace) == "cpu":
            raise NeedsConcrete("device")  # there is one
        raise self.trace.error(
            "looks at the device of a tensor, which one graph for all devices does not know"
        )


class SymbolicShape:
    """The shape of a symbolic value: an index gives a symbolic integer, the length asks for the
    rank.
    """

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return xp.dim(self.value, index)
        return self._known()[index]

    def __len__(self) -> int:
        return self.value.ndim

    def __iter__(self) -> Any:
        return iter(self._known())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicShape):
            mine, theirs = self.value.node.type.shape, other.value.node.type.shape
            if mine == theirs == INPUT_SHAPE:
                return True
        return self._known() == other

    def __hash__(self) -> int:
        return hash(self._known())

    def __repr__(self) -> str:
        if is_asked_by(self.value.trace.codes):
            return repr(self._known())
        return f"<SymbolicShape of {self.value.node.type}>"

    def __add__(self, other: Any) -> Any:
        return self._known() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._known()

    def __mul__(self, times: Any) -> Any:
        return self._known() * times

    __rmul__ = __mul__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._known()

    def numel(self) -> Any:
        return xp.size(self.value)

    def num_elements(self) -> Any:
        return xp.size(self.value)

    def as_list(self) -> list[int]:
        return list(self._known())

    @property
    def rank(self) -> int:
        return self.value.ndim

    @property
    def ndims(self) -> int:
        return self.value.ndim

    def _known(self) -> tuple[int, ...]:
        if self.value.node.type.kind == "scalar":
            return KnownShape()
        raise NeedsConcrete(*needed_shapes(self.value.node))  # known, it would be a tuple


class KnownShape(tuple[int, ...]):
    """A shape that this capture has fixed, with what the libraries' own shapes have besides."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return KnownShape(part) if isinstance(index, slice) else part

    def __add__(self, other: Any) -> Any:
        return KnownShape(super().__add__(other))

    def numel(self) -> int:
        return math.prod(self)

    def num_elements(self) -> int:
        return math.prod(self)

    def as_list(self) -> list[int]:
        return list(self)

    @property
    def rank(self) -> int:
        return len(self)

    @property
    def ndims(self) -> int:
        return len(self)
