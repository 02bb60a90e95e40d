"""Faults of capture, planted on purpose: what a graph may get wrong, done to graphs that are
right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import FLOAT_SCALAR, FLOATS, T, Type
from multigrad.core.ops import CONST
from multigrad.core.ops.numerics import as_numpy_dtype
from multigrad.core.passes.simplify import substitute
from multigrad.engine.functions.proof.meanings import run_bounded
from multigrad.engine.lowering.plain_functions import run_reference

# Faults of dtype handling, planted on purpose: a promotion, a cast, a constant or the dtype of a
# sum that is not the library's.


Change = dict[Node, Node]
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "float64": "float32"}
NARROWER = {"float64": "float32", "float32": "bfloat16", "float16": "bfloat16"}


def cast(node: Node, dtype: str) -> Node:
    return make_node(ops.CAST, (node,), {"dtype": dtype}, Type("tensor", dtype, node.type.shape))


def is_float_tensor(node: Node) -> bool:
    return node.type.kind == "tensor" and node.type.dtype in (T, *FLOATS)


def promote_the_result(graph: Graph, dtype: str) -> Iterator[Graph]:
    """A result comes in another dtype than the library's: the rule of another one."""
    for i, node in enumerate(graph.outputs):
        if is_float_tensor(node):
            known = dtype if node.type.dtype == T else node.type.dtype
            other = cast(node, WIDER[known])
            yield replace(graph, outputs=(*graph.outputs[:i], other, *graph.outputs[i + 1 :]))


def forget_a_cast(graph: Graph, dtype: str) -> Iterator[Graph]:
    """A cast is not made, and what follows is computed in the dtype before it."""
    for node in graph.nodes:
        if node.op is ops.CAST and is_float_tensor(node) and is_float_tensor(node.operands[0]):
            known = make_node(node.op, node.operands, dict(node.attrs), node.operands[0].type)
            yield substitute(graph, {node: node.operands[0], known: node.operands[0]})


def cast_to_fewer_bits(graph: Graph, dtype: str) -> Iterator[Graph]:
    """A step is rounded to a narrower dtype, as a constant or an operand of it would do."""
    for node in graph.nodes:
        known = dtype if node.type.dtype == T else node.type.dtype
        if node.operands and is_float_tensor(node) and known in NARROWER:
            yield substitute(graph, {node: cast(cast(node, NARROWER[known]), node.type.dtype)})


def round_a_constant(graph: Graph, dtype: str) -> Iterator[Graph]:
    """A number that was written is made in float32, or in bfloat16."""
    narrow = as_numpy_dtype(NARROWER.get(dtype, "bfloat16"))
    for node in graph.nodes:
        if node.op is ops.CONST and isinstance(node.attr("value"), float):
            value = float(np.asarray(node.attr("value")).astype(narrow))
            yield substitute(graph, {node: make_node(ops.CONST, (), {"value": value}, node.type)})


def accumulate_in_fewer_bits(graph: Graph, dtype: str) -> Iterator[Graph]:
    """`sum(x, dtype=wide)` is summed in x's own dtype, and cast when it is too late."""
    for node in graph.nodes:
        wide = node.operands[0] if node.operands else node
        if node.op in (ops.SUM, ops.MEAN) and wide.op is ops.CAST:
            own = wide.operands[0]
            total = make_node(
                node.op, (own,), dict(node.attrs), node.type._replace(dtype=own.type.dtype)
            )
            yield substitute(graph, {node: cast(total, node.type.dtype)})


DTYPE_FAULTS: tuple[Callable[[Graph, str], Iterator[Graph]], ...] = (
    promote_the_result,
    forget_a_cast,
    cast_to_fewer_bits,
    round_a_constant,
    accumulate_in_fewer_bits,
)


def plant_dtype(graph: Graph, dtype: str, seed: int) -> Graph:
    """Return a graph with a fault of dtypes that shows: in a dtype, a digit, or an overflow.

    Raises:
        LookupError: none does.
    """
    generator = random.Random(seed)
    wanted = DTYPE_FAULTS[seed % len(DTYPE_FAULTS)]
    others = [fault for fault in DTYPE_FAULTS if fault is not wanted]
    generator.shuffle(others)
    for fault in (wanted, *others):
        found = list(fault(graph, dtype))
        generator.shuffle(found)
        for faulty in found:
            if shows(graph, faulty, dtype):
                return replace(faulty, locations=graph.locations, origin=graph.origin)
    raise LookupError(f"no fault of dtypes in {graph.name} shows")


def shows(graph: Graph, faulty: Graph, dtype: str) -> bool:
    """Return whether results differ in their dtype, or by more than a few of its roundings, on
    numbers that the proof does not draw.
    """
    names = [
        [dtype if node.type.dtype == T else node.type.dtype for node in each.outputs]
        for each in (graph, faulty)
    ]
    return names[0] != names[1] or any(
        differs(graph, faulty, dtype, scale) for scale in (1.0, 250.0)
    )


