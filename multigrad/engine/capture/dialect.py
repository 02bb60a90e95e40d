"""What a dialect is: a library's names, tensors and habits, and the register of all dialects.

An alias is keyed by (dialect, callable), because the same name has other defaults elsewhere
(`torch.std` divides by n - 1, `np.std` by n). A backend contributes its framework's table; NumPy's
is in `dialects/numpy.py`.
"""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ...core.backend.contract import Backend
from ...core.backend.discovery import entry_points as find_backends
from ...core.backend.discovery import find_points, load_backend, tell_loaded
from ...core.ir.graph import Graph
from ...core.ir.op import INT64
from ...core.support.threads import collector_paused
from ...core.trace.source import OWN
from ...core.trace.trace import Value
from ...errors import NotProvenWarning, RuleTypeError, suggest
from ..trace.code_trace import CodeTrace

Handler = Callable[..., Any]


class OwnTrace(functools.partial[Any]):
    """A handler that records calls by its library's own trace or code, which tells types too."""


# --- derivatives at kinks
# The derivative that a library uses at a kink, by release: data for handlers and for `xg.show`. The
# installed library is asked too. If it differs from what is known of its release, a warning says so
# and its own answer counts.


@dataclass(frozen=True, slots=True)
class Convention:
    """One choice of the derivative at a kink.

    Attributes:
        since: the first release that makes it; "" if no other is known.
        passes_gradient: whether the gradient passes at the kink.
        words: continues a sentence after the library's name and release.
    """

    since: str
    passes_gradient: bool
    words: str


@dataclass(frozen=True, slots=True)
class FunctionConventions:
    """The conventions of one function.

    Attributes:
        rows: those of all releases, in order.
        version: the installed release.
        ask_library: returns whether the gradient passes, as the library itself computes it.
    """

    rows: Sequence[Convention]
    version: str
    ask_library: Callable[[], bool]

    def find(self) -> tuple[Convention, bool]:
        """Return the installed library's convention, and whether its release is known for it."""
        convention = [row for row in self.rows if _numbers(row.since) <= _numbers(self.version)][-1]
        passes_gradient = self.ask_library()
        if passes_gradient == convention.passes_gradient:
            return convention, True
        return next(row for row in self.rows if row.passes_gradient == passes_gradient), False


