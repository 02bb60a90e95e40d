"""The trace of code that is not plain: whose dtypes its operators have (six states, with a table of
transitions), what its graph leaves out of it, and the gradients that it takes.

`x + 1` has another dtype in another library, so a capture must know whose operators the code means.
All tensors accept NumPy's numbers: code that mentions NumPy and no framework may be NumPy's, or
that of the tensors it is given. It is recorded as NumPy's until one of them is certain.

A capture notes each kind of omission in `Limits.omissions`; if one matters, the code itself runs
(`functions/decision.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, ClassVar, NamedTuple

from ...core import ops
from ...core.ir import questions
from ...core.ir.graph import Location, Node, make_node
from ...core.ir.op import BOOL, Op, is_float
from ...core.passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from ...core.trace.coercion import NeedsConcrete, coerce, in_dtype, on_bools, small_result
from ...core.trace.source import CODE, TENSORS, Reading, Source
from ...core.trace.trace import Trace, Value, apply, mark_view, setting

# The code in which captures begin: what lies outside it is none of the user's.
ENTRANCES: set[CodeType] = set()


# --- what a graph leaves out ----------------------------------------------------------------------
class Assumption(NamedTuple):
    """An assertion about a value: its expected truth, its place, and the exception it raises."""

    node: Node
    expected: bool
    where: Location | None
    kind: type[Exception]


@dataclass(slots=True, eq=False, repr=False)
class Limits:
    """The respects in which a capture's graph does not represent the code."""

    assumed: list[Assumption] = field(default_factory=list)
    omissions: dict[str, str] = field(default_factory=dict)  # what is left out: a kind, its words
    branch_path: Any = None  # a `BranchPath`, if branches on values are recorded once per path
    draws_of_one: int = 0  # the most draws of a function that it calls


@dataclass(slots=True, eq=False, repr=False)
class Backward:
    """The gradients that code takes, where gradients stop, and what has no derivative."""

    is_running: bool = False  # the backward of a function runs, or ran
    is_taped: bool = False  # a tape records, which will take gradients
    is_once: bool = False  # the backward is valid for first derivatives only
    lost_gradient: str = ""  # a function whose ops were recorded without its own gradient
    leaves: list[weakref.ref[Value]] = field(default_factory=list)  # whose gradients code takes
    # Returns whether a library's context stops gradients now (`torch.no_grad`).
    is_paused: Callable[[], bool] | None = None
    # Gives a node another name. Where code takes gradients, equal tensors must be told apart.
    rename: Callable[[Node], Node] | None = None

    def plainly(self) -> AbstractContextManager[None]:
        """Record nodes of our own: they need no names, and gradients pass through them."""
        return setting(self, is_paused=None, rename=None)


# --- whose dtypes operators have ------------------------------------------------------------------
# The first state of a function is that of `first_dtype_owner` in
# `capture/user_code/libraries.py`.
NOBODY = "nobody's"  # no library: the code is written with `xg.xp`
OPEN = "open"  # NumPy's: the code mentions it, and its functions met no tensor yet
LEANING = "leaning"  # NumPy's, as open; another library may give another dtype than was recorded
LENT = "lent"  # the library of the call's tensors: in an earlier capture the code leaned to the end
OF_CODE = frozenset((CODE, OPEN, LEANING))
OF_TENSORS = frozenset((TENSORS, LENT))
UNDECIDED = frozenset((TENSORS, OPEN, LEANING, LENT))  # the code mentions no framework

MEETS = "a function of NumPy's, or an array, meets a tensor"
RELIES = "a dtype depends on the library"
ENDS = "the capture ends, or fails"


class Transition(NamedTuple):
    """A row of the table, which docs/architecture.md draws."""

    state: str
    event: str
    next: str
    repeated_with: tuple[str, ...] = ()  # facts with which a new capture begins in the next state
    given: str = ""  # a fact without which nothing happens


