"""Assertions about values, which are assumed to hold.

A symbolic value has no truth. Where code tests one, `find_assertion` reads the bytecode that
follows the test. If one of the two branches only raises, the test is an assertion:

    assert (x > 0).all()                        goes on if it is true; else AssertionError
    if x.sum() < 0: raise ValueError("...")     goes on if it is false; else ValueError
    if not is_small(x): raise ValueError("...") `is_small` ends with `return bool(x.sum() < 0)`
    if x.sum() < 0: return 0.0                  no assertion: both branches go on

A branch whose exception is caught decides on more than raising, and is no assertion (`is_caught`).
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from ...core.trace.source import ASSERTIONS, OWN
from .code_trace import ENTRANCES, Assumption

# --- assertions, by the bytecode that follows a test ----------------------------------------------
MOST_INSTRUCTIONS = 400  # of a branch that ends in `raise`
# Names of instructions, of all versions of Python.
SKIPPED = ("CACHE", "EXTENDED_ARG", "NOT_TAKEN")
RAISES = ("RAISE_VARARGS", "RERAISE")
MATCHES = ("CHECK_EXC_MATCH", "CHECK_EG_MATCH")
RETURNS = ("RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE", "SEND")
JUMPS = frozenset(dis.opname[code] for code in (*dis.hasjrel, *dis.hasjabs))
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_COMMON_CONSTANT")
INNER_LOADS = ("LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_METHOD")
# Exceptions that Python itself catches: at the end of a sequence, for a missing attribute.
SIGNALS = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "AttributeError")
# Methods with names of Python's in which an exception is no signal to Python.
PROTOCOLS = ("__new__", "__init__", "__post_init__", "__call__", "__enter__", "__torch_function__")
# Exceptions that take a message, as a failed assertion raises them; else it is AssertionError.
KINDS = (
    "ArithmeticError", "Exception", "IndexError", "KeyError", "LookupError", "NotImplementedError",
    "OverflowError", "RuntimeError", "TypeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip
# Context managers that let exceptions pass; an unknown one may catch them.
PASSING = (
    "autocast", "catch_warnings", "device", "enable_grad", "errstate", "inference_mode", "no_grad",
    "nullcontext", "profile", "record_function", "set_grad_enabled",
)  # fmt: skip

# The expected truth of a test, and what is raised where it is otherwise.
Assertion = tuple[bool, type[Exception]]


def find_assertion(frame: FrameType) -> Assertion | None:
    """Return the assertion that the code at a frame makes by the test that it is about to make.

    None if both branches do more than raise, or if the exception is caught.
    """
    jump = _jump_after(frame, bool)
    assertion = None if jump is None else _assertion_at(*jump)
    return None if assertion is None or is_caught(frame) else assertion


def asserted(value: Any, frame: FrameType) -> bool | None:
    """Return the truth that the code at a frame asserts of a tensor, which is noted; None if it
    asserts none.
    """
    assertion = find_assertion(frame)
    if assertion is None:
        return None
    note_assertion(value, *assertion)
    return assertion[0]


def assume(value: Any) -> None:
    """Assume that a tensor of one element is true, for a function that asserts it."""
    # Else no proof finds test_what_is_caught_beyond_all_samples_is_no_assertion.
    if is_caught(sys._getframe(1)):
        raise value.trace.error("catches what is raised where a tensor is not true")
    note_assertion(value, True, AssertionError)


def note_assertion(value: Any, expected: bool, kind: type[Exception]) -> None:
    """Note what code asserts of a value; a backward's is not checked, as it may never run."""
    trace = value.trace
    trace.omit(ASSERTIONS)
    if not trace.backward.is_running:
        trace.limits.assumed.append(Assumption(value.node, expected, trace.source.location(), kind))


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(OWN)


def _assertion_at(code: CodeType, position: int, is_inverted: bool) -> Assertion | None:
    rows = _instructions(code)
    positions = {row.offset: i for i, row in enumerate(rows)}
    target = positions.get(rows[position].argval)
    if target is None:
        return None
    # Of the two branches exactly one must end in `raise`.
    target_fails = _only_raises(code, rows, positions, target)
    if target_fails == _only_raises(code, rows, positions, position + 1):
        return None
    jumps_if = ("IF_TRUE" in rows[position].opname) is not is_inverted
    # The exception that a branch constructs first, if it is one of Python's that take a message.
    instruction = rows[target if target_fails else position + 1]
    name = instruction.argval if instruction.opname in LOADS else ""
    kind = getattr(builtins, name) if name in KINDS else AssertionError
    return jumps_if is not target_fails, kind


def _jump_after(frame: FrameType | None, called: Any) -> tuple[CodeType, int, bool] | None:
    # The jump that depends on the test, and whether the test is inverted before. `called` is what
    # may turn the test into a bool, a function by its code: `if not is_small(x): raise`.
    # Without `_is_own`: test_an_assertion_of_a_class_inside_is_one_of_the_function_around_it.
    if frame is None or _is_own(frame):
        return None
    rows, position = _find(frame.f_code, frame.f_lasti)
    if position < len(rows) and rows[position].opname.startswith("CALL"):
        # Who is called is known by its frame, but that of `bool`, which has none.
        name, count = ("bool", 1) if called is bool else (called.co_name, None)
        is_it = called is not bool or frame.f_globals.get(name, bool) is bool
        if not (is_it and _is_call(rows, position, name, count)):
            return None
        position += 1
    elif called is not bool:
        return None
    if position < len(rows) and rows[position].opname == "TO_BOOL":  # Python 3.13
        position += 1
    is_inverted = False
    while position < len(rows) and rows[position].opname == "UNARY_NOT":
        is_inverted = not is_inverted
        position += 1
    name = rows[position].opname if position < len(rows) else ""
    if name == "RETURN_VALUE":
        outer = _jump_after(frame.f_back, frame.f_code)
        return outer and (*outer[:2], outer[2] is not is_inverted)
    is_jump = name.startswith("POP_JUMP") and "NONE" not in name and position + 1 < len(rows)
    return (frame.f_code, position, is_inverted) if is_jump else None