@dataclass(frozen=True, slots=True)
class Habits:
    """The meaning of one spelling where libraries differ; the defaults are NumPy's.

    Attributes:
        exchanges_two: `x.transpose(0, 1)` exchanges two axes. If False, it is the order of all.
        repeats_whole: `x.repeat(2)` repeats the whole. If False, each element.
        sorts_anew: `x.sort()` returns a sorted tensor. If False, it sorts in place.
        integers_first: an integer in an index is taken before its arrays, wherever it stands.
        bytes_are_masks: an index of uint8 is a mask. If False, it holds positions.
        nested_lists: a list of lists is one index.
        lists_are_tensors: a function of a tensor also takes a list of equal shapes, and stacks it.
        small_integers_wrap: a float beyond int8, uint8 or int16 wraps. If False, it is limited.
        float8_is_limited: a float beyond float8_e4m3fn is its largest number. If False, NaN.
        plus_copies: `+x` is a copy. If False, x itself.
        none_is_other: `x == None` is False. If this is False, each element is compared.
        inexact: ops whose kernels are off by more than rounding, and by how much of the result.
        promotes_to_float32: float64 beside another dtype, or beside numbers, gives float32.
        whole: the dtype of an integer that is returned, such as a length.
        casts_gradients: a custom gradient's integers and bools become floats where floats are due.
        unordered: meanings of functions that leave the order of equal elements open.
        outside: what an index that lies outside means where it is taken, and where it is put; see
            `trace/xp/shapes.py`.
        overwritten_too: a value that another one overwrites gets a gradient, as if it stood there.
        selects: a product with a mask is 0 where that is False, whatever the other factor.
        objects_change: users set attributes of its objects. If False, only the library does.
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
    selects: bool = False
    objects_change: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a library mean.

    Attributes:
        aliases: by callable of the library, the handler that records its calls.
        methods: tensor methods that mean something else in this library.
        attributes: by name, what only this library's tensors have, as functions of the tensor.
        hidden: by function that offers no protocol, what a rule calls instead, also where no
            argument is a symbolic value.
        companions: by name of a module that the library does not import by itself, a function that
            returns its `hidden`, called once somebody has imported the module.
        refused: by function that a rule may not call, the reason, which ends a sentence.
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
        mutable: whether `x += 1` changes x in place, for all that hold it.
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
        classes: the classes of its tensors, where there are several.
        asking: its own modules, in Python, that ask by `isinstance` whether something is a tensor.
        hints: prefixes of attributes that its tools set on tensors for themselves, and on which
            no value depends.
        refusals: optional; returns, for an attribute that its tensors have, why a symbol does not
            answer it. With it, an attribute that its tensor class lacks is an AttributeError.
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
        at_once: a context in which the library computes at once, even while a compiler traces.
        finds: optional; returns the handler of a callable that is not among the aliases, or None.
        other_way: optional; returns another handler of a callable, for calls its own cannot take.
        own_trace: optional; returns a handler of any callable, which records by the library's own
            trace, for shapes and dtypes that are known.
        import_function: records a function in another way, where substitution cannot see through
            it: (function, trace, args, kwargs) -> its result; raises NeedsConcrete, or TraceError
            where it cannot either.
        import_route: that way, in the words of `xg.show`.
        keeps: optional; whether captured code may hold a class or a function itself, because its
            calls with symbolic values are intercepted.
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
        wrappers: by class of the objects that decorators of the library return, and that compute
            what the decorated function does, the attribute that holds this function.
        paired: the wrappers whose function returns a value and its gradient function.
        own_gradients: by wrapper whose function has its own gradient, a function that returns the
            stand-in of such an object for symbolic values, or None if it needs none.
        interceptions: contexts, entered during a capture, in which calls of the library's custom
            gradients with symbolic values come to us, from wherever they are made.
        pauses: optional; returns whether its code now computes without gradients; raises TypeError
            in a mode that no graph follows.
        passes: optional; a context in which gradients pass, without such a mode. It yields None, or
            a function that names the variables read so far that need a gradient.
        conventions: by function, its derivatives at kinks that depend on the release.
    """

    wrappers: Mapping[type, str] = field(default_factory=dict)
    paired: tuple[type, ...] = ()
    own_gradients: Mapping[type, Callable[[Any], Any]] = field(default_factory=dict)
    interceptions: tuple[AbstractContextManager[Any], ...] = ()
    pauses: Callable[[], bool] | None = None
    passes: Callable[[], AbstractContextManager[Any]] | None = None
    conventions: Mapping[str, FunctionConventions] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """A library's variables, and what else holds state.

    Attributes:
        variables: classes of its variables, which hold a framework's tensor as `value`.
        describe: optional; returns the library's name for a variable or an object that holds a
            tensor ("": the way to it), and whether it is trained; None if it is not the library's.
        holding: optional; returns a variable like another one, but with a given tensor, where the
            library computes with more than the tensor.
        bookkeeping: attributes of its objects that are no state.
        generators: its global generators of random numbers: objects with `get_state` and
            `set_state`.
        runs_on: optional; the backend on whose tensors it computes now, if it is none itself.
    """

    variables: tuple[type, ...] = ()
    describe: Callable[[Any], tuple[str, bool] | None] | None = None
    holding: Callable[[Any, Any], Any] | None = None
    bookkeeping: frozenset[str] = frozenset()
    generators: Callable[[], Iterable[Any]] | None = None
    runs_on: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One array library, as rules are written in it. Each group of fields has a class.

    `types`, if given, is how the library is asked for types (`values.oracle.TypeOracle`).
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
# Modules that make symbolic values known to a library that computes by its tensors' frameworks.
ACQUAINTED = "multigrad.acquainted"
# Reasons for which functions are refused; each ends a sentence.
CHANGES = "which gives another value at each call: make it"
SWITCHES = "which changes the state of a library"
XP = "xp"  # what authors call our own