TRANSITIONS = (
    Transition(OPEN, RELIES, LEANING),
    Transition(OPEN, MEETS, CODE),
    Transition(LEANING, MEETS, CODE),
    Transition(LEANING, ENDS, LENT, (ON_NUMBERS, LIBRARY)),
    Transition(LENT, RELIES, TENSORS),
    Transition(LENT, MEETS, CODE),
    # It was lent, and what was recorded since has the dtypes of its tensors' library.
    Transition(TENSORS, MEETS, CODE, (ON_TENSORS,), given=ON_NUMBERS),
)
BY_EVENT = {(each.state, each.event): each for each in TRANSITIONS}


def _happen(trace: CodeTrace, event: str) -> None:
    row = BY_EVENT.get((trace.reading.owner, event))
    if row is None or (row.given and row.given not in trace.facts):
        return
    if row.repeated_with:
        raise NeedsConcrete(*row.repeated_with)
    trace.reading.owner = row.next


def meet_numpy(trace: CodeTrace) -> None:
    """Note that a function of NumPy's, or an array, meets a tensor: the code is NumPy's.

    Raises:
        NeedsConcrete: a value was already recorded with the dtype of its tensors' library.
    """
    _happen(trace, MEETS)


def rely_on_library(trace: CodeTrace) -> None:
    _happen(trace, RELIES)


def is_lent(trace: CodeTrace) -> bool:
    """Return whether code that calls NumPy's functions on numbers has its tensors' dtypes."""
    rely_on_library(trace)
    return trace.reading.owner == TENSORS and ON_NUMBERS in trace.facts


def library_of(trace: CodeTrace) -> str:
    """Return the library that symbols belong to."""
    rely_on_library(trace)
    if trace.reading.owner not in OF_TENSORS:
        return trace.reading.typed_by if trace.reading.owner in OF_CODE else ""
    if LIBRARY not in trace.facts:
        raise NeedsConcrete(LIBRARY)
    return trace.facts[LIBRARY]


def place_of(trace: CodeTrace) -> str:
    """Return the kind of device of a function's tensors, a fact of its capture."""
    if "device_type" not in trace.facts:
        raise NeedsConcrete("device_type")
    return trace.facts["device_type"]


def lend(trace: CodeTrace) -> None:
    """End a capture, or a failed part of it: code that leans is captured again as the tensors'."""
    source = trace.source
    if source.was_leaning or LEANING in (trace.reading.owner, source.latest.owner):
        raise NeedsConcrete(*BY_EVENT[LEANING, ENDS].repeated_with, noted=False) from None


def names_of(trace: CodeTrace) -> str:
    """Return the library whose names the running code uses, "" if that is not known.

    Raises:
        NeedsConcrete: that of the call's tensors, which has to be a fact.
    """
    reading, facts = trace.reading, trace.facts
    if reading.is_open:
        # The likeliest reading holds for what was recorded so far, too; another begins anew.
        if not facts.tell((LIBRARY,)) or facts[LIBRARY] != reading.dialect:
            raise NeedsConcrete(LIBRARY)
        reading.is_open, reading.libraries = False, (reading.dialect,)
    trace.source.reads_names = True
    return reading.dialect


def note_read(source: Source, reading: Reading) -> None:
    """Note the reading of a function that has run: its backward is read in the same way."""
    source.was_leaning |= source.latest.owner == LEANING
    source.latest = reading


# --- the trace ------------------------------------------------------------------------------------
class Pair:
    """A complex tensor of two symbols, which records the calls that it is given to.

    Attributes:
        is_made: whether this process has made one; until then no call looks for any.
    """

    __slots__ = ()
    trace: Any
    is_made: ClassVar[bool] = False

    def called(self, library: str, function: Any, args: Any, kwargs: Any, shown: str) -> Any:
        raise NotImplementedError


