"""The type oracle: a library is asked for dtypes by a call on stand-ins of one element.

An argument becomes a mark, which holds all that a dtype may depend on, and is a key. The stand-ins
are made from marks, for each dtype that `T` may be:

    torch.add(x, 1), x of T        marks: tensor of T, value 1
    T may be float32, float64      calls: torch.add(ones(1, float32), 1), the same in float64
    answers: float32, float64      combined: [LeafType(T)], as they follow T

`answer_to` caches this for the process. The file goes from the parts to the whole: what an oracle
is, which calls are asked, trees, marks, stand-ins from marks, asking, combining, the cache.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from ....core.ir.graph import Node
from ....core.ir.op import BOOL, DTYPES, FLOATS, WHOLE, T, dtype_name
from ....core.ops.numerics import as_numpy_dtype
from ....core.support.threads import set_within
from ....core.trace.lookups import Telling
from ....core.trace.trace import Value
from ..dialect import find_dialect, registered_dialects
from ..meanings.places import Extremes
from ..symbols import KnownShape, SymbolicDevice, SymbolicDType, SymbolicShape

Tensor = Any
Tiny = Callable[[str, tuple[int, ...], int, bool], Tensor]
Mode = Any


class LeafType(NamedTuple):
    """The type of a leaf of a result: its dtype, T if it follows the input's and "" for what is no
    tensor, and whether that gives way to other dtypes.
    """

    dtype: str = ""
    is_weak: bool = False


Answer = list[LeafType]  # for each leaf of a result


class NoAnswer(Enum):
    """What stands for an answer, besides None: the library refuses the call."""

    DEPENDS = "it depends on the dtype of T"
    NOT_ASKED = "the library was not asked yet"


NUMBERS = {"float": 1.0, "int": 1, BOOL: True}
KINDS: dict[type, str] = {bool: BOOL, int: "int", float: "float"}
DTYPE_WORDS = (bool, int, float, *DTYPES)  # dtypes that calls name besides a library's objects
ARRAYS = ("tensor", "array")  # the kinds of marks that have a dtype of their own


class Mark(NamedTuple):
    """The kind of an argument; a tuple, since it is part of keys that each call looks up.

    Attributes:
        kind: "tensor" (a symbol), "array" (a constant), "number", "dtype", "shape", "device",
            "items", "pairs", "slice", or "value" (anything else, unchanged).
        dtype: of a tensor, a number or a dtype.
        rank: of a tensor, or the length of a shape; None: not known.
        is_weak: whether its dtype gives way.
        value: the items, the class of a container, or the value itself; of a symbol its shape, if
            the call does not take smaller ones.
    """

    kind: str
    dtype: str = ""
    rank: int | None = 0
    is_weak: bool = False
    value: Any = None

    @property
    def is_tensor(self) -> bool:
        return self.kind in ARRAYS


NO_PAIRS = Mark("pairs", value=())


@dataclass(frozen=True, slots=True)
class StandInCall:
    """A call on stand-ins; `arguments` makes its args and kwargs, of tensors that `tiny` makes."""

    function: Callable[..., Any]
    arguments: Callable[[Tiny], tuple[Any, Any]]

    def run(self, tiny: Tiny) -> Any:
        args, kwargs = self.arguments(tiny)
        return (self.function(*args, **kwargs),)


def run_each(calls: Sequence[StandInCall], tiny: Tiny) -> list[Any]:
    """Return the results of calls, None for one that raised."""
    results: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cached answers must not depend on filters
        for call in calls:
            try:
                results.append(call.run(tiny))
            except Exception:  # whatever it raises, it does not take these arguments
                results.append(None)
    return results


def as_it_is(dtype: str, mode: Mode) -> str:
    return dtype


def never(function: Any) -> bool:
    # The default of `is_wide`, `casts_first` and `casts`: a function computes as its parts do.
    return False


def wide_floats(mode: Mode) -> Sequence[str]:
    """Return the dtypes that an open T may be; calls in 16 bits are captured separately."""
    return FLOATS[2:]


@dataclass(frozen=True, slots=True)
class TypeOracle:
    """How a library is asked.

    Attributes:
        tiny: (dtype, shape, number, is_weak) -> a small tensor, filled with the number.
        run: (calls, mode) -> their results, None for one that raised; it touches nothing that is
            traced, recorded or drawn around it.
        read: a leaf of a result -> its dtype by name, and whether it is weak; None: no tensor.
        mode: the settings that answers depend on, as a key; read when a capture begins.
        floats: (mode) -> the dtypes that T may be.
        ranks_count: whether a tensor without axes gives way to one with axes.
        apart: floats that promote differently with numbers.
        is_wide: (function) -> whether it computes in float32 on tensors of 16 bits and rounds once,
            though it is made of several ops here.
        promotes: whether it computes on two dtypes; if not, code that mentions no library is
            written for others.
        casts_first: (function) -> whether it casts all operands to the result's dtype before it
            computes, though it is made of several ops here.
        canonical: (dtype, mode) -> the dtype of an array that a capture has made.
        casts: (function) -> whether the library may compute it in a dtype of its own choice, if
            code around it asks for that.
        states: (function's name, marks, answer) -> whether the answer is the same in every mode;
            without it only answers in the operands' float dtype are.
    """

    tiny: Tiny
    run: Callable[[Sequence[StandInCall], Mode], list[Any]]
    read: Callable[[Any], tuple[str, bool] | None]
    mode: Callable[[], Mode]
    floats: Callable[[Mode], Sequence[str]] = wide_floats
    ranks_count: bool = False
    apart: tuple[str, ...] = ()
    is_wide: Callable[[Any], bool] = never
    casts_first: Callable[[Any], bool] = never
    casts: Callable[[Any], bool] = never
    promotes: bool = True
    canonical: Callable[[str, Mode], str] = as_it_is
    states: Callable[[str, Sequence[Mark], Answer], bool] | None = None


class Unaskable(Exception):
    """A call cannot be made on stand-ins."""


# --- which calls are asked, trees, marks ----------------------------------------------------------
# Calls that would act, draw or wait, and calls that keep their operand's dtype.
NOT_ASKED = (
    r"rand|bernoulli|dropout|(^|\.)normal_?$|uniform|multinomial|exponential_|poisson|permut|masked_s"
    r"|shuffle|print|save|load|barrier|all_reduce|all_gather|broadcast_object"
    r"|__(get|set)item__|numpy$|item$"
    r"|^(fft_)?i?r?fft[2n]?d?$|fftshift$|^view_as_complex$|^(_)?complex$|^polar$"
)
# Keywords that name the dtype to compute in: operands are cast to it first, as the library does.
COMPUTES_IN = ("dtype", "preferred_element_type")
# Calls whose dtype argument is that of the result alone.
GIVES_DTYPE = (
    r"_like$|^new_|cast|one_hot|count_nonzero"
    r"|^(to|type|astype|view|asarray|array|convert_.*|argm.*|.*search.*|eye)$"
)
# On floats and numbers these follow the floats, in every library.
FOLLOWS = frozenset(
    getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
)
FOLLOWING = (LeafType(T), LeafType(BOOL))  # leaves that are the same in every mode
ORDERS = frozenset(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne"))
is_not_asked = partial(re.search, NOT_ASKED)


def leaves_of(tree: Any) -> list[Any]:
    # First: `isinstance` of a symbol with another class inspects frames.
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, Extremes):
        return [tree.values]
    if isinstance(tree, list | tuple) and not isinstance(tree, KnownShape):
        return [leaf for item in tree for leaf in leaves_of(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves_of(item)]
    return [tree]


def with_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with each leaf changed, in containers of the same kind."""
    if isinstance(tree, Value):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(with_leaves(item, change) for item in tree))
    if type(tree) in (list, tuple):
        return type(tree)(with_leaves(item, change) for item in tree)
    if type(tree) is dict:
        return {name: with_leaves(item, change) for name, item in tree.items()}
    return change(tree)


