"""Facts: what Python code asks about its arguments; each set of answers has a capture of its own.

"ndim" and "shape" are those of the first tensor, "shape:w" that of another, "param:c" the value of
a number, "dtype" the first tensor's. Values that code reads besides its arguments (`lookups.py`)
are among them, and questions of code that is not plain (`engine/functions/calls/facts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...errors import TraceError
from ..ir.graph import Location
from ..ir.op import FLOATS, T, dtype_name
from ..passes.facts import GIVEN, LIBRARY, needed_shapes
from ..support.lazy_modules import provided
from ..support.trees import Tensor
from ..trace.lookups import is_read, look_up
from ..trace.trace import NeedsConcrete, Trace, Value, known_shape
from .arguments import Layout, Leaf
from .recipe import NotCaptured

SOME_LENGTH = 3  # where any is right
Answer = Callable[[str, str, Any], Any]  # to a fact, of a kind, about a leaf


def gather_facts(
    subject: str,
    needed: frozenset[str],
    layout: Layout,
    leaves: Sequence[Any],
    *,
    places: Mapping[str, Location] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return facts about a call's arguments, by name: "ndim", "shape:w", "param:c", "dtype".

    Args:
        places: where the code asked for facts.
    """
    if layout.needs_dtype:
        needed = needed | {"dtype"}

    def answer(fact: str, kind: str, value: Any) -> Any:
        if kind == "dtype":
            return layout.dtype or dtype_name(value.dtype)
        if kind == "ndim":
            return len(value.shape)
        if kind == "shape":
            return _shape_of(subject, value, places.get(fact))
        if kind != "param":
            return answer_of_tensor(subject, kind, value)
        if isinstance(value, int | float):
            return value
        raise TraceError(
            f"{subject} needs the value of param {fact.partition(':')[2]!r} in Python (a "
            "branch or a loop), but it is a tensor here. Pass a Python number"
        )

    return _answered(needed, layout, leaves, answer)


def facts_of_symbols(
    trace: Trace, needed: Iterable[str], layout: Layout, leaves: Sequence[Any]
) -> dict[str, Any]:
    """Return the facts about symbolic arguments that the capture around them has fixed.

    Raises:
        NeedsConcrete: that capture has to fix more.
    """

    def answer(fact: str, kind: str, value: Any) -> Any:
        if kind == "param":
            return float(value)
        is_symbol = isinstance(value, Value)
        if kind == "dtype":
            if "dtype" not in trace.facts:
                raise NeedsConcrete("dtype")
            is_relative = not is_symbol or value.node.type.dtype == T
            return trace.facts["dtype"] if is_relative else value.node.type.dtype
        if kind == "ndim":
            return value.ndim if is_symbol else len(value.shape)  # type: ignore[attr-defined]
        if kind != "shape":
            return answer_of_code(trace, kind, value)
        shape = known_shape(value) if is_symbol else value.shape
        if shape is None:
            raise NeedsConcrete(*needed_shapes(value.node))
        return tuple(shape)

    return _answered(needed, layout, leaves, answer)


def _answered(
    needed: Iterable[str], layout: Layout, leaves: Sequence[Any], answer: Answer
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for fact, kind, index in leaf_of_each(sorted(needed), layout, first_tensor(layout)):
        if is_read(fact):
            facts[fact] = look_up(fact)
        elif kind in GIVEN:
            facts[fact] = True
        elif index is None or not _has(layout.leaves[index], kind):
            facts[fact] = None  # of another layout: there is nothing to know
        else:
            facts[fact] = answer(fact, kind, leaves[index])
    return facts


def _shape_of(subject: str, value: Tensor, place: Location | None) -> tuple[int, ...]:
    shape = tuple(value.shape)
    if all(isinstance(n, int) for n in shape):
        return shape
    where = f" ({place})" if place else ""
    problem = (
        f"{subject}{where} needs the shape of an argument in Python, but it is {shape} here. A "
        "constant index that an unknown length may be too short for, and code that reads x.shape "
        "as numbers, need it: fix the lengths of what is traced"
    )
    raise NotCaptured(TraceError(problem, place and (place.file, place.line)))


@provided
def answer_of_tensor(subject: str, kind: str, value: Any) -> Any:
    """Return a fact about an argument that plain code never asks for."""
    raise AssertionError(f"plain code asks for no {kind}")


@provided
def answer_of_code(trace: Trace, kind: str, value: Any) -> Any:
    """Return a fact about a symbol that plain code never asks for."""
    raise AssertionError(f"plain code asks for no {kind}")


def leaf_of_each(
    facts: Iterable[str], layout: Layout, first: int | None
) -> Iterator[tuple[str, str, int | None]]:
    """Yield each fact, its kind, and the position of the leaf that it is about, None for none."""
    by_name = {leaf.name: i for i, leaf in enumerate(layout.leaves)}
    for fact in facts:
        kind, _, argument = fact.partition(":")
        yield fact, kind, by_name.get(argument) if argument else first


def first_tensor(layout: Layout) -> int | None:
    """Return the position of the tensor that facts without a name are about."""
    tensors = layout.indices("tensor")
    # Inside a capture the first float may have the dtype T.
    floats = (i for i in tensors if layout.leaves[i].dtype in (*FLOATS, T))
    return next(floats, tensors[0] if tensors else None)


def _has(leaf: Leaf, kind: str) -> bool:
    # A number has no fact but its value (and its library).
    return leaf.kind == "tensor" or (leaf.kind == "number" and kind in ("param", LIBRARY))


# --- what tells calls apart -----------------------------------------------------------------------
def watch(needed: frozenset[str], layout: Layout) -> Callable[[Sequence[Any]], Any]:
    """Return a function that quickly tells the calls of a layout apart by these facts."""
    look, reads = watch_arguments(needed, layout), sorted(filter(is_read, needed))
    if not reads:
        return look or same_key

    def look_around(leaves: Sequence[Any]) -> Any:
        return (*map(look_up, reads), look and look(leaves))

    return look_around


def same_key(leaves: Sequence[Any]) -> None:
    """Return the key of calls that no fact tells apart."""


def watch_arguments(
    needed: frozenset[str], layout: Layout
) -> Callable[[Sequence[Any]], Any] | None:
    """Return a function that tells calls apart by facts about arguments; None if none is."""
    numbers, shapes, questions = set(), set(), []
    for _, kind, index in leaf_of_each(needed, layout, first_tensor(layout)):
        # Of another layout, an argument may be a tensor: here there is nothing to know.
        if index is None or not _has(layout.leaves[index], kind):
            continue
        if kind in ("param", "ndim", "shape"):
            (numbers if kind == "param" else shapes).add(index)
        elif (ask := question_of(kind)) is not None:
            questions.append((ask, index))
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


@provided
def question_of(kind: str) -> Callable[[Tensor], Any] | None:
    """Return a function that answers a fact of this kind about an argument; None: an entry's
    tensors agree in it.
    """
    return None


def number_key(number: Any) -> Any:
    """Return a number as a key, of a tensor its type alone."""
    # 0.0 equals -0.0, and NaN not even itself: these become strings.
    if not isinstance(number, int | float):
        return type(number)
    return repr(number) if not number or math.isnan(number) else number


def shape_key(x: Tensor) -> tuple[int | None, ...] | None:
    """Return the known part of a shape; None if TensorFlow does not know the rank."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)
