"""Whether a function may have side effects, as far as its bytecode tells.

It may if it, or a helper of the user's that it mentions, names what acts (`print`, `append`, `os`)
or writes into what outlives the call.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from .inspection import nested_codes
from .snapshot import functions_of

_ACTING = """
    append debug delattr exec extend info input next open print setattr warn warning write
    writelines
"""
ACTING_NAMES = frozenset(_ACTING.split())
ACTING_MODULES = frozenset(
    {"logging", "os", "shutil", "socket", "subprocess", "sys", "time", "warnings"}
)
STORES = frozenset(
    dis.opmap[name]
    for name in ("DELETE_ATTR", "DELETE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL")
)
# Objects of one call alone: no other code sees what is written to them.
OBJECTS_OF_A_CALL = frozenset({"ctx"})


def may_act(*functions: Any) -> bool:
    # Without it: test_a_proof_repeats_no_warning_of_the_users_for_each_sample hears five.
    return any(map(_acts, codes_of(*functions)))


def codes_of(*functions: Any) -> Iterator[types.CodeType]:
    """Yield the code of functions, and of the user's helpers that they mention."""
    for plain in functions_of(*functions):
        yield from nested_codes(plain.__code__)


@functools.lru_cache(maxsize=1024)  # each dtype that is met asks once more
def _acts(code: types.CodeType) -> bool:
    names = set(code.co_names)
    if names & ACTING_NAMES or names & ACTING_MODULES:
        return True
    # The operations stand at even places; to decode them all takes long.
    if STORES.isdisjoint(code.co_code[::2]):
        return False
    before = ""
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return True
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return True
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and before not in OBJECTS_OF_A_CALL:
            return True
        before = str(step.argval) if step.opname.startswith("LOAD_FAST") else ""
    return False
