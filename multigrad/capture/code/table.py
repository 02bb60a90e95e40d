"""Dialects: which foreign function means which op.

An alias is keyed by (dialect, callable), because the same name has other defaults elsewhere
(`torch.std` divides by n - 1, `np.std` by n). A backend contributes its framework's table; NumPy's
is here.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import field
from typing import Any

from ...backend.discovery import entry_points as find_backends
from ...backend.discovery import load_backend, load_point
from ...backend.installed import find_points
from ...errors import BackendNotFound, RuleTypeError, TraceError, suggest
from ...graph.ir import questions
from ...graph.ir.types import INT64, INT_SCALAR
from ...graph.passes.facts import BUFFERS
from ...graph.support.class_bases import dataclass
from ...trace.python_protocols import Pair
from ...trace.source import UNDECIDED, Reading, is_lent, meet_numpy
from ...trace.trace import NeedsConcrete, Trace, Value
from ...trace.xp.shapes import stack
from .conventions import UNORDERED, conventions_read, note
from .libraries import add_library

Handler = Callable[..., Any]


class OwnTrace(functools.partial[Any]):
    """A handler that records a function by its library's own trace or code, which says of which
    types.
    """


# Augmented assignments, and what each computes.
AUGMENTED = {
    f"__i{name.strip('_')}__": getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and_", "or_", "xor", "lshift", "rshift"),
    )
}
WRITING = ("__setitem__", *AUGMENTED)


@dataclass(frozen=True, slots=True)
class Habits:
    """Where one spelling means another thing from library to library; by default as NumPy has it.

    Attributes:
        exchanges_two: `x.transpose(0, 1)` exchanges two axes; else it names the order of all.
        repeats_whole: `x.repeat(2)` repeats the whole; else each element.
        sorts_anew: `x.sort()` returns what is sorted; else it sorts in place.
        integers_first: an integer in an index is taken before its arrays, wherever it stands.
        bytes_are_masks: an index of uint8 is a mask; else integers.
        nested_lists: a list of lists is one index.
        lists_are_tensors: a function of a tensor takes a list of equal shapes as what it stacks to.
        small_integers_wrap: a float beyond int8, uint8 or int16 wraps; else it is limited.
        float8_is_limited: a float beyond float8_e4m3fn is its largest number; else NaN.
        plus_copies: `+x` is a copy; else x itself.
        none_is_other: `x == None` is False; else each element is compared.
        inexact: ops whose kernels are off by more than rounding, and by how much of the result.
        promotes_to_float32: float64 beside another dtype, or beside numbers, gives float32.
        whole: the dtype of an integer that is returned, such as a length.
        casts_gradients: a custom gradient's integers and bools become floats where these are due.
        unordered: meanings of functions that leave the order of equal elements open.
        outside: what an index that lies outside means where it is taken, and where it is put; see
            `trace/xp/indices.py`.
        overwritten_too: a value that another one overwrites gets a gradient, as if it stood there.
        objects_change: users set attributes of its objects; else it fills them in itself.
    """

    exchanges_two: bool = False
    repeats_whole: bool = False
    sorts_anew: bool = False
    integers_first: bool = False
    bytes_are_masks: bool = False
    nested_lists: bool = True
    lists_are_tensors: bool = False
    plus_copies: bool = True
    none_is_other: bool = False
    inexact: Mapping[str, float] = field(default_factory=dict)
    promotes_to_float32: bool = False
    small_integers_wrap: bool = False
    float8_is_limited: bool = False
    whole: str = INT64
    casts_gradients: bool = False
    unordered: frozenset[str] = frozenset()
    outside: tuple[str, str] = ("refused", "refused")
    overwritten_too: bool = False
    objects_change: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a library mean.

    Attributes:
        aliases: its callables, and what each records.
        methods: tensor methods that mean something else in this library.
        attributes: attributes of a tensor that no other library's has, by name, from the tensor.
        hidden: functions that offer no protocol, and their stand-ins in a rule: always,
            also where no symbolic value is among the arguments.
        companions: modules of its own that it does not import by itself, by name, and what gives
            the `hidden` of their functions; it is asked once somebody has imported one.
        refused: functions that a rule may not call, and the reason, which ends a sentence.
        trees: its functions of nested structures, called as they are: a symbol is a leaf.
        shown: how people write the library's name.
    """

    aliases: Mapping[Any, Handler]
    methods: Mapping[str, Handler] = field(default_factory=dict)
    attributes: Mapping[str, Handler] = field(default_factory=dict)
    hidden: Mapping[Any, Handler] = field(default_factory=dict)
    companions: Mapping[str, Callable[[], Mapping[Any, Handler]]] = field(default_factory=dict)
    refused: Mapping[Any, str] = field(default_factory=dict)
    trees: frozenset[Any] = frozenset()
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Tensors:
    """A library's tensors.

    Attributes:
        tensor: its tensor class, so that `isinstance` in a rule sees one.
        dtype: its dtype object for an IR name.
        device: a device of it, for the constants that a rule makes.
        device_of: optional; the device of a kind ("cuda"), where code may ask on which it runs.
        correction: what `x.std()` and `x.var()` subtract from n by default.
        mutable: whether `x += 1` reaches whoever else holds x.
        shape_class: what `x.shape` is, and is an instance of.
        scalars: classes of values that replace a tensor without axes in the library's own
            results.
    """

    tensor: type
    dtype: Callable[[str], Any]
    device: Any
    device_of: Callable[[str], Any] | None = None
    correction: int = 0
    mutable: bool = True
    shape_class: type = tuple
    scalars: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class Classes:
    """What tells a library's tensors from other values.

    Attributes:
        one_class: whether every tensor is of the very class `tensor`, so that `type(x)` is known.
        classes: those that its tensors are of, where there are a few.
        asking: its own modules, in Python, that ask by `isinstance` whether something is a tensor.
        hints: how attributes begin that its tools set on tensors for themselves, which no value
            follows from.
        refusals: optional; why a symbol does not answer an attribute that its tensors have, by
            name. With it, what its tensor class lacks is an AttributeError.
    """

    one_class: bool = False
    classes: tuple[type, ...] = ()
    asking: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    refusals: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls of a library reach us, and what else may record them.

    Attributes:
        protocol: whether the library hands symbolic values to us by itself; else stand-ins do,
            wherever a rule refers to the library's modules or functions.
        at_once: a context in which the library computes at once, though a compiler may be reading
            along.
        finds: optional; what records a callable that is not among the aliases, None for none.
        other_way: optional; what records a callable where its row does not take a call.
        own_trace: optional; what records any callable by the library's own trace, for shapes and
            dtypes that are known.
        import_function: records a function in another way, where substitution cannot see through
            it: (function, trace, args, kwargs) -> its result; raises NeedsConcrete, or TraceError
            where it cannot either.
        import_route: that way, in the words of `xg.show`.
        keeps: optional; whether a class or a function stays as it is in captured code, as its calls
            with symbolic values are intercepted.
    """

    protocol: bool = True
    at_once: Callable[[], AbstractContextManager[Any]] | None = None
    finds: Callable[[Any], Handler | None] | None = None
    other_way: Callable[[Any], Handler | None] | None = None
    own_trace: Callable[[Handler], Handler] | None = None
    import_function: Callable[..., Any] | None = None
    import_route: str = "import"
    keeps: Callable[[Any], bool] | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """A library's custom gradients, and where it lets none pass.

    Attributes:
        wrappers: classes of objects that a decorator of the library's makes of a function and that
            compute just what it does, and the attribute that holds it.
        paired: those of the wrappers whose function returns a value and its gradient function.
        own_gradients: those of the wrappers whose function has a gradient of its own, and what
            makes a function for symbolic values of one, through which derivatives pass by that
            gradient; None: they need not.
        interceptions: what makes calls of the library's custom gradients with symbolic values come
            to us, wherever they are called from; entered while something is captured.
        pauses: optional; whether its code now computes what no gradient passes through; raises
            TypeError in a mode that no graph follows.
        passes: optional; a context in which gradients pass, and without such a mode. What it gives,
            if anything, says which variables code has read in it that wait for a gradient.
    """

    wrappers: Mapping[type, str] = field(default_factory=dict)
    paired: tuple[type, ...] = ()
    own_gradients: Mapping[type, Callable[[Any], Any]] = field(default_factory=dict)
    interceptions: tuple[AbstractContextManager[Any], ...] = ()
    pauses: Callable[[], bool] | None = None
    passes: Callable[[], AbstractContextManager[Any]] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A library's variables, and what else holds state.

    Attributes:
        variables: classes of its variables, which hold a framework's tensor as `value`.
        describe: optional; of a variable, or of an object that holds a tensor: the library's name
            for it ("": the way to it) and whether it is trained; None: it is none of its own.
        bookkeeping: attributes of its objects that are no state.
        generators: its global generators of random numbers: objects with `get_state` and
            `set_state`.
        runs_on: optional; the backend on whose tensors it computes now, where its own name is none.
    """

    variables: tuple[type, ...] = ()
    describe: Callable[[Any], tuple[str, bool] | None] | None = None
    bookkeeping: frozenset[str] = frozenset()
    generators: Callable[[], Iterable[Any]] | None = None
    runs_on: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One array library as rules are written in it.

    Attributes:
        names: what its names mean.
        tensors: what its tensors are.
        classes: what tells its tensors from other values.
        calls: how calls of it reach us, and what else may record them.
        gradients: its custom gradients, and where it lets none pass.
        state: its variables, and what else holds state.
        habits: where its spellings mean something else than NumPy's.
        types: optional; how the library is asked for types (`oracle.TypeOracle`).
    """

    names: Names
    tensors: Tensors
    classes: Classes = Classes()
    calls: Calls = Calls()
    gradients: Gradients = Gradients()
    state: State = State()
    habits: Habits = Habits()
    types: Any = None


GROUP = "multigrad.dialects"
# Modules that tell a library, which computes by the tensors' own frameworks, of symbolic values.
ACQUAINTED = "multigrad.acquainted"
XP = "xp"  # what authors call our own
_dialects: dict[str, Dialect] = {}


def register_dialect(name: str, dialect: Dialect) -> None:
    """Add a dialect under its library's import name."""
    _dialects[name] = dialect
    add_library(name)