def mark_tree(tree: Any, mark: Callable[[Any], Mark], found: list[Mark]) -> Mark:
    """Return the mark of nested arguments; the marks of the leaves are appended to `found`."""
    if isinstance(tree, Value):
        leaf = mark(tree)
        found.append(leaf)
        return leaf
    if isinstance(tree, tuple | list) and not isinstance(tree, KnownShape):
        kind = list if isinstance(tree, list) else tuple
        return Mark("items", value=(kind, *[mark_tree(item, mark, found) for item in tree]))
    if isinstance(tree, dict):
        if not tree:
            return NO_PAIRS
        pairs = ((name, mark_tree(item, mark, found)) for name, item in tree.items())
        return Mark("pairs", value=tuple(pairs))
    if isinstance(tree, slice):
        return Mark("slice", value=tuple(map(mark, (tree.start, tree.stop, tree.step))))
    leaf = mark(tree)
    found.append(leaf)
    return leaf


def mark_plain(x: Any) -> Mark:
    """Return the mark of an argument that is not a tensor; Unaskable for a function of the user's,
    or what is not hashable.
    """
    if isinstance(x, SymbolicDType):
        return Mark("dtype", x.symbol)
    if isinstance(x, SymbolicShape | KnownShape):
        return Mark("shape", rank=len(x) if isinstance(x, KnownShape) else 1)
    if isinstance(x, SymbolicDevice):
        return Mark("device")
    if type(x) in (*KINDS, str, bytes, type(None), type(Ellipsis)):
        return Mark("value", value=(type(x), repr(x), x))  # 1, 1.0 and True are different keys
    if isinstance(x, FunctionType | MethodType) or not isinstance(x, Hashable):
        raise Unaskable
    return Mark("value", value=(type(x), id(x), x))


