"""The tracer value `V`: records through every protocol that array libraries offer.

`__torch_function__`, `__array_ufunc__`, `__array_function__`, `__array_namespace__`, Python operators (from `Value`)
and tensor methods. No framework is imported: a protocol hands over the function, a dialect table says what it
means.
"""

from __future__ import annotations

from typing import Any

from ..ir import ops
from ..ir.record import NeedFact, Value, dtype_name
from ..ir.types import INPUT_SHAPE, T
from . import methods
from .dialect import record_call


class SymbolicDType:
    """The dtype of a symbolic value; `T` stands for the input's, whatever it will be."""

    __slots__ = ("symbol",)

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def __repr__(self) -> str:
        return f"<dtype {self.symbol}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicDType):
            return self.symbol == other.symbol
        if self.symbol == T:
            raise NeedFact("dtype")
        return self.symbol == dtype_name(other)

    def __hash__(self) -> int:
        return hash(self.symbol)

    @property
    def is_floating_point(self) -> bool:
        return self.symbol != "bool"


class SymbolicDevice:
    """Where the input lies; a rule stays there."""

    def __repr__(self) -> str:
        return "<the input's device>"


DEVICE = SymbolicDevice()


class SymbolicShape:
    """The shape of a symbolic value: an index gives a symbolic integer, the length asks for the rank."""

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return self.value.trace.value(_dim(self.value, index))
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
        return self._known() == (other._known() if isinstance(other, SymbolicShape) else other)

    __hash__ = None  # type: ignore[assignment]

    def _known(self) -> tuple[int, ...]:
        if self.value.node.type.shape != INPUT_SHAPE:
            raise self.value.trace.error("needs the shape of an intermediate value")
        facts = self.value.trace.facts
        if "shape" not in facts:
            raise NeedFact("shape")
        return facts["shape"]


def _dim(value: V, index: int) -> Any:
    from ..ir.record import apply, constant

    facts = value.trace.facts
    if "shape" in facts and value.node.type.shape == INPUT_SHAPE:
        return constant(facts["shape"][index])
    return apply(ops.DIM, value, axis=index).node


class V(Value):
    """A symbolic tensor or scalar that array libraries accept."""

    __slots__ = ()
    __array_priority__ = 1000

    # --- attributes every tensor has ---------------------------------------------------------------
    @property
    def dtype(self) -> SymbolicDType:
        facts = self.trace.facts
        name = self.node.type.dtype
        return SymbolicDType(facts["dtype"] if name == "T" and "dtype" in facts else name)

    @property
    def device(self) -> SymbolicDevice:
        return DEVICE

    @property
    def shape(self) -> SymbolicShape:
        return SymbolicShape(self)

    @property
    def ndim(self) -> int:
        if self.node.type.kind == "scalar" or self.node.type.shape == ():
            return 0
        if self.node.type.shape != INPUT_SHAPE:
            raise self.trace.error("needs the rank of an intermediate value")
        if "ndim" not in self.trace.facts:
            raise NeedFact("ndim")
        return self.trace.facts["ndim"]

    def __len__(self) -> int:
        return self.shape._known()[0]

    # --- protocols -----------------------------------------------------------------------------------
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return record_call("torch", function, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        if method != "__call__":
            raise self.trace.error(f"calls NumPy's {ufunc.__name__}.{method}, which is not captured")
        return record_call("numpy", function, args, kwargs)

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return record_call("numpy", function, args, kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from . import xp

        return xp

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.trace.error("turns a symbolic tensor into a NumPy array. Use array functions on it")

    # --- methods ---------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        method = methods.METHODS.get(name)
        if method is None:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in methods.REFUSED:
                raise self.trace.error(f"calls .{name}(): {methods.REFUSED[name]}")
            raise self.trace.error(
                f"uses .{name}, which is not captured. Write it with xg.xp, "
                f"or register the rule with native=True to run it as it is"
            )
        return _Bound(method, self)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self.trace.error("assigns into a tensor. Use xp.where(condition, value, tensor)")

    def __getitem__(self, index: Any) -> Any:
        raise self.trace.error("indexes a tensor. Use whole-array operations")


class _Bound:
    """A method of a symbolic value, waiting for its arguments."""

    __slots__ = ("method", "value")

    def __init__(self, method: Any, value: V) -> None:
        self.method = method
        self.value = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.method(self.value, *args, **kwargs)
        except TypeError as error:
            raise self.value.trace.error(
                f"calls .{self.method.__name__}() in a way not captured: {error}"
            ) from error
