"""The tracer value `V`: records through every protocol that array libraries offer.

`__torch_function__`, `__array_ufunc__`, `__array_function__`, `__array_namespace__`, Python operators (from `Value`)
and tensor methods. No framework is imported: a protocol hands over the function, a dialect table says what it
means.
"""

from __future__ import annotations

from typing import Any

from ..ir import neutral, ops
from ..ir.graph import Node
from ..ir.record import NeedFact, Value, cast_node, known_shape
from ..ir.types import BOOL, INPUT_SHAPE, ROW
from . import methods
from .dialect import find_dialect, record_call
from .symbols import DEVICE, SymbolicDType, SymbolicShape

# Results that share memory with their operand in the frameworks: an update would reach the operand too.
VIEWS = (ops.STOP_GRADIENT, ops.BROADCAST_TO, ops.EXPAND_DIMS)


class V(Value):
    """A symbolic tensor or scalar that array libraries accept."""

    __slots__ = ()
    __array_priority__ = 1000

    # --- attributes every tensor has ---------------------------------------------------------------
    @property
    def dtype(self) -> Any:
        facts, name = self.trace.facts, self.node.type.dtype
        if "dtype" not in facts:
            return SymbolicDType(name)
        name = facts["dtype"] if name == "T" else name
        dialect = find_dialect(self.trace.dialect)
        return SymbolicDType(name) if dialect is None else dialect.dtype(name)

    @property
    def device(self) -> Any:
        dialect = find_dialect(self.trace.dialect) if "device" in self.trace.facts else None
        return DEVICE if dialect is None else dialect.device

    @property
    def shape(self) -> Any:
        known = known_shape(self)
        return SymbolicShape(self) if known is None else known

    @property
    def size(self) -> Any:
        """An integer as in NumPy, and callable as in torch."""
        return Size(self)

    @property
    def ndim(self) -> int:
        shape = self.node.type.shape
        if self.node.type.kind == "scalar" or shape == ROW:
            return 0
        if shape == INPUT_SHAPE or (isinstance(shape, tuple) and shape[2]):
            if "ndim" not in self.trace.facts:
                raise NeedFact("ndim")
            return self.trace.facts["ndim"]
        raise self.trace.error("needs the rank of an intermediate value")

    @property
    def data(self) -> Any:
        return neutral.stop_gradient(self)

    def __len__(self) -> int:
        return self.shape[0].__index__()

    # --- protocols -----------------------------------------------------------------------------------
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return record_call("torch", function, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        if method != "__call__":
            raise self.trace.error(
                f"calls NumPy's {ufunc.__name__}.{method}, which is not captured"
            )
        return record_call("numpy", function, args, kwargs)

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return record_call("numpy", function, args, kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from . import xp

        return xp

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.trace.error(
            "turns a symbolic tensor into a NumPy array. Use array functions on it"
        )

    # --- methods ---------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        dialect = find_dialect(self.trace.dialect)
        own = dialect.methods if dialect is not None else {}
        method = own.get(name) or methods.METHODS.get(name)
        if method is not None:
            return _Bound(method, self)
        if name.startswith("__"):
            raise AttributeError(name)
        in_place = methods.IN_PLACE.get(name) or methods.METHODS.get(name.removesuffix("_"))
        if in_place is not None:
            return _Bound(in_place, self, updates=True)
        if name in methods.REFUSED:
            raise self.trace.error(f"calls .{name}(): {methods.REFUSED[name]}")
        raise self.trace.error(
            f"uses .{name}, which is not captured. Write it with xg.xp, "
            f"or register the rule with native=True to run it as it is"
        )

    # --- in-place updates: the value names another node from then on ----------------------------------
    def update(self, value: Any) -> Any:
        """Take a new value of the same type, for everyone who holds this one."""
        old, new = self.node, value.node
        if old.op in VIEWS:
            raise self.trace.error("updates a view of another tensor. Call .clone() on it first")
        if new.type.dtype != old.type.dtype and BOOL not in (new.type.dtype, old.type.dtype):
            new = cast_node(new, old.type.dtype)
        if new.type != old.type:
            raise self.trace.error(f"updates a {old.type} in place with a {new.type}")
        self.node: Node = new
        return self

    def _updated(self, value: Any) -> Any:
        # Numbers are immutable, so an augmented assignment binds the name anew.
        return value if self.node.type.kind == "scalar" else self.update(value)

    def __iadd__(self, other: Any) -> Any:
        return self._updated(self + other)

    def __isub__(self, other: Any) -> Any:
        return self._updated(self - other)

    def __imul__(self, other: Any) -> Any:
        return self._updated(self * other)

    def __itruediv__(self, other: Any) -> Any:
        return self._updated(self / other)

    def __ipow__(self, other: Any) -> Any:
        return self._updated(self**other)

    def __iand__(self, other: Any) -> Any:
        return self._updated(self & other)

    def __ior__(self, other: Any) -> Any:
        return self._updated(self | other)

    def __ixor__(self, other: Any) -> Any:
        return self._updated(self ^ other)

    def __setitem__(self, index: Any, value: Any) -> None:
        whole = index is Ellipsis or (isinstance(index, slice) and index == slice(None))
        single = not isinstance(value, Value) or value.node.type.shape == ROW
        if whole and single:
            self.update(neutral.full_like(self, value))
        elif whole:
            self.update(value)
        elif isinstance(index, Value) and index.node.type.dtype == BOOL and single:
            self.update(neutral.where(index, value, self))
        else:
            raise self.trace.error(
                "assigns to a part of a tensor. Use xp.where(condition, value, tensor)"
            )

    def __getitem__(self, index: Any) -> Any:
        raise self.trace.error(
            "indexes a tensor. Use whole-array operations: xp.where(condition, tensor, 0.0)"
        )


class Size(V):
    """The number of elements; called, it is torch's `size()`."""

    __slots__ = ("_of",)

    def __init__(self, of: V) -> None:
        super().__init__(of.trace, neutral.size(of).node)
        self._of = of

    def __call__(self, dim: int | None = None) -> Any:
        return self._of.shape if dim is None else self._of.shape[dim]


class _Bound:
    """A method of a symbolic value, waiting for its arguments."""

    __slots__ = ("method", "updates", "value")

    def __init__(self, method: Any, value: V, updates: bool = False) -> None:
        self.method = method
        self.value = value
        self.updates = updates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self.method(self.value, *args, **kwargs)
        except TypeError as error:
            raise self.value.trace.error(
                f"calls .{self.method.__name__}() in a way not captured: {error}"
            ) from error
        return self.value.update(result) if self.updates else result
