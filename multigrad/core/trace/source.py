"""The user's code of a capture: its references, its reading, whose dtypes its operators have (six
states, with a table of transitions), and what the graph leaves out of it.

`x + 1` has another dtype in another library, so a capture must know whose operators the code means.
All tensors accept NumPy's numbers: code that mentions NumPy and no framework may be NumPy's, or
that of the tensors it is given. It is recorded as NumPy's until one of them is certain.

A capture notes each kind of omission in `Limits.omissions`; if one matters, the code itself runs
(`functions/decision.py`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from ..ir.graph import Location, Node
from ..passes.facts import LIBRARY, ON_NUMBERS, ON_TENSORS
from .coercion import NeedsConcrete

Trace = Any  # of trace.py, which imports this module
OWN = __name__.partition(".")[0]
# The code in which captures begin: what lies outside it is none of the user's.
ENTRANCES: set[CodeType] = set()

# --- what a graph leaves out ----------------------------------------------------------------------
ASSERTIONS = "what it asserts of values"
AUTOCAST = "what it computes under autocast"
BRANCHES = "the one way of several that it takes"
FORWARD_MODE = "its own jvp, in forward mode"
ORDERS = "the derivative of its backward"
SHARED = "the memory that its results share"
SPARSE = "what it does with a sparse gradient"
NO_GRADIENTS = "the gradients that it leaves out where a cotangent is missing"
STATE = "what its backward changes on ctx"
TWICE = "the tensor that it returns twice"
UNDIFFERENTIATED = "what it computes where nobody differentiates it"
# Effects of the code, which a graph never has.
NOTES = "the attributes that it sets"
UPDATES = "the arguments that it updates in place"
# Reasons for which there is no graph.
MISSING = "another gradient where a cotangent is missing"


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


# --- whose dtypes operators have ------------------------------------------------------------------
# The first state of a function is that of `first_dtype_owner` in
# `capture/user_code/libraries.py`.
CODE = "code"  # the library that the code mentions
TENSORS = "tensors"  # the library of the call's tensors: the code mentions none
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


def _happen(trace: Trace, event: str) -> None:
    row = BY_EVENT.get((trace.reading.owner, event))
    if row is None or (row.given and row.given not in trace.facts):
        return
    if row.repeated_with:
        raise NeedsConcrete(*row.repeated_with)
    trace.reading.owner = row.next


def meet_numpy(trace: Trace) -> None:
    """Note that a function of NumPy's, or an array, meets a tensor: the code is NumPy's.

    Raises:
        NeedsConcrete: a value was already recorded with the dtype of its tensors' library.
    """
    _happen(trace, MEETS)


def rely_on_library(trace: Trace) -> None:
    _happen(trace, RELIES)


def is_lent(trace: Trace) -> bool:
    """Return whether code that calls NumPy's functions on numbers has its tensors' dtypes."""
    rely_on_library(trace)
    return trace.reading.owner == TENSORS and ON_NUMBERS in trace.facts


def lend(trace: Trace) -> None:
    """End a capture, or a failed part of it: code that leans is captured again as the tensors'."""
    source = trace.source
    if source.was_leaning or LEANING in (trace.reading.owner, source.latest.owner):
        raise NeedsConcrete(*BY_EVENT[LEANING, ENDS].repeated_with, noted=False) from None


def names_of(trace: Trace) -> str:
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


# --- what runs, and how it is read ----------------------------------------------------------------
@dataclass(slots=True, eq=False, repr=False)
class Reading:
    libraries: tuple[str, ...] = ()  # that it may be written in, the likeliest first
    owner: str = CODE  # whose dtypes its operators have
    is_open: bool = False  # its methods are those of the call's tensors, of a library not yet asked
    typed_by: str = ""  # the library that `owner` means by the code's; "": the dialect
    dialect: str = field(init=False)  # whose names and methods it uses, "" if that is not known

    def __post_init__(self) -> None:
        self.dialect = next(iter(self.libraries), "")
        self.typed_by = self.typed_by or self.dialect


