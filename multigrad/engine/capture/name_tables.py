"""Tables of names, and binding: our functions called with a library's parameter names, order and
defaults.

An adapter is compiled at the first call, so that a call costs what it would by hand, and a wrong
one raises Python's own TypeError in the library's words. If a library's name means an op and takes
the parameters of the op's `xg.xp` function, a table of ops suffices. `parse` has the grammar of all
tables.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...core import ops
from ...core.trace.xp import all as xp
from ...errors import suggest
from .dialect import Handler

Parameters = Mapping[str, inspect.Parameter]

# Names for the same parameter in different libraries; the first word of a row is the common one.
SYNONYMS = {
    word: words.split()[0]
    for words in (
        "axis axes dim dimension dimensions dims permutation",
        "axis1 dim1",
        "axis2 dim2",
        "keepdims keepdim",
        "ord p",
        "correction ddof",
        "x input self a",
        "descending reverse",
        "eps epsilon",
    )
    for word in words.split()
}
# Parameters without a meaning in a graph of real numbers: labels, checks, devices, algorithms. They
# are dropped.
LABELS = """
    accuracy algorithm check_errors check_finite compute_mode conjugate conjugate_a debug device
    driver implementation is_stable lapack_driver layout lwork memory_format name non_blocking
    overwrite_a overwrite_b pin_memory precision promote_integers requires_grad turbo use_magma
    validate_args
