"""Types come from the library: each call that is recorded is also made on stand-ins of one element,
and the dtype that the library gives them is that of the node.

A capture holds for every float dtype, so that where `T` stands among the operands the library is
asked for each of them: what follows T is T, what is the same for all is fixed, and where it is
neither, the dtype becomes a fact. What was answered is kept for the process: it depends on the
dtypes and ranks alone, and on what the library is set to (`TypeOracle.mode`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from ..backend.discovery import backend_of
from ..errors import BackendNotFound
from ..ir.graph import Node
from ..ir.types import BOOL, DTYPES, FLOATS, SCALAR_SHAPE, WHOLE, T, dtype_name
from ..passes.facts import needed_shapes
from ..tracing.axes import known_shape
from ..tracing.trace import NeedsConcrete, Trace, Value, cast, cast_node
from .arrays import Values
from .dialect import Dialect, find_dialect
from .extremes import Extremes
from .items import is_number
from .symbols import KnownShape, SymbolicDevice, SymbolicDType, SymbolicShape

Mark = tuple[Any, ...]
NOT_ASKED = re.compile(
    r"rand|bernoulli|dropout|(^|\.)normal_?$|uniform|multinomial|exponential_|poisson|permut|shuffle"
    r"|print|save|load|barrier|all_reduce|all_gather|broadcast_object|__(get|set)item__|numpy$|item$"
)
# Keywords by which a library computes in another dtype than its operands': cast first, as it does.
COMPUTES_IN = ("dtype", "preferred_element_type")
MAKES_LIKE = re.compile(
    r"_like$|^new_|cast|one_hot|^(to|type|astype|view|asarray|array|convert_.*|argm.*|.*search.*|eye)$"
)
# Of floats with numbers, these follow the floats in every library.
FOLLOWS = frozenset(
    getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
)
ORDERS = frozenset(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne"))
MOST_ANSWERS = 16_384
NUMBERS = {"float": 1.0, "int": 1, BOOL: True}


def _as_it_is(dtype: str, mode: Any) -> str:
    return dtype


@dataclass(frozen=True, slots=True)
class TypeOracle:
    """How a library is asked for the type of a result.

    Attributes:
        tiny: (dtype, rank, number, is_weak) -> a tensor of one element, which is the number.
        run: calls and the mode -> their results, None for one that raised; nothing of what is
            traced, recorded or drawn around it is touched.
        read: a leaf of a result -> its dtype by name and whether it is weak; None: no tensor.
        mode: what the answers depend on besides, as a key; read where a capture begins.
        dtypes: of the floats that T may stand for.
        ranks_count: whether a tensor without axes gives way to one with axes.
        apart: floats for which code is captured by itself, as numbers change them.
        canonical: (dtype, mode) -> that of an array which a capture has made.
    """

    tiny: Callable[[str, int, int, bool], Any]
    run: Callable[[Sequence[StandInCall], Any], list[Any]]
    read: Callable[[Any], tuple[str, bool] | None]
    mode: Callable[[], Any]
    dtypes: Callable[[Any], Sequence[str]] = lambda mode: FLOATS
    ranks_count: bool = False
    apart: tuple[str, ...] = ()
    canonical: Callable[[str, Any], str] = _as_it_is


@dataclass(frozen=True, slots=True)
class StandInCall:
    """A call on stand-ins.

    Attributes:
        function: what is called.
        arguments: what makes tensors, as `TypeOracle.tiny` -> args and kwargs.
    """

    function: Callable[..., Any]
    arguments: Callable[[Callable[[str, int, int, bool], Any]], tuple[Any, Any]]

    def run(self, tiny: Callable[[str, int, int, bool], Any]) -> Any:
        """Return the result, in a tuple."""
        args, kwargs = self.arguments(tiny)
        return (self.function(*args, **kwargs),)


def run_each(calls: Sequence[StandInCall], tiny: Callable[..., Any]) -> list[Any]:
    """Return the results of calls, None for one that raised."""
    results: list[Any] = []
    for call in calls:
        try:
            results.append(call.run(tiny))
        except Exception:  # it does not take them
            results.append(None)
    return results


class Unaskable(Exception):
    """A call cannot be made on stand-ins."""


_answers: dict[Any, Any] = {}


class LibraryTypes:
    """What the libraries say of the calls of one capture.

    Attributes:
        expected: the dtype of the result of the call that is being recorded, "" where there are
            several, or none.
        unconfirmed: calls of which no library could say the type.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.expected = ""
        self.unconfirmed: dict[str, None] = {}
        self._is_inside = False
        self._modes: dict[str, Any] = {}

    # --- a call ---------------------------------------------------------------------------------
    def confirmed(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        record: Callable[..., Any],
        shown: str = "",
    ) -> Any:
        """Return what `record(*args, **kwargs)` gives, in the type that the library gives it.

        Raises:
            TypeError: the graph's ops do not compute in that type.
            NeedsConcrete: the type depends on the dtype or the rank of an input.
        """
        oracle = self._oracle()
        if oracle is None or self._is_inside or _calls_back(args, kwargs):
            return record(*args, **kwargs)
        name = getattr(function, "__name__", "") or ""
        if NOT_ASKED.search(name):
            with self._within(""):
                return record(*args, **kwargs)
        answer = self._answer(function, args, kwargs)
        given = (args, dict(kwargs))
        if wide := self._computes_in(name, args, kwargs):
            args, kwargs = _mapped(given, lambda value: self._widened(value, wide))
            given = args, {k: v for k, v in kwargs.items() if k not in COMPUTES_IN}
        with self._within(answer[0][0] if answer is not None and len(answer) == 1 else ""):
            result = record(*given[0], **given[1])
            return self._in_type(result, answer, shown or name, given, record)

    @contextmanager
    def _within(self, expected: str) -> Iterator[None]:
        """Record a call: what its record calls in its turn is not asked."""
        before = self.expected, self._is_inside
        self.expected, self._is_inside = expected, True
        try:
            yield
        finally:
            self.expected, self._is_inside = before

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Run the user's own code within a call."""
        before = self.expected, self._is_inside
        self.expected, self._is_inside = "", False
        try:
            yield
        finally:
            self.expected, self._is_inside = before

    def _computes_in(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the dtype that a call names to compute in, "" for none."""
        if MAKES_LIKE.search(name):
            return ""
        named = next((kwargs[word] for word in COMPUTES_IN if kwargs.get(word) is not None), None)
        if named is None:
            named = next((a for a in args if is_dtype(a)), None)
        if named is None:
            return ""
        found = self.normal(dtype_name(named))
        return found if found in (T, *DTYPES) else ""

    def _widened(self, value: Any, dtype: str) -> Any:
        if not isinstance(value, Value) or value.node.type.kind != "tensor":
            return value
        return self.cast(value, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """Return a tensor in a dtype."""
        own = value.node.type.dtype
        if own == dtype:
            return value
        if own not in (T, *FLOATS) and dtype in (T, *FLOATS, *WHOLE):
            return value.trace.value(cast_node(value.node, dtype))  # bools too stay what is asked
        return cast(value, dtype)

    def _in_type(
        self, result: Any, answer: Any, shown: str, given: Any, record: Callable[..., Any]
    ) -> Any:
        """Return a recorded result in the type that the library gives it."""
        found = _leaves(result)
        if answer is not None and isinstance(result, Extremes | Values):
            answer = answer[:1]
        if answer is None or len(answer) != len(found):
            if any(isinstance(x, Value) and x.node.type.kind == "tensor" for x in found):
                self._note(shown, found, given)
            return result
        wrong = [
            (x, dtype)
            for x, (dtype, _) in zip(found, answer, strict=True)
            if isinstance(x, Value) and self._is_other(x, dtype)
        ]
        if wrong:
            result = self._anew(result, answer, shown, given, record, wrong)
        for x, (_, is_weak) in zip(_leaves(result), answer, strict=True):
            if is_weak and isinstance(x, Value):
                self.trace.weak.add(x.node)
        return result

    def _is_other(self, x: Value, dtype: str) -> bool:
        type_ = x.node.type
        return bool(dtype) and type_.kind == "tensor" and type_.dtype != dtype

    def _anew(
        self, result: Any, answer: Any, shown: str, given: Any, record: Any, wrong: Any
    ) -> Any:
        """Record a call once more, its operands cast first; what is exact is cast afterwards."""
        dtypes = {dtype for _, dtype in wrong}
        if all(_holds(x.node.type.dtype, dtype) for x, dtype in wrong):
            return self._cast_each(result, answer)
        dtype = dtypes.pop() if len(dtypes) == 1 else ""
        if dtype and dtype in (T, *DTYPES) and dtype != BOOL:
            cast_first = _mapped(given, lambda value: self._operand(value, dtype))
            again = record(*cast_first[0], **cast_first[1])
            pairs = list(zip(_leaves(again), answer, strict=True))
            if not any(isinstance(x, Value) and self._is_other(x, d) for x, (d, _) in pairs):
                return again
        x, dtype = wrong[0]
        name = self.shown(dtype)
        raise TypeError(
            f"it gives {name}, and {self.shown(x.node.type.dtype)} as a graph: cast its operands "
            f"to {name} first"
        )

    def _operand(self, value: Any, dtype: str) -> Any:
        is_tensor = isinstance(value, Value) and value.node.type.kind == "tensor"
        if not is_tensor or value.node.type.dtype == BOOL:
            return value
        return self.cast(value, dtype)

    def _cast_each(self, result: Any, answer: Any) -> Any:
        rest = iter(answer)

        def as_answered(x: Any) -> Any:
            dtype = next(rest)[0]
            other = isinstance(x, Value) and self._is_other(x, dtype)
            return self.cast(x, dtype) if other else x

        return _rebuilt(result, as_answered)

    def _note(self, shown: str, found: list[Any], given: Any) -> None:
        """Note a call of which the library could not say the type, unless it keeps its operand's."""
        operands = [x for x in _leaves(given) if isinstance(x, Value)]
        types = {x.node.type.dtype for x in operands if x.node.type.kind == "tensor"}
        if any(isinstance(x, Value) and x.node.type.dtype not in types for x in found):
            self.unconfirmed[shown] = None

    # --- what operands become -------------------------------------------------------------------
    def is_active(self) -> bool:
        """Return whether the library is known whose code runs now."""
        return self._oracle() is not None

    def mark(self, operand: Any, node: Node) -> Mark:
        """Return what the library would be told of an operand."""
        if isinstance(operand, Value):
            return self._mark_value(operand)
        return self._mark(operand)

    def common(self, marks: Sequence[Mark]) -> str:
        """Return the dtype in which the library computes on these, "" where it does not say."""
        tensors = [mark for mark in marks if mark[0] in ("t", "a", "g")]
        dtypes = {mark[1] for mark in tensors}
        numbers = {mark[1] for mark in marks if mark[0] == "n"}
        if len(dtypes) == 1:
            (dtype,) = dtypes
            follows = dtype in (T, *FLOATS) or (dtype in WHOLE and "float" not in numbers)
            if follows and not any(mark[3] for mark in tensors) and not self._is_apart(tensors):
                return self.normal(dtype)
        answer = self._ask_marks(operator.add, [_without_value(mark) for mark in marks])
        return answer[0][0] if answer else ""

    def float_of(self, marks: Sequence[Mark]) -> str:
        """Return the float dtype in which the library computes on integers and bools."""
        if self.expected in (T, *FLOATS):
            return self.expected
        tensors = [_without_value(mark) for mark in marks if mark[0] in ("t", "a", "g")]
        answer = self._ask_marks(operator.truediv, [tensors[0], tensors[0]]) if tensors else None
        return answer[0][0] if answer else ""

    def made(
        self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> tuple[str, bool] | None:
        """Return the dtype of what a creation function makes, and whether it is weak; None: nobody
        tells.
        """
        answer = None if self._oracle() is None else self._answer(function, args, kwargs)
        return answer[0] if answer else None

    # --- asking -----------------------------------------------------------------------------------
    def _dialect(self) -> Dialect | None:
        return find_dialect(self.trace.dialect) if self.trace.dialect else None

    def _oracle(self) -> TypeOracle | None:
        dialect = self._dialect()
        return None if dialect is None else dialect.types

    def mode(self) -> Any:
        """Return what the library was set to where the capture began."""
        name = self.trace.dialect
        if name not in self._modes:
            oracle = self._oracle()
            self._modes[name] = None if oracle is None else oracle.mode()
        return self._modes[name]

    def normal(self, dtype: str) -> str:
        """Return a dtype as nodes have it: T, where it is the input's."""
        return T if dtype == self.trace.facts.get("dtype") else dtype

    def shown(self, dtype: str) -> str:
        """Return a dtype for messages."""
        return str(self.trace.facts.get("dtype", "the input's dtype")) if dtype == T else dtype

    def _answer(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[tuple[str, bool]] | None:
        """Return the dtype of each leaf of a call's result, None where the library cannot say."""
        marks: list[Mark] = []
        try:
            key = (_marked(args, self._mark, marks), _marked(dict(kwargs), self._mark, marks))
        except Unaskable:
            return None
        tensors = [mark for mark in marks if mark[0] in ("t", "a", "g")]
        if function in FOLLOWS and _floats_and_numbers(marks) and not self._is_apart(tensors):
            return [(next(mark[1] for mark in marks if mark[0] == "t"), False)]
        if function in ORDERS and all(mark[0] in ("t", "n", "c") for mark in marks):
            return [(BOOL, False)]
        self._need_ranks(args, kwargs, marks)
        return self._ask(function, key, args, kwargs)

    def _is_apart(self, marks: Sequence[Mark]) -> bool:
        oracle = self._oracle()
        fixed = self.trace.facts.get("dtype")
        return oracle is not None and any(
            (fixed if mark[1] == T else mark[1]) in oracle.apart for mark in marks
        )

    def _ask_marks(self, function: Callable[..., Any], marks: Sequence[Mark]) -> Any:
        if len(marks) == 1:
            marks = [marks[0], marks[0]]
        answer: Any = None
        for mark in marks[1:]:  # one after the other, as operators take two
            pair = (("l", tuple, marks[0] if answer is None else _of(answer), mark), ("m",))
            answer = self._ask(function, pair, None, None)
            if not answer:
                return None
        return answer

    def _need_ranks(self, args: Any, kwargs: Any, marks: Sequence[Mark]) -> None:
        """Ask for the ranks of tensors where these decide on the dtype."""
        oracle = self._oracle()
        tensors = [mark for mark in marks if mark[0] in ("t", "a")]
        if oracle is None or not oracle.ranks_count or len({mark[1] for mark in tensors}) < 2:
            return
        for value in _leaves((args, kwargs)):
            if isinstance(value, Value) and value.node.type.kind == "tensor":
                if self._rank(value) is None:
                    raise NeedsConcrete(*needed_shapes(value.node))

    def _ask(self, function: Any, key: Any, args: Any, kwargs: Any) -> Any:
        """Return the library's answer, T in it where it follows T."""
        fixed = self.trace.facts.get("dtype")
        whole = (self.trace.dialect, self.mode(), function, key, fixed)
        try:
            if whole in _answers:
                return self._open(_answers[whole])
        except TypeError:  # no key
            return None
        oracle = self._oracle()
        assert oracle is not None
        choices = [fixed] if fixed else list(oracle.dtypes(self.mode())) if _has_t(key) else [""]
        found = self._asked(oracle, function, key, choices)
        if len(_answers) > MOST_ANSWERS:
            _answers.clear()
        answer = _answers[whole] = _follow(found, choices)
        return self._open(answer)

    def _open(self, answer: Any) -> Any:
        if answer == "dtype":
            raise NeedsConcrete("dtype")
        return answer and [(self.normal(dtype), is_weak) for dtype, is_weak in answer]

    def _asked(
        self, oracle: TypeOracle, function: Any, key: Any, choices: Sequence[str]
    ) -> list[Any]:
        """Ask on ones, or on zeros where these are no places; on tensors of more axes where the
        rank is not known and fewer do not do.
        """
        found: list[Any] = [None] * len(choices)
        for number, rank in ((1, 1), (0, 1), (1, 2), (0, 2), (1, 4)):
            calls = [self._call(function, key, c, number, rank) for c in choices]
            found = oracle.run(calls, self.mode())
            if any(each is not None for each in found):
                break
        return [None if each is None else self._read(oracle, each) for each in found]

    def _call(self, function: Any, key: Any, dtype: str, number: int, rank: int) -> StandInCall:
        dialect = self._dialect()

        def arguments(tiny: Callable[..., Any]) -> Any:
            return [_made(each, tiny, dialect, dtype, number, rank) for each in key]

        return StandInCall(function, arguments)

    def _read(self, oracle: TypeOracle, result: Any) -> Any:
        (result,) = result
        return [oracle.read(leaf) or ("", False) for leaf in _leaves(result)]

    # --- marks ------------------------------------------------------------------------------------
    def _mark(self, x: Any) -> Mark:
        """Return what an argument is, as a key from which a stand-in is made."""
        if isinstance(x, Value):
            return self._mark_value(x)
        if isinstance(x, SymbolicDType):
            return ("d", x.symbol)
        if isinstance(x, SymbolicShape | KnownShape):
            return ("s", len(x) if isinstance(x, KnownShape) else 1)
        if isinstance(x, SymbolicDevice):
            return ("v",)
        if type(x) in (bool, int, float, str, bytes, type(None), type(Ellipsis)):
            return ("c", type(x), repr(x), x)
        if isinstance(x, np.generic):
            return ("g", x.dtype.name, 0, False, type(x))
        if hasattr(x, "dtype") and hasattr(x, "shape"):
            return self._mark_array(x)
        if isinstance(x, FunctionType | MethodType) or not isinstance(x, Hashable):
            raise Unaskable
        return ("o", x)

    def _mark_array(self, x: Any) -> Mark:
        try:
            owner = backend_of(x).name
        except BackendNotFound:
            raise Unaskable from None
        is_weak = bool(getattr(x, "weak_type", False))
        oracle, dtype = self._oracle(), dtype_name(x.dtype)
        if oracle is not None and owner == self.trace.dialect:
            dtype = oracle.canonical(dtype, self.mode())
        return ("a", dtype, len(x.shape), is_weak, owner)

    def _mark_value(self, x: Value) -> Mark:
        type_ = x.node.type
        if type_.kind == "scalar" or is_number(x):
            return ("n", type_.dtype if type_.dtype in NUMBERS else "float")
        return ("t", type_.dtype, self._rank(x), x.node in self.trace.weak)

    def _rank(self, x: Value) -> int | None:
        if x.node.type.shape == SCALAR_SHAPE:
            return 0
        shape = known_shape(x)
        if shape is not None:
            return len(shape)
        return self.trace.facts.get("ndim") if x.node.type.shape == "x" else None


# --- trees ----------------------------------------------------------------------------------------
def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Extremes | Values):
        return [tree.values]
    if isinstance(tree, list | tuple) and not isinstance(tree, KnownShape):
        return [leaf for item in tree for leaf in _leaves(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in _leaves(item)]
    return [tree]


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Value):
        return change(tree)
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(item, change) for item in tree)
    if type(tree) is dict:
        return {name: _mapped(item, change) for name, item in tree.items()}
    return tree


def _rebuilt(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a result with each leaf changed, in its own containers."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_rebuilt(item, change) for item in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(_rebuilt(item, change) for item in tree)
    if isinstance(tree, dict):
        return {name: _rebuilt(item, change) for name, item in tree.items()}
    return change(tree)


def _marked(tree: Any, mark: Callable[[Any], Mark], marks: list[Mark]) -> Mark:
    if isinstance(tree, tuple | list) and not isinstance(tree, KnownShape):
        kind = type(tree) if type(tree) in (list, tuple) else tuple
        return ("l", kind, *(_marked(item, mark, marks) for item in tree))
    if isinstance(tree, dict):
        return ("m", *((name, _marked(item, mark, marks)) for name, item in tree.items()))
    if isinstance(tree, slice):
        return ("i", *(mark(x) for x in (tree.start, tree.stop, tree.step)))
    found = mark(tree)
    marks.append(found)
    return found


def _has_t(mark: Any) -> bool:
    if isinstance(mark, tuple):
        return mark[:2] in (("t", T), ("d", T)) or any(map(_has_t, mark))
    return False


def _made(
    mark: Mark, tiny: Any, dialect: Dialect | None, dtype: str, number: int, rank: int
) -> Any:
    """Return the stand-in that a mark stands for."""
    kind, *rest = mark

    def make(inner: Mark) -> Any:
        return _made(inner, tiny, dialect, dtype, number, rank)

    if kind == "l":
        return rest[0](make(inner) for inner in rest[1:])
    if kind == "m":
        return {name: make(inner) for name, inner in rest}
    if kind == "i":
        return slice(*map(make, rest))
    if kind in ("t", "a"):
        name = dtype if rest[0] == T else rest[0]
        axes = rank if rest[1] is None else rest[1]
        fill = number if name in WHOLE or name.startswith("uint") else 1
        if kind == "a" and rest[3] == "numpy":
            return np.full((1,) * axes, fill, _numpy(name))
        return tiny(name, axes, fill, rest[2])
    if kind == "g":
        return _numpy(rest[0]).type(1)
    if kind == "n":
        return NUMBERS[rest[0]]
    if kind == "c":
        return rest[2]
    if kind == "d":
        return dialect.dtype(dtype if rest[0] == T else rest[0]) if dialect else rest[0]
    if kind == "s":
        return (1,) * rest[0]
    if kind == "v":
        return dialect.device if dialect else None
    return rest[0]


def _numpy(name: str) -> np.dtype[Any]:
    from ..ops.numerics import as_numpy_dtype

    return as_numpy_dtype(name)


def _of(answer: list[tuple[str, bool]]) -> Mark:
    return ("t", answer[0][0], 1, answer[0][1])


def _without_value(mark: Mark) -> Mark:
    """Return a mark by which equal types are equal."""
    if mark[0] == "c":
        kind = mark[1]
        return ("n", {bool: BOOL, int: "int", float: "float"}[kind]) if kind in (
            bool, int, float,
        ) else mark  # fmt: skip
    return mark


def _floats_and_numbers(marks: Sequence[Mark]) -> bool:
    tensors = [mark for mark in marks if mark[0] == "t"]
    others = [mark for mark in marks if mark[0] != "t"]
    plain = all(m[0] == "n" or (m[0] == "c" and m[1] in (bool, int, float)) for m in others)
    alike = len({mark[1] for mark in tensors}) == 1 and tensors[0][1] in (T, *FLOATS)
    return bool(plain and alike and not any(mark[3] for mark in tensors))


def _follow(found: Sequence[Any], choices: Sequence[str]) -> Any:
    """Return one answer for all dtypes that T may be: "dtype", where it depends on it."""
    known = [(each, dtype) for each, dtype in zip(found, choices, strict=True) if each is not None]
    if not known:
        return None
    lengths = {len(each) for each, _ in known}
    if len(lengths) > 1:
        return "dtype"
    rows = []
    for i in range(lengths.pop()):
        answers = [(each[i], dtype) for each, dtype in known]
        if all(name == dtype for (name, _), dtype in answers) and len(choices) > 1:
            rows.append((T, answers[0][0][1]))
        elif len({answer for answer, _ in answers}) == 1:
            rows.append(answers[0][0])
        else:
            return "dtype"
    return rows


def _holds(narrow: str, wide: str) -> bool:
    """Return whether a cast afterwards is what computing in the wider dtype gives: places and
    counts.
    """
    return (narrow in WHOLE and wide in WHOLE) or (narrow == BOOL and wide in WHOLE)


def _calls_back(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call takes functions of the user's, which run on symbols."""
    return any(
        callable(x) and not isinstance(x, type | Value | np.dtype) and not is_dtype(x)
        for x in (*args, *kwargs.values())
    )


def is_dtype(x: Any) -> bool:
    """Return whether an argument is a dtype: a library's object, or a class of NumPy's scalars."""
    if isinstance(x, np.dtype | SymbolicDType):
        return True
    if isinstance(x, type):
        return issubclass(x, np.generic)
    return type(x).__name__.lower() in ("dtype", "_scalarmeta", "jnpscalarmeta")
