"""Dialects: which foreign function means which op.

An alias is keyed by (dialect, callable), because the same name has other defaults elsewhere (`torch.std`
divides by n - 1, `np.std` by n). A backend contributes its framework's table; NumPy's stands here.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import TraceError
from ..ir.record import Trace, Value

Handler = Callable[..., Any]
SCALAR_CLASSES: Mapping[str, type] = {"float": float, "int": int, "bool": bool}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One array library as rules are written in it.

    Attributes:
        aliases: its callables, and what each records.
        tensor: its tensor class, so that `isinstance` in a rule sees one.
        dtype: its dtype object for an IR name.
        device: a device of it, for the constants that a rule makes.
        correction: what `x.std()` and `x.var()` subtract from n by default.
        methods: tensor methods that mean something else in this library.
        hidden: functions that offer no protocol, and what stands in for them in a rule.
        mutable: whether `x += 1` reaches whoever else holds x.
    """

    aliases: Mapping[Any, Handler]
    tensor: type
    dtype: Callable[[str], Any]
    device: Any
    correction: int = 0
    methods: Mapping[str, Handler] = field(default_factory=dict)
    hidden: Mapping[Any, Handler] = field(default_factory=dict)
    mutable: bool = True


_dialects: dict[str, Dialect] = {}


def register_dialect(name: str, dialect: Dialect) -> None:
    """Add a dialect under its library's import name."""
    _dialects[name] = dialect


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect of that name, or None."""
    return _dialects.get(name)


def find_hidden(name: str) -> dict[Any, Handler]:
    """Return the stand-ins for functions of that name, by function, in all dialects."""
    from .creation import creators

    rows = [row for dialect in _dialects.values() for row in dialect.hidden.items()]
    found = {function: stand_in for function, stand_in in rows if function.__name__ == name}
    return {**creators(name, _dialects), **found}


def is_instance(value: Any, classes: Any) -> bool:
    """The builtin `isinstance`, for which a symbolic value is a number or a tensor of the rule's library."""
    if not isinstance(value, Value):
        return isinstance(value, classes)
    type_, own = value.node.type, value.trace.dialect
    if type_.kind == "scalar":
        return issubclass(SCALAR_CLASSES[type_.dtype], classes)
    if own in _dialects:
        return issubclass(_dialects[own].tensor, classes)
    if own in ("", __name__.partition(".")[0]):
        return any(issubclass(dialect.tensor, classes) for dialect in _dialects.values())
    raise value.trace.error(
        "asks for the class of a tensor. Write it with xg.xp, for all libraries"
    )


def record_call(dialect: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a foreign function called with symbolic values."""
    trace = _find_trace((*args, *kwargs.values()))
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", function)
    name = str(name).removeprefix("_VariableFunctionsClass.").removeprefix("TensorBase.")
    handler = _find_handler(dialect, function, name)
    if name.rpartition(".")[2] in ("backward", "grad"):
        raise trace.error(
            f"calls {dialect}'s {name}: a rule is the backward pass. Write the derivative out, or "
            f"register the rule with native=True to run it as it is"
        )
    if handler is None:
        raise trace.error(
            f"calls {dialect}'s {name}, which is not captured. "
            f"Write it with xg.xp, or register the rule with native=True to run it as it is"
        )
    target, kwargs = _find_target(name, args, kwargs)
    if target is not None and not isinstance(target, Value):
        raise trace.error(
            f"lets {dialect}'s {name} write into a {type(target).__name__} that the rule did not get "
            f"or make. Use the function's result"
        )
    before, trace.dialect = trace.dialect, dialect
    try:
        result = handler(*args, **kwargs)
        return result if target is None else target.update(result)  # type: ignore[attr-defined]
    except TypeError as error:
        raise trace.error(f"calls {dialect}'s {name} in a way not captured: {error}") from error
    finally:
        trace.dialect = before


def _find_handler(dialect: str, function: Any, name: str) -> Handler | None:
    """Return what a function records; one that updates its argument records what its plain form does."""
    if dialect not in _dialects:
        return None
    aliases = _dialects[dialect].aliases
    handler = aliases.get(function)
    if handler is None and _updates(name):
        library = sys.modules[dialect]
        for part in name.split(".")[:-1]:
            library = getattr(library, part, library)
        plain = getattr(library, name.rpartition(".")[2].removesuffix("_"), None)
        handler = aliases.get(plain)
    return handler


def _updates(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _find_target(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return what a call writes its result into, or None, and the other keywords."""
    others = {word: value for word, value in kwargs.items() if word not in ("inplace", "out")}
    if _updates(name) or kwargs.get("inplace"):
        return args[0], others
    out = kwargs.get("out")
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out, others


def _find_trace(values: tuple[Any, ...]) -> Trace:
    for value in values:
        if isinstance(value, Value):
            return value.trace
        if isinstance(value, tuple | list):
            inner = [v for v in value if isinstance(v, Value)]
            if inner:
                return inner[0].trace
    raise TraceError("no symbolic value among the arguments")


def dialect_of(function: types.FunctionType) -> str:
    """Return the import name of the array library that a function is written in, or "".

    What the function mentions decides, then what its module imports; a framework before NumPy, whose
    constants are used beside all of them, and NumPy before `xg.xp`.
    """
    roots = list(_roots(function, set()))
    own = __name__.partition(".")[0]
    known = [root for root in roots if root in _dialects]
    others = [root for root in roots if root not in _dialects and root != own]
    around = [root for root in _packages(function.__globals__.values()) if root in _dialects]
    for found in (known, others, [root for root in roots if root == own], around):
        if found:
            return next((root for root in found if root != "numpy"), "numpy")
    return ""


def _roots(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[str]:
    """Yield the third-party packages that a function, its closure and its annotations mention."""
    seen.add(function)
    names = [name for name, _ in mentioned(function)]
    for note in function.__annotations__.values():
        names += re.findall(r"\w+", str(note))
    yield from _packages(function.__globals__.get(name) for name in names)
    for cell in function.__closure__ or ():
        value = contents(cell)
        if not isinstance(value, types.FunctionType):
            yield from _packages([value])
        elif value not in seen:
            yield from _roots(value, seen)
    for name in names:  # imported inside the function
        if name in _dialects and name in sys.modules and name not in function.__globals__:
            yield name


def _packages(values: Iterable[Any]) -> Iterator[str]:
    """Yield the third-party packages of modules, and of what is imported from a dialect's."""
    for value in values:
        is_module = isinstance(value, types.ModuleType)
        home = value.__name__ if is_module else getattr(value, "__module__", None)
        root = home.partition(".")[0] if isinstance(home, str) else ""
        if root in _dialects or (is_module and root not in sys.stdlib_module_names):
            yield root


def mentioned(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global names in a function and those nested in it, with their values (None: not bound)."""
    for code in nested_codes(function.__code__):
        for name in code.co_names:
            yield name, function.__globals__.get(name)


def contents(cell: types.CellType) -> Any:
    """Return what a closure cell holds, None where it is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions, lambdas and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)
