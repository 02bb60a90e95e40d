"""The tracer value `V`, which records through every protocol that array libraries offer.

These are `__torch_function__`, `__array_ufunc__`, `__array_function__`, `__array_namespace__`,
Python operators (from `Value`) and tensor methods. No framework is imported: a protocol passes the
function, and a dialect's table gives its meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Node, make_node
from ...graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, Type, is_float, keeps_rank
from ...graph.ops.arrays.indexing import as_index
from ...graph.passes.facts import needed_shapes, shape_fact
from ...graph.support.class_bases import dataclass
from ...trace.axes import known_shape
from ...trace.python_protocols import is_asked_by
from ...trace.trace import NeedsConcrete, Value, cast_node, copy_of
from ...trace.xp import all as xp
from .. import dtypes, memory_layout
from ..dialect import find_dialect, habits_of, updates
from ..foreign_calls import AUGMENTED, record_call
from ..symbols import (
    KnownShape,
    Number,
    SymbolicDevice,
    SymbolicDType,
    SymbolicShape,
    asks_for_class,
    class_of,
    uses_attribute,
)
from ..taken_gradients import carries_gradient
from ..user_code.libraries import library_for
from . import indexing, methods
from .methods import ABSENT, check_callers, find_method, find_row

# The reflected operator by ufunc: a NumPy number on the left calls the ufunc instead.
REFLECTED = {
    np.add: "__radd__",
    np.subtract: "__rsub__",
    np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__",
    np.floor_divide: "__rfloordiv__",
    np.remainder: "__rmod__",
    np.power: "__rpow__",
    np.less: "__gt__",
    np.less_equal: "__ge__",
    np.greater: "__lt__",
    np.greater_equal: "__le__",
    np.equal: "__eq__",
    np.not_equal: "__ne__",
}
# Attributes that TensorFlow's functions look for in all arguments.
PROBED = ("graph", "is_tensor_like")


class V(Value):
    """A symbolic tensor or scalar that array libraries accept."""

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = Value.__hash__

    # --- attributes every tensor has --------------------------------------------------------------
    @property
    def __class__(self) -> type:
        # `match` and `singledispatch` read this; a C library, told that it is a tensor, would read
        # its memory.
        return class_of(self) if asks_for_class(self.trace) else type(self)

    @property
    def dtype(self) -> Any:
        facts, name = self.trace.facts, self.node.type.dtype
        if "dtype" not in facts:
            if self.trace.source.compares_identity:
                raise NeedsConcrete("dtype")
            self.trace.facts.gives_dtype = True
            return SymbolicDType(name, self.trace)
        name = facts["dtype"] if name == "T" else name
        dialect = find_dialect(self.trace.reading.dialect)
        return SymbolicDType(name, self.trace) if dialect is None else dialect.tensors.dtype(name)

    @property
    def device(self) -> Any:
        facts = self.trace.facts
        dialect = find_dialect(self.trace.reading.dialect) if "device" in facts else None
        if dialect is None:
            return SymbolicDevice(self.trace)
        place = facts.get("device_type", "cpu")
        if place == "cpu" or dialect.tensors.device_of is None:
            return dialect.tensors.device
        return dialect.tensors.device_of(place)

    @property
    def shape(self) -> Any:
        known = known_shape(self)
        return SymbolicShape(self) if known is None else KnownShape(known)

    @property
    def size(self) -> Any:
        """An integer as in NumPy, a method as in torch, both if the library is not known."""
        names = self.trace.reading.libraries or (self.trace.reading.dialect,)
        tensors = [
            dialect.tensors.tensor for dialect in map(find_dialect, names) if dialect is not None
        ]
        is_method = tensors and all(callable(getattr(each, "size", None)) for each in tensors)
        return partial(_size, self) if is_method else Size(self)

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
        known = self.trace.shapes.rank(node)
        if known is not None:
            return known
        missing = (fact,) if fact is not None else needed_shapes(node)
        if self.trace.facts.is_fresh and self.trace.facts.tell(missing):
            return self.ndim
        raise NeedsConcrete(*missing)

    def __eq__(self, other: object) -> Any:
        is_other = other is None and habits_of(self.trace).none_is_other
        return False if is_other else Value.__eq__(self, other)

    def __ne__(self, other: object) -> Any:
        is_other = other is None and habits_of(self.trace).none_is_other
        return True if is_other else Value.__ne__(self, other)

    def __pos__(self) -> Any:
        return copy_of(self) if habits_of(self.trace).plus_copies else self

    def __abs__(self) -> Any:
        dialect = find_dialect(self.trace.reading.dialect)
        method = None if dialect is None else dialect.names.methods.get("__abs__")
        return super().__abs__() if method is None else method(self)

    @property
    def T(self) -> Any:
        return xp.permute_dims(self)

    @property
    def mT(self) -> Any:
        return xp.matrix_transpose(self)

    @property
    def real(self) -> Any:
        return self

    @property
    def data(self) -> Any:
        return xp.stop_gradient(self)

    def __len__(self) -> int:
        return self.shape[0].__index__()

    def _rows(self) -> Iterator[Any] | None:
        # A function's number of rows becomes a fact; a rule's tensor cannot be iterated.
        if self.trace.kind == "rule" or self.node.type.kind == "scalar" or self.is_number:
            return None
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter([self[i] for i in range(len(self))])

    # --- protocols --------------------------------------------------------------------------------
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return record_call("torch", function, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        first = args[0]
        is_number = isinstance(first, np.generic) or (type(first) is np.ndarray and first.ndim == 0)
        if function in REFLECTED and not kwargs and is_number:
            # A NumPy number does not return NotImplemented, so Python never tries our operator.
            return getattr(self, REFLECTED[function])(args[0][()])
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
                f"calls NumPy's {ufunc.__name__} with where= and without out=, which leaves the "
                "other elements undefined. Use np.where"
            )
        return out.update(xp.where(chosen, record_call("numpy", function, args, kwargs), out))

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return record_call("numpy", function, args, kwargs)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return self.trace.namespace

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        advice = self.trace.words.advise("Use array functions on it")
        raise self.trace.error(f"turns a symbolic tensor into a NumPy array{advice}")

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        # TensorFlow tries its dispatcher only after a TypeError.
        raise TypeError("a symbolic tensor holds no numbers, and this function is not captured")

    # --- methods ----------------------------------------------------------------------------------
    def as_number(self) -> Item:
        """Return a symbol for the Python number in a tensor of one element."""
        return Item(self.trace, self.node)

    def as_whole(self) -> Whole:
        return Whole(self.trace, self.node)

    def __getattr__(self, name: str) -> Any:
        if name in SLOTS:  # Dynamo reads slots of a value that is still being made
            raise AttributeError(name)
        if self.notes and name in self.notes:
            return self.notes[name]
        if self.node.type.kind == "scalar" and hasattr(class_of(self), name):
            return getattr(self._concrete(f"uses .{name} of a number", "Write it with math"), name)
        dialect = find_dialect(self.trace.reading.dialect)
        if dialect is not None and name in dialect.names.attributes:
            return dialect.names.attributes[name](self)
        # A hint that nobody has set.
        if dialect is not None and name.startswith(dialect.classes.hints):
            raise AttributeError(name)
        # With several libraries possible, the shared methods report where these differ.
        if len(self.trace.reading.libraries) > 1:
            dialect = None
        is_asked = is_asked_by(self.trace.source.codes)
        # A C library probes for protocols while the user's line is the innermost Python frame.
        if name in PROBED or (name.startswith("__") and not (is_asked and uses_attribute(name))):
            raise AttributeError(name)
        row = find_row(name, dialect, type(self))
        if row == ABSENT and (not is_asked or self._is_others(name)):
            row = find_row(name, None, type(self))
        method = None if row is None or row.kind != "modelled" else find_method(name, dialect)
        if method is not None:
            return _Bound(method[0], self, name, updates=method[1])
        if row in (ABSENT, None) and is_asked:
            check_callers(self, name)
        if row == ABSENT:
            raise AttributeError(
                f"{dialect and dialect.tensors.tensor.__name__!r} object has no attribute {name!r}"
            )
        if name in methods.REFUSED:
            reason, *advice = methods.REFUSED[name].split(". ")
            words = self.trace.words.advise(*advice) if advice else ""
            raise self.trace.error(f"calls .{name}(): {reason}{words}")
        reason = row.reason if row is not None and row.reason else "which is not captured"
        words = self.trace.words
        raise self.trace.error(f"uses .{name}, {reason}{words.advise(*words.write)}")

    def refuse(self, name: str) -> None:
        """Refuse to tell whether a symbol has an attribute that it does not answer."""
        row = find_row(name, find_dialect(self.trace.reading.dialect), type(self))
        if row is not None and row.kind == "refused" and name not in dir(type(self)):
            raise self.trace.error(f"looks for .{name}, {row.reason}")

    def _is_others(self, name: str) -> bool:
        # NumPy's constants occur in code of all libraries, so an attribute that NumPy lacks may be
        # theirs.
        return self.trace.reading.dialect == "numpy" and uses_attribute(name, depth=3)

    # --- in-place updates: the value names another node from then on ------------------------------
    def update(self, value: Any) -> Any:
        """Take a new value of the same type, for all names of this one.

        A value of another dtype is cast and a smaller one repeated, as in every library. An update
        of `x[index]` reaches x, and an update of x reaches `x[index]`.
        """
        old, new = self.node, value.node
        self._check_own_memory()
        # Order: whose memory it is, the dtype, the shape, gradients, then the base of a view.
        if not (
            memory_layout.resolve_twin(self) and all(map(memory_layout.is_view, self._all_views()))
        ):
            raise self.trace.error(
                "updates a tensor of which it holds what may be a view or a copy. Call .clone() "
                "before the update"
            )
        if new.type.kind == "tensor" and new.type.dtype != old.type.dtype and is_float(old.type):
            new = cast_node(new, old.type.dtype)
        if new.type.dtype == old.type.dtype and self._may_repeat(new.type):
            new = xp.broadcast_to(self.trace.value(new), self).node
        if new.type != old.type:
            raise self.trace.error(f"updates a {old.type} in place with a {new.type}")
        is_paused = self.trace.backward.is_paused is not None and self.trace.backward.is_paused()
        if is_paused and old.op is not ops.INPUT and carries_gradient(old):
            problem = "updates a tensor that carries a gradient where none passes"
            raise self.trace.error(f"{problem}. Call .detach() on it first")
        if isinstance(self.base, V):
            whole = _written(self, self.trace.value(new))
            if whole is None:
                advice = self.trace.words.advise("Call .clone() on it first")
                raise self.trace.error(f"updates a view of another tensor{advice}")
            self.base.update(whole)  # and with it this view
        else:
            if old.op is ops.INPUT:  # the caller would see the update
                self.trace.memory.updates.setdefault(old, self.trace.source.location())
            self._replace(new)
        return self

    def _all_views(self) -> Iterator[Value]:
        # Views of this value, directly or through another view.
        for ref in self.views:
            view = ref()
            if isinstance(view, V):
                yield view
                yield from view._all_views()

    def _replace(self, node: Node) -> None:
        # Every view looks at the new node.
        before, self.node = self.node, node
        for ref in self.views:
            view = ref()
            if isinstance(view, V):
                view._replace(_look_anew(view, before, node))

    def _check_own_memory(self) -> None:
        # A cast to a tensor's own dtype is no copy, so an update must know whether it is one.
        if "dtype" in self.trace.facts:
            return
        for value in (self, *self._all_views()):
            node = value.node
            if node.op is ops.CAST and value.base is not None and not value.is_certain:
                raise NeedsConcrete("dtype")

    def _may_repeat(self, new: Type) -> bool:
        # Whether a value may be smaller than this one; if it turns out larger, the run says so.
        old = self.node.type.shape
        known = old == INPUT_SHAPE and (new.shape == SCALAR_SHAPE or keeps_rank(new.shape))
        told_later = UNKNOWN in (new.shape, old) and old in (INPUT_SHAPE, UNKNOWN)
        return new.shape != old and (known or told_later)

    def _updated(self, name: str, other: Any) -> Any:
        # Numbers and some libraries' arrays are immutable: an augmented assignment binds the name
        # anew.
        value, library, own = AUGMENTED[name](self, other), self.trace.reading.dialect, __name__
        dialect = find_dialect(library)
        mutable = library in ("", own.partition(".")[0])
        mutable = mutable if dialect is None else updates(dialect, name)
        readings = map(find_dialect, self.trace.reading.libraries)
        # The libraries that the code may be written in differ: it has to say which one it means.
        if any(each is not None and updates(each, name) is not mutable for each in readings):
            library_for(self.trace, f"{name}, in place or not")
        if self.node.type.kind == "scalar" or not mutable:
            return value
        return self.update(value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.update(indexing.assigned(self, index, dtypes.as_held(self, value)))

    def __getitem__(self, index: Any) -> Any:
        return indexing.picked(self, index)


for _name in AUGMENTED:
    setattr(V, _name, partialmethod(V._updated, _name))


class Item(Number, V):
    """The symbolic number in a tensor of one element."""

    __slots__ = ()


class Whole(Item):
    """The symbolic integer in a tensor of one element."""

    __slots__ = ()
    kind = int


class Size(V):
    """The number of elements; called, it is torch's `size()`."""

    __slots__ = ("_of",)

    def __init__(self, of: V) -> None:
        super().__init__(of.trace, xp.size(of).node)
        object.__setattr__(self, "_of", of)

    def __call__(self, dim: int | None = None) -> Any:
        return _size(self._of, dim)


