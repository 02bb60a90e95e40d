"""The omissions of a graph from its code, by kind, and assertions: an `assert` about a tensor's
value, or a branch on one that only raises, is assumed to pass.

A capture notes each kind in `Limits.omissions`; if one matters, the code itself runs
(`functions.calls.decision`). A branch whose exception is caught decides on more than raising, and
is no assertion.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..graph.ir.graph import Location, Node
from ..graph.support.class_bases import dataclass

# --- what a graph leaves out, by kind ------------------------------------------------------------

ASSERTIONS = "what it asserts of values"
AUTOCAST = "what it computes under autocast"
BRANCHES = "the one way of several that it takes"
FORWARD_MODE = "its own jvp, in forward mode"
ORDERS = "the derivative of its backward"
SPARSE = "what it does with a sparse gradient"
TWICE = "the tensor that it returns twice"
UNDIFFERENTIATED = "what it computes where nobody differentiates it"
# Effects of the code, which a graph never has.
NOTES = "the attributes that it sets"
UPDATES = "the arguments that it updates in place"
# Reasons for which there is no graph.
MISSING = "another gradient where a cotangent is missing"


OWN = __name__.partition(".")[0]
SKIPPED = ("CACHE", "EXTENDED_ARG", "NOT_TAKEN")
MOST_INSTRUCTIONS = 400  # of a branch that ends in `raise`
RAISES = ("RAISE_VARARGS", "RERAISE")
MATCHES = ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH")
HAS_TABLE = hasattr(CodeType, "co_exceptiontable")  # Python 3.11 and later
RETURNS = ("RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE", "SEND")
JUMPS = frozenset(dis.opname[code] for code in (*dis.hasjrel, *dis.hasjabs))
CALLS = ("CALL", "CALL_FUNCTION")  # the second before Python 3.11
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_COMMON_CONSTANT")
# Exceptions that Python itself catches: at the end of a sequence, for a missing attribute.
SIGNALS = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "AttributeError")
PROTOCOLS = ("__new__", "__init__", "__post_init__", "__call__", "__enter__", "__torch_function__")
KINDS = (
    "ArithmeticError",
    "Exception",
    "IndexError",
    "KeyError",
    "LookupError",
    "NotImplementedError",
    "OverflowError",
    "RuntimeError",
    "TypeError",
    "ValueError",
    "ZeroDivisionError",
)
# Context managers that let exceptions pass; an unknown one may catch them.
PASSING = (
    "autocast",
    "catch_warnings",
    "device",
    "enable_grad",
    "errstate",
    "inference_mode",
    "no_grad",
    "nullcontext",
    "profile",
    "record_function",
    "set_grad_enabled",
)


class Assumption(NamedTuple):
    """An assertion about a value: its expected truth, its place, and the exception it raises."""

    node: Node
    expected: bool
    where: Location | None
    kind: type[Exception]


@dataclass(slots=True, eq=False)
class Limits:
    """The respects in which a capture's graph does not represent the code."""

    assumed: list[Assumption] = field(default_factory=list)
    omissions: dict[str, str] = field(default_factory=dict)  # what is left out: a kind, its words
    branch_path: Any = None  # a `BranchPath`, if branches on values are recorded once per path


# The code in which captures begin: frames outside it are not searched for handlers.
ENTRANCES: set[CodeType] = set()


def find_assertion(frame: FrameType) -> tuple[bool, type[Exception]] | None:
    """Return the outcome with which code at a frame goes on, and the exception of the other.

    None if the other branch does more than raise, or if the exception is caught.
    """
    # Without it: test_an_assertion_of_a_class_inside_is_one_of_the_function_around_it.
    if _is_own(frame):
        return None
    has_bool = frame.f_globals.get("bool", bool) is bool
    found = _asserted(frame.f_code, frame.f_lasti, has_bool)
    return None if found is None or is_caught(frame) else found


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(OWN)


