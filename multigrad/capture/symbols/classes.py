"""The class of a symbol: for `type(x)`, `isinstance`, `match` and dispatch by class."""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from ...graph import ops
from ...trace.assertions import is_call_of, is_searched
from ...trace.trace import NeedsConcrete, Trace, Value
from ..dialect import Dialect, find_dialect, registered_dialects
from .symbols import SymbolicDevice, SymbolicDType, SymbolicShape

if TYPE_CHECKING:
    from typing_extensions import Self

SCALAR_CLASSES = {"float": float, "int": int, "bool": bool}
ATTRIBUTES = (SymbolicShape, SymbolicDType, SymbolicDevice)
OWN = __name__.partition(".")[0]
# The code object that all singledispatch functions share.
_DISPATCHING = functools.singledispatch(repr).__code__  # type: ignore[attr-defined]
# Instructions that read an attribute; LOAD_METHOD is gone from Python 3.12 on.
_ASKING = tuple(dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap)


def class_of(value: Any) -> type:
    """Return the class of the value that a symbol represents.

    Raises:
        NeedsConcrete: it is known with a fact.
        TraceError: it may be one of several.
    """
    if isinstance(value, ATTRIBUTES):
        return _class_of_attribute(value)
    if not isinstance(value, Value):
        return builtins.type(value)
    if value.is_number:
        return value.kind
    if value.node.type.kind == "scalar":
        return SCALAR_CLASSES[value.node.type.dtype]
    dialect = find_dialect(value.trace.reading.dialect)
    if dialect is None or not dialect.classes.one_class or _may_be_scalar(value, dialect):
        raise value.trace.error("asks for the class of a tensor. Write isinstance(x, ...)")
    return dialect.tensors.tensor


def _class_of_attribute(value: Any) -> type:
    if isinstance(value, SymbolicShape):
        dialect = find_dialect(value.value.trace.reading.dialect)
        if dialect is None or dialect.tensors.shape_class is not tuple:
            return tuple if dialect is None else dialect.tensors.shape_class
        return builtins.type(value._known())
    if isinstance(value, SymbolicDevice):
        return value._refuse()
    if value.trace is None:
        return builtins.type(value)
    if "dtype" not in value.trace.facts:
        raise NeedsConcrete("dtype")
    raise value.trace.error("asks for the class of a dtype, which is each library's own")


def _may_be_scalar(value: Any, dialect: Dialect) -> bool:
    # A library may return a scalar of its own where an op gives a tensor without axes.
    return bool(dialect.tensors.scalars) and value.node.op is not ops.INPUT and value.ndim == 0


def type_of(*args: Any, **kwargs: Any) -> Any:
    """Replace the builtin `type`: the class of a symbol is that of its real value."""
    if len(args) != 1 or kwargs:
        return builtins.type(*args, **kwargs)
    (value,) = args
    if isinstance(value, Value) and value.node.type.kind == "tensor":
        own = find_dialect(value.trace.reading.dialect)
        if own is not None and own.classes.classes and is_searched(sys._getframe(1)):
            return OneOf(own.classes.classes, value.trace)
    return class_of(value)


class OneOf:
    """One of several classes; its text only answers whether a word is in it."""

    def __init__(self, classes: tuple[type, ...], trace: Trace) -> None:
        self.classes = classes
        self.trace = trace

    def __repr__(self) -> str:
        return TextOfOne(self)


class TextOfOne(str):
    """A text of which only `word in text` is known, if it is the same for all the classes."""

    __slots__ = ("_of",)

    def __new__(cls, of: OneOf) -> Self:
        text = super().__new__(cls, "one of several classes")
        text._of = of
        return text

    def __contains__(self, word: object) -> bool:
        found = {word in builtins.str(kind) for kind in self._of.classes}  # type: ignore[operator]
        if len(found) > 1:
            raise self._of.trace.error(f"looks for {word!r} in the class of a tensor")
        return found.pop()


