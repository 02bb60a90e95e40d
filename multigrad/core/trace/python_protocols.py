"""Python's protocols on a symbolic value: it answers with a number that it knows, asks for a fact,
or refuses; it never guesses.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any, ClassVar

from ...errors import TraceError
from .. import ops
from ..ir.graph import Node, walk
from ..passes.facts import needed_shapes, shape_fact
from ..support.lazy_modules import provided
from .coercion import NeedsConcrete

STANDARD = os.path.dirname(os.__file__)
# Files of ours that ask on behalf of the user's code, as the stand-ins for builtins do; they add
# themselves as they are imported.
PASSING = {__file__}
BRANCHES = "branches on a tensor value", "Use xp.where(...)"


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


def place_of(trace: Any) -> str:
    """Return the kind of device of a function's tensors, a fact of its capture."""
    if "device_type" not in trace.facts:
        raise NeedsConcrete("device_type")
    return trace.facts["device_type"]


@provided
def asserted(value: Answers, frame: FrameType) -> bool | None:
    """Return the truth that the code at a frame asserts of a tensor: the core knows of none."""
    return None


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


class Answers:
    """The protocols of a symbolic value, except for arithmetic."""

    __slots__ = ()
    node: Node
    trace: Any  # the Trace that it belongs to

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

    def __float__(self) -> float:
        return float(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __complex__(self) -> complex:
        return complex(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __int__(self) -> int:
        return int(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __index__(self) -> int:
        if self.node.type.dtype == "float" and not is_whole(self.node):
            raise TypeError("a float cannot be used as an index")
        return int(self._concrete("uses a tensor as an index", "Use xp functions"))

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

    def refuse(self, name: str) -> None:
        """Refuse to say whether it has an attribute; the values of captured code override this."""

    def _concrete(self, problem: str, advice: str) -> Any:
        if self.node.op is ops.CONST:
            return self.node.attr("value")
        if self.node.type.kind == "scalar":
            nodes = walk((self.node,))
            facts = {fact for node in nodes if (fact := _fact(node))}
            for node in nodes:
                if node.op in (ops.DIM, ops.SIZE) and not _fact(node):
                    facts.update(needed_shapes(node.operands[0]))
            if facts:
                raise NeedsConcrete(*sorted(facts))
        raise self._refusal(problem, advice)

    def _refusal(self, problem: str, advice: str) -> TraceError:
        place = self.trace.source.location()
        line = f": {place.text!r}" if place and place.text else ""
        return self.trace.error(f"{problem}{line}{self.trace.words.advise(advice)}")


ROUNDINGS = (ops.ROUND, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.FLOOR_DIVIDE)
ON_INTEGERS = (ops.ADD, ops.SUB, ops.MUL, ops.NEG, ops.ABS)


def is_whole(node: Node) -> bool:
    """Return whether a number is an integer in Python, or may be one."""
    if node.op is ops.CONST:
        return float(node.attr("value")).is_integer()
    if node.op in ON_INTEGERS:
        return all(map(is_whole, node.operands))
    return node.op in ROUNDINGS or node.type.dtype == "int"


def _fact(node: Node) -> str | None:
    # The fact that would make a scalar node concrete.
    if node.op is ops.INPUT and node.type.kind == "scalar":
        return f"param:{node.attr('name')}"
    if node.op not in (ops.DIM, ops.SIZE):
        return None
    return shape_fact(node.operands[0], "shape")