"""
LABELLING = frozenset(LABELS.split())
UNSET = inspect.Parameter.empty
PLAIN = (bool, int, float, str, tuple, list)


# --- tables of names ------------------------------------------------------------------------------
class Term(NamedTuple):
    """A name in a table, and the text in its brackets, "" without any."""

    name: str
    brackets: str = ""

    def pairs(self) -> dict[str, str]:
        """Return the text in the brackets as pairs: "a=b, c=" is {"a": "b", "c": ""}."""
        return dict(PAIR.findall(self.brackets))


class TableEntry(NamedTuple):
    """An entry of a table.

    Attributes:
        head: the term before the colon.
        names: the terms after it; the head alone where there is no colon.
        place: the table's name, its text, and where the entry begins in it.
    """

    head: Term
    names: tuple[Term, ...]
    place: tuple[str, str, int]

    def refuse(self, reason: str) -> NoReturn:
        refuse_entry(*self.place, reason)


WORDS = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
TERM = re.compile(rf"({WORDS})(?:\(([^()]*)\))?")
PAIR = re.compile(r"(\w+)=(\w*)")
_TERM = rf"\s*{WORDS}(?:\([^()]*\))?(?=[\s:;]|$)"
ENTRY = re.compile(rf"({_TERM})\s*(?::((?:{_TERM})+)\s*)?(?:;|$)")
LEGAL = re.compile(rf"(?:{_TERM}\s*(?::(?:{_TERM})*)?)?\s*")  # how an entry may begin


def parse(text: str, table: str) -> Iterator[TableEntry]:
    """Yield the entries of a table of names.

    The grammar of all tables, where any whitespace separates terms:

        table    = entry {";" entry}
        entry    = term [":" term {term}]
        term     = word {"." word} ["(" brackets ")"]
        brackets = any text without brackets

    "abs: absolute fabs; clip" says which function of ours a library's names mean: abs is the
    meaning of absolute and fabs, clip that of clip. Brackets hold pairs of parameters in a table
    for `Library.called` ("solve: solve(rhs=b)"), and the signature of the first term in one for
    `handlers_by_signature`.

    Args:
        table: the table's name in errors.

    Raises:
        ValueError: an entry is not of this grammar; the message says which, and where.
    """
    start = 0
    while start < len(text):
        match = ENTRY.match(text, start)
        if match is None:
            beginning = LEGAL.match(text, start)
            words = text[beginning.end() if beginning else start :].partition(";")[0].split()
            reason = f"{words[0]!r} is unexpected" if words else "a name is missing"
            refuse_entry(table, text, start, f"{reason}; expected 'ours' or 'ours: theirs theirs'")
        head, names = match.groups()
        (head_term,) = terms = tuple(map(Term._make, TERM.findall(head)))
        terms = tuple(map(Term._make, TERM.findall(names))) if names else terms
        yield TableEntry(head_term, terms, (table, text, start))
        start = match.end()


def refuse_entry(table: str, text: str, start: int, reason: str) -> NoReturn:
    """Raise ValueError for the entry of a table that begins at `start`."""
    remainder = text[start:]
    entry = " ".join(remainder.partition(";")[0].split())
    line = text.count("\n", 0, start + len(remainder) - len(remainder.lstrip())) + 1
    number = text.count(";", 0, start) + 1
    raise ValueError(f"{table}, entry {number} on line {line}, {entry!r}: {reason}")


def entries_in_rooms(rows: Mapping[Any, str], table: str) -> Iterator[tuple[Any, TableEntry]]:
    """Yield the entries of texts that are keyed by a module or its name, with that module."""
    for room, text in rows.items():
        home = sys.modules[room] if isinstance(room, str) else room
        for entry in parse(text, f"{table} by {_name_of(home)}"):
            yield home, entry


def meanings(
    rows: Mapping[Any, str], table: str = "handlers"
) -> Iterator[tuple[Handler, str, dict[str, str]]]:
    """Yield our function, a library's name and the pairs of parameters, for each name in rows that
    are keyed by the module that defines ours.
    """
    for home, entry in entries_in_rooms(rows, table):
        ours = entry.head.name.rpartition(".")[2]
        if not hasattr(home, ours):
            entry.refuse(f"no function {ours!r} there{suggest(ours, dir(home))}")
        for term in entry.names:
            # Few terms have brackets, and a first call reads a thousand.
            yield getattr(home, ours), term.name, term.pairs() if term.brackets else {}


def _name_of(home: Any) -> str:
    return getattr(home, "__name__", repr(home))


def ops_by_name(names: str, table: str = "names of ops") -> dict[str, Callable[..., Any]]:
    """Map each name in a table such as "abs: absolute fabs; exp" to the `xp` function that records
    the op.
    """
    handlers = {}
    for entry in parse(names, table):
        op = entry.head.name
        if op not in ops.OPS:
            entry.refuse(f"no op named {op!r}{suggest(op, ops.OPS)}")
        record = getattr(xp, ops.OPS[op].in_xp)
        handlers.update(dict.fromkeys((term.name for term in entry.names), record))
    return handlers


def named(names: str, library: ModuleType, **rooms: Any) -> dict[Any, Callable[..., Any]]:
    """Map each library function, found by its name, to the `xp` function that records it.

    Args:
        names: "exp; abs: absolute fabs".
        rooms: modules in which to look up names that begin with this word and a dot.
    """

    def find(name: str) -> Any:
        room, _, path = name.partition(".")
        return getattr(rooms[room], path) if room in rooms else attrgetter(name)(library)

    table = f"names of {_name_of(library)}"
    return {find(name): record for name, record in ops_by_name(names, table).items()}


# The names that libraries give the functions of an op, in whichever of their modules. No library
# has all of them; where one means something else by a name, a later row of its table says so.
COMMON = """
    add; sub: subtract sub; mul: multiply mul; div: divide true_divide truediv; neg: negative neg;
    pow: power pow; square; sqrt; rsqrt; reciprocal; cbrt; maximum; minimum;
    abs: abs absolute fabs; sign; copysign; floor; ceil; round: rint; trunc; floor_divide;
    remainder: remainder mod floormod; fmod; hypot; atan2: arctan2 atan2; exp; expm1; exp2; log;
    log1p; log2; log10; logaddexp; xlogy; xlog1py; sin; cos; tan; asin: arcsin asin;
    acos: arccos acos; atan: arctan atan; deg2rad: deg2rad radians; rad2deg: rad2deg degrees; sinh;
    cosh; tanh; asinh: arcsinh asinh; acosh: arccosh acosh; atanh: arctanh atanh; erf; erfc;
    erfinv: erfinv erf_inv; ndtr; ndtri; log_ndtr; lgamma: gammaln lgamma; digamma: digamma psi;
    i0e: i0e bessel_i0e; i1e: i1e bessel_i1e; nextafter; sinc; lt: less lt; le: less_equal le;
    gt: greater gt; ge: greater_equal ge; eq: equal eq; ne: not_equal ne; and: logical_and;
    or: logical_or; xor: logical_xor; not: logical_not; isnan: isnan is_nan; isinf: isinf is_inf;
    isfinite: isfinite is_finite; signbit; bitwise_and; bitwise_or; bitwise_xor;
    bitwise_invert: bitwise_invert bitwise_not invert;
    bitwise_left_shift: bitwise_left_shift left_shift shift_left;
    bitwise_right_shift: bitwise_right_shift right_shift shift_right_arithmetic; stop_gradient;
    sigmoid: sigmoid expit; logit; silu: silu swish; softplus; mish; relu; relu6; selu; sparse_plus;
    soft_sign: soft_sign softsign; tanh_shrink: tanh_shrink tanhshrink; hard_sigmoid;
    hard_silu: hard_silu hard_swish; swapaxes; moveaxis; flip; roll; tril; triu