@lru_cache(maxsize=256)
def _instructions(code: CodeType) -> Sequence[dis.Instruction]:
    return [row for row in dis.get_instructions(code) if row.opname not in SKIPPED]


def _find(code: CodeType, offset: int) -> tuple[Sequence[dis.Instruction], int]:
    # The instructions, and the position of the one at an offset. In a frame that is calling Python,
    # the offset is at the end of the instruction.
    rows = _instructions(code)
    position = max(sum(row.offset <= offset for row in rows) - 1, 0)
    is_before = position < len(rows) and rows[position].opname == "PRECALL"  # Python 3.11
    return rows, position + is_before


def is_call_of(frame: FrameType, name: str, count: int) -> bool:
    """Return whether a frame is at a call of a builtin function with so many arguments."""
    # Without it: test_a_density_is_that_of_torch_with_its_gradient is refused.
    if name in frame.f_globals:
        return False
    rows, position = _find(frame.f_code, frame.f_lasti)
    return position < len(rows) and _is_call(rows, position, name, count)


def is_searched(frame: FrameType) -> bool:
    """Return whether a frame searches a result as text: `"Tensor" in str(type(x))`."""
    # Without it: test_a_word_in_none_or_all_is_known is refused.
    rows, position = _find(frame.f_code, frame.f_lasti)
    calls = [row for row in rows[position : position + 6] if row.opname != "PRECALL"][:3]
    names = [row.opname for row in calls]
    return names == ["CALL", "CALL", "CONTAINS_OP"] and {row.arg for row in calls[:2]} == {1}


def _is_call(rows: Sequence[dis.Instruction], position: int, name: str, count: int | None) -> bool:
    # Walks back along the stack effects to the load of the called function; None: one in Python, of
    # any count, that may be a method or a name of the function around it.
    call, loads = rows[position], LOADS if count is not None else (*LOADS, *INNER_LOADS)
    if call.opname != "CALL" or (count is not None and call.arg != count):
        return False
    count = call.arg or 0
    height = 0
    # Python 3.11: PRECALL takes the arguments.
    end = position - 1 if rows[position - 1].opname == "PRECALL" else position
    for row in reversed(rows[max(position - 50, 0) : end]):
        if row.opname in JUMPS:
            return False
        height += dis.stack_effect(row.opcode, row.arg, jump=False)
        if row.opname in loads and row.argval == name:
            return height in (count + 1, count + 2)  # what is called, its arguments, and NULL
    return False


def _only_raises(
    code: CodeType, rows: Sequence[dis.Instruction], positions: dict[int, int], start: int
) -> bool:
    # Every path from the instruction must end in `raise`; a jump backwards or a `return` refutes
    # it.
    starts, visited = [start], set[int]()
    while starts:
        position = starts.pop()
        while position not in visited:
            if position >= len(rows) or len(visited) > MOST_INSTRUCTIONS:
                return False
            visited.add(position)
            row = rows[position]
            if row.opname in RETURNS or _is_signal(code, row):
                return False
            if row.opname in RAISES:
                break
            if row.opname in JUMPS:
                target = positions.get(row.argval)
                # A jump backwards is a loop, which may do more than raise.
                if target is None or target <= position:
                    return False
                starts.append(target)
                if row.opname.startswith("JUMP_") and "IF" not in row.opname:
                    break
            position += 1
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
    frames: list[FrameType] = []
    count, outer = 0, frame
    while outer is not None:
        frames.append(outer)
        if outer.f_code in ENTRANCES:
            count = len(frames)
        outer = outer.f_back
    return any(_catches(each.f_code, each.f_lasti) for each in frames[:count] if not _is_own(each))


def _catches(code: CodeType, at_offset: int) -> bool:
    # An `except` around the instruction, or a context manager that may swallow exceptions.
    rows = _instructions(code)
    # The protected ranges and their handlers.
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    offsets, visited = [at_offset], set[int]()
    while offsets:  # a handler that re-raises does so within the handlers around it
        offset = offsets.pop()
        for entry in entries:
            if entry.start <= offset < entry.end and entry.target not in visited:
                visited.add(entry.target)
                if _may_go_on(rows, entry.target):
                    return True
                offsets.append(entry.target)
    return False


def _may_go_on(rows: Sequence[dis.Instruction], offset: int) -> bool:
    # Whether code that runs after an exception may go on without it.
    following = iter([row for row in rows if row.offset >= offset])
    first = next(following, None)
    if first is None or first.opname != "PUSH_EXC_INFO":
        return False  # the cleanup at the end of a handler
    for row in following:
        if row.opname in (*MATCHES, "POP_EXCEPT", *RETURNS):
            return True
        if row.opname == "WITH_EXCEPT_START":
            return not _lets_exceptions_pass(rows)
        if row.opname in RAISES:
            return False
    return False


def _lets_exceptions_pass(rows: Sequence[dis.Instruction]) -> bool:
    # Whether all context managers of the code are known to let exceptions pass.
    is_passing = False
    for row in rows:
        if row.opname in (*LOADS, "LOAD_ATTR", "LOAD_METHOD") and row.argval in PASSING:
            is_passing = True
        elif row.opname in ("BEFORE_WITH", "LOAD_SPECIAL"):
            if not is_passing:
                return False
        elif row.opname.startswith("STORE_") or row.opname == "POP_TOP":
            is_passing = False
    return True
