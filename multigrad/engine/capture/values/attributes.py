"""What a symbol answers when code reads or sets `x.name`. Python looks on the class `V` first, and
asks here for a name that it does not find there.

An attribute is decided on by its row, for the library that the code is written in:

    x.clamp      modelled   a method, which waits for its arguments
    x.shape      fact       a property of `V`, which may have the capture repeated
    x.numpy      refused    a TraceError with the reason: the function runs unconverted
    x.no_such    absent     an AttributeError, as from the library's own tensor

A name without a row is refused, and fails a test that walks through each library's class, so that a
new attribute gets a decision.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from ....core import ops
from ....core.passes.facts import LIBRARY
from ....core.trace.trace import NeedsConcrete, Value
from ....errors import TraceError
from ...trace.python_protocols import is_asked_by
from ..dialect import Dialect, find_dialect
from ..symbols import class_of
from ..user_code.inspection import catches_errors, reads_attribute
from .methods import REFUSED, BoundMethod, find_method

# Attributes that TensorFlow's functions look for in all arguments.
PROBED = ("graph", "is_tensor_like")


def read_attribute(value: Value, name: str, reader: FrameType) -> Any:
    """Return `value.name`, for a name that the symbol's class lacks.

    Args:
        reader: the innermost frame of Python code that reads it. Where it is the user's, a C
            library that it calls may read.

    Raises:
        AttributeError: no tensor of the library has it, or only a library probes for it.
        NeedsConcrete: it has to be known whether the caller has set it.
        TraceError: it is refused.
    """
    trace = value.trace
    # 1. What the table has no rows for: a number's attributes, one library's own, and hints.
    if value.node.type.kind == "scalar" and hasattr(class_of(value), name):
        number = value._concrete(f"uses .{name} of a number", "Write it with math")
        return getattr(number, name)
    library = find_dialect(trace.dialect)
    if library is not None:
        if name in library.names.attributes:
            return library.names.attributes[name](value)
        if name.startswith(library.classes.hints):  # a hint that nobody has set
            raise AttributeError(name)
    # 2. What libraries probe for. C code looks for protocols while the user's line is the innermost
    # Python frame.
    by_user = is_asked_by(trace.source.codes, reader)
    is_protocol = name.startswith("__") and not (by_user and reads_attribute(reader, name))
    if name in PROBED or is_protocol:
        raise AttributeError(name)
    # 3. The name's row. With several libraries possible, the shared methods report where these
    # differ.
    dialect = None if len(trace.reading.libraries) > 1 else library
    row = find_row(name, dialect, type(value))
    # NumPy's constants occur in code of all libraries, so an attribute that NumPy lacks may be
    # another's where code reads it plainly. Code that may catch its lack asks the call's tensors.
    may_be_others = trace.dialect == "numpy" and reads_attribute(reader, name)
    if may_be_others and row == ABSENT and any(map(catches_errors, trace.source.codes)):
        if LIBRARY not in trace.facts:
            raise NeedsConcrete(LIBRARY)
        may_be_others = trace.facts[LIBRARY] != "numpy"
    if row == ABSENT and (may_be_others or not by_user):
        row = find_row(name, None, type(value))
    method = find_method(name, dialect) if row == MODELLED else None
    if method is not None:
        return BoundMethod(method, value, name)
    # 4. No row: perhaps the caller's attribute.
    if row in (ABSENT, None) and by_user:
        check_callers(value, name)
    if row == ABSENT:
        kind = dialect and dialect.tensors.tensor.__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    raise _refusal(value, name, row)


def _refusal(value: Value, name: str, row: AttributeRow | None) -> TraceError:
    words = value.trace.words
    if name in REFUSED:
        reason, *advice = REFUSED[name].split(". ")
        return value.trace.error(
            f"calls .{name}(): {reason}{words.advise(*advice) if advice else ''}"
        )
    reason = row.reason if row is not None and row.reason else "which is not captured"
    return value.trace.error(f"uses .{name}, {reason}{words.advise(*words.write)}")


def lacks(value: Value, name: str) -> bool:
    """Return whether the library's tensors lack an attribute that the symbol's class has.

    Raises:
        TraceError: the answer is refused.
    """
    is_own = name in dir(type(value))
    row = find_row(name, find_dialect(value.trace.dialect), type(value))
    if row is not None and row.kind == "refused" and not is_own:
        raise value.trace.error(f"looks for .{name}, {row.reason}")
    is_tensor = value.node.type.kind == "tensor" and not value.is_number
    return is_tensor and is_own and row == ABSENT and name not in (value.notes or ())


def set_attribute(value: Value, name: str, new: Any) -> None:
    """Do what `value.name = new` does to a tensor of the code's library."""
    dialect = find_dialect(value.trace.dialect)
    if dialect is None or not dialect.tensors.tensor.__dictoffset__:
        raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
    old_notes = value.notes or {}
    if not name.startswith(dialect.classes.hints):
        if f"{name}_" in dialect.names.methods:  # torch's way to set it
            getattr(value, f"{name}_")(new)
            return
        if hasattr(dialect.tensors.tensor, name) and name not in old_notes:
            raise value.trace.error(f"sets .{name} of a tensor, which is not captured")
        if value.node.op is ops.INPUT and value.trace.backward.is_running:
            raise value.trace.error(
                f"sets an attribute {name!r} of its argument in backward, which the caller would "
                "see"
            )
    value.notes = {**old_notes, name: new}