"""


def common(*rooms: Any, spell: Callable[[str], str] = str) -> dict[Any, Callable[..., Any]]:
    """Map the functions that modules have under the names in COMMON to what records the ops.

    Args:
        spell: how these modules spell a name.
    """
    return {
        function: record
        for name, record in ops_by_name(COMMON, "common names of ops").items()
        for room in rooms
        if (function := getattr(room, spell(name), None)) is not None
    }


def handlers_by_name(rows: Mapping[Any, str]) -> dict[str, Callable[..., Any]]:
    """Map the library names in rows such as "div: div divide; add", by module, to our handlers."""
    return {name: meaning for meaning, name, _ in meanings(rows)}


def handlers_by_signature(rows: Mapping[Any, str]) -> dict[str, Callable[..., Any]]:
    """Map method names to handlers if no imported library could give their signatures.

    Args:
        rows: by the module that defines the handlers, each method with its signature, and our
            function with pairs of parameters: "tril(x, diagonal=0): tril(diagonal=k)".
    """
    handlers = {}
    for home, entry in entries_in_rooms(rows, "methods"):
        method, term = entry.head, entry.names[0]
        if len(entry.names) > 1 or not hasattr(home, term.name):
            entry.refuse("expected one function of that module after ':'")
        stub = eval(f"(lambda {method.brackets}: None)")
        stub.__name__ = method.name
        handlers[method.name] = Library(home).bound(stub, getattr(home, term.name), term.pairs())
    return handlers


# --- binding --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Library:
    """A library and the way in which its functions are called.

    Attributes:
        home: its module.
        rooms: modules for names that begin with one of these words and a dot.
        signature_of: returns the signature of a function.
        values: by parameter name, what converts the library's value to ours.
        also: other names for parameters, besides those in a signature.
    """

    home: Any
    rooms: Mapping[str, Any] = field(default_factory=dict)
    signature_of: Callable[[Any], inspect.Signature] = inspect.signature
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return f"names of {_name_of(self.home)}"

    def called(self, rows: Mapping[Any, str]) -> dict[Any, Handler]:
        """Map the library's functions to handlers that call our functions.

        Args:
            rows: by the module (or its name) that defines ours: "hsplit; unstack: unbind; F.glu;
                solve: solve(rhs=b); copy_of: copy(order=)". An entry is our function, its names in
                the library, and in brackets their parameters: the matching one of ours, or nothing
                if it is ignored. Names that the installed version lacks are left out.
        """
        return {
            function: self.bound(function, meaning, words)
            for meaning, name, words in meanings(rows, self.table)
            if (function := self.find(name)) is not None
        }

    def taking_the_same(self, rows: Mapping[Any, str]) -> dict[Any, Handler]:
        """Map the library's functions to ours with the same parameters, without adapters."""
        return {
            function: meaning
            for meaning, name, _ in meanings(rows, self.table)
            if (function := self.find(name)) is not None
        }

    def find(self, name: str) -> Any:
        """Return the function of a name; None if the installed version has none."""
        room, _, tail = name.partition(".")
        value, path = (self.rooms[room], tail) if room in self.rooms else (self.home, name)
        for part in path.split("."):
            value = getattr(value, part, None)
        return value

    def bound(
        self, function: Any, meaning: Handler, words: Mapping[str, str] | None = None
    ) -> Handler:
        """Return a meaning that is called like a function of the library.

        A parameter is paired with ours of the same name or a synonym; the remaining required ones
        are paired in order. A parameter unknown to ours is accepted only with its default; labels
        are dropped.

        Args:
            words: our parameter by the library's, where the names do not tell; "" drops one. None:
                ours takes all of the library's parameters but labels, in the same order.
        """

        @functools.cache
        def adapter() -> Handler:
            # The signature is read at the first call: importing a dialect must stay cheap.
            return bind(self, function, meaning, words)

        def call(*args: Any, **kwargs: Any) -> Any:
            run = adapter()
            if kwargs and self.also:
                names = run.__code__.co_varnames
                kwargs = {w if w in names else self.also.get(w, w): v for w, v in kwargs.items()}
            return run(*args, **kwargs)

        call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
        call.__doc__ = meaning.__doc__
        vars(call).update(meaning=meaning, adapter=adapter)
        return call