def _asserted(
    code: CodeType, at_offset: int, has_bool: bool
) -> tuple[bool, type[Exception]] | None:
    rows, at = _at(code, at_offset)
    if at >= len(rows):
        return None
    if rows[at].opname.startswith("CALL"):
        if not (has_bool and _calls(rows, at, "bool", 1)):
            return None
        at += 1
    if at < len(rows) and rows[at].opname == "TO_BOOL":  # Python 3.13
        at += 1
    # An inverted test exchanges the two branches.
    is_inverted = False
    while at < len(rows) and rows[at].opname == "UNARY_NOT":
        is_inverted = not is_inverted
        at += 1
    if at + 1 >= len(rows):
        return None
    jump = rows[at]
    if not jump.opname.startswith("POP_JUMP") or "NONE" in jump.opname:
        return None
    places = {row.offset: i for i, row in enumerate(rows)}
    target = places.get(jump.argval)
    if target is None:
        return None
    # Of the two branches exactly one must end in `raise`.
    fails = _raises(code, rows, places, target), _raises(code, rows, places, at + 1)
    if fails[0] == fails[1]:
        return None
    jumps_if = ("IF_TRUE" in jump.opname) is not is_inverted
    return jumps_if is not fails[0], _kind(rows[target if fails[0] else at + 1])


def _kind(row: dis.Instruction) -> type[Exception]:
    # The exception that a branch constructs first, if it is one of Python's that take a message.
    name = row.argval if row.opname in LOADS else ""
    return getattr(builtins, name) if name in KINDS else AssertionError


@lru_cache(maxsize=256)
def _rows(code: CodeType) -> Sequence[dis.Instruction]:
    return [row for row in dis.get_instructions(code) if row.opname not in SKIPPED]


def _at(code: CodeType, offset: int) -> tuple[Sequence[dis.Instruction], int]:
    # The instructions, and the position of the one at an offset.
    rows = _rows(code)
    at = next((i for i, row in enumerate(rows) if row.offset == offset), len(rows))
    is_before = at < len(rows) and rows[at].opname == "PRECALL"  # Python 3.11
    return rows, at + is_before


def is_call_of(frame: FrameType, name: str, count: int) -> bool:
    """Return whether a frame is at a call of a builtin function with so many arguments."""
    # Without it: test_a_density_is_that_of_torch_with_its_gradient is refused.
    return name not in frame.f_globals and _is_call_at(frame.f_code, frame.f_lasti, name, count)


def _is_call_at(code: CodeType, at_offset: int, name: str, count: int) -> bool:
    rows, at = _at(code, at_offset)
    return at < len(rows) and _calls(rows, at, name, count)


def is_searched(frame: FrameType) -> bool:
    """Return whether a frame searches a result as text: `"Tensor" in str(type(x))`."""
    # Without it: test_a_word_in_none_or_all_is_known is refused.
    return _is_searched_at(frame.f_code, frame.f_lasti)


def _is_searched_at(code: CodeType, at_offset: int) -> bool:
    # In a frame that is calling Python, the offset is at the end of the instruction.
    before = [row for row in _rows(code) if row.offset <= at_offset]
    rows = [*before[-1:], *(row for row in _rows(code) if row.offset > at_offset)]
    calls = [row for row in rows[:6] if row.opname != "PRECALL"][:3]
    names = ["CALL" if row.opname in CALLS else row.opname for row in calls]
    return names == ["CALL", "CALL", "CONTAINS_OP"] and {row.arg for row in calls[:2]} == {1}


def _calls(rows: Sequence[dis.Instruction], at: int, name: str, count: int) -> bool:
    # Walks back along the stack effects to the load of the called function.
    call = rows[at]
    if call.opname not in CALLS or call.arg != count:
        return False
    height = 0
    before = at - 1 if rows[at - 1].opname == "PRECALL" else at  # Python 3.11: takes the arguments
    for row in reversed(rows[max(at - 50, 0) : before]):
        if row.opname in JUMPS:
            return False
        height += dis.stack_effect(row.opcode, row.arg, jump=False)
        if row.opname in LOADS and row.argval == name:
            return height in (count + 1, count + 2)  # what is called, its arguments, and NULL
    return False


