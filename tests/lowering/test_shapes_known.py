"""A capture knows the shape of a value from those of its operands: it is that of NumPy's execution,
and to ask for it costs the same however much has been recorded.
"""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings

import multigrad as xg
from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, every_node, make_node
from multigrad.core.ir.op import INPUT, Op
from multigrad.core.lowering.derivatives import accumulate_all
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.passes.facts import Shapes, is_tensor_input, needed_shapes, shape_fact
from multigrad.core.rules.rule_names import OWN
from multigrad.core.trace.trace import NeedsConcrete, Trace
from multigrad.engine.ops.result_shapes import formula_of
from multigrad.engine.passes.shapes import ComputedShapes
from multigrad_conformance.declared import Case, attrs_of, cases
from multigrad_conformance.programs.generator import Program, programs
from multigrad_conformance.programs.running import QUIET, inputs_of

Shape = tuple[int, ...]
CASES = cases()
SHAPES: list[Shape] = [
    (), (1,), (2,), (3,), (2, 3), (3, 2), (3, 3), (1, 3), (2, 2, 3), (2, 3, 3), (4, 3, 3),
    (1, 2, 3), (2, 2, 3, 3),
]  # fmt: skip


# --- what NumPy makes of it -----------------------------------------------------------------------


def executed(graph: Graph, inputs: Mapping[str, Any]) -> dict[Node, Any]:
    """Return the value of every node, by the meanings of the ops on arrays that hold numbers."""
    done: dict[Node, Any] = {}
    for node in graph.nodes:
        attrs = dict(node.attrs)
        if attrs.get("dtype") in ("T", "float16", "bfloat16", "float32", "float64"):
            attrs["dtype"] = np.dtype("float32")
        given = [done[operand] for operand in node.operands]
        if node.op is ops.INPUT:
            done[node] = inputs[node.attr("name")]
        elif node.op is ops.CONST:
            done[node] = node.attr("value")
        elif node.op is ops.CALL:
            done[node] = given[0]
        else:
            done[node] = node.op.numpy(*given, **attrs)
    return done


def differences(graph: Graph, inputs: Mapping[str, Any]) -> list[str]:
    """Return where the shape that a capture would know is not that of the execution."""
    facts = {
        shape_fact(node, "shape"): np.shape(inputs[node.attr("name")])
        for node in graph.nodes
        if is_tensor_input(node)
    }
    shapes = ComputedShapes(facts)
    with np.errstate(all="ignore"), ignoring_warnings():
        values = executed(graph, inputs)
    return [
        f"{node.op.name}{dict(node.attrs)}: {shapes.of(node)} for {np.shape(value)}"
        for node, value in values.items()
        if node.type.kind == "tensor" and shapes.of(node) != np.shape(value)
    ]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), ()])
def test_every_value_of_every_rule_has_the_shape_of_its_execution(shape: Shape) -> None:
    compared = 0
    numbers = np.random.default_rng(5)
    library = [n for n in xg.rules() if xg.get(n).__module__.startswith(OWN)]
    for name in library:  # other tests register their own
        graph = graph_of(name, shape)
        if graph is None:
            continue
        inputs: dict[str, Any] = {
            node.attr("name"): numbers.normal(size=shape).astype(np.float32)
            if node.type.kind == "tensor"
            else (0, 7)
            if node.type.kind == "key"
            else 0.75
            for node in graph.inputs
        }
        assert differences(graph, inputs) == [], name
        compared += len(graph.nodes)
    assert compared > 1000


def graph_of(name: str, shape: Shape) -> Graph | None:
    """Return the graph of a rule under its defaults; None where it asks for more than a shape."""
    bound = xg.get(name).bound_rule()
    facts = {"ndim": len(shape), "shape": shape, "dtype": "float32"}
    for known in ({}, {"ndim": len(shape)}, facts):
        try:
            return bound.specialization.graph(True, known)
        except (NeedsConcrete, xg.MultigradError):
            continue
    return None


@pytest.mark.parametrize("name", CASES)
def test_every_value_of_an_op_and_its_gradient_has_the_shape_of_its_execution(name: str) -> None:
    case = CASES[name]
    points = np.linspace(-2.5, 2.1, 6, dtype=np.float32).reshape(2, 3)
    graph = graph_with_gradient(case)
    cotangent = np.ones(np.shape(case(points)), np.float32)
    assert differences(graph, {"tin": points, "grad_out": cotangent}) == []


def graph_with_gradient(case: Case) -> Graph:
    trace = Trace("recorded")
    x = trace.input("tin", INPUT)
    y = case(x)
    outputs = [y.node]
    if y.node.type.dtype == "T":
        cotangent = trace.input("grad_out", y.node.type)
        seeds = [(y.node, cotangent)] if y.node.op.vjp else []
        (gradient,) = accumulate_all(trace, seeds, [x.node])
        outputs += [] if gradient is None else [gradient.node]
    return Graph("recorded", (x.node,), tuple(outputs))


def test_every_value_of_random_programs_has_the_shape_of_its_execution() -> None:
    compared = set()

    @seed(31)
    @settings(QUIET, max_examples=300)
    @given(program=programs())
    def check(program: Program) -> None:
        inputs = inputs_of(program)
        floats = {name: as_float32(value) for name, value in inputs.items()}
        try:
            found = differences(program.graph, floats)
        except (np.linalg.LinAlgError, IndexError):
            return  # these numbers have no inverse, or are no places
        assert found == [], program
        compared.update(node.op for node in program.graph.nodes)

    check()
    assert len(compared) > 150