def updates(dialect: Dialect, name: str) -> bool:
    """Return whether an augmented assignment reaches whoever else holds a library's tensor."""
    return dialect.tensors.mutable and hasattr(dialect.tensors.tensor, name)


def find_dialect(name: str) -> Dialect | None:
    return _dialects.get(name)


def registered_dialects() -> dict[str, Dialect]:
    return _dialects


@contextmanager
def intercepting() -> Iterator[None]:
    """Let the custom gradients of all libraries come to us where they are called with symbolic
    values.
    """
    with ExitStack() as entered:
        for dialect in tuple(_dialects.values()):
            for interception in dialect.gradients.interceptions:
                entered.enter_context(interception)
        yield


def load_dialects() -> None:
    """Register the dialects of imported libraries that are no backends, and tell others of us."""
    for name, point in (*entry_points().items(), *entry_points(ACQUAINTED).items()):
        if name in sys.modules and name not in _dialects and name not in _loaded:
            load_point(point, f"functions of {name} are not captured")
            _loaded.add(name)


@functools.cache
def entry_points(group: str = GROUP) -> Mapping[str, Any]:
    """Return the entry points of all dialects by their library's import name, read once per
    process.
    """
    return {point.name: point for point in find_points(group)}


_loaded: set[str] = set()


def record_call(
    dialect: str,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    trace: Trace | None = None,
    shown: str = "",
) -> Any:
    """Record a foreign function called with symbolic values: by protocol, or from a stand-in of
    `trace`, where people write it as `shown`.
    """
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", function)
    name = str(name).removeprefix("_VariableFunctionsClass.").removeprefix("TensorBase.")
    known = find_dialect(dialect)
    row = handler = _find_handler(dialect, function, name)
    route = "protocol" if trace is None else "substitution"
    pair = _find_pair((args, kwargs)) if Pair.is_made else None
    if trace is None:
        trace = _trace_of(next(symbols_in((args, kwargs)), None) if pair is None else pair)
    trace.source.routes[dialect] = trace.source.routes.get(dialect) or route
    shown = shown or f"{dialect}'s {name}"
    if handler is None and name.rpartition(".")[2] in ("backward", "grad"):
        advice = trace.words.advise("write the derivative out")
        raise trace.error(f"calls {shown}: a rule is the backward pass{advice}")
    if (
        trace.kind != "rule"
        and BUFFERS not in trace.facts
        and _writes_into_other(name, args, kwargs)
    ):
        raise NeedsConcrete(BUFFERS)
    if pair is not None:
        return pair.called(dialect, function, args, kwargs, shown)
    if handler is None:
        advice = trace.words.advise(*trace.words.write)
        raise trace.error(f"calls {shown}, which is not captured{advice}")
    target, kwargs = _find_target(name, args, kwargs)
    if target is not None and not isinstance(target, Value):
        kind = type(target).__name__
        problem = f"write into a {kind} that the rule did not get or make"
        raise trace.error(f"lets {shown} {problem}. Use the function's result")
    if trace.overriding is not None:
        changed = trace.overriding.call(trace, dialect, function, args, kwargs)
        if changed is not None:
            return changed if target is None else target.update(changed)  # type: ignore[attr-defined]
    if dialect == "numpy" and trace.reading.owner in UNDECIDED and trace.types is not None:
        given = list(symbols_in((args, kwargs)))
        if not given or any(x.is_number or x.node.type.kind != "scalar" for x in given):
            meet_numpy(trace)
        elif is_lent(trace):  # its result is a number of NumPy's, which each library takes its way
            return _on_numbers(function, args, kwargs)
    if known is not None and known.habits.lists_are_tensors:
        handler = functools.partial(_with_lists_as_tensors, handler)
    # Not `trace.reading_as`, whose microseconds count where each call comes by.
    before, trace.reading = trace.reading, Reading((dialect,))
    try:
        if trace.types is None or isinstance(row, OwnTrace):
            result = handler(*args, **kwargs)
        else:
            result = trace.types.confirmed(function, args, kwargs, handler, shown)
        return result if target is None else target.update(result)  # type: ignore[attr-defined]
    except TypeError as error:
        if isinstance(row, OwnTrace):
            advice = trace.words.advise(*trace.words.write)
            raise trace.error(f"calls {shown}, which is not captured{advice} ({error})") from error
        if known is not None and known.calls.other_way is not None and target is None:
            other = known.calls.other_way(function)
            if other is not None and (found := _try_other_way(other, args, kwargs)):
                return found[0]
        raise trace.error(f"calls {shown} in a way not captured: {error}") from error
    except BackendNotFound as error:
        listed = next((each for each in (*args, *kwargs.values()) if _holds_values(each)), None)
        if listed is None:
            raise
        reason = f"it is given a {type(listed).__name__} of tensors"
        raise trace.error(f"calls {shown} in a way not captured: {reason}") from error
    finally:
        trace.reading = before


