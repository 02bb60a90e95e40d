"""Facts: what a Function's Python code asks about its arguments; each set is a capture of its own.

"ndim" and "shape" are those of the first tensor, "shape:w" that of another, "param:c" the value of
a number, "device_type" the kind of device of the first tensor, "gradient:w" whether w asks for one,
"strided:w" whether w is no sparse tensor, "contiguous:w" whether it lies in memory in order,
"attribute.a:w" whether w has an attribute a, "buffers" that what the code makes from numbers is
written into. What it reads besides its arguments (`lookups.py`) is among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from ...errors import TraceError
from ..backend.values import owner_of
from ..ir.graph import Location
from ..ir.op import FLOATS, T, dtype_name
from ..passes.facts import GIVEN, LIBRARY, computed_shape, needed_shapes
from ..support.lazy_modules import provided
from ..support.trees import Tensor
from ..trace.lookups import is_read, look_up
from ..trace.trace import NeedsConcrete, Trace, Value, known_shape
from .arguments import Layout, Leaf
from .capture_errors import NotCaptured
from .recipe import attribute_of

ATTRIBUTE = "attribute."


def gather_facts(
    subject: str,
    needed: frozenset[str],
    layout: Layout,
    leaves: Sequence[Any],
    *,
    unknown: int | None = None,
    places: Mapping[str, Location] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return facts about a call's arguments, by name: "ndim", "shape:w", "param:c", "dtype".

    Args:
        unknown: the length to take for those that a framework leaves open, as does a batch in
            TensorFlow; None: refuse them. With it, symbols whose shapes a capture around this one
            can fix have None.
        places: where the code asked for facts.
    """
    facts: dict[str, Any] = {}
    if layout.needs_dtype:
        needed = needed | {"dtype"}
    for fact, kind, index in places_of(sorted(needed), layout, first_tensor(layout)):
        if is_read(fact):
            facts[fact] = look_up(fact)
            continue
        if kind in GIVEN:
            facts[fact] = True
            continue
        if index is None or not _has(layout.leaves[index], kind):
            facts[fact] = None  # of another layout: there is nothing to know
            continue
        value = leaves[index]
        if kind == "dtype":
            facts[fact] = layout.dtype or dtype_name(value.dtype)
        elif kind == LIBRARY:
            facts[fact] = library_of_leaf(value)
        elif kind in WATCHED:
            facts[fact] = WATCHED[kind](value)
        elif kind.startswith(ATTRIBUTE):
            facts[fact] = attribute_of(kind.removeprefix(ATTRIBUTE), value)
            if facts[fact] is None:
                raise TraceError(
                    f"{subject} looks for .{kind.removeprefix(ATTRIBUTE)} of an argument, which a "
                    "function sets on what it returns. On its own framework alone it is kept: call "
                    "both inside one captured function"
                )
        elif kind == "ndim":
            facts[fact] = len(value.shape)
        elif kind == "shape":
            if unknown is not None:
                facts[fact] = lengths_of(value, unknown)
                continue
            facts[fact] = tuple(value.shape)
            if any(not isinstance(n, int) for n in facts[fact]):
                place = places.get(fact)
                where = f" ({place})" if place else ""
                problem = (
                    f"{subject}{where} needs the shape of an argument in Python, but it is "
                    f"{facts[fact]} here. A constant index that an unknown length may be too short "
                    "for, and code that reads x.shape as numbers, need it: fix the lengths of what "
                    "is traced"
                )
                raise NotCaptured(TraceError(problem, place and (place.file, place.line)))
        elif isinstance(value, int | float):
            facts[fact] = value
        else:
            raise TraceError(
                f"{subject} needs the value of param {layout.leaves[index].name!r} in Python (a "
                "branch or a loop), but it is a tensor here. Pass a Python number"
            )
    return facts


def library_of_leaf(value: Any) -> str:
    owner = owner_of(value)
    return "" if owner is None else owner.name


def library_of_leaves(layout: Layout, leaves: Sequence[Any]) -> str:
    """Return the library of a call's tensors, "" without one."""
    first = first_tensor(layout)
    return "" if first is None else library_of_leaf(leaves[first])


def closed(shape: Iterable[Any], unknown: int = 1) -> tuple[int, ...]:
    """Return a shape with a number for the lengths that a framework leaves open."""
    return tuple(n if isinstance(n, int) else unknown for n in shape)


def lengths_of(value: Any, unknown: int) -> tuple[int, ...] | None:
    """Return a closed shape; None for a symbol of unknown shape, unless that has open lengths."""
    if not isinstance(value, Value):
        return closed(value.shape, unknown)
    facts, shape = value.trace.facts, known_shape(value)
    if shape is not None or facts.lengths is None:
        return shape
    needed = frozenset(needed_shapes(value.node))
    found = facts.lengths(needed, unknown=unknown)
    if None in found.values() or found == facts.lengths(needed, unknown=unknown + 1):
        return None
    return computed_shape({**facts, **found}, value.node)


def places_of(
    facts: Iterable[str], layout: Layout, first: int | None
) -> Iterator[tuple[str, str, int | None]]:
    """Yield each fact, its kind, and the position of the leaf that it is about, None for none."""
    by_name = {leaf.name: i for i, leaf in enumerate(layout.leaves)}
    for fact in facts:
        kind, _, argument = fact.partition(":")
        yield fact, kind, by_name.get(argument) if argument else first


SOME_LENGTH = 3  # where any is right


