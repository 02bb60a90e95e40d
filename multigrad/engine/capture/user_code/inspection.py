"""A function of the user's, looked at from outside: the Python function that a callable runs, what
it refers to, the tensors among that, and what its bytecode tells.

In which library it is written: `libraries.py`. Tests: those of captures, `tests/capture/user_code`.
"""

from __future__ import annotations

import dis
import functools
import itertools
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ....core.backend.discovery import backend_of
from ....core.trace.lookups import Telling
from ....errors import BackendNotFound
from ...trace.assertions import MATCHES, is_call_of
from ...trace.code_trace import CodeTrace
from ..dialect import find_dialect, registered_dialects


def plain_function(function: Any) -> types.FunctionType | None:
    """Return the Python function that a callable runs, or None if it runs none."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        wrapped = wrapped_function(function)
        if wrapped is not None:
            return wrapped
        # The class's own, unbound.
        function = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(function, types.MethodType):
        function = function.__func__
    return function if isinstance(function, types.FunctionType) else None


def wrapped_function(wrapper: Any) -> types.FunctionType | None:
    """Return the Python function in an object that computes the same (`jax.jit(f)`)."""
    for dialect in registered_dialects().values():
        name = dialect.gradients.wrappers.get(type(wrapper))
        if name is not None:
            inner = getattr(wrapper, name, None)
            return inner if isinstance(inner, types.FunctionType) else wrapped_function(inner)
    if isinstance(wrapper, functools._lru_cache_wrapper):
        inner = wrapper.__wrapped__
        return inner if isinstance(inner, types.FunctionType) else None
    return None


# In which a class may hold a function.
WRAPPED = (staticmethod, classmethod, property, functools.cached_property)


def method_of(value: Any) -> types.FunctionType | None:
    """Return the function in a class attribute, bare or wrapped."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.cached_property):
        value = value.func
    return value if isinstance(value, types.FunctionType) else None