def is_instance(value: Any, classes: Any) -> bool:
    """Replace the builtin `isinstance`: a symbol is a number or a tensor of the code's library."""
    classes = _real(classes)
    if isinstance(value, ATTRIBUTES):
        return issubclass(class_of(value), classes)
    if not isinstance(value, Value):
        return isinstance(value, classes)
    if value.is_number:
        return issubclass(value.kind, classes)
    if value.node.type.kind == "scalar":
        return issubclass(SCALAR_CLASSES[value.node.type.dtype], classes)
    own, dialects = value.trace.reading.dialect, registered_dialects()
    if own in ("", OWN):
        return any(issubclass(dialect.tensors.tensor, classes) for dialect in dialects.values())
    found: set[bool] = set()
    if own in dialects:
        scalars = dialects[own].tensors.scalars if _may_be_scalar(value, dialects[own]) else ()
        found = {issubclass(kind, classes) for kind in (dialects[own].tensors.tensor, *scalars)}
    if len(found) != 1:
        advice = ". Write it with xg.xp, for all libraries" if value.trace.words.write else ""
        raise value.trace.error(f"asks for the class of a tensor{advice}")
    return found.pop()


def identity_of(value: Any) -> int:
    # The builtin `id`: a symbol is another object than the real value, whose id may matter.
    if isinstance(value, Value) and value.node.type.kind == "tensor":
        raise value.trace.error("asks for the identity of a tensor. Compare tensors with `is`")
    return id(value)


def has_attribute(value: Any, name: str) -> bool:
    # The builtin `hasattr`; asking a symbol for what it refuses, a protocol too, is an error.
    if isinstance(value, Value):
        value.refuse(name)
    return hasattr(value, name)


def get_attribute(value: Any, name: str, *default: Any) -> Any:
    # The builtin `getattr`, with the same refusals.
    if isinstance(value, Value):
        value.refuse(name)
    return getattr(value, name, *default)


def _real(classes: Any) -> Any:
    # `type` itself may be among the classes, as its stand-in.
    if isinstance(classes, tuple):
        return tuple(map(_real, classes))
    return builtins.type if classes is type_of else classes


def asks_for_class(trace: Trace) -> bool:
    """Return whether user code, a `match`, a dispatch or the library's `isinstance` reads
    `__class__`.

    A library's C code that user code calls gets the symbol's own class: told that it is a tensor,
    it would read its memory.
    """
    # Without it (never): test_a_number_answers_as_python_s; (always): torch's C takes a symbol for
    # a tensor in test_conversion_of_a_tensor_is_no_constant.
    frame = sys._getframe(2)
    code = frame.f_code
    if code is not _DISPATCHING and not any(code is own for own in trace.source.codes):
        own = find_dialect(trace.reading.dialect)
        module = str(frame.f_globals.get("__name__", ""))
        is_asking = own is not None and module.startswith(own.classes.asking)
        return is_asking and is_call_of(frame, "isinstance", 2)
    opcode = code.co_code[frame.f_lasti]
    return opcode in _ASKING or dis.opname[opcode] == "MATCH_CLASS"


def compares_identity(code: CodeType) -> bool:
    """Return whether code may compare a dtype by `is`, which no symbol can answer."""
    # Without it test_a_dtype_compared_by_identity_is_the_library_s is disproved.
    if "dtype" not in code.co_names:
        return False
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and before != "LOAD_CONST":
            return True
        before = instruction.opname
    return False


def uses_attribute(name: str, depth: int = 2) -> bool:
    """Return whether the calling code reads `x.name` itself, not through `hasattr`."""
    # Without it a right rule is disproved:
    # test_what_an_attribute_check_asks_of_its_own_library_is_python_s_answer.
    frame = sys._getframe(depth)
    return frame.f_code.co_code[frame.f_lasti] in _ASKING and name in frame.f_code.co_names


class Dispatch:
    """A stand-in for a `functools.singledispatch` function that chooses by a symbol's class."""

    def __init__(self, function: Any, stand_in: Callable[[Any], Any]) -> None:
        self.__wrapped__ = function
        self._stand_in = stand_in

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args:
            return self.__wrapped__(*args, **kwargs)
        return self._stand_in(self._chosen(args[0]))(*args, **kwargs)

    def _chosen(self, value: Any) -> Any:
        # For a tensor, the implementation of the code's own library; another library's is refused.
        dispatch, default = self.__wrapped__.dispatch, self.__wrapped__.dispatch(object)
        if not isinstance(value, Value) or value.node.type.kind == "scalar":
            return dispatch(class_of(value))
        own = registered_dialects().get(value.trace.reading.dialect)
        others = (d for d in registered_dialects().values() if d is not own)
        chosen = default if own is None else dispatch(class_of(value))
        if chosen is default and any(dispatch(d.tensors.tensor) is not default for d in others):
            raise value.trace.error(
                "dispatches by the class of a tensor, and knows that of another library"
            )
        return chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def is_dispatching(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__ is _DISPATCHING