def _has(leaf: Leaf, kind: str) -> bool:
    # A number has no fact but its value (and its library).
    return leaf.kind == "tensor" or (leaf.kind == "number" and kind in ("param", LIBRARY))


def _told(name: str, otherwise: Any, value: Tensor) -> Any:
    owner = owner_of(value)
    ask = None if owner is None else getattr(owner.tensors, name)
    return otherwise if ask is None else ask(value)


def requires_grad(value: Tensor) -> bool:
    """Return whether a tensor asks for a gradient, or may do so."""
    return _told("requires_grad", dtype_name(value.dtype) in FLOATS, value)


WATCHED: dict[str, Callable[[Tensor], Any]] = {
    # Without an answer a tensor counts as contiguous, dense, and on a CPU.
    "contiguous": partial(_told, "is_contiguous", True),
    "device_type": partial(_told, "device_type", "cpu"),
    "gradient": requires_grad,
    "strided": partial(_told, "is_strided", True),
}


def facts_of_symbols(
    trace: Trace, needed: Iterable[str], layout: Layout, leaves: Sequence[Any]
) -> dict[str, Any]:
    """Return the facts about symbolic arguments that the capture around them has fixed.

    Raises:
        NeedsConcrete: that capture has to fix more.
    """
    floats = (i for i, leaf in enumerate(layout.leaves) if leaf.dtype in (*FLOATS, T))
    # Inside a capture the first float may have the dtype T.
    first_float = next(floats, first_tensor(layout))
    facts: dict[str, Any] = {}
    for fact, kind, index in places_of(sorted(needed), layout, first_float):
        if is_read(fact):
            facts[fact] = look_up(fact)
        elif index is not None and layout.leaves[index].kind != "static":
            facts[fact] = _fact_of_symbol(trace, kind, leaves[index])
        else:
            facts[fact] = kind in GIVEN
    return facts


def _fact_of_symbol(trace: Trace, kind: str, value: Any) -> Any:
    if kind == "param":
        return float(value)
    if kind in GIVEN:
        return True
    if kind == "dtype":
        if "dtype" not in trace.facts:
            raise NeedsConcrete("dtype")
        is_relative = not isinstance(value, Value) or value.node.type.dtype == T
        return trace.facts["dtype"] if is_relative else value.node.type.dtype
    if kind not in ("ndim", "shape"):
        return answer_of_code(trace, kind, value)
    if not isinstance(value, Value):
        return len(value.shape) if kind == "ndim" else tuple(value.shape)
    if kind == "ndim":
        return value.ndim  # type: ignore[attr-defined]
    shape = known_shape(value)
    if shape is None:
        raise NeedsConcrete(*needed_shapes(value.node))
    return tuple(shape)


@provided
def answer_of_code(trace: Trace, kind: str, value: Any) -> Any:
    """Return a fact about a symbol that plain code never asks for."""
    raise AssertionError(f"plain code asks for no {kind}")


def watch(needed: frozenset[str], layout: Layout) -> Callable[[Sequence[Any]], Any]:
    """Return a function that quickly tells the calls of a layout apart by these facts."""
    look, reads = watch_arguments(needed, layout), sorted(filter(is_read, needed))
    if not reads:
        return look or nothing

    def look_around(leaves: Sequence[Any]) -> Any:
        return (*map(look_up, reads), look and look(leaves))

    return look_around


def nothing(leaves: Sequence[Any]) -> None:
    """Return the key of calls that no fact tells apart."""


def watch_arguments(
    needed: frozenset[str], layout: Layout
) -> Callable[[Sequence[Any]], Any] | None:
    """Return a function that tells calls apart by facts about arguments; None if none is."""
    numbers, shapes, questions = set(), set(), []
    for _, kind, index in places_of(needed, layout, first_tensor(layout)):
        # Of another layout, an argument may be a tensor: here there is nothing to know.
        if index is None or not _has(layout.leaves[index], kind):
            continue
        if kind in WATCHED:
            questions.append((WATCHED[kind], index))
        if kind.startswith(ATTRIBUTE):
            questions.append((partial(attribute_of, kind.removeprefix(ATTRIBUTE)), index))
        if kind in ("param", "ndim", "shape"):
            (numbers if kind == "param" else shapes).add(index)
    order = sorted(numbers)
    questions += [(shape_key, index) for index in sorted(shapes)]

    def look(leaves: Sequence[Any]) -> Any:
        keys = [number_key(leaves[i]) for i in order]
        return (*keys, *[ask(leaves[i]) for ask, i in questions])

    def look_at_number(leaves: Sequence[Any]) -> Any:
        return number_key(leaves[order[0]])

    # The function runs at each call, so the cheapest that suffices is returned.
    if not questions and len(order) < 2:
        return look_at_number if order else None
    return look


def number_key(number: Any) -> Any:
    """Return a number as a key, of a tensor its type alone."""
    # 0.0 equals -0.0, and NaN not even itself: these become strings.
    if not isinstance(number, int | float):
        return type(number)
    return repr(number) if not number or math.isnan(number) else number


def shape_key(x: Tensor) -> tuple[int | None, ...] | None:
    """Return the known part of a shape; None if TensorFlow does not know the rank."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)


def first_tensor(layout: Layout) -> int | None:
    """Return the position of the tensor that facts without a name are about."""
    index = next((i for i, leaf in enumerate(layout.leaves) if leaf.is_float), None)
    if index is None:
        index = next((i for i, leaf in enumerate(layout.leaves) if leaf.kind == "tensor"), None)
    return index
