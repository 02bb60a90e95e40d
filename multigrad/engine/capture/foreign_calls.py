"""Calls of foreign functions on symbolic values: what they record, and the library methods that are
replaced so that such calls come to us.

`np.exp(x)` of a symbol comes to `record_call` by NumPy's protocol, `jnp.exp(x)` from a stand-in.
The function's row in the library's dialect says what the call records (a `Handler`), the types of
the capture in which dtypes. Where a row does not take the call, the library's own way to compute it
may (`other_way`).

By an `Interception` calls of custom gradients come to us, too. Of a `TracedCall` the library's own
trace is taken.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from ...core.backend.discovery import backend_of
from ...core.ir import questions
from ...core.ir.op import T
from ...core.passes.facts import BUFFERS
from ...core.support.threads import in_child, make_lock
from ...core.support.trees import optree
from ...core.trace.source import OWN, Reading
from ...core.trace.trace import NeedsConcrete, Value, setting
from ...errors import BackendNotFound, TraceError
from ..trace.code_trace import UNDECIDED, CodeTrace, Pair, ask_for, is_lent, meet_numpy
from ..trace.xp.shapes import stack
from .dialect import Handler, OwnTrace, find_dialect, registered_dialects
from .symbols import SymbolicDType, SymbolicShape, number

# Augmented assignments, and what each computes.
AUGMENTED = {
    f"__i{name.strip('_')}__": getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and_", "or_", "xor", "lshift", "rshift"),
    )
}
WRITING = ("__setitem__", *AUGMENTED)


def record_call(
    dialect: str,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    trace: CodeTrace | None = None,
    shown: str = "",
) -> Any:
    """Record a foreign function called with symbolic values, and return what it gives.

    Args:
        dialect: the import name of its library.
        trace: the capture whose stand-in was called; None: a protocol, so that a symbol among the
            arguments tells.
        shown: how people write the function; "": by its own name.

    Raises:
        NeedsConcrete: the call depends on a fact.
        TraceError: it is not captured.
    """
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", function)
    name = str(name).removeprefix("_VariableFunctionsClass.").removeprefix("TensorBase.")
    row = _find_handler(dialect, function, name)
    route = "protocol" if trace is None else "substitution"
    pair = _find_pair((args, kwargs)) if Pair.is_made else None
    if trace is None:
        symbol: Any = next(symbols_in((args, kwargs)), None) if pair is None else pair
        trace = None if symbol is None else symbol.trace
    if trace is None:
        raise TraceError("no symbolic value among the arguments")
    trace.source.routes[dialect] = trace.source.routes.get(dialect) or route
    shown = shown or f"{dialect}'s {name}"
    # The order decides on the message: a gradient, memory of others, complex numbers, no row.
    if row is None and name.rpartition(".")[2] in ("backward", "grad"):
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
    if row is None:
        advice = trace.words.advise(*trace.words.write)
        raise trace.error(f"calls {shown}, which is not captured{advice}")
    target, kwargs = _find_target(name, args, kwargs)
    if target is not None and not isinstance(target, Value):
        problem = f"write into a {type(target).__name__} that the rule did not get or make"
        raise trace.error(f"lets {shown} {problem}. Use the function's result")
    # What `xg.override` puts in its place, or Python's numbers give, is not recorded by the row.
    if trace.overriding is not None:
        replacement = trace.overriding.call(trace, dialect, function, args, kwargs)
        if replacement is not None:
            return replacement if target is None else target.update(replacement)  # type: ignore[attr-defined]
    if dialect == "numpy" and trace.reading.owner in UNDECIDED and trace.types is not None:
        symbols = list(symbols_in((args, kwargs)))
        if not symbols or any(x.is_number or x.node.type.kind != "scalar" for x in symbols):
            meet_numpy(trace)
        elif is_lent(trace):  # its result is a number of NumPy's, which each library takes its way
            args, kwargs = _with_numbers((args, kwargs))
            return function(*args, **kwargs)
    # Not `setting(trace, ...)`, whose microseconds count where each call comes by.
    reading_before, trace.reading = trace.reading, Reading((dialect,))
    try:
        return _record_by_row(
            trace, dialect, function, args, kwargs, row=row, target=target, shown=shown
        )
    finally:
        trace.reading = reading_before


def _record_by_row(
    trace: CodeTrace,
    library: str,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    row: Handler,
    target: Any,
    shown: str,
) -> Any:
    """Record a call as its row has it, and write the result into `target`, if there is one."""
    dialect = find_dialect(library)
    handler = row
    if dialect is not None and dialect.habits.lists_are_tensors:
        handler = functools.partial(_with_lists_as_tensors, row)
    try:
        if trace.types is None or isinstance(row, OwnTrace):
            result = handler(*args, **kwargs)
        else:
            result = trace.types.confirmed(function, args, kwargs, handler, shown)
        return result if target is None else target.update(result)
    except TypeError as error:
        if isinstance(row, OwnTrace):
            advice = trace.words.advise(*trace.words.write)
            problem = f"calls {shown}, which is not captured{advice} ({error})"
            raise trace.error(problem) from error
        if dialect is not None and dialect.calls.other_way is not None and target is None:
            other_way = dialect.calls.other_way(function)
            if other_way is not None and (results := _try_other_way(other_way, args, kwargs)):
                return results[0]
        raise trace.error(f"calls {shown} in a way not captured: {error}") from error
    except BackendNotFound as error:
        nested = next((each for each in (*args, *kwargs.values()) if _holds_values(each)), None)
        if nested is None:
            raise
        reason = f"it is given a {type(nested).__name__} of tensors"
        raise trace.error(f"calls {shown} in a way not captured: {reason}") from error


def _try_other_way(
    other: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Return the result of a call in another way than its row, in a tuple; None if that does not
    take it either. Of the two refusals the row's is raised.
    """
    question_count = questions.count()
    try:
        return (other(*args, **kwargs),)
    except (TypeError, TraceError):
        questions.forget(question_count)
        return None