@dataclass(slots=True, eq=False, repr=False)
class Source:
    defined: Location | None = None  # where the user's function begins
    codes: set[CodeType] = field(default_factory=set)  # of the user's functions that ran
    numbers: set[float] = field(default_factory=set)  # floats that they refer to
    locations: dict[Node, Location] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)  # by library, how its calls reached us
    latest: Reading = field(default_factory=Reading)  # of the function that ran last
    siblings: str = ""  # the library that another function of the same recipe names
    reads_names: bool = False  # the code has asked what a name means in its library
    was_leaning: bool = False  # a function before the latest left open whose dtypes it has
    conventions: dict[str, None] = field(default_factory=dict)  # of libraries, that it relies on
    calls_refused: bool = False  # the code calls what no graph holds, such as `time.time`
    witness: Any = None  # looks for what the code does besides the graph
    compares_identity: bool = False  # the code compares dtypes by `is`
    moved: Any = None  # what stands for numbers that the code reads, where these keep changing
    is_plain: bool = False  # plain code runs, with nothing to guard (`functions/plain.py`)
    looks_into: bool = True  # objects that the code calls are examined at each call
    # Caches of `location`: the codes by id, rebuilt when `codes` grows, and lines by place.
    _own: set[int] = field(default_factory=set)
    _lines: dict[tuple[str, int], Location] = field(default_factory=dict)

    def note_read(self, reading: Reading) -> None:
        """Note the reading of a function that has run: its backward is read in the same way."""
        self.was_leaning |= self.latest.owner == LEANING
        self.latest = reading

    def location(self, error: Exception | None = None) -> Location | None:
        """Return the line of the user's code that is running, or that raised an error."""
        if not self.codes:
            return None
        frame, ids = sys._getframe(1), self._own
        step = None if error is None else error.__traceback__
        while step is not None:
            frame, step = step.tb_frame, step.tb_next
        # By id: a code object that Dynamo makes to resume after a graph break cannot be hashed.
        if len(ids) != len(self.codes):
            ids = self._own = set(map(id, self.codes))
        while frame is not None:
            if id(frame.f_code) in ids:
                file, line = frame.f_code.co_filename, frame.f_lineno
                place = self._lines.get((file, line))
                if place is None:
                    import linecache

                    place = Location(file, line, linecache.getline(file, line).strip())
                    self._lines[file, line] = place
                return place
            frame = frame.f_back
        return None


# --- how messages of a capture speak --------------------------------------------------------------
class Words(NamedTuple):
    """The words of messages about a kind of trace.

    Attributes:
        native: the argument that runs the code as it is; "" if the reader cannot give it.
        param: how to pass a value that may change.
        write: what to write instead of code that is not captured.
        lead: how advice begins if another author wrote the code.
    """

    native: str = ""
    param: str = "an argument"
    write: tuple[str, ...] = ()
    lead: str = ""

    def ways(self, *advice: str) -> str:
        """Return a list of ways out, to run the code as it is among them."""
        return ", or ".join((*advice, *((self.native,) if self.native else ())))

    def advise(self, *advice: str) -> str:
        """Return the ways out as a sentence that follows a problem; "" if there is none."""
        sentence = self.ways(*advice)
        if not sentence:
            return ""
        if self.lead:  # whose code has the names of its own library
            return f". {self.lead}{sentence[0].lower()}{sentence[1:].replace('xp.', '')}"
        return f". {sentence[0].upper()}{sentence[1:]}"


NATIVE = "native=True to run it as it is"
XP = ("write it with xg.xp",)
WORDS = {
    "rule": Words(f"register the rule with {NATIVE}", "a param of the rule", XP),
    "function": Words(f"give it {NATIVE}", write=XP),
    "imported function": Words(lead="Its author could "),
}
