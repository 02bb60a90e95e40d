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
    """A handler that records a call by its library's own trace or code, which also tells types."""


# --- derivatives at kinks
# The derivative that a library uses at a kink, by release: data for handlers and for `xg.show`. The
# installed library is asked too. If it differs from what is known of its release, a warning says so
# and its own answer counts.


@dataclass(frozen=True, slots=True)
class Convention:
    """One choice of the derivative at a kink.

    Attributes:
        since: the first release that makes it; "" if no other is known.
        passes: whether the gradient passes at the kink.
        words: continues a sentence after the library's name and release.
    """

    since: str
    passes: bool
    words: str


@dataclass(frozen=True, slots=True)
class FunctionConventions:
    """The conventions of one function.

    Attributes:
        rows: those of all releases, in order.
        version: the installed release.
        passes: () -> whether the gradient passes, asked of the library itself; it is asked once.
    """

    rows: Sequence[Convention]
    version: str
    passes: Callable[[], bool]

    def find(self) -> tuple[Convention, bool]:
        """Return the installed library's convention, and whether its release is known for it."""
        convention = [row for row in self.rows if _numbers(row.since) <= _numbers(self.version)][-1]
        passes = self.passes()
        if passes == convention.passes:
            return convention, True
        return next(row for row in self.rows if row.passes == passes), False


@dataclass(frozen=True, slots=True)
class Habits:
    """The meaning of one spelling where libraries differ; the defaults are NumPy's.

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
            `trace/xp/shapes.py`.
        overwritten_too: a value that another one overwrites gets a gradient, as if it stood there.
        selects: a product with a mask is 0 where that is False, whatever the other factor.
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
    selects: bool = False
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
        hints: prefixes of attributes that its tools set on tensors for themselves, and on which
            no value depends.
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
        wrappers: classes of the objects that decorators of the library make of a function and that
            compute the same, each with the attribute that holds the function.
        paired: those of the wrappers whose function returns a value and its gradient function.
        own_gradients: those of the wrappers whose function has its own gradient, each with what
            makes of one a function for symbolic values that has this gradient, None if it need not.
        interceptions: contexts, entered during a capture, in which calls of the library's custom
            gradients with symbolic values come to us, from wherever they are made.
        pauses: optional; whether its code now computes without gradients; raises TypeError in a
            mode that no graph follows.
        passes: optional; a context in which gradients pass, and without such a mode. If it yields
            something, that lists the variables that code has read in it and that need a gradient.
        conventions: its derivatives at kinks that depend on the release, by function.
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
        describe: optional; of a variable, or of an object that holds a tensor: the library's name
            for it ("": the way to it) and whether it is trained; None: it is none of its own.
        holding: optional; returns a variable like another one, but with a given tensor, where the
            library computes with more than the tensor.
        bookkeeping: attributes of its objects that are no state.
        generators: its global generators of random numbers: objects with `get_state` and
            `set_state`.
        runs_on: optional; the backend on whose tensors it computes now, where its own name is none.
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
# Modules that tell a library, which computes by the tensors' own frameworks, of symbolic values.
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
    """Return whether an augmented assignment reaches whoever else holds a library's tensor."""
    return dialect.tensors.mutable and hasattr(dialect.tensors.tensor, name)


def find_dialect(name: str) -> Dialect | None:
    return _dialects.get(name)


def registered_dialects() -> Mapping[str, Dialect]:
    return _dialects


def load_dialects() -> None:
    """Register the dialects of imported libraries that are no backends, and tell others of us."""
    for name, point in (*entry_points().items(), *entry_points(ACQUAINTED).items()):
        if name in sys.modules and name not in _dialects and name not in _loaded:
            load_point(point, f"functions of {name} are not captured")
            _loaded.add(name)


def load_point(point: Any, else_: str) -> None:
    """Load an entry point that connects a library; a broken one warns, with what follows."""
    try:
        point.load()
    except ImportError:  # another library of that name, or a part of it is missing
        return
    except Exception as error:  # noqa: BLE001
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"{else_}: {point.value} raises {message}", stacklevel=3)


@functools.cache
def entry_points(group: str = GROUP) -> Mapping[str, Any]:
    # By their library's import name.
    return {point.name: point for point in find_points(group)}


_loaded: set[str] = set()


def habits_of(trace: CodeTrace) -> Habits:
    dialect = find_dialect(trace.dialect)
    return Habits() if dialect is None else dialect.habits


def leave_order_open(x: Value, name: str) -> None:
    """Note that equal elements may come in any order, where the code's library says no other."""
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
    """Return whether a gradient passes at a function's kink in the installed library of the code;
    True without a row.
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
    return convention.passes


def told_conventions(graph: Graph, kind: str = AT_KINK) -> tuple[str, ...]:
    """Return the conventions that a captured graph relies on, from its origin."""
    return tuple(each for each in graph.origin.split("; ") if each.startswith(kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
