"""Loops that values end: how often they turn is known at run time only.

A turn maps the carry, tensors that keep their dtypes and shapes, to the next one; what the body
and the condition read besides is the same at every turn. There is no derivative in reverse mode,
which would have to keep every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ...ir.graph import Node, Region
from ...ir.types import BOOL, FLOATS, UNKNOWN, T, Type
from ...support.versions import RELEASE
from ..attributes import REGION, count
from ..numerics import Array, as_numpy_dtype
from ..result_shapes import kept_by_turns
from ..table import Cotangents, op

Function = Callable[..., Any]
OF_A_LOOP = (
    "the derivative of a loop that goes on by values, which has none: how many turns reverse mode "
    "would keep is not known. Give the function a gradient of its own, or the loop a number of "
    "turns that is known"
)


# --- its type -------------------------------------------------------------------------------------
def carried(*types: Type, condition: Region, body: Region, position: int) -> Type:
    """The type of a tensor that is carried.

    Raises:
        TypeError: the regions do not take these values, or a turn changes a dtype or a shape.
    """
    inputs, after = body.graph.inputs, body.graph.outputs
    if not position < len(after) <= len(inputs):
        raise TypeError(f"its body takes {len(inputs)} values and gives {len(after)}")
    tests = condition.graph.outputs
    if len(tests) != 1 or tests[0].type.dtype != BOOL:
        raise TypeError("its condition is one bool")
    for region in (condition, body):
        own = [node.type for node in region.graph.inputs]
        if len(own) != len(types) or not all(map(fits, types, own)):
            raise TypeError(f"its {region.graph.name} takes {_listed(own)}, not {_listed(types)}")
    for before, new in zip(inputs, after, strict=False):
        if before.type.kind != "tensor" or not keeps(new.type, before.type):
            raise TypeError(f"a turn makes {new.type} of {before.type}")
    return inputs[position].type


def fits(given: Type, expected: Type) -> bool:
    """Return whether a region that expects a type takes a value of another."""
    alike = (given.kind, given.dtype) == (expected.kind, expected.dtype)
    return alike and expected.shape in (given.shape, UNKNOWN)


def keeps(new: Type, before: Type) -> bool:
    """Return whether a turn keeps a type; a shape that is not told is checked when it runs."""
    return fits(new, before) or fits(before, new)


def _listed(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))


# --- its meaning ----------------------------------------------------------------------------------
class Endless(Exception):
    """A loop has turned more often than it may."""


_most_turns: ContextVar[int | None] = ContextVar("multigrad_most_turns", default=None)


@contextmanager
def turning_at_most(turns: int) -> Iterator[None]:
    """Let loops raise `Endless` after so many turns."""
    token = _most_turns.set(turns)
    try:
        yield
    finally:
        _most_turns.reset(token)


def run(
    carry: tuple[Array, ...], constants: tuple[Array, ...], condition: Function, body: Function
) -> tuple[Array, ...]:
    """Turn while the condition holds; NaN in a comparison ends it, as it is not true.

    Raises:
        TypeError: a turn changes a dtype or a shape.
        Endless: it turns too often, where that is limited.
    """
    body = limited(body)
    while condition(*carry, *constants):
        before, carry = carry, body(*carry, *constants)
        if RELEASE < (2, 0):
            carry = tuple(map(as_narrow, before, carry))
        for old, new in zip(before, carry, strict=True):
            if old.dtype != new.dtype or old.shape != new.shape:
                raise changed(old, new)
    return carry


def as_narrow(old: Any, new: Any) -> Any:
    """Return a number of NumPy 1 in the dtype that it had: one of Python's widens it there."""
    if not isinstance(new, np.ndarray | np.generic) or new.shape != () or old.shape != ():
        return new
    return new.astype(old.dtype) if new.dtype.kind == old.dtype.kind else new


def limited(body: Function) -> Function:
    """Return the body of a loop, which raises `Endless` where its turns are limited."""
    most = _most_turns.get()
    if most is None:
        return body
    turns = iter(range(most))

    def counted(*values: Any) -> Any:
        if next(turns, None) is None:
            raise Endless(f"a loop has not ended after {most:,} turns on numbers that are made up")
        return body(*values)

    return counted


def changed(old: Any, new: Any) -> TypeError:
    """Return what says that a turn changes what it carries."""
    return TypeError(
        f"a turn of a loop makes {new.dtype} of shape {tuple(new.shape)} of {old.dtype} of shape "
        f"{tuple(old.shape)}; what is carried keeps both"
    )


def while_loop(*values: Array, condition: Region, body: Region, position: int) -> Array:
    return turn_by(meaning_of, values, condition, body)[position]


def turn_by(
    meaning: Callable[[Region], Function], values: Sequence[Array], condition: Region, body: Region
) -> tuple[Array, ...]:
    """Return what a loop carries after it, given what makes a function of a region."""
    held, values = len(body.graph.outputs), tuple(values)
    test, turn = meaning(condition), meaning(body)
    return run(values[:held], values[held:], lambda *v: test(*v)[0], turn)


def meaning_of(region: Region) -> Function:
    """Return what a region computes, by the meanings of its ops."""

    def compute(*values: Array) -> tuple[Array, ...]:
        graph = region.graph
        done: dict[Node, Any] = dict(zip(graph.inputs, values, strict=True))
        tells = [value for node, value in done.items() if node.type.dtype == T]
        for node in graph.nodes:
            if node.op.name == "const":
                done[node] = node.attr("value")
            elif node.op.name == "call":  # a gradient of its own, whose value stands beside
                done[node] = done[node.operands[0]]
            elif node not in done:
                attrs = dict(node.attrs)
                if attrs.get("dtype") in (T, *FLOATS):
                    named = "float32" if attrs["dtype"] == T else attrs["dtype"]
                    is_own = attrs["dtype"] == T and tells
                    attrs["dtype"] = tells[0].dtype if is_own else as_numpy_dtype(named)
                done[node] = node.op.numpy(*(done[o] for o in node.operands), **attrs)
        return tuple(done[node] for node in graph.outputs)

    return compute


def refuse_derivative(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
    """Reverse mode needs every turn.

    Raises:
        TraceError: always.
    """
    raise y.trace.error(f"takes {OF_A_LOOP}", y.trace.locations.get(y.node))


WHILE_LOOP = op(
    "while_loop", "*values", numpy=while_loop, vjp=refuse_derivative, result=carried, coerce="raw",
    shape_of=kept_by_turns, condition=REGION, body=REGION, position=count(0, 1), xp="",
    doc="A tensor that a loop carries, after it: of the carry, then of what stays the same.",
)  # fmt: skip