def bind(
    library: Library, function: Any, meaning: Handler, words: Mapping[str, str] | None
) -> Handler:
    """Compile the adapter of a meaning to a function's signature.

    If the library does not tell the signature, the meaning is called by its own.

    Raises:
        TypeError: the two do not fit.
    """
    ours = inspect.signature(meaning).parameters
    try:
        signature = library.signature_of(function)
    except ValueError:  # the library does not tell its signature
        return meaning
    theirs = signature.parameters
    pairs = in_order(theirs, ours) if words is None else paired(theirs, ours, words)
    name = getattr(function, "__name__", "").strip("_")
    name = name if name.isidentifier() and not iskeyword(name) else "call"
    scope: dict[str, Any] = {"_meaning": meaning, "_refuse": refuse_parameter, "__name__": __name__}
    own_names = {their: own for own, names in pairs.items() for their in names}
    dropped = {*LABELLING, *(their for their, own in (words or {}).items() if not own)}
    parameters, lines = [], []
    for word, each in theirs.items():
        default = each.default
        if word in own_names and default is NOT_GIVEN:
            default = ours[own_names[word]].default
        is_needed = default is UNSET and each.kind is not each.VAR_KEYWORD
        scope[f"_{word}"] = {} if default is UNSET else default
        if word not in own_names and word not in dropped:
            if is_needed:
                raise TypeError(f"{name}{signature}: {word!r} is nothing to {meaning}")
            # By identity first: a usual call pays one comparison for each parameter that it leaves
            # out.
            lines.append(f"if {word} is not _{word}: _refuse({name!r}, {word!r}, {word}, _{word})")
        default = UNSET if default is UNSET else _Written(f"_{word}")
        parameters.append(each.replace(default=default, annotation=UNSET))
        if word in library.values:
            scope[f"_as_{word}"] = library.values[word]
            lines.append(f"{word} = _as_{word}({word})")
    lines.append(f"return _meaning({', '.join(arguments(theirs, ours, pairs))})")
    heading = inspect.Signature(parameters)
    source = "\n    ".join((f"def {name}{heading}:", *lines))
    # Compiled with this file's name: checks of whose code runs must count it as ours.
    exec(compile(source, __file__, "exec"), scope)  # noqa: S102
    adapter: Handler = scope[name]
    adapter.source = source  # type: ignore[attr-defined]
    return adapter


NOT_GIVEN = getattr(np, "_NoValue", UNSET)