def as_float32(value: Any) -> Any:
    with np.errstate(over="ignore"):
        return value.astype(np.float32) if isinstance(value, np.ndarray) else value


# --- what NumPy refuses ---------------------------------------------------------------------------
# Whose formula asks for matrices; NumPy's own function takes a row for one.
OF_MATRICES = (ops.SOLVE, ops.TRIANGULAR_SOLVE)
# Of users, not of derivatives alone, whose operands are right by construction.
WRITTEN = [
    row
    for row in ops.CALLABLE_OPS
    if formula_of(row) is not None and not row.random and not row.in_vjps and row not in OF_MATRICES
]


@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.name)
def test_a_shape_is_refused_where_the_execution_refuses(row: Op) -> None:
    for attrs, operands in operands_of(row):
        shapes = [np.shape(operand) for operand in operands]
        with np.errstate(all="ignore"), ignoring_warnings():
            try:
                wanted = np.shape(row.numpy(*operands, **attrs))
            except np.linalg.LinAlgError:
                continue
            except (ValueError, IndexError, TypeError, xg.GradientError):
                wanted = None
        try:
            formula = formula_of(row)
            found = formula(*shapes, **attrs) if formula else None
        except (ValueError, IndexError, TypeError, xg.GradientError):
            found = None
        assert found == wanted, (attrs, shapes)


def operands_of(row: Op) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield attributes with operands of many shapes, whether they fit or not."""
    numbers = np.random.default_rng(3)
    for attrs in attrs_of(row):
        own = {**attrs, "dtype": np.dtype("float32")} if "dtype" in row.attrs else attrs
        count = len(row.operands)
        if row.variadic:
            count = own.get("subscripts", ",,").count(",") + 1
        combined = list(itertools.product(SHAPES, repeat=count))
        chosen = combined if count < 3 else numbers.choice(len(combined), 150, replace=False)
        for each in chosen:
            shapes = each if count < 3 else combined[each]
            arrays = zip(row.operand_names(count), shapes, strict=True)
            yield own, [filled(row, name, shape, numbers) for name, shape in arrays]


def filled(row: Op, name: str, shape: Shape, numbers: np.random.Generator) -> Any:
    if name in ("mask", "condition") or row.coerce == "bool":
        return np.zeros(shape, bool)
    if name == "indices" or row.coerce == "int":
        return np.zeros(shape, np.int64 if name == "indices" else np.int32)
    return numbers.normal(size=shape).astype(np.float32)


# --- what it costs --------------------------------------------------------------------------------


def recurrence(steps: int) -> Callable[..., Any]:
    """An LSTM without its gates' own names: each step asks for lengths, and cuts by them."""

    def forward(x: Any, h: Any, w: Any, b: Any) -> Any:
        for t in range(steps):
            z = x[t] @ w + np.concatenate((h, h, h), axis=-1) + b
            i, f, g = np.split(z, 3, axis=-1)
            assert i.shape == h.shape
            h = np.tanh(f) * h + np.tanh(i) * g
        return h

    return forward


def calls_of_a_capture(steps: int) -> int:
    """Return how many functions of Python a first call with its gradient enters."""
    x, h = np.full((steps, 2, 3), 0.5, np.float32), np.full((2, 4), 0.25, np.float32)
    w, b = np.full((3, 12), 0.1, np.float32), np.zeros(12, np.float32)
    function = xg.function(recurrence(steps))
    entered = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(note)
    try:
        _, pullback = xg.vjp(function, x, h, w, b)
        pullback(np.ones_like(h))
    finally:
        sys.setprofile(None)
    return entered


def test_a_capture_of_four_times_the_steps_costs_four_times_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    calls_of_a_capture(2)
    few, many = calls_of_a_capture(8), calls_of_a_capture(32)
    assert many < 4.2 * few


def test_the_shape_of_what_is_large_is_known_without_its_memory() -> None:
    x = make_node(ops.INPUT, (), {"name": "tin"}, INPUT)
    graph = graph_with_gradient(CASES["softmax"])
    shapes = ComputedShapes({"shape": (4096, 4096, 64), "shape:grad_out": (4096, 4096, 64)})
    tracemalloc.start()
    try:
        found = {shapes.of(node) for node in every_node(graph) if node.type.kind == "tensor"}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (4096, 4096, 64) in found
    assert peak < 1e6
    assert needed_shapes(x) == ("shape",)


def test_a_shape_is_computed_anew_where_its_fact_is_another() -> None:
    graph = graph_with_gradient(CASES["stack"])
    facts: dict[str, Any] = {"shape": (2, 3), "shape:grad_out": (2, 2, 3)}
    shapes = Shapes(facts)
    (y, *_) = graph.outputs
    assert shapes.known(y) == (2, 3, 3) or shapes.known(y) == (2, 2, 3)
    before = shapes.known(y)
    facts["shape"] = (5, 7)
    assert shapes.known(y) != before
    del facts["shape"]
    assert shapes.known(y) is None
