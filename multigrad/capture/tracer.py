"""The tracer value `V`: records through every protocol that array libraries offer.

`__torch_function__`, `__array_ufunc__`, `__array_function__`, `__array_namespace__`, Python operators (from `Value`)
and tensor methods. No framework is imported: a protocol hands over the function, a dialect table says what it
means.
"""

from __future__ import annotations

from typing import Any

from ..ir import neutral, ops
from ..ir.facts import needed_shapes, shape_fact
from ..ir.graph import Node, make_node
from ..ir.record import NeedFact, Value, cast_node, known_shape
from ..ir.shape_meaning import as_index
from ..ir.types import INPUT_SHAPE, ROW, UNKNOWN, T, Type, is_float, keeps_rank
from . import indexing, methods
from .dialect import find_dialect, record_call
from .symbols import DEVICE, KnownShape, SymbolicDType, SymbolicShape

# Operations that give a view in every library that has views; some others give one in some of them.
SURE_VIEWS = (
    ops.BROADCAST_TO, ops.EXPAND_DIMS, ops.GETITEM, ops.MOVEAXIS, ops.PERMUTE_DIMS, ops.SQUEEZE,
    ops.STOP_GRADIENT, ops.SWAPAXES,
)  # fmt: skip
# Attributes that TensorFlow's functions look for in whatever they are given.
PROBED = ("graph", "is_tensor_like")


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
        return SymbolicShape(self) if known is None else KnownShape(known)

    @property
    def size(self) -> Any:
        """An integer as in NumPy, and callable as in torch."""
        return Size(self)

    @property
    def ndim(self) -> int:
        node, facts = self.node, self.trace.facts
        shape = node.type.shape
        if node.type.kind == "scalar" or shape == ROW:
            return 0
        keeps = shape == INPUT_SHAPE or keeps_rank(shape)
        fact = "ndim" if keeps else shape_fact(node, "ndim")
        if fact is not None and fact in facts:
            return facts[fact]
        known = known_shape(self)
        if known is not None:
            return len(known)
        raise NeedFact(*((fact,) if fact is not None else needed_shapes(node)))

    @property
    def T(self) -> Any:
        return neutral.permute_dims(self)

    @property
    def mT(self) -> Any:
        return neutral.matrix_transpose(self)

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
        chosen = kwargs.pop("where", True)
        if chosen is True:
            return record_call("numpy", function, args, kwargs)
        (out,) = kwargs.pop("out", None) or (None,)
        if not isinstance(out, V):
            raise self.trace.error(
                f"calls NumPy's {ufunc.__name__} with where= and without out=, which leaves the other "
                f"elements undefined. Use np.where"
            )
        return out.update(neutral.where(chosen, record_call("numpy", function, args, kwargs), out))

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

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        # TensorFlow asks its dispatcher only after a TypeError.
        raise TypeError("a symbolic tensor holds no numbers, and this function is not captured")

    # --- methods ---------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        dialect = find_dialect(self.trace.dialect)
        own = dialect.methods if dialect is not None else {}
        if dialect is not None and name in dialect.attributes:
            return dialect.attributes[name](self)
        method = own.get(name) or methods.METHODS.get(name)
        if method is not None:
            return _Bound(method, self)
        if name.startswith("__") or name in PROBED:
            raise AttributeError(name)
        plain = name.removesuffix("_")
        in_place = methods.IN_PLACE.get(name) or own.get(plain) or methods.METHODS.get(plain)
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
        """Take a new value of the same type, for everyone who holds this one.

        What is of another dtype is cast, and what is smaller is repeated, as every library does in place.
        An update of `x[index]` reaches x, and an update of x reaches `x[index]`.
        """
        old, new = self.node, value.node
        if self.base is not None and old.op is not ops.GETITEM:
            raise self.trace.error("updates a view of another tensor. Call .clone() on it first")
        views = [view for ref in self.views if (view := ref()) is not None]
        if any(view.node.op not in SURE_VIEWS for view in views):
            raise self.trace.error(
                "updates a tensor of which it holds what may be a view or a copy. "
                "Call .clone() before the update"
            )
        self._check_own_memory()
        if new.type.kind == "tensor" and new.type.dtype != old.type.dtype and is_float(old.type):
            new = cast_node(new, old.type.dtype)
        if new.type.dtype == old.type.dtype and self._may_repeat(new.type):
            new = neutral.broadcast_to(self.trace.value(new), self).node
        if new.type != old.type:
            raise self.trace.error(f"updates a {old.type} in place with a {new.type}")
        if isinstance(self.base, V):
            index = as_index(old.attr("index"))
            whole = indexing.assigned(self.base, index, self.trace.value(new))
            self.base.update(whole)  # and with it this view
        else:
            self._replace(new)
        return self

    def _replace(self, node: Node) -> None:
        """Take another node, and look at it anew through every view."""
        self.node = node
        for ref in self.views:
            view = ref()
            if isinstance(view, V):
                seen = view.node
                operands = (node, *seen.operands[1:])
                view._replace(make_node(seen.op, operands, dict(seen.attrs), seen.type))

    def _check_own_memory(self) -> None:
        """A cast to the own dtype returns its operand, which an update reaches: know which dtype it is."""
        cast = self.node.op is ops.CAST and is_float(self.node.operands[0].type)
        dtypes = (self.node.type.dtype, self.node.operands[0].type.dtype) if cast else ()
        if T in dtypes and "dtype" not in self.trace.facts:
            raise NeedFact("dtype")

    def _may_repeat(self, new: Type) -> bool:
        """Return whether a new value may be smaller than this one; if it is larger, that is said when it runs."""
        old = self.node.type.shape
        known = old == INPUT_SHAPE and (new.shape == ROW or keeps_rank(new.shape))
        told_later = UNKNOWN in (new.shape, old) and old in (INPUT_SHAPE, UNKNOWN)
        return new.shape != old and (known or told_later)

    def _updated(self, value: Any) -> Any:
        # Numbers are immutable, so an augmented assignment binds the name anew; so are some libraries' arrays.
        name, own = self.trace.dialect, __name__.partition(".")[0]
        dialect = find_dialect(name)
        mutable = name in ("", own) if dialect is None else dialect.mutable
        if self.node.type.kind == "scalar" or not mutable:
            return value
        return self.update(value)

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
        self.update(indexing.assigned(self, index, value))

    def __getitem__(self, index: Any) -> Any:
        return indexing.picked(self, index)


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