class _Written(str):
    """A string whose `repr` is its text, as a default in generated source."""

    __slots__ = ()
    __repr__ = str.__str__


def arguments(
    theirs: Parameters, ours: Parameters, pairs: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the arguments of the call of a meaning, as source text."""
    terms, is_positional = [], True
    for own, each in ours.items():
        names = pairs.get(own)
        if each.kind is each.VAR_POSITIONAL:
            for their in names or ():
                is_many = theirs[their].kind is each.VAR_POSITIONAL
                terms.append(f"*{their}" if is_many else their)
        elif names is None:
            if each.default is UNSET and each.kind is not each.VAR_KEYWORD:
                raise TypeError(f"nothing gives {own!r} among {', '.join(theirs)}")
            is_positional = False
        else:
            is_positional = is_positional and each.kind is not each.KEYWORD_ONLY
            terms.append(names[0] if is_positional else f"{own}={names[0]}")
    return terms


def paired(
    theirs: Parameters, ours: Parameters, words: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the library's parameter for each of ours."""
    pairs = {own: their for their, own in words.items() if own}
    dropped = [their for their, own in words.items() if not own]

    def free(parameters: Parameters, names_taken: Iterable[str]) -> list[str]:
        names_taken = {*names_taken, *LABELLING}
        return [
            word
            for word, each in parameters.items()
            if word not in names_taken and each.kind is not each.VAR_KEYWORD
        ]

    for word in free(theirs, words):  # 1. those of the same name
        if word in ours and word not in pairs:
            pairs[word] = word
    for word in free(theirs, [*pairs.values(), *dropped]):  # 2. synonyms
        twins = [own for own in free(ours, pairs) if SYNONYMS.get(own, own) == SYNONYMS.get(word)]
        if twins:
            pairs[twins[0]] = word
    # 3. Required parameters that no name pairs are paired in order.
    required = [
        [word for word in free(each, names_taken) if each[word].default in (UNSET, NOT_GIVEN)]
        for each, names_taken in ((ours, pairs), (theirs, [*pairs.values(), *dropped]))
    ]
    pairs.update(zip(*required, strict=False))
    return {own: (their,) for own, their in pairs.items()}


def in_order(theirs: Parameters, ours: Parameters) -> dict[str, tuple[str, ...]]:
    """Return the same if ours takes the library's parameters in the same order."""
    words = [word for word in theirs if word not in (*LABELLING, "out")]
    pairs: dict[str, tuple[str, ...]] = {}
    for own, each in ours.items():
        if each.kind is each.VAR_POSITIONAL:
            pairs[own], words = tuple(words), []
        elif words and each.kind is not each.KEYWORD_ONLY:
            pairs[own] = (words.pop(0),)
    return pairs


def refuse_parameter(name: str, word: str, value: Any, default: Any) -> None:
    """Raise TypeError for a parameter that no meaning takes, unless it has its default value."""
    is_plain = default is None or type(default) in PLAIN or default == {}
    if not (is_plain and type(value) is type(default) and value == default):
        raise TypeError(f"{name} with {word}={value!r:.40}")


def reflected(record: Callable[[Any, Any], Any], name: str = "") -> Callable[[Any, Any], Any]:
    """Return `record` as a reflected operator, operands swapped: `x.__rsub__(y)` is `y - x`."""

    def call(right: Any, left: Any) -> Any:
        return record(left, right)

    call.__name__ = call.__qualname__ = name or record.__name__
    return call


class AliasesAndMore(Mapping[Any, Callable[..., Any]]):
    """A library's aliases, and those of another library once it is imported: `more` returns one of
    these or raises KeyError.
    """

    def __init__(self, aliases: Mapping[Any, Handler], library: str, more: Handler) -> None:
        self.aliases, self.library, self.more = aliases, library, more

    def __getitem__(self, function: Any) -> Handler:
        handler = self.aliases.get(function)
        if handler is None and self.library not in sys.modules:
            raise KeyError(function)
        return self.more(function) if handler is None else handler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.aliases)

    def __len__(self) -> int:
        return len(self.aliases)
