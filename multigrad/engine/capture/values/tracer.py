"""The tracer value `V`, which stands for a tensor while a user's function runs, and records what is
done with it as nodes of a graph.

    x = trace.input("x", INPUT)    a `V`, whose node is an INPUT
    y = np.exp(x * 2)              `Value.__mul__` records MUL, `V.__array_ufunc__` records EXP

Here is all that Python and the libraries look up on a tensor's class: attributes that every tensor
has, the protocols by which libraries hand us their functions (`__torch_function__`,
`__array_ufunc__`, `__array_function__`, `__array_namespace__`), indices and augmented assignments.
Operators are in `Value`. What is larger is next door: any other attribute in `attributes.py`,
methods in `methods.py`, indices in `indexing.py`, updates in `memory.py`. No framework is
imported: a protocol passes the function, and a dialect's table gives its meaning.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from functools import partial, partialmethod
from types import CodeType
from typing import Any

import numpy as np

from ....core.ir.op import FLOATS, WHOLE, is_float
from ....core.trace.source import OWN
from ....core.trace.trace import NeedsConcrete, Value, copy_of, is_symbolic_tensor, known_shape
from ....core.trace.xp import all as xp
from ...trace.code_trace import UNDECIDED
from ...trace.python_protocols import Answers
from ..dialect import find_dialect, habits_of, updates
from ..foreign_calls import AUGMENTED, record_call
from ..symbols import KnownShape, Number, SymbolicDevice, SymbolicDType, SymbolicShape, class_of
from ..user_code.inspection import asks_for_class
from ..user_code.libraries import library_for
from . import attributes, indexing, memory

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
SLOTS = frozenset(Value.__slots__)


class V(Answers):
    """A symbolic tensor or scalar that array libraries accept."""

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = Answers.__hash__

    # --- attributes every tensor has --------------------------------------------------------------
    @property
    def __class__(self) -> type:
        # `match` and `singledispatch` read this; a C library, told that it is a tensor, would read
        # its memory.
        return class_of(self) if asks_for_class(self.trace, sys._getframe(1)) else type(self)

    @property
    def dtype(self) -> Any:
        facts, name = self.trace.facts, self.node.type.dtype
        if "dtype" not in facts:
            if self.trace.source.compares_identity:
                raise NeedsConcrete("dtype")
            self.trace.facts.gives_dtype = True
            return SymbolicDType(name, self.trace)
        name = facts["dtype"] if name == "T" else name
        dialect = find_dialect(self.trace.dialect)
        if dialect is None:
            return SymbolicDType(name, self.trace)
        own = dialect.tensors.dtype(name)
        if self.trace.kind == "rule" and self.trace.reading.owner in UNDECIDED and own != name:
            self._check_no_name(sys._getframe(1).f_code)
        return own

    def _check_no_name(self, asking: CodeType) -> None:
        # NumPy's dtypes, JAX's and TensorFlow's equal a name and NumPy's class, torch's do not: the
        # rule would have another gradient there, and its document, for all, would not have that.
        for name in (*asking.co_consts, *asking.co_names):
            if isinstance(name, str) and name in (*WHOLE, *FLOATS):
                raise self.trace.error(
                    f"asks for a dtype beside {name!r}, which no dtype of {self.trace.dialect} "
                    f"equals. Write x.dtype == xp.{name}"
                )

    @property
    def device(self) -> Any:
        facts = self.trace.facts
        dialect = find_dialect(self.trace.dialect) if "device" in facts else None
        if dialect is None:
            return SymbolicDevice(self.trace)
        place = facts.get("device_type", "cpu")
        if place == "cpu" or dialect.tensors.device_of is None:
            return dialect.tensors.device
        return dialect.tensors.device_of(place)

    @property
    def shape(self) -> Any:
        lengths = known_shape(self)
        if lengths is None and self.node.type.kind != "scalar":
            return SymbolicShape(self)
        return KnownShape(lengths or ())

    @property
    def size(self) -> Any:
        """An integer as in NumPy, a method as in torch, both if the library is not known."""
        own = self.trace.dialect
        names = self.trace.reading.libraries or (own,)
        tensors = [
            dialect.tensors.tensor for dialect in map(find_dialect, names) if dialect is not None
        ]
        is_method = tensors and all(callable(getattr(each, "size", None)) for each in tensors)
        return partial(_size, self) if is_method else Size(self)

    def __eq__(self, other: object) -> Any:
        is_other = other is None and habits_of(self.trace).none_is_other
        return False if is_other else Value.__eq__(self, other)

    def __ne__(self, other: object) -> Any:
        is_other = other is None and habits_of(self.trace).none_is_other
        return True if is_other else Value.__ne__(self, other)

    def __pos__(self) -> Any:
        return copy_of(self) if habits_of(self.trace).plus_copies else self

    def __abs__(self) -> Any:
        method = self._operator("__abs__")
        return super().__abs__() if method is None else method(self)

    def __round__(self, digits: int | None = None) -> Any:
        method = self._operator("__round__")
        return super().__round__(digits) if method is None else method(self, digits)

    def _operator(self, name: str) -> Any:
        # As of other operators, the call's library does not matter.
        dialect = find_dialect(self.trace.reading.dialect)
        return None if dialect is None else dialect.names.methods.get(name)

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
        # The number of rows becomes a fact.
        if self.node.type.kind == "scalar" or self.is_number:
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
        left = args[0]
        is_number = isinstance(left, np.generic) or (type(left) is np.ndarray and left.ndim == 0)
        if function in REFLECTED and not kwargs and is_number:
            # A NumPy number does not return NotImplemented, so Python never tries our operator.
            return getattr(self, REFLECTED[function])(args[0][()])
        if method != "__call__":
            raise self.trace.error(
                f"calls NumPy's {ufunc.__name__}.{method}, which is not captured"
            )
        where = kwargs.pop("where", True)
        if where is True:
            return record_call("numpy", function, args, kwargs)
        (out,) = kwargs.pop("out", None) or (None,)
        if not isinstance(out, V):
            raise self.trace.error(
                f"calls NumPy's {ufunc.__name__} with where= and without out=, which leaves the "
                "other elements undefined. Use np.where"
            )
        # The operands are masked too: a slope of infinity times a cotangent of 0 would be NaN.
        args = tuple([xp.where(where, arg, 1.0) if _has_slope(arg) else arg for arg in args])
        return out.update(xp.where(where, record_call("numpy", function, args, kwargs), out))

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

    # --- attributes that the class lacks, and numbers ---------------------------------------------
    def __getattr__(self, name: str) -> Any:
        if name in SLOTS:  # Dynamo reads slots of a value that is still being made
            raise AttributeError(name)
        if self.notes and name in self.notes:
            return self.notes[name]
        return attributes.read_attribute(self, name, sys._getframe(1))

    def lacks(self, name: str) -> bool:
        return attributes.lacks(self, name)

    def as_number(self) -> SymbolicNumber:
        """Return a symbol for the Python float in a tensor of one element."""
        return self._watched(SymbolicNumber(self.trace, self.node))

    def as_whole(self) -> SymbolicInteger:
        """Return a symbol for the Python integer in a tensor of one element."""
        return self._watched(SymbolicInteger(self.trace, self.node))

    def _watched(self, number: Any) -> Any:
        """Let the witness see whether code still keeps a number when it ends."""
        if self.trace.source.witness is not None:
            self.trace.source.witness.made.append(weakref.ref(number))
        return number

    # --- indices and updates in place -------------------------------------------------------------
    def __getitem__(self, index: Any) -> Any:
        return indexing.picked(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.update(indexing.assigned(self, index, value))

    def update(self, value: Any) -> Any:
        """Take a new value of the same type, for all names of this one; see `memory.py`."""
        memory.update(self, value)
        return self

    def _assign_augmented(self, method: str, other: Any) -> Any:
        # `x += 1`: in place if the library's tensors can change. If not, and for numbers, Python
        # binds the name to the result.
        result = AUGMENTED[method](self, other)
        if self.is_number or self.node.type.kind == "scalar":
            return result
        own = self.trace.dialect
        dialect = find_dialect(own)
        is_in_place = own in ("", OWN) if dialect is None else updates(dialect, method)
        # If the libraries that the code may be written in differ, it has to say which one it means.
        others = map(find_dialect, self.trace.reading.libraries)
        if any(each is not None and updates(each, method) is not is_in_place for each in others):
            library_for(self.trace, f"{method}, in place or not")
        return self.update(result) if is_in_place else result


for _name in AUGMENTED:
    setattr(V, _name, partialmethod(V._assign_augmented, _name))


class SymbolicNumber(Number, V):
    """The Python float in a tensor of one element, as `x.item()` gives it."""

    __slots__ = ()


class SymbolicInteger(SymbolicNumber):
    """The Python integer in a tensor of one element."""

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


def _has_slope(operand: Any) -> bool:
    return is_symbolic_tensor(operand) and is_float(operand.node.type)


def _size(of: V, dim: int | None = None) -> Any:
    return of.shape if dim is None else of.shape[dim]


class Attributed(V):
    """A function's symbol, which takes attributes if its library's tensors do."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SLOTS:
            object.__setattr__(self, name, value)
        else:
            attributes.set_attribute(self, name, value)