def _size(of: V, dim: int | None = None) -> Any:
    return of.shape if dim is None else of.shape[dim]


@functools.cache
def method_named(name: str) -> Callable[..., Any]:
    # Cached: a type oracle is asked by function, so each name must give one object.

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


@dataclass(slots=True, eq=False)
class _Bound:
    """A method of a symbolic value that waits for its arguments."""

    method: Any
    value: V
    name: str
    updates: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs.get("out") is not None:
                raise TypeError("with out=; use its result")
            types = self.value.trace.types
            if types is None:
                result = self.method(self.value, *args, **kwargs)
            else:
                result = types.confirmed(
                    method_named(self.name), (self.value, *args), kwargs, self.method, self.name
                )
        except TypeError as error:
            name = getattr(self.method, "__name__", self.name)
            raise self.value.trace.error(
                f"calls .{name}() in a way not captured: {error}"
            ) from error
        return self.value.update(result) if self.updates else result


# --- views: writing into one updates its base, and an update of the base is seen through it -------
# A chain is followed link by link: each view knows its base, and its node is one op of the base's
# node, or that node itself.

# Ops that move every element to another place, which their VJP undoes.
ORDERS = (ops.PERMUTE_DIMS, ops.SWAPAXES, ops.MOVEAXIS)
SHAPES = (ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE, ops.EXPAND_DIMS)


