"""Python's protocols on a symbolic value: it answers with a number that it knows, asks for a fact,
or refuses; it never guesses.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any

from ...core import ops
from ...core.ir.op import Op
from ...core.trace.trace import BRANCHES, apply
from ...core.trace.xp.symbol import Symbol
from .assertions import asserted

STANDARD = os.path.dirname(os.__file__)
# Files of ours that ask on behalf of the user's code, as the stand-ins for builtins do; they add
# themselves as they are imported.
PASSING = {__file__}


@cache
def site() -> tuple[str, ...]:
    """Return the folders of installed packages, which may be inside that of Python's library."""
    return tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def is_asked_by(codes: set[CodeType], frame: FrameType | None = None) -> bool:
    """Return whether the user's code asks, directly or through Python's standard library.

    Args:
        frame: the frame that asks; None: that which called the caller of this function.
    """
    # Without it (never): test_text_that_no_sample_of_a_proof_shows_is_not_captured gets a graph;
    # (always): test_a_message_of_a_library_shows_a_symbol gets no message.
    frame = sys._getframe(2) if frame is None else frame
    while frame is not None:
        code = frame.f_code
        if any(code is asking for asking in codes):
            return True
        file = code.co_filename
        is_standard = file.startswith((STANDARD, "<frozen")) and not file.startswith(site())
        if not is_standard and file not in PASSING:
            return False
        frame = frame.f_back
    return False


class Answers(Symbol):
    """The protocols of a symbolic value, except for arithmetic, in code that is not plain."""

    __slots__ = ()

    def __bool__(self) -> bool:
        if self.node.type.kind == "tensor":
            truth = asserted(self, sys._getframe(1))
            if truth is not None:
                return truth
            path = self.trace.limits.branch_path
            if path is not None and self.node.op is not ops.CONST:
                decision = path.decide(self, partial(self._refusal, *BRANCHES))
                if decision is not None:
                    return decision
        return bool(self._concrete(*BRANCHES))

    def __complex__(self) -> complex:
        return complex(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __hash__(self) -> int:
        if self.node.type.kind != "scalar" and not is_asked_by(self.trace.source.codes):
            return object.__hash__(self)
        return hash(self._concrete("looks a tensor up by its hash", "Keep it out of sets and keys"))

    def __repr__(self) -> str:
        return repr(self._number_in_text()) if self._is_shown() else f"<symbolic {self.node.type}>"

    def __str__(self) -> str:
        return str(self._number_in_text()) if self._is_shown() else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self._number_in_text(), spec) if self._is_shown() else repr(self)

    def _is_shown(self) -> bool:
        return is_asked_by(self.trace.source.codes)

    def _number_in_text(self) -> Any:
        return self._concrete("writes a tensor as text", "Leave it out")

    def _rows(self) -> Any:
        """Yield the rows of the first axis; the values of captured code override this."""
        return None

    def __iter__(self) -> Any:
        rows = self._rows()
        if rows is not None:
            return rows
        advice = self.trace.words.advise("Use whole-array operations")
        raise self.trace.error(f"iterates over a tensor{advice}")

    def __reversed__(self) -> Any:
        advice = self.trace.words.advise("Use xp.flip(x, axis=0)")
        raise self.trace.error(f"iterates over a tensor{advice}")

    def __contains__(self, item: Any) -> bool:
        advice = self.trace.words.advise("Use xp.any(tensor == value)")
        raise self.trace.error(f"looks for a value in a tensor{advice}")

    def __copy__(self) -> Any:
        if self.node.type.kind == "scalar":
            return self
        raise self.trace.error("calls copy.copy() on a tensor. Use copy.deepcopy(x) or x + 0")

    def __deepcopy__(self, memo: Any) -> Any:
        # The same value under a new name: an update of one does not reach the other.
        return self.trace.value(self.node)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.trace.error("pickles a tensor. A symbolic tensor holds no numbers")

    def lacks(self, name: str) -> bool:
        """Return whether it is to lack an attribute that its class has, or refuse to say; the
        values of captured code override this.
        """
        return False

    def __round__(self, digits: int | None = None) -> Any:
        if not digits:
            return apply(ops.ROUND, self)
        return round(float(self), digits)

    def __floor__(self) -> Any:
        return self._rounded(ops.FLOOR)

    def __ceil__(self) -> Any:
        return self._rounded(ops.CEIL)

    def __trunc__(self) -> Any:
        return self._rounded(ops.TRUNC)

    def _rounded(self, op: Op) -> Any:
        if self.node.type.kind == "scalar":
            return apply(op, self)
        return self._concrete("rounds a tensor to a Python number", "Use xp.floor(...)")