def check_callers(value: Value, name: str) -> None:
    """Check that the caller has not set an attribute of this name on an argument, which is a fact.

    Raises:
        TraceError: the caller has.
        AttributeError: the library of the tensor is not known, and the caller has set none.
    """
    trace, node = value.trace, value.node
    if trace.kind == "rule" or node.op is not ops.INPUT or node.type.kind != "tensor":
        return
    argument = node.attr("name")
    if trace.backward.is_running and argument.startswith("grad_out"):
        return
    fact = f"attribute.{name}:{argument}"
    if fact not in trace.facts:
        raise NeedsConcrete(fact)
    if trace.facts[fact]:
        raise trace.error(f"uses .{name}, which the caller has set on its argument {argument!r}")
    if not trace.dialect:
        raise AttributeError(f"the argument {argument!r} has no attribute {name!r}")


# --- a name's row ---------------------------------------------------------------------------------
def find_row(name: str, dialect: Dialect | None, kind: type[Value]) -> AttributeRow | None:
    """Return the row of an attribute in a library (None: not known), or None if it has none; own
    attributes of `kind`, the class of symbols, are modelled.
    """
    # The order decides: facts, protocols, the library's own attributes, our methods, refusals.
    if name in FACTS:
        return FACT
    if name in NEVER:
        return AttributeRow("refused", NEVER[name])
    refusal_of = None if dialect is None else dialect.classes.refusals
    if dialect is not None and refusal_of is not None:  # it decides on all that its class has
        tensor = dialect.tensors.tensor
        if name.startswith("__") and hasattr(tensor, name) and hasattr(object, name):
            return MODELLED if _owns(kind, name) else AttributeRow("refused", OBJECT)
        if name in dialect.names.attributes:
            return MODELLED
        if not hasattr(tensor, name):
            return ABSENT
    if _owns(kind, name) or find_method(name, dialect) is not None:
        return MODELLED
    if name in REFUSED:
        return AttributeRow("refused", REFUSED[name])
    reason = None if refusal_of is None else refusal_of(name)
    return None if reason is None else AttributeRow("refused", reason)


def _owns(kind: type[Value], name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__[:-1])


# --- the table: modelled, a fact, refused with a reason, or absent --------------------------------
@dataclass(frozen=True, slots=True)
class AttributeRow:
    """What a symbol does when one attribute is read.

    Attributes:
        kind: modelled: recorded with the library's meaning; fact: fixed for the capture, which is
            repeated; refused: the function runs unconverted; absent: an AttributeError, since the
            library's tensors have no such attribute.
        reason: why it is refused.
    """

    kind: Literal["modelled", "fact", "refused", "absent"]
    reason: str = ""


MODELLED, FACT, ABSENT = AttributeRow("modelled"), AttributeRow("fact"), AttributeRow("absent")
_FACTS = """
    __bool__ __class__ __complex__ __float__ __format__ __hash__ __index__ __int__ __len__ __repr__
    __str__ device dtype ndim shape
"""
FACTS = frozenset(_FACTS.split())
NUMBERS = "which needs the tensor's numbers; a symbol holds none"
VALUES = "whose result depends on the tensor's values in its shape or in Python"
MEMORY = "which tells of memory; one graph serves all layouts and devices"
INDICES = "which gives or takes integer indices in a way not captured"
PARTS = "which is not captured; use indices and xp.concat"
ALGEBRA = "which is linear algebra that is not captured"
COMPLEX = "which is of complex numbers; rules compute in bool and float dtypes"
BUFFER = "which hands the memory to another library"
PRIVATE = "which is private to the library"
OBJECT = "which is Python's own of the real object"

# Python protocols that no symbol can answer soundly.
NEVER: dict[str, str] = {
    **dict.fromkeys(("__array__", "__reduce_ex__", "__tf_tensor__"), NUMBERS),
    **dict.fromkeys(("__contains__", "__iter__", "__reversed__"), VALUES),
}
SHARED = {
    OBJECT: """
        __delattr__ __dict__ __dir__ __getattribute__ __getstate__ __init_subclass__ __new__
        __reduce__ __setattr__ __setstate__ __sizeof__ __subclasshook__ __class_getitem__
        __weakref__ __annotations__ __abstractmethods__ __firstlineno__ __static_attributes__
        __slots__ __orig_bases__ __annotate_func__ __annotations_cache__
    """,
    BUFFER: """
        __array_interface__ __array_struct__ __array_finalize__ __array_wrap__ __buffer__ __dlpack*
        __cuda_array_interface__
    """,
    "which updates in place in a way not captured": "__delitem__",
    "which is not captured; write // and %": "__divmod__ __rdivmod__",
}
NUMPY = {
    VALUES: "argpartition choose compress nonzero partition",
    INDICES: "put searchsorted take",
    PARTS: "diagonal flat",
    ALGEBRA: "dot",
    MEMORY: """
        byteswap ctypes flags getfield itemsize nbytes resize setfield setflags strides to_device
        base
    """,
    NUMBERS: "dump dumps tobytes tofile",
    PRIVATE: "_set_dtype _set_shape",  # NumPy 2.5
    # From 2.0 on NumPy itself raises an error, before 2.3 in its own words.
    "which arrays of NumPy 2 do not have; use its functions": "itemset newbyteorder ptp tostring",
}


def refusals(groups: Mapping[str, str]) -> Callable[[str], str | None]:
    """Return a function that gives the reason for refusing an attribute, or None.

    The groups map reasons to names, in which `*` matches any letters.
    """
    rows = (*SHARED.items(), *groups.items())
    reason_of = {name: reason for reason, names in rows for name in names.split()}
    patterns = [name for name in reason_of if "*" in name]

    def find(name: str) -> str | None:
        matches = (each for each in patterns if fnmatch.fnmatchcase(name, each))
        return reason_of.get(name) or reason_of.get(next(matches, ""))

    return find