def without_value(mark: Mark) -> Mark:
    """Return the mark of a number of any value."""
    kind = KINDS.get(mark.value[0]) if mark.kind == "value" else None
    return mark if kind is None else Mark("number", kind)


def one_float(operands: Sequence[Any], weak: Container[Node]) -> str:
    """Return the only float dtype of symbols and Python numbers, as of most calls; else ""."""
    float_dtype = ""
    for x in operands:
        if isinstance(x, Value):
            if x.is_number or x.node.type.kind == "scalar":
                continue
            dtype = x.node.type.dtype
            if float_dtype not in ("", dtype) or dtype not in (T, *FLOATS) or x.node in weak:
                return ""
            float_dtype = dtype
        elif type(x) not in KINDS:
            return ""
    return float_dtype


def is_dtype(x: Any) -> bool:
    """Return whether an argument is a dtype: a library's object, or a NumPy scalar class."""
    if isinstance(x, Value) or type(x) in KINDS:  # most are; a symbol's class inspects frames
        return False
    if isinstance(x, np.dtype | SymbolicDType):
        return True
    if isinstance(x, type):
        return issubclass(x, np.generic) or type(x).__name__ == "_ScalarMeta"  # jax.numpy's
    return type(x).__name__ in ("dtype", "DType")


def calls_back(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call takes functions of the user's, which run on symbols."""
    return any(
        callable(x) and not isinstance(x, type | Value | np.dtype) and not is_dtype(x)
        for x in leaves_of((args, dict(kwargs)))
    )


def computed_in(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the name of the dtype that a call is told to compute in, "" for none."""
    if re.search(GIVES_DTYPE, name):
        return ""
    dtype = next((kwargs[word] for word in COMPUTES_IN if kwargs.get(word) is not None), None)
    dtype = next(filter(is_dtype, args), None) if dtype is None else dtype
    return "" if dtype is None else dtype_name(dtype)


def names_dtype(mark: Mark) -> bool:
    if mark.kind != "value":
        return mark.kind == "dtype"
    argument = mark.value[2]
    return type(argument) not in KINDS and (is_dtype(argument) or argument in DTYPE_WORDS)


def is_stated(
    oracle: TypeOracle, function: Callable[..., Any], marks: Sequence[Mark], answer: Answer
) -> bool:
    """Return whether an answer is the same in every mode of a library."""
    tensors = [mark for mark in marks if mark.kind in ARRAYS]
    other_marks = [mark for mark in marks if mark.kind in ("dtype", "value")]
    if (
        tensors
        and not [mark for mark in tensors if (mark.dtype, mark.is_weak) != FOLLOWING[0]]
        and not [each for each in answer if each not in FOLLOWING]
        and not any(map(names_dtype, other_marks))
    ):
        return True
    name = getattr(function, "__name__", "") or ""
    return oracle.states is not None and oracle.states(name, marks, answer)


def ranks_decide(arrays: Sequence[Mark], fixed: str) -> bool:
    """Return whether the dtype of a result depends on ranks, if T is fixed to a dtype."""
    dtypes = {fixed if mark.dtype == T else mark.dtype for mark in arrays} - {BOOL}
    integers = dtypes & {*WHOLE}  # a rank decides only among dtypes of one kind
    return max(len(integers), len(dtypes - integers)) > 1


def follows_input(mark: Mark) -> bool:
    """Return whether a stand-in depends on the dtype of T."""
    if mark.kind in ("tensor", "dtype"):
        return mark.dtype == T
    items = mark.value if mark.kind in ("items", "pairs", "slice") else ()
    if mark.kind == "pairs":
        items = [item for _, item in items]
    return any(isinstance(item, Mark) and follows_input(item) for item in items)


def make_arguments(
    key: Sequence[Mark], dialect: Any, of_input: str, attempt: tuple[int, int, int], tiny: Tiny
) -> Any:
    """Return the stand-ins for marks.

    Args:
        dialect: the library whose objects they are.
        of_input: the dtype of T.
        attempt: one of `ATTEMPTS`.
    """
    number, rank, length = attempt

    def make(mark: Mark) -> Any:
        value, dtype = mark.value, of_input if mark.dtype == T else mark.dtype
        if mark.kind in ARRAYS:
            fill = number if dtype in WHOLE or dtype.startswith("uint") else 1
            shape = (length,) * (rank if mark.rank is None else mark.rank)
            if mark.kind == "array" and value == "numpy":
                return np.full(shape, fill, as_numpy_dtype(dtype))
            if mark.kind == "array" and value is not None and isinstance(value, type):
                return as_numpy_dtype(dtype).type(fill)  # NumPy's scalar
            shape_of_tensor = value if mark.kind == "tensor" and value is not None else shape
            return tiny(dtype, shape_of_tensor, fill, mark.is_weak)
        if mark.kind == "items":
            return value[0](map(make, value[1:]))
        if mark.kind == "pairs":
            return {name: make(item) for name, item in value}
        if mark.kind == "slice":
            return slice(*map(make, value))
        if mark.kind == "number":
            return NUMBERS[dtype]
        if mark.kind == "dtype":
            return dialect.tensors.dtype(dtype)
        if mark.kind == "shape":
            return (length,) * (mark.rank or 0)
        return dialect.tensors.device if mark.kind == "device" else value[2]

    return [make(mark) for mark in key]


# --- asking ---------------------------------------------------------------------------------------
# (value of integers, unknown rank, length of axes): tried in order until the library accepts one.
# An axis of 12 has a second place, and splits into 2, 3, 4 or 6 parts.
ATTEMPTS = ((1, 1, 1), (1, 1, 12), (1, 2, 12))
ATTEMPTS += ((0, 1, 1), (1, 2, 1), (0, 2, 1), (1, 4, 1), (1, 1, 6), (0, 2, 6))


def ask(
    function: Callable[..., Any],
    key: tuple[Mark, ...],
    dialect: Any,
    mode: Mode,
    choices: Sequence[str],
) -> list[Answer | None]:
    """Return a library's answer for each dtype that T may be, None if it refuses.

    Args:
        key: the marks of the call's args and kwargs.
        mode: the library's settings.
    """
    oracle, results = dialect.types, [None] * len(choices)
    for attempt in ATTEMPTS:
        calls = [
            StandInCall(function, partial(make_arguments, key, dialect, dtype, attempt))
            for dtype in choices
        ]
        results = oracle.run(calls, mode)
        # The first attempt that the library takes for any dtype decides for all.
        if any(each is not None for each in results):
            break
    return [
        None if each is None else [LeafType(*(oracle.read(x) or ())) for x in leaves_of(each[0])]
        for each in results
    ]


def combine(answers: Sequence[Answer | None], choices: Sequence[str]) -> Answer | NoAnswer | None:
    """Return one answer for all dtypes that T may be.

    DEPENDS if the answers differ otherwise than by T; None if the library refuses each.
    """
    pairs = zip(answers, choices, strict=True)
    valid = [(answer, dtype) for answer, dtype in pairs if answer is not None]
    if not valid:
        return None
    if len({len(answer) for answer, _ in valid}) > 1:
        return NoAnswer.DEPENDS
    combined: Answer = []
    for leaves in zip(*(answer for answer, _ in valid), strict=True):
        follows = all(leaf.dtype == dtype for leaf, (_, dtype) in zip(leaves, valid, strict=True))
        # With a single choice a result that follows T looks like one of a fixed dtype.
        if follows and len(choices) > 1:
            combined.append(LeafType(T, leaves[0].is_weak))
        elif len(set(leaves)) == 1:
            combined.append(leaves[0])
        else:
            return NoAnswer.DEPENDS
    return combined


# --- what libraries have answered -----------------------------------------------------------------
# Answers are cached for the process: they depend on dtypes, ranks and settings (64 bits in JAX, the
# default dtype in torch) alone. They also tell in which 16-bit dtypes a capture for the wide floats
# is the same graph.

# The settings at the start of a capture; None outside one.
_modes: ContextVar[dict[str, Any] | None] = ContextVar("multigrad_modes", default=None)


def modes() -> dict[str, Any]:
    """Return the settings of each library; in a capture, those at its start."""
    dialects = registered_dialects().items()
    return _modes.get() or {name: each.types.mode() for name, each in dialects if each.types}


def is_capturing() -> bool:
    return _modes.get() is not None


def keeping_modes() -> AbstractContextManager[Any]:
    """Let captures within see the present settings, whatever the code changes meanwhile."""
    return set_within(_modes, modes())


class ModeOf(Telling):
    """The fact that gives the settings of the library of this name."""

    def meaning(self) -> Any:
        """Return the library's settings; in a capture, those at its start."""
        modes_at_start = _modes.get()
        if modes_at_start is not None and self in modes_at_start:
            return modes_at_start[self]
        dialect = find_dialect(str(self))
        return None if dialect is None or dialect.types is None else dialect.types.mode()


MOST_ANSWERS = 16_384
# By question; cleared as a whole when it holds MOST_ANSWERS.
_answers: dict[Any, Any] = {}

# A library, its settings, its function, and the marks of args and kwargs.
Asked = tuple[str, Any, Callable[..., Any], tuple[Mark, ...]]


def answer_to(asked: Asked, fixed: str | None) -> Answer | NoAnswer | None:
    """Return a library's answer, with T where it follows T, which may be fixed; see `combine`.

    None: it cannot say, or the question is not hashable.
    """
    question = (*asked, fixed)
    try:
        answer = _answers.get(question, NoAnswer.NOT_ASKED)
    except TypeError:
        return None
    if answer is not NoAnswer.NOT_ASKED:
        return answer
    library, mode, function, key = asked
    dialect = find_dialect(library)
    assert dialect is not None and dialect.types is not None
    floats = [fixed] if fixed else dialect.types.floats(mode)
    choices = list(floats) if any(map(follows_input, key)) else [""]
    if len(_answers) > MOST_ANSWERS:
        _answers.clear()
    answer = _answers[question] = combine(ask(function, key, dialect, mode, choices), choices)
    return answer


def in_terms_of(fixed: str | None, answer: Answer) -> Answer:
    """Return an answer with T in place of the input's dtype."""
    if fixed is None:
        return answer
    is_input = fixed in FLOATS
    return [LeafType(T, x.is_weak) if is_input and x.dtype == fixed else x for x in answer]


@dataclass(slots=True, eq=False)
class Reach:
    """Notes of a capture for the wide floats that a capture for 16 bits may contradict.

    Attributes:
        named: dtypes that the code looked for.
        asked: questions to libraries, with their answers.
        composed: functions made of several ops, each with a predicate: does the library round once?
    """

    named: set[str] = field(default_factory=set)
    asked: list[tuple[Asked, Answer | None]] = field(default_factory=list)
    composed: dict[Any, Callable[[Any], bool]] = field(default_factory=dict)

    def holds_in(self, dtype: str) -> bool:
        """Return whether a capture for a dtype would give the same graphs."""
        if dtype in self.named or any(is_wide(f) for f, is_wide in self.composed.items()):
            return False
        for question, expected in self.asked:
            answer = answer_to(question, dtype)
            if expected != (in_terms_of(dtype, answer) if isinstance(answer, list) else answer):
                return False
        return True