def differs(graph: Graph, faulty: Graph, dtype: str, scale: float) -> bool:
    import ml_dtypes

    generator = np.random.default_rng(99)
    drawn = (scale * generator.normal(size=(3, 4))).astype(as_numpy_dtype(dtype))
    given: dict[str, Any] = {node.attr("name"): drawn for node in graph.inputs}
    try:
        found = [np.asarray(a) for a in run_reference(faulty, given)]
    except (ArithmeticError, LookupError, TypeError, ValueError):  # what no library computes
        return False
    for a, b in zip(found, map(np.asarray, run_reference(graph, given)), strict=True):
        wide, other = a.astype(np.float64), b.astype(np.float64)
        if (np.isfinite(other) & ~np.isfinite(wide)).any():
            return True
        with np.errstate(invalid="ignore"):
            apart = np.abs(wide - other) > 300 * float(ml_dtypes.finfo(b.dtype).eps) * np.abs(other)
        if np.isfinite(wide).all() and np.mean(apart) > 0.2:
            return True
    return False


Fault = Callable[[Graph], Iterator[dict[Node, Node]]]
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})


def drop_a_node(graph: Graph) -> Iterator[dict[Node, Node]]:
    """A step is forgotten: its operand goes on in its place."""
    for node in graph.nodes:
        for operand in node.operands:
            if operand.type == node.type and node.op is not CONST:
                yield {node: operand}


def swap_operands(graph: Graph) -> Iterator[dict[Node, Node]]:
    """`a - b` is read as `b - a`, `where(c, a, b)` as `where(c, b, a)`."""
    for node in graph.nodes:
        if len(node.operands) < 2 or node.op.name in COMMUTATIVE:
            continue
        *first, a, b = node.operands
        same = a.type.kind == b.type.kind and a.type.dtype == b.type.dtype
        if same or node.op.name in ("sub", "div", "pow"):
            yield {node: make_node(node.op, (*first, b, a), dict(node.attrs), node.type)}


def change_an_attribute(graph: Graph) -> Iterator[dict[Node, Node]]:
    """A default of another library: n for n - 1, another axis, another slope."""
    for node in graph.nodes:
        for name, value in node.attrs:
            if node.operands and type(value) in (int, float) and name != "value":
                attrs = {**dict(node.attrs), name: value + 1}
                yield {node: make_node(node.op, node.operands, attrs, node.type)}


def ignore_a_number(graph: Graph) -> Iterator[dict[Node, Node]]:
    """An argument, or a number that was written, is not read."""
    for node in graph.nodes:
        is_number = node.type.kind == "scalar" and node.type.dtype == "float"
        if is_number and not node.operands:
            yield {node: make_node(CONST, (), {"value": 0.8125}, FLOAT_SCALAR)}


GRAPH_FAULTS: tuple[Fault, ...] = (drop_a_node, swap_operands, change_an_attribute, ignore_a_number)


def plant(graph: Graph, seed: int) -> Graph:
    """Return a graph that computes something else, by the first fault of a shuffled list that
    shows.

    Raises:
        LookupError: no fault changes its results.
    """
    generator = random.Random(seed)
    choices = [change for fault in GRAPH_FAULTS for change in fault(graph)]
    generator.shuffle(choices)
    # One kind of fault after the other, so that rare ones come too.
    wanted = GRAPH_FAULTS[seed % len(GRAPH_FAULTS)]
    for change in [*_shuffled(wanted(graph), generator), *choices]:
        faulty = substitute(graph, change)
        if _differs(graph, faulty):
            return replace(faulty, locations=graph.locations, origin=graph.origin)
    raise LookupError(f"no fault of {graph.name} shows")


def _shuffled(changes: Iterator[dict[Node, Node]], generator: random.Random) -> list[Any]:
    found = list(changes)
    generator.shuffle(found)
    return found


def _differs(graph: Graph, faulty: Graph) -> bool:
    """Return whether some results are clearly others, on numbers that the proof does not draw."""
    generator = np.random.default_rng(99)
    given = {
        node.attr("name"): generator.normal(size=(3, 4)) if node.type.kind == "tensor" else 1.25
        for node in graph.inputs
    }
    try:
        found = [np.asarray(b.value) for b in run_bounded(faulty, given, np.dtype("float32"))]
    except (TypeError, ValueError, IndexError):
        return False  # of another shape: it would be seen without a proof
    expected = [np.asarray(b.value) for b in run_bounded(graph, given, np.dtype("float32"))]
    return _clearly_apart(found, expected)


def _clearly_apart(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return False
        with np.errstate(all="ignore"):
            apart = np.abs(a.astype(float) - b.astype(float))
        if np.isfinite(apart).all() and np.mean(apart > 1e-2) > 0.2:
            return True
    return False