# --- what a function refers to --------------------------------------------------------------------
def mentioned(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the global names in a function and those nested in it, with their values (None: not
    bound).
    """
    namespace = function.__globals__
    codes = nested_codes(function.__code__)
    return [(name, namespace.get(name)) for code in codes for name in code.co_names]


def contents(cell: types.CellType) -> Any:
    """Return the contents of a closure cell, or None if the cell is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def held_around(function: types.FunctionType) -> list[Any]:
    return list(map(contents, function.__closure__ or ()))


def defaults(function: types.FunctionType) -> tuple[Any, ...]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def referred(function: types.FunctionType) -> list[Any]:
    """Return the objects that a function refers to: globals, closure variables, defaults."""
    mentioned_values = [value for _, value in mentioned(function)]
    return [*mentioned_values, *held_around(function), *defaults(function)]


def nested_codes(code: types.CodeType) -> list[types.CodeType]:
    """Return a code object and those of the functions, lambdas and comprehensions inside it."""
    codes = [code]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            codes += nested_codes(constant)
    return codes


# --- tensors of the module, the enclosing function or a default -----------------------------------
# Small ones become constants of the graph, whose values are compared anew at each call.
LONGEST_WORD = 64  # of the strings in code that may be names
WORD = re.compile(r"\w+")
RUNNING_TEXT = frozenset(("eval", "exec"))  # by which code runs strings as code
MOST_ELEMENTS = 1024
MOST_ITEMS = 64


class OutsideTensor(Telling):
    """The fact that gives the values of a tensor outside the code, found by the path to it."""

    read: Callable[[], Any]
    path: tuple[int, ...]

    @classmethod
    def found(cls, anchor: Any, name: str, read: Callable[[], Any], path: Any = ()) -> Any:
        """Return the fact about the result of `read`, or about an item in its nested tuples.

        `read` must keep `anchor` alive, so that no other object gets its id.
        """
        fact = cls(f"tensor {id(anchor)} {name} {path}")
        fact.read, fact.path = read, path
        return fact

    def meaning(self) -> Any:
        """Return the values as a key; None if they cannot be read."""
        value = self.read()
        for place in self.path:
            if not isinstance(value, tuple) or place >= len(value):
                return None
            value = value[place]
        return values_of(value)


def values_of(value: Any) -> Any:
    """Return a small tensor's values as a key, None for anything else."""
    try:
        tensors = backend_of(value).tensors
        if tensors.is_traced(value) or math.prod(value.shape) > MOST_ELEMENTS:
            return None
        array = np.asarray(tensors.to_numpy(value))
    except (AttributeError, BackendNotFound, NotImplementedError, RuntimeError, TypeError):
        return None
    return array.dtype.str, array.shape, array.tobytes()


def tensors_of(function: types.FunctionType) -> Iterator[tuple[Any, OutsideTensor]]:
    """Yield the tensors that a function refers to, with the facts about them."""
    namespace = function.__globals__
    for name, value in mentioned(function):
        yield from _inside(value, namespace, name, partial(namespace.get, name))
    for cell in function.__closure__ or ():
        yield from _inside(contents(cell), cell, "", partial(contents, cell))
    for value in defaults(function):
        yield from _inside(value, value, "", lambda value=value: value)


def note_constants(trace: CodeTrace, module: types.ModuleType, name: str) -> None:
    """Note a module's value: a number such as pi, or the tensors in it."""
    value = getattr(module, name)
    if type(value) is float:
        trace.source.numbers.add(value)
    tensors = _inside(value, module, name, partial(getattr, module, name, None))
    trace.memory.outside.update((id(tensor), fact) for tensor, fact in tensors)


def _inside(
    value: Any, anchor: Any, name: str, read: Callable[[], Any], path: tuple[int, ...] = ()
) -> Iterator[tuple[Any, OutsideTensor]]:
    if isinstance(value, tuple) and len(value) <= MOST_ITEMS:
        for i, each in enumerate(value):
            yield from _inside(each, anchor, name, read, (*path, i))
    # A class that the code names may hold tensors as attributes or defaults.
    elif isinstance(value, type) and not path:
        if arrays := defaults_of(value):
            yield from _inside(arrays, value, "", partial(defaults_of, value))
    elif hasattr(type(value), "dtype") and hasattr(type(value), "shape") and _is_foreign(value):
        yield value, OutsideTensor.found(anchor, name, read, path)


def defaults_of(kind: type) -> tuple[Any, ...]:
    """Return the arrays among a class's attributes and constructor defaults, at most MOST_ITEMS."""
    values: list[Any] = []
    for base in kind.__mro__[:-1]:
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", value)
            is_made = name in ("__new__", "__init__")
            values += (getattr(function, "__defaults__", None) or ()) if is_made else (value,)
    return tuple(each for each in values if hasattr(type(each), "dtype"))[:MOST_ITEMS]


def _is_foreign(value: Any) -> bool:
    # A framework's tensor; the values of NumPy's arrays are fixed at the capture.
    try:
        return backend_of(value).name != "numpy"
    except BackendNotFound:
        return False


# --- what bytecode tells --------------------------------------------------------------------------
# A symbol is not told who asks for its class, nor what becomes of it afterwards: the code tells. To
# decode instructions is slow, so names and the bytes at even places, the operations, come first.
_ACTING = """
    append debug delattr exec extend info input next open print setattr warn warning write
    writelines
"""
_STORING = "add append appendleft extend insert put put_nowait send set setattr setdefault update"
ACTING_NAMES, STORING_METHODS = frozenset(_ACTING.split()), frozenset(_STORING.split())
ACTING_MODULES = frozenset(
    {"logging", "os", "shutil", "socket", "subprocess", "sys", "time", "warnings"}
)
# Objects of one call alone: no other code sees what is written to them.
OBJECTS_OF_A_CALL = frozenset({"ctx"})


def _operations(*names: str) -> frozenset[int]:
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


OUTLIVING_WRITES = _operations(
    "DELETE_ATTR", "DELETE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL"
)
GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"})
READS_BY_NAME = GLOBAL_READS | {"IMPORT_NAME", "LOAD_DEREF"}
STORES = _operations("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR")
LOOPS = _operations("GET_ITER", "CALL_FUNCTION_EX")
MATCHES_OF_CLASS = _operations("MATCH_CLASS")
ATTRIBUTE_READS = _operations("LOAD_ATTR", "LOAD_METHOD")  # the second until Python 3.11


@functools.lru_cache(maxsize=1024)  # each dtype that is met asks once more
def acts(code: types.CodeType) -> bool:
    """Return whether code may have side effects: it names what acts, or writes into what outlives
    the call.
    """
    names = set(code.co_names)
    if names & ACTING_NAMES or names & ACTING_MODULES:
        return True
    if OUTLIVING_WRITES.isdisjoint(code.co_code[::2]):
        return False
    name_loaded = ""  # by the instruction before
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return True
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return True
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and name_loaded not in OBJECTS_OF_A_CALL:
            return True
        name_loaded = str(step.argval) if step.opname.startswith("LOAD_FAST") else ""
    return False


def may_store(code: types.CodeType) -> bool:
    """Return whether code may hand a value to an object, which may keep a symbol."""
    has_method = not STORING_METHODS.isdisjoint(code.co_names)
    return has_method or not STORES.isdisjoint(code.co_code[::2])


def catches_errors(code: types.CodeType) -> bool:
    """Return whether a function catches errors that are raised in it."""
    if "suppress" in code.co_names:
        return True
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    # A bare `except:` drops the exception without a comparison.
    is_bare = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    return is_bare or not {*MATCHES}.isdisjoint(names)


def compares_identity(code: types.CodeType) -> bool:
    """Return whether code may compare a dtype by `is`, which no symbol can answer."""
    if "dtype" not in code.co_names:
        return False
    opname = ""  # of the instruction before
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and opname != "LOAD_CONST":  # `is None` is no such
            return True
        opname = instruction.opname
    return False


def reads_attribute(reader: types.FrameType, name: str) -> bool:
    """Return whether a frame is at `x.name` in its own code, not in a call such as `hasattr`."""
    code = reader.f_code
    return code.co_code[reader.f_lasti] in ATTRIBUTE_READS and name in code.co_names


# The code object that all singledispatch functions share.
DISPATCHING = functools.singledispatch(repr).__code__  # type: ignore[attr-defined]


def is_dispatching(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__code__ is DISPATCHING


def asks_for_class(trace: CodeTrace, reader: types.FrameType) -> bool:
    """Return whether user code, a `match`, a dispatch or the library's `isinstance` reads
    `__class__`; `reader` is the innermost frame of Python code. A library's C code that user code
    calls gets the symbol's own class: told that it is a tensor, it would read its memory.
    """
    code = reader.f_code
    is_users = any(code is each for each in trace.source.codes)
    if code is not DISPATCHING and not is_users:
        dialect = find_dialect(trace.reading.dialect)
        module = str(reader.f_globals.get("__name__", ""))
        is_asking = dialect is not None and module.startswith(dialect.classes.asking)
        return is_asking and is_call_of(reader, "isinstance", 2)
    # C code runs in the frame of its caller, which then is at a call.
    operation = code.co_code[reader.f_lasti]
    return operation in ATTRIBUTE_READS or dis.opname[operation] == "MATCH_CLASS"


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in code and in the functions inside it, and the short strings; of a loop, or
    of `f(*keys)`, the name is `iter`. Strings beside `eval` are code, too.
    """
    codes = nested_codes(code)
    texts = [text for each in codes for text in _texts_in(each.co_consts)]
    names = frozenset(name for each in codes for name in each.co_names)
    if not all(LOOPS.isdisjoint(each.co_code[::2]) for each in codes):
        names |= {"iter"}
    # `case P(s=2.0)` asks for attributes by a tuple of strings, `case P(2.0)` by that of the class.
    if not all(MATCHES_OF_CLASS.isdisjoint(each.co_code[::2]) for each in codes):
        names |= {"hasattr", "__match_args__"}
    if not RUNNING_TEXT.isdisjoint(names):
        names |= {name for text in texts for name in WORD.findall(text)}
    return names, words_of(texts, names)


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | frozenset):
            yield from _texts_in(each)


def words_of(texts: Iterable[str], names: frozenset[str] | set[str]) -> frozenset[str]:
    """Return the short texts and the words in them, as of "a.b"; where they are separated by
    spaces, only if code that has these names splits it.
    """
    short = [text for text in texts if len(text) <= LONGEST_WORD]
    parts = [text for text in short if "split" in names or " " not in text]
    return frozenset((*short, *(word for text in parts for word in WORD.findall(text))))


@functools.lru_cache(maxsize=4096)
def paths_in(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the dotted names that code and the functions inside it read, each with the operation
    that reads its first part: ("LOAD_GLOBAL", "np", "linalg", "norm") for `np.linalg.norm`.
    """
    paths: list[list[str]] = []
    for each in nested_codes(code):
        path: list[str] = []  # of the value that was read last
        for row in dis.get_instructions(each):
            if row.opname in READS_BY_NAME:
                path = [row.opname, row.argval]
                paths.append(path)
            elif row.opcode in ATTRIBUTE_READS:
                path.append(row.argval)
            elif row.opname != "EXTENDED_ARG":
                path = []
    return tuple(map(tuple, paths))


def globals_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals in code and in the functions inside it, no attributes."""
    return frozenset(name for kind, name, *_ in paths_in(code) if kind in GLOBAL_READS)
