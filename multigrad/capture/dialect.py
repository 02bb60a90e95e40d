"""Dialects: which foreign function means which op.

An alias is keyed by (dialect, callable), because the same name has other defaults elsewhere (`torch.std`
divides by n - 1, `np.std` by n). A backend contributes its framework's table; NumPy's stands here.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ..errors import TraceError
from ..ir.record import Trace, Value

Handler = Callable[..., Any]
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
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
        attributes: attributes of a tensor that no other library's has, by name, from the tensor.
        hidden: functions that offer no protocol, and what stands in for them in a rule: always, also where
            no symbolic value is among the arguments.
        mutable: whether `x += 1` reaches whoever else holds x.
        protocol: whether the library hands symbolic values to us by itself; else stand-ins do, wherever a
            rule refers to the library's modules or functions.
        refused: functions that a rule may not call, and the reason, which ends a sentence.
        at_once: a context in which the library computes at once, though a compiler may be reading along.
        import_function: records a function in another way, where substitution cannot see through it:
            (function, trace, args, kwargs) -> its result; raises NeedFact, or TraceError where it cannot either.
        import_route: that way, in the words of `xg.show`.
        shown: how people write the library's name.
        wrappers: classes of objects that a decorator of the library's makes of a function and that compute just
            what it does, and the attribute that holds it.
        find_function: optional; what stands in for a custom gradient of the library's own (a class, a decorated
            function) so that derivatives pass by its backward; None for any other value.
        paired: those of the wrappers whose function returns a value and its gradient function.
        own_gradients: those of the wrappers whose function has a gradient of its own, and what makes a function
            for symbolic values of one, through which derivatives pass by that gradient.
    """

    aliases: Mapping[Any, Handler]
    tensor: type
    dtype: Callable[[str], Any]
    device: Any
    correction: int = 0
    methods: Mapping[str, Handler] = field(default_factory=dict)
    hidden: Mapping[Any, Handler] = field(default_factory=dict)
    mutable: bool = True
    attributes: Mapping[str, Handler] = field(default_factory=dict)
    protocol: bool = True
    refused: Mapping[Any, str] = field(default_factory=dict)
    at_once: Callable[[], AbstractContextManager[Any]] | None = None
    import_function: Callable[..., Any] | None = None
    import_route: str = "import"
    shown: str = ""
    wrappers: Mapping[type, str] = field(default_factory=dict)
    paired: tuple[type, ...] = ()
    own_gradients: Mapping[type, Callable[[Any], Callable[..., Any] | None]] = field(
        default_factory=dict
    )
    find_function: Callable[[Any], Any] | None = None


GROUP = "multigrad.dialects"
_dialects: dict[str, Dialect] = {}


def register_dialect(name: str, dialect: Dialect) -> None:
    """Add a dialect under its library's import name."""
    _dialects[name] = dialect


def find_dialect(name: str) -> Dialect | None:
    """Return the dialect of that name, or None."""
    return _dialects.get(name)


def registered_dialects() -> dict[str, Dialect]:
    """Return the dialects registered so far, by name."""
    return _dialects


def load_dialects() -> None:
    """Register the dialects of imported libraries that are no backends."""
    for name, point in entry_points().items():
        if name in sys.modules and name not in _dialects and name not in _unreadable:
            try:
                point.load()
            except ImportError:  # another library of that name, or a part of it is missing
                _unreadable.add(name)


@functools.cache
def entry_points() -> Mapping[str, Any]:
    """Return the entry points of all dialects by their library's import name, read once per process."""
    from importlib.metadata import entry_points as find

    return {point.name: point for point in find(group=GROUP)}


_unreadable: set[str] = set()


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


def record_call(
    dialect: str,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    trace: Trace | None = None,
    shown: str = "",
) -> Any:
    """Record a foreign function called with symbolic values.

    Args:
        trace: where it is called from a stand-in.
        shown: its name there, as people write it.
    """
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", function)
    name = str(name).removeprefix("_VariableFunctionsClass.").removeprefix("TensorBase.")
    handler = _find_handler(dialect, function, name)
    route = "protocol" if trace is None else "substitution"
    trace = trace or _find_trace((*args, *kwargs.values()))
    trace.routes[dialect] = route
    shown = shown or f"{dialect}'s {name}"
    if name.rpartition(".")[2] in ("backward", "grad"):
        raise trace.error(
            f"calls {shown}: a rule is the backward pass. Write the derivative out, or "
            f"register the rule with native=True to run it as it is"
        )
    if handler is None:
        raise trace.error(
            f"calls {shown}, which is not captured. "
            f"Write it with xg.xp, or register the rule with native=True to run it as it is"
        )
    target, kwargs = _find_target(name, args, kwargs)
    if target is not None and not isinstance(target, Value):
        raise trace.error(
            f"lets {shown} write into a {type(target).__name__} that the rule did not get "
            f"or make. Use the function's result"
        )
    before, trace.dialect = trace.dialect, dialect
    try:
        result = handler(*args, **kwargs)
        return result if target is None else target.update(result)  # type: ignore[attr-defined]
    except TypeError as error:
        raise trace.error(f"calls {shown} in a way not captured: {error}") from error
    finally:
        trace.dialect = before


def describe_routes(trace: Trace) -> str:
    """Return in words which dialects a rule is written in, and how it was captured."""
    own = __name__.partition(".")[0]
    names, kinds = [], []
    for library, route in trace.routes.items():
        dialect = _dialects.get(library)
        names.append("xg.xp" if library == own else (dialect and dialect.shown) or library)
        if route not in ("", *kinds):
            kinds.append(route)
    written = f"written in {' and '.join(names) or 'plain operators'}"
    return f"{written}; captured by {' and '.join(kinds)}" if kinds else written


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
    """Yield the packages that a function, its closure and its annotations mention, then those of its helpers."""
    seen.add(function)
    names = [name for name, _ in mentioned(function)]
    for note in function.__annotations__.values():
        names += re.findall(r"\w+", str(note))
    values = [function.__globals__.get(name) for name in names]
    held = [contents(cell) for cell in function.__closure__ or ()]
    yield from _packages(values)
    yield from _packages(held)
    for name in names:  # imported inside the function
        root = name.partition(".")[0]
        if root in _dialects and root in sys.modules and name not in function.__globals__:
            yield root
    for value in (*held, *values):
        if isinstance(value, types.FunctionType) and value not in seen:
            if not is_library_file(value.__code__.co_filename):
                yield from _roots(value, seen)
        elif isinstance(value, types.ModuleType) and not _is_library(value):
            yield from _packages(vars(value).values())


def _packages(values: Iterable[Any]) -> Iterator[str]:
    """Yield the libraries of modules, and of what is imported from a dialect's."""
    for value in list(values):
        is_module = isinstance(value, types.ModuleType)
        home = value.__name__ if is_module else getattr(value, "__module__", None)
        root = home.partition(".")[0] if isinstance(home, str) else ""
        if root in _dialects or (is_module and _is_library(value)):
            yield root


def _is_library(module: types.ModuleType) -> bool:
    """Return whether a module is a library's, neither the user's own nor Python's."""
    root = module.__name__.partition(".")[0]
    if root == __name__.partition(".")[0]:
        return True
    return root not in sys.stdlib_module_names and is_library_file(
        getattr(module, "__file__", None)
    )


def is_library_file(file: str | None) -> bool:
    """Return whether a source file is not the user's."""
    return file is None or file.startswith((*LIBRARIES, "<"))


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