def _raises(
    code: CodeType, rows: Sequence[dis.Instruction], places: dict[int, int], start: int
) -> bool:
    # Every path from the instruction must end in `raise`; a jump backwards or a `return` refutes
    # it.
    ways, seen = [start], set[int]()
    while ways:
        at = ways.pop()
        while at not in seen:
            if at >= len(rows) or len(seen) > MOST_INSTRUCTIONS:
                return False
            seen.add(at)
            row = rows[at]
            if row.opname in RETURNS or _is_signal(code, row):
                return False
            if row.opname in RAISES:
                break
            if row.opname in JUMPS:
                target = places.get(row.argval)
                # A jump backwards is a loop, which may do more than raise.
                if target is None or target <= at:
                    return False
                ways.append(target)
                if row.opname.startswith("JUMP_") and "IF" not in row.opname:
                    break
            at += 1
    return True


def _is_signal(code: CodeType, row: dis.Instruction) -> bool:
    # An exception that Python itself catches is a signal, no assertion.
    if row.opname not in LOADS:
        return False
    kind = getattr(builtins, str(row.argval), None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return False
    is_protocol = code.co_name.startswith("__") and code.co_name not in PROTOCOLS
    return is_protocol or row.argval in SIGNALS


# --- handlers -------------------------------------------------------------------------------------


def is_caught(frame: FrameType) -> bool:
    """Return whether code of the capture, from a frame outwards, catches exceptions."""
    # Without it no proof finds test_a_branch_whose_exception_ends_nothing_is_refused.
    inside: list[FrameType] = []
    count, outer = 0, frame
    while outer is not None:
        inside.append(outer)
        if outer.f_code in ENTRANCES:
            count = len(inside)
        outer = outer.f_back
    return any(_catches(each.f_code, each.f_lasti) for each in inside[:count] if not _is_own(each))


def _catches(code: CodeType, at_offset: int) -> bool:
    # An `except` around the instruction, or a context manager that may swallow exceptions.
    rows = _rows(code)
    entries = _protected(code, rows)
    reached, seen = [at_offset], set[int]()
    while reached:  # a handler that re-raises does so within the handlers around it
        at = reached.pop()
        for start, end, target in entries:
            if start <= at < end and target not in seen:
                seen.add(target)
                if _is_handler(code, rows, target):
                    return True
                reached.append(target)
    return False


def _protected(code: CodeType, rows: Sequence[dis.Instruction]) -> list[tuple[int, int, int]]:
    # The protected ranges and their handlers. Before Python 3.11 block instructions give them: all
    # up to the handler counts as within the block.
    if not HAS_TABLE:
        setups = [row for row in rows if row.opname.startswith("SETUP_")]
        return [(row.offset, row.argval, row.argval) for row in setups]
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return [(entry.start, entry.end, entry.target) for entry in entries]


def _is_handler(code: CodeType, rows: Sequence[dis.Instruction], offset: int) -> bool:
    # Whether code that runs after an exception may go on without it.
    following = iter([row for row in rows if row.offset >= offset])
    if HAS_TABLE:
        first = next(following, None)
        if first is None or first.opname != "PUSH_EXC_INFO":
            return False  # the cleanup at the end of a handler
    for row in following:
        if row.opname in (*MATCHES, "POP_EXCEPT", *RETURNS):
            return True
        if row.opname == "WITH_EXCEPT_START":
            return not _passes(rows)
        if row.opname in RAISES:
            return False
    return False


def _passes(rows: Sequence[dis.Instruction]) -> bool:
    # Whether all context managers of the code are known to let exceptions pass.
    named = False
    for row in rows:
        if row.opname in (*LOADS, "LOAD_ATTR", "LOAD_METHOD") and row.argval in PASSING:
            named = True
        elif row.opname in ("BEFORE_WITH", "LOAD_SPECIAL", "SETUP_WITH"):
            if not named:
                return False
        elif row.opname.startswith("STORE_") or row.opname == "POP_TOP":
            named = False
    return True