def _find_pair(tree: Any) -> Pair | None:
    """Return a complex tensor among nested arguments."""
    if isinstance(tree, Pair):
        return tree
    items = tree.values() if type(tree) is dict else tree if type(tree) in (list, tuple) else ()
    return next((pair for pair in map(_find_pair, items) if pair is not None), None)


def symbols_in(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from symbols_in(item)


def _with_numbers(tree: Any) -> Any:
    """Return nested arguments with Python's number, then a fact, for each symbol of one."""
    if type(tree) in (list, tuple):
        return type(tree)(map(_with_numbers, tree))
    return {k: _with_numbers(v) for k, v in tree.items()} if type(tree) is dict else number(tree)


def _with_lists_as_tensors(handler: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call; where no tensor but a list is there, with each list as what it stacks to."""
    try:
        return handler(*args, **kwargs)
    except BackendNotFound:
        tensors = tuple([_stacked(each) for each in args])
        keywords = {name: _stacked(each) for name, each in kwargs.items()}
        if all(map(operator.is_, (*args, *kwargs.values()), (*tensors, *keywords.values()))):
            raise
        return handler(*tensors, **keywords)


def _stacked(items: Any) -> Any:
    return stack([_stacked(each) for each in items]) if _holds_values(items) else items


def _holds_values(items: Any) -> bool:
    """Return whether it is a list, or a list of lists, in which a symbolic value stands."""
    return type(items) in (list, tuple) and any(
        isinstance(each, Value) or _holds_values(each) for each in items
    )


def describe_routes(trace: CodeTrace) -> str:
    """Return in words which dialects a rule is written in, and how it was captured."""
    names, kinds = [], []
    for library, route in trace.source.routes.items():
        dialect = find_dialect(library)
        names.append("xg.xp" if library == OWN else (dialect and dialect.names.shown) or library)
        if route not in ("", *kinds):
            kinds.append(route)
    written = f"written in {' and '.join(names) or 'plain operators'}"
    captured = f"{written}; captured by {' and '.join(kinds)}" if kinds else written
    open_types = () if trace.types is None else trace.types.unconfirmed
    notes = (f"types not confirmed: {', '.join(open_types)}",) if open_types else ()
    return "; ".join((captured, *trace.source.conventions, *notes))


def _find_handler(dialect: str, function: Any, name: str) -> Handler | None:
    """Return the handler of a function, or None; a function that updates its argument has the
    handler of its plain form.
    """
    known_dialect = find_dialect(dialect)
    if known_dialect is None:
        return None
    handler = known_dialect.names.aliases.get(function)
    if handler is None and _updates(name):
        library = sys.modules[dialect]
        for part in name.split(".")[:-1]:
            library = getattr(library, part, library)
        plain = getattr(library, name.rpartition(".")[2].removesuffix("_"), None)
        handler, function = known_dialect.names.aliases.get(plain), plain or function
    finds = known_dialect.calls.finds
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
    keywords = {word: value for word, value in kwargs.items() if word not in ("inplace", "out")}
    if _updates(name) or kwargs.get("inplace"):
        return args[0], keywords
    out = kwargs.get("out")
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out, keywords


# --- methods replaced while something is captured
# A custom gradient runs its forward on any arguments, so on symbolic values its own backward would
# be lost, wherever it is called from; so it would on another framework's tensors, where uncaptured
# code runs unchanged. A method stays replaced while any capture or such run lasts, in any thread,
# and is restored after the last one.

_ABSENT = object()


def comes_to_us(args: tuple[Any, ...], kwargs: dict[str, Any], *takes: str) -> bool:
    """Return whether a call of a library's custom gradient is ours to record.

    It is with symbolic values, or with tensors of frameworks other than the given ones, whose
    autodiff would not see its backward.
    """
    backends: set[str] = set()
    for each in optree.tree_leaves((args, kwargs), none_is_leaf=True):
        if isinstance(each, Value):
            return True
        if hasattr(each, "dtype"):
            try:
                backends.add(backend_of(each).name)
            except BackendNotFound:
                continue
    return bool(backends - {*takes, "numpy"}) or (backends == {"numpy"} and "numpy" not in takes)


def call_by_own_gradient(
    own: Callable[..., Any], plain: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function with its own gradient; if that is not captured, refuse derivatives."""
    question_count = questions.count()
    try:
        return own(*args, **kwargs)
    except TraceError:
        leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
        trace = next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)
        if trace is None:
            raise
        questions.forget(question_count)
        trace.backward.lost_gradient = getattr(own, "name", "a function")
        return plain(*args, **kwargs)


class Interception:
    """A method of a class or a function of a module (and `others`), replaced during captures.

    A context manager that can be entered any number of times, in several threads.
    """

    def __init__(
        self, owner: type | ModuleType, name: str, replacement: Any, /, **others: Any
    ) -> None:
        self.owner = owner
        self.replacements = {name: replacement, **others}
        self._entered: Counter[int] = Counter()  # by thread
        self._originals: dict[str, Any] = {}
        self._lock = make_lock()
        in_child(self._forget_others)

    def __enter__(self) -> None:
        # The first entry stores the originals, the last exit restores them.
        with self._lock:
            if not self._entered:
                members = vars(self.owner)
                self._originals = {name: members.get(name, _ABSENT) for name in self.replacements}
                for name, replacement in self.replacements.items():
                    setattr(self.owner, name, replacement)
            self._entered[threading.get_ident()] += 1

    def __exit__(self, *exception: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._entered[thread] -= 1
            if not self._entered[thread]:
                del self._entered[thread]
            for name, original in self._originals.items() if not self._entered else ():
                if original is _ABSENT:  # inherited
                    delattr(self.owner, name)
                else:
                    setattr(self.owner, name, original)

    def _forget_others(self, thread: int) -> None:
        # In a forked child: captures on the parent's other threads never end here.
        if self._entered:
            own_entries = self._entered[thread]
            self._entered = Counter({thread: own_entries or 1})
            # No capture of this process will exit, so the originals are restored now.
            if not own_entries:
                self.__exit__()


@contextmanager
def intercepting() -> Iterator[None]:
    """Let the custom gradients of all libraries come to us where they are called with symbolic
    values.
    """
    with ExitStack() as entered:
        for dialect in tuple(registered_dialects().values()):
            for interception in dialect.gradients.interceptions:
                entered.enter_context(interception)
        yield


# --- calls that a library traces itself, for given shapes and dtypes ------------------------------
OWN_TRACE = "'s own trace of "


class TracedCall:
    """A call of a library's function, as a function of the tensors among its arguments: `given`,
    symbolic or not.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        tensor: type,
        args: Any,
        kwargs: Any,
        asks: str = "shape",
    ) -> None:
        """Take a call; symbolic numbers and shapes among its arguments become facts.

        Args:
            asks: "shape", or "ndim" where the library's tracer takes open lengths.

        Raises:
            NeedsConcrete: they, or that of the tensors, are not known in this capture.
            TypeError: no tensor is among them.
        """
        self._function = function
        self._tensors = (Value, tensor)
        leaves, self._tree = optree.tree_flatten((args, kwargs), none_is_leaf=True)
        symbol = next((leaf for leaf in leaves if isinstance(leaf, Value)), None)
        if symbol is None:
            raise TypeError("no tensor is among its arguments")
        self.trace: CodeTrace = symbol.trace
        self._leaves = list(map(self._known, leaves))
        self.has_none = any(x is None for x in leaves)
        self.given = [x for x in self._leaves if isinstance(x, self._tensors)]
        ask_for(asks, [x for x in self.given if isinstance(x, Value)])

    def _known(self, x: Any) -> Any:
        if isinstance(x, SymbolicDType):
            return dtype_in(self.trace, x.symbol)
        return np.asarray(x) if isinstance(x, SymbolicShape) else number(x)

    def __call__(self, *tensors: Any) -> Any:
        tensors_left = iter(tensors)
        leaves = [next(tensors_left) if isinstance(x, self._tensors) else x for x in self._leaves]
        args, kwargs = optree.tree_unflatten(self._tree, leaves)
        return self._function(*args, **kwargs)

    @contextmanager
    def read_by(self, library: str) -> Iterator[None]:
        """Record a library's own trace; the calling code may not mention that library."""
        trace = self.trace
        routes = dict(trace.source.routes)
        with setting(trace, reading=Reading((library,))):
            yield
        # The route lists, for `xg.show`, the functions whose own trace was taken.
        library = trace.reading.dialect
        words = f" and by {library}{OWN_TRACE}"
        route, _, names = routes.get(library, "").partition(words)
        name = getattr(self._function, "__name__", str(self._function))
        all_names = dict.fromkeys((*filter(None, names.split(", ")), name))
        routes[library] = f"{route or 'protocol'}{words}{', '.join(all_names)}"
        trace.source.routes = routes


def dtype_in(trace: CodeTrace, name: str) -> str:
    """Return the name of a dtype, with `T` replaced by the input's."""
    if name != T:
        return name
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return str(trace.facts["dtype"])


@contextmanager
def giving_reasons(library: str) -> Iterator[None]:
    """Turn any error of a library's tracer into a TypeError, which refuses the call."""
    try:
        yield
    except (NeedsConcrete, TraceError, TypeError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise TypeError(f"{library} cannot trace it for these shapes: {reason}") from error
