"""What Python's protocols get from a symbolic value: a number it knows, a fact to ask for, or a
refusal; never a guess.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any

from .. import ops
from ..ir.graph import Node, walk
from ..passes.facts import needed_shapes, shape_fact
from .coercion import NeedsConcrete

STANDARD = sysconfig.get_path("stdlib")
# What stands in for builtins asks on behalf of the user's code.
PASSING = (
    __file__,
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "capture", "classes.py"),
)
SITE = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def is_asked_by(codes: set[CodeType]) -> bool:
    """Return whether the user's code asks, itself or by Python's library; not libraries, nor we."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if any(code is own for own in codes):
            return True
        file = code.co_filename
        is_standard = file.startswith((STANDARD, "<frozen")) and not file.startswith(SITE)
        if not is_standard and file not in PASSING:
            return False
        frame = frame.f_back
    return False


class Answers:
    """The protocols of a symbolic value, except for arithmetic."""

    __slots__ = ()
    node: Node
    trace: Any  # the Trace that it belongs to

    def __bool__(self) -> bool:
        return bool(self._concrete("branches on a tensor value", "Use xp.where(...)"))

    def __float__(self) -> float:
        return float(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __complex__(self) -> complex:
        return complex(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __int__(self) -> int:
        return int(self._concrete("turns a tensor into a Python number", "Keep it a tensor"))

    def __index__(self) -> int:
        rounded = (ops.ROUND, ops.FLOOR, ops.CEIL, ops.TRUNC)
        if self.node.type.dtype == "float" and self.node.op not in (*rounded, ops.CONST):
            raise TypeError("a float cannot be used as an index")
        return int(self._concrete("uses a tensor as an index", "Use xp functions"))

    def __hash__(self) -> int:
        if self.node.type.kind != "scalar" and not is_asked_by(self.trace.codes):
            return object.__hash__(self)
        return hash(self._concrete("looks a tensor up by its hash", "Keep it out of sets and keys"))

    def __repr__(self) -> str:
        return repr(self._number_in_text()) if self._is_shown() else f"<symbolic {self.node.type}>"

    def __str__(self) -> str:
        return str(self._number_in_text()) if self._is_shown() else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self._number_in_text(), spec) if self._is_shown() else repr(self)

    def _is_shown(self) -> bool:
        """Return whether the user's code asks for text; error messages of libraries do too."""
        return is_asked_by(self.trace.codes)

    def _number_in_text(self) -> Any:
        return self._concrete("writes a tensor as text", "Leave it out")

    def __iter__(self) -> Any:
        raise self.trace.error("iterates over a tensor. Use whole-array operations")

    def __reversed__(self) -> Any:
        raise self.trace.error("iterates over a tensor. Use xp.flip(x, axis=0)")

    def __contains__(self, item: Any) -> bool:
        raise self.trace.error("looks for a value in a tensor. Use xp.any(tensor == value)")

    def __copy__(self) -> Any:
        if self.node.type.kind == "scalar":
            return self
        raise self.trace.error("calls copy.copy() on a tensor. Use copy.deepcopy(x) or x + 0")

    def __deepcopy__(self, memo: Any) -> Any:
        """The same value under a new name: an update of one does not reach the other."""
        return self.trace.value(self.node)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.trace.error("pickles a tensor. A symbolic tensor holds no numbers")

    def refuse(self, name: str) -> None:
        """Refuse to say whether it has an attribute; what records by protocols overrides this."""

    def _concrete(self, problem: str, advice: str) -> Any:
        """Return the Python number, or ask for the facts that make it one."""
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
        where = self.trace.location()
        line = f": {where.text!r}" if where and where.text else ""
        raise self.trace.error(f"{problem}{line}{self.trace.words.advise(advice)}")


def _fact(node: Node) -> str | None:
    """Return the fact that would make a scalar node concrete."""
    if node.op is ops.INPUT and node.type.kind == "scalar":
        return f"param:{node.attr('name')}"
    if node.op not in (ops.DIM, ops.SIZE):
        return None
    return shape_fact(node.operands[0], "shape")