def _written(view: Value, value: Value) -> Any:
    # The base after a value is written into the view; None if that is not known.
    base: Any = view.base
    node = view.node
    if not memory_layout.is_view(view):
        return None
    if node is base.node:
        return value
    if node.op is ops.GETITEM:
        return indexing.assigned(base, as_index(node.attr("index")), value)
    if node.op in SHAPES:
        return xp.reshape_like(value, base)
    if node.op in ORDERS and node.op.vjp is not None:
        (whole,) = node.op.vjp(xp, value, view, base, **dict(node.attrs))
        return whole
    if node.op is ops.CALL:  # the same value under another name
        return value
    # A class gives its own gradient, so no gradient is taken through its recorded forward.
    is_forward = view.trace.kind == "imported function" and not view.trace.backward.is_running
    is_cut = node.op is ops.STOP_GRADIENT and (is_forward or not carries_gradient(base.node))
    return value if is_cut else None


def _look_anew(view: Value, before: Node, after: Node) -> Node:
    seen = view.node
    if seen is before:
        return after
    operands = [after if each is before else each for each in seen.operands]
    return make_node(seen.op, operands, dict(seen.attrs), seen.type)


SLOTS = frozenset(Value.__slots__)


class Attributed(V):
    """A function's symbol, which takes attributes if its library's tensors do."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SLOTS:
            return object.__setattr__(self, name, value)
        dialect = find_dialect(self.trace.reading.dialect)
        if dialect is None or not dialect.tensors.tensor.__dictoffset__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name.startswith(dialect.classes.hints):
            self.notes = {**(self.notes or {}), name: value}
            return None
        if f"{name}_" in dialect.names.methods:  # torch's way to set it
            return getattr(self, f"{name}_")(value)
        if hasattr(dialect.tensors.tensor, name) and name not in (self.notes or {}):
            raise self.trace.error(f"sets .{name} of a tensor, which is not captured")
        if self.node.op is ops.INPUT and self.trace.backward.is_running:
            raise self.trace.error(
                f"sets an attribute {name!r} of its argument in backward, which the caller would "
                "see"
            )
        self.notes = {**(self.notes or {}), name: value}