def _try_other_way(
    other: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Return the result of a call in another way than its row; None if that does not take it
    either, for of the two refusals the row's is raised.
    """
    asked = questions.count()
    try:
        return (other(*args, **kwargs),)
    except (TypeError, TraceError):
        questions.forget(asked)
        return None


def _trace_of(symbol: Any) -> Trace:
    if symbol is None:
        raise TraceError("no symbolic value among the arguments")
    trace: Trace = symbol.trace
    return trace


def _find_pair(tree: Any) -> Pair | None:
    """Return a complex tensor among nested arguments."""
    if isinstance(tree, Pair):
        return tree
    if type(tree) in (list, tuple, dict):
        for item in tree.values() if type(tree) is dict else tree:
            if (found := _find_pair(item)) is not None:
                return found
    return None


def symbols_in(tree: Any) -> Iterator[Value]:
    """Yield the symbols in nested arguments."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from symbols_in(item)


def _on_numbers(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _with_numbers((args, kwargs))
    return function(*args, **kwargs)


def _with_numbers(tree: Any) -> Any:
    """Return nested arguments with Python's number for each symbol of one.

    Raises:
        NeedsConcrete: it is not known.
    """
    if isinstance(tree, Value):
        return operator.index(tree) if tree.node.type == INT_SCALAR else float(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(_with_numbers, tree))
    return {k: _with_numbers(v) for k, v in tree.items()} if type(tree) is dict else tree


def _with_lists_as_tensors(handler: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call; where no tensor but a list is there, with each list as what it stacks to."""
    try:
        return handler(*args, **kwargs)
    except BackendNotFound:
        tensors = tuple([_stacked(each) for each in args])
        named = {name: _stacked(each) for name, each in kwargs.items()}
        if all(map(operator.is_, (*args, *kwargs.values()), (*tensors, *named.values()))):
            raise
        return handler(*tensors, **named)


def _stacked(given: Any) -> Any:
    return stack([_stacked(each) for each in given]) if _holds_values(given) else given


def _holds_values(given: Any) -> bool:
    """Return whether it is a list, or a list of lists, in which a symbolic value stands."""
    return type(given) in (list, tuple) and any(
        isinstance(each, Value) or _holds_values(each) for each in given
    )


def describe_routes(trace: Trace) -> str:
    """Return in words which dialects a rule is written in, and how it was captured."""
    own = __name__.partition(".")[0]
    names, kinds = [], []
    for library, route in trace.source.routes.items():
        dialect = _dialects.get(library)
        names.append("xg.xp" if library == own else (dialect and dialect.names.shown) or library)
        if route not in ("", *kinds):
            kinds.append(route)
    written = f"written in {' and '.join(names) or 'plain operators'}"
    captured = f"{written}; captured by {' and '.join(kinds)}" if kinds else written
    open_types = () if trace.types is None else trace.types.unconfirmed
    said = (f"types not confirmed: {', '.join(open_types)}",) if open_types else ()
    return "; ".join((captured, *conventions_read(trace), *said))


def _find_handler(dialect: str, function: Any, name: str) -> Handler | None:
    """Return the handler of a function, or None; a function that updates its argument has the
    handler of its plain form.
    """
    if dialect not in _dialects:
        return None
    aliases = _dialects[dialect].names.aliases
    handler = aliases.get(function)
    if handler is None and _updates(name):
        library = sys.modules[dialect]
        for part in name.split(".")[:-1]:
            library = getattr(library, part, library)
        plain = getattr(library, name.rpartition(".")[2].removesuffix("_"), None)
        handler, function = aliases.get(plain), plain or function
    finds = _dialects[dialect].calls.finds
    return finds(function) if handler is None and finds is not None else handler


def _updates(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _writes_into_other(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call writes into a tensor that is no symbol: one that the code has made."""
    if name.rpartition(".")[2] in WRITING:
        return not isinstance(args[0], Value)
    target, _ = _find_target(name, args, kwargs)
    return target is not None and not isinstance(target, Value)


def _find_target(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the object that a call writes its result into, or None, and the other keywords."""
    if not kwargs:  # as most have
        return args[0] if _updates(name) else None, kwargs
    others = {word: value for word, value in kwargs.items() if word not in ("inplace", "out")}
    if _updates(name) or kwargs.get("inplace"):
        return args[0], others
    out = kwargs.get("out")
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out, others


def habits_of(trace: Trace) -> Habits:
    dialect = find_dialect(trace.reading.dialect)
    return Habits() if dialect is None else dialect.habits


def leave_order_open(x: Value, name: str) -> None:
    """Note that equal elements may come in any order, where the code's library says no other."""
    if name in habits_of(x.trace).unordered:
        note(x.trace, f"{UNORDERED} {name}")


def check_dialect(name: Any) -> str:
    """Return the import name of the library that an author names, "" for None.

    Raises:
        RuleTypeError: no dialect has that name.
    """

    if name is None:
        return ""
    known = sorted({*_dialects, *entry_points(), *find_backends(), XP})
    if name not in known:
        raise RuleTypeError(
            f"no dialect named {name!r}{suggest(name, known)} (dialects: {', '.join(known)})"
        )
    return __name__.partition(".")[0] if name == XP else str(name)


def require_dialect(name: str) -> None:
    """Register the dialect that an author names, importing its library.

    Raises:
        BackendNotFound: that is not installed.
    """

    if name in _dialects or name == __name__.partition(".")[0]:
        return
    if name in find_backends():
        load_backend(name)
    else:
        entry_points()[name].load()
