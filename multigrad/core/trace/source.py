"""The user's code of a capture: its references, its reading, and names for what its graph may leave
out of it. `engine/trace/code_trace.py` has more for code that is not plain.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from ..ir.graph import Location, Node

OWN = __name__.partition(".")[0]

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


# --- whose dtypes operators have ------------------------------------------------------------------
CODE = "code"  # the library that the code mentions
TENSORS = "tensors"  # the library of the call's tensors: the code mentions none


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