class CodeTrace(Trace):
    """A capture of code that is not plain, in progress."""

    def __init__(
        self,
        name: str,
        facts: Mapping[str, Any] | None = None,
        value_class: type[Value] | None = None,
        kind: str = "rule",
        namespace: Any = None,
    ) -> None:
        super().__init__(name, facts, value_class, kind, namespace)
        self.backward = Backward()
        self.limits = Limits()
        self.overriding: Any = None  # puts rules on what is recorded (`xg.override`)

    @property
    def dialect(self) -> str:
        """The library whose names the running code uses, "" if unknown; may raise NeedsConcrete."""
        return names_of(self)

    def omit(self, kind: str, words: str = "") -> None:
        """Note what the graph leaves out, with the line; of each kind the first is kept."""
        if kind not in self.limits.omissions:
            place = self.source.location() or self.source.defined
            self.limits.omissions[kind] = (words or kind) + (f" ({place})" if place else "")

    def value(self, node: Node) -> Value:
        value = super().value(node)
        if self.source.witness is not None:  # which sees whether code keeps it when it ends
            self.source.witness.made.append(weakref.ref(value))
        return value

    def record(self, op: Op, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        if self.overriding is not None:
            anew = partial(apply, op, **attrs)
            replacement = self.overriding.record(self, op, operands, anew)
            if replacement is not None:
                return replacement
        return super().record(op, operands, attrs)

    def coerced(
        self, op: Op, nodes: list[Node], operands: tuple[Any, ...]
    ) -> tuple[Op, list[Node], str | None] | Value:
        types = self.types
        if types is None:
            return super().coerced(op, nodes, operands)
        float_dtype = types.floats_of(operands)
        # All tensors are floats of one dtype, as most are: `x * 2.5`, where the number stays weak.
        if float_dtype and op.coerce == "float":
            return op, in_dtype(nodes, float_dtype), None
        # A mask chooses among such floats: `where(x > 0, x, 0.0)`.
        chooses = op.coerce == "where" and nodes[0].type.dtype == BOOL
        if chooses and (floats := types.floats_of(operands[1:])):
            return op, [nodes[0], *in_dtype(nodes[1:], floats)], None
        if float_dtype is None:
            return super().coerced(op, nodes, operands)
        # Bools, integers and several dtypes: `a_uint8 + b_uint8`, `x_float16 + y_float32`.
        op, is_bool = on_bools(op, nodes)
        if recorded := types.on_integers(op, nodes, operands, float_dtype):  # floor(an integer)
            return recorded()
        dtype = types.dtype_of(op, operands, float_dtype)
        becomes = BOOL if is_bool else small_result(op, nodes, dtype)
        return op, coerce(op, nodes, self.facts, types, dtype), becomes

    def confirmed(
        self, function: Callable[..., Any], args: tuple[Any, ...], record: Callable[..., Any]
    ) -> Any:
        """Apply an operator; its result has the dtype that the library gives it."""
        if Pair.is_made and any(isinstance(x, Pair) for x in args):
            return NotImplemented
        if self.types is None:
            return record(*args)
        try:
            return self.types.confirmed(function, args, {}, record)
        except TypeError as error:
            raise self.error(f"computes {function.__name__} where {error}") from error

    def named(self, value: Value) -> Value:
        """Return a computed value under a name of its own, and cut where gradients stop."""
        type_ = value.node.type
        if type_.kind != "tensor" or not is_float(type_):
            return value
        backward = self.backward
        if backward.is_paused is not None and backward.is_paused():
            value = self._seen_by(value, make_node(ops.STOP_GRADIENT, (value.node,), {}, type_))
        rename = backward.rename
        return value if rename is None else self._seen_by(value, rename(value.node))

    def _seen_by(self, value: Value, node: Node) -> Value:
        """Return a node as the value that replaces `value`; it is a view if `value` is one."""
        result = self.value(node)
        if value.base is not None:
            mark_view(result, value, True)
        return result


def ask_for(what: str, values: Iterable[Any]) -> None:
    """Require "ndim" or "shape" of all values; the unknown ones are asked for together."""
    count, facts = questions.count(), dict[str, None]()
    for value in values:
        try:
            getattr(value, what)
        except NeedsConcrete as need:
            facts.update(dict.fromkeys(need.facts))
    questions.forget(count)
    if facts:
        raise NeedsConcrete(*facts)