class _Dialects(Mapping[str, Dialect]):
    """The dialects by their libraries' import names; that of a backend loads as it is first read.

    Which names there are is known before: nothing is loaded to look whether one is there.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Dialect] = {}
        self._late: dict[str, Callable[[], Dialect]] = {}

    def add(self, name: str, dialect: Dialect) -> None:
        self._loaded[name] = dialect
        self._late.pop(name, None)

    def add_late(self, name: str, load: Callable[[], Dialect]) -> None:
        if name not in self._loaded:
            self._late[name] = load

    def __getitem__(self, name: str) -> Dialect:
        late = self._late.get(name)
        if late is not None:
            with collector_paused():
                self.add(name, late())
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._late

    def __iter__(self) -> Iterator[str]:
        return iter((*self._loaded, *self._late))

    def __len__(self) -> int:
        return len(self._loaded) + len(self._late)

    def get(self, name: str, default: Any = None) -> Any:
        # The most frequent question of a capture: a dict answers it.
        return self[name] if name in self._late else self._loaded.get(name, default)

    def values(self) -> ValuesView[Dialect]:
        for name in tuple(self._late):
            self[name]
        return self._loaded.values()


_dialects = _Dialects()


@tell_loaded
def note_dialects(backends: Sequence[Backend]) -> None:
    for backend in backends:
        if backend.imports.dialect is not None:
            _dialects.add_late(backend.name, backend.imports.dialect)


def register_dialect(name: str, dialect: Dialect) -> None:
    """Add a dialect under its library's import name."""
    _dialects.add(name, dialect)


def updates(dialect: Dialect, name: str) -> bool:
    """Return whether an augmented assignment, such as `__iadd__`, is in place in a library."""
    return dialect.tensors.mutable and hasattr(dialect.tensors.tensor, name)


def find_dialect(name: str) -> Dialect | None:
    return _dialects.get(name)


def registered_dialects() -> Mapping[str, Dialect]:
    return _dialects


_connected: set[str] = set()  # whose entry points are loaded; never emptied, as each loads once


def load_dialects() -> None:
    """Load the entry points of imported libraries: they register dialects, or tell others of us."""
    for name, point in (*entry_points().items(), *entry_points(ACQUAINTED).items()):
        if name in sys.modules and name not in _dialects and name not in _connected:
            load_point(point, f"functions of {name} are not captured")
            _connected.add(name)


def load_point(point: Any, consequence: str) -> None:
    """Load an entry point that connects a library; a broken one only warns of the consequence."""
    try:
        point.load()
    except ImportError:  # another library of that name, or a part of it is missing
        return
    except Exception as error:  # noqa: BLE001
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"{consequence}: {point.value} raises {message}", stacklevel=3)


@functools.cache
def entry_points(group: str = GROUP) -> Mapping[str, Any]:
    # By their library's import name.
    return {point.name: point for point in find_points(group)}


def habits_of(trace: CodeTrace) -> Habits:
    dialect = find_dialect(trace.dialect)
    return Habits() if dialect is None else dialect.habits


def leave_order_open(x: Value, name: str) -> None:
    """Note that equal elements may come in any order, if the code's library defines none."""
    if name in habits_of(x.trace).unordered:
        x.trace.source.conventions[f"{UNORDERED} {name}"] = None


def check_dialect(name: Any) -> str:
    """Return the import name of the library that an author names, "" for None.

    Raises:
        RuleTypeError: no dialect has that name.
    """
    if name is None:
        return ""
    names = sorted({*_dialects, *entry_points(), *find_backends(), XP})
    if name not in names:
        raise RuleTypeError(
            f"no dialect named {name!r}{suggest(name, names)} (dialects: {', '.join(names)})"
        )
    return OWN if name == XP else str(name)


def require_dialect(name: str) -> None:
    """Register the dialect that an author names, importing its library.

    Raises:
        BackendNotFound: that is not installed.
    """
    if name in _dialects or name == OWN:
        return
    if name in find_backends():
        load_backend(name)
    else:
        entry_points()[name].load()


AT_KINK = "at the kink of"
UNORDERED = "equal elements in any order:"


def passes_at(trace: CodeTrace, name: str) -> bool:
    """Return whether a gradient passes at a function's kink in the installed library of the code,
    and note it for `xg.show`; True without a row.
    """
    library = trace.dialect
    dialect = find_dialect(library)
    conventions = None if dialect is None else dialect.gradients.conventions.get(name)
    if conventions is None:
        return True
    convention, is_known = conventions.find()
    words = f"{AT_KINK} {name} as {library} {conventions.version} has it: {convention.words}"
    if not is_known:
        words += f", which is not what that release is known for: this {library} differs"
        warnings.warn(f"captured {words}", NotProvenWarning, stacklevel=2)
    trace.source.conventions[words] = None
    return convention.passes_gradient


def told_conventions(graph: Graph, kind: str = AT_KINK) -> tuple[str, ...]:
    """Return the conventions that a captured graph relies on, from its origin."""
    return tuple(each for each in graph.origin.split("; ") if each.startswith(kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
