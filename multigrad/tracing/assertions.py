"""What an `assert` statement expects of a value that no symbol knows.

A graph holds no assertion: a capture assumes what it says, and notes that the original does more.
"""

from __future__ import annotations

import dis
from types import FrameType

SKIPPED = ("CACHE", "EXTENDED_ARG", "NOT_TAKEN")


def expected_by_assert(frame: FrameType) -> bool | None:
    """Return which outcome the assertion asks for whose test a frame is at, None where it is at
    none.
    """
    rows = [row for row in dis.get_instructions(frame.f_code) if row.opname not in SKIPPED]
    at = next((i for i, row in enumerate(rows) if row.offset == frame.f_lasti), len(rows))
    if at < len(rows) and rows[at].opname == "TO_BOOL":  # Python 3.13
        at += 1
    if at + 1 >= len(rows):
        return None
    jump, following = rows[at : at + 2]
    if not jump.opname.startswith("POP_JUMP") or "NONE" in jump.opname:
        return None
    target = next((row for row in rows if row.offset == jump.argval), following)
    fails = _raises(target), _raises(following)
    if fails[0] == fails[1]:
        return None
    jumps_if = "IF_TRUE" in jump.opname
    return jumps_if is not fails[0]


def _raises(row: dis.Instruction) -> bool:
    """Return whether an instruction begins what a failed assertion does."""
    is_common = row.opname == "LOAD_COMMON_CONSTANT" and "AssertionError" in row.argrepr
    return row.opname == "LOAD_ASSERTION_ERROR" or is_common  # since Python 3.14
