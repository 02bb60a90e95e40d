"""The IR: equal nodes are one, a graph reads as text, one capture serves all ranks and dtypes, and
`verify` sees faults.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import (
    BOOL_SCALAR,
    FLOAT_SCALAR,
    INPUT,
    INT_SCALAR,
    KEY,
    UNKNOWN,
    Op,
    Type,
)
from multigrad.core.rules.registry import resolve
from multigrad.core.trace.trace import Trace, constant
from multigrad.engine.passes import verify as verifying
from multigrad.engine.passes.verify import CHECKS, InvalidGraph, verify
from multigrad.errors import MultigradError
from multigrad_conformance.oracles import DTYPES, LIBRARY, spread

from ..written.unseen import Unseen

xp = xg.xp
Tensor = Any

MASK = Type("tensor", "bool", INPUT.shape)
HALF = Type("tensor", "float16", INPUT.shape)


def leaf(name: str, type_: Type = INPUT) -> Node:
    return make_node(ops.INPUT, (), {"name": name}, type_)


G, X, KEY_NODE = leaf("grad_out"), leaf("tin"), leaf("key", KEY)


def graph_of(*outputs: Node, inputs: tuple[Node, ...] | None = None) -> Graph:
    return Graph("broken", inputs if inputs is not None else (G, X, KEY_NODE), outputs)


def apply_op(op: Op, *operands: Node, type_: Type = INPUT, **attrs: Any) -> Node:
    return make_node(op, operands, attrs, type_)


# --- nodes ----------------------------------------------------------------------------------------


def test_the_same_operation_written_twice_is_one_node() -> None:
    trace = Trace("twice")
    x = trace.input("tin", INPUT)
    assert (abs(x) * 2.0).node is (abs(x) * 2.0).node
    assert xp.sum(x, axis=-1, keepdims=True).node is xp.sum(x, -1, True).node
    assert trace.input("tin", INPUT).node is x.node


def test_nodes_that_differ_in_anything_are_two() -> None:
    x = Trace("differ").input("tin", INPUT)
    nodes = [
        xp.sum(x).node, xp.sum(x, axis=0).node, xp.sum(x, axis=0, keepdims=True).node,
        xp.sum(x, axis=(0,)).node, xp.max(x).node, (x + 1).node, (x + 1.0).node, (x - 1).node,
        (1 - x).node, xp.elu(x, 1.0).node, xp.elu(x, 2.0).node,
    ]  # fmt: skip
    assert len(set(nodes)) == len(nodes)


def test_numbers_that_differ_in_their_bits_or_kind_are_different_constants() -> None:
    numbers = (0.0, -0.0, 0, False, 1, 1.0, True, math.inf, -math.inf, math.nan)
    nodes = [constant(number) for number in numbers]
    assert len(set(nodes)) == len(nodes)
    assert constant(math.nan) is constant(math.nan)


def test_threads_that_build_the_same_graph_get_the_same_nodes() -> None:
    def build(_: int) -> Node:
        value = Trace("threads").input("tin", INPUT)
        for i in range(200):
            value = xp.tanh(value * float(i)) + value
        return value.node

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(build, range(16)))) == 1


def test_nodes_without_a_graph_are_forgotten() -> None:
    from multigrad.core.ir.graph import _nodes

    gc.collect()
    before = len(_nodes)
    value = Trace("forgotten").input("a name used nowhere else", INPUT)
    for _ in range(100):
        value = value + 0.12345
    assert len(_nodes) > before + 90
    del value
    gc.collect()
    assert len(_nodes) <= before + 2


def test_nodes_and_graphs_are_frozen() -> None:
    for thing, field in ((X, "op"), (graph_of(X), "outputs"), (INPUT, "dtype")):
        with pytest.raises(AttributeError):
            setattr(thing, field, None)


def test_operands_come_before_their_users_and_each_node_once() -> None:
    value = Trace("order").input("tin", INPUT)
    for _ in range(5000):  # deeper than Python's own stack
        value = value + value
    nodes = graph_of(value.node).nodes
    place = {node: i for i, node in enumerate(nodes)}
    assert len(place) == len(nodes) == 5001
    assert all(place[operand] < place[node] for node in nodes for operand in node.operands)


# --- text -----------------------------------------------------------------------------------------


def test_the_text_form_shows_types_operands_attributes_and_lines() -> None:
    def centered(ctx: Any, grad_out: Tensor, tin: Tensor, scale: float = 2.0) -> Tensor:
        return scale * (grad_out - xp.mean(grad_out, axis=-1, keepdims=True))

    line = centered.__code__.co_firstlineno + 1
    text = xg.show(centered)
    where = f"  # test_graph.py:{line}"
    assert text.splitlines() == [
        "centered(grad_out: T[...], tin: T[...], scale: weak float)  # written in xg.xp",
        f"  %1: T[... with 1 at -1] = mean(grad_out, axis=-1, keepdims=True){where}",
        f"  %2: T[...] = sub(grad_out, %1){where}",
        f"  %3: T[...] = mul(scale, %2){where}",
        "  return %3",
    ]


@pytest.mark.parametrize("name", LIBRARY)
def test_the_text_of_every_rule_names_each_result_before_it_is_used(name: str) -> None:
    header, *lines, last = xg.show(name).splitlines()
    assert header.startswith(f"{name}(grad_out: T[...], tin: T[...]")
    known: set[str] = set()
    for line in [*lines, last]:
        result, _, call = line.partition(" = ")
        assert set(re.findall(r"%\d+", call or result)) <= known
        known |= set(re.findall(r"%\d+", result)) if call else set()
    assert last.startswith("  return ")


# --- one capture ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("unproven")
def test_one_capture_serves_every_rank_and_dtype_on_every_backend(backend: Any) -> None:
    captures = Unseen()

    def counted(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
        captures.append(1)
        window = xp.maximum(1.0 - abs(tin) / width, 0.0)
        return grad_out * window / (1.0 + xp.norm(grad_out)) * xp.size(tin)

    for dtype in DTYPES:
        for shape in ((), (3,), (2, 3), (2, 1, 3)):
            x, g = spread(shape, dtype), spread(shape, dtype, seed=1)
            for width in (1.0, 3.0):
                with backend.precision(dtype):
                    rule = resolve(counted)
                    result = rule(None, backend.array(g), backend.array(x), width=width)
                    result = backend.numpy(result)
                assert (result.dtype, result.shape) == (dtype, shape)
    assert len(captures) == 1


# --- verify: each check has a node that it refuses ------------------------------------------------


def unlisted() -> Graph:
    stranger = ops.ABS.with_fields(name="stranger")
    return graph_of(apply_op(stranger, X))


LOOSE = Type("tensor", "float")
WHOLE = leaf("tin", Type("tensor", "int32", INPUT.shape))
COMPLEX = leaf("tin", Type("tensor", "complex64", INPUT.shape))
BROKEN: dict[str, tuple[Callable[[], Graph], ...]] = {
    "op_is_in_the_table": (unlisted,),
    "operands_are_counted": (
        lambda: graph_of(apply_op(ops.ADD, X)),
        lambda: graph_of(apply_op(ops.ABS, X, G)),
        lambda: graph_of(apply_op(ops.INPUT, X, name="tin")),
    ),
    "attrs_are_named": (
        lambda: graph_of(apply_op(ops.SUM, X, axis=None, type_=Type("tensor", "T"))),
        lambda: graph_of(apply_op(ops.ABS, X, slope=1.0)),
    ),
    "inputs_are_declared": (
        lambda: graph_of(apply_op(ops.ABS, leaf("nowhere"))),
        lambda: graph_of(X, inputs=(X, leaf("tin", HALF))),
    ),
    "attrs_have_legal_values": (
        lambda: graph_of(apply_op(ops.SUM, X, axis="all", keepdims=True)),
        lambda: graph_of(apply_op(ops.SUM, X, axis=(0, 1.0), keepdims=True)),
        lambda: graph_of(apply_op(ops.SUM, X, axis=0, keepdims=1)),
        lambda: graph_of(apply_op(ops.CAST, X, dtype="complex64")),
        lambda: graph_of(apply_op(ops.LEAKY_RELU, X, slope="steep")),
        lambda: graph_of(apply_op(ops.GELU, X, approximate="tanh")),
        lambda: graph_of(apply_op(ops.FOLD_IN, KEY_NODE, n=-1, type_=KEY)),
        lambda: graph_of(apply_op(ops.VAR, X, axis=None, keepdims=False, correction=None)),
    ),
    "constants_are_numbers": (
        lambda: graph_of(make_node(ops.CONST, (), {"value": "1"}, FLOAT_SCALAR)),
        lambda: graph_of(make_node(ops.CONST, (), {"value": None}, FLOAT_SCALAR)),
        lambda: graph_of(make_node(ops.ARRAY, (X,), {"dtype": "T", "value": (1.0, 2.0)}, LOOSE)),
    ),
    "keys_are_for_draws": (
        lambda: graph_of(apply_op(ops.UNIFORM_LIKE, X, X)),
        lambda: graph_of(apply_op(ops.ADD, X, KEY_NODE)),
        lambda: graph_of(apply_op(ops.FOLD_IN, X, n=1, type_=KEY)),
    ),
    "dtypes_are_known": (
        lambda: graph_of(COMPLEX, inputs=(COMPLEX,)),
        lambda: graph_of(apply_op(ops.SUM, constant(1.0), axis=None, keepdims=False, type_=LOOSE)),
        lambda: graph_of(make_node(ops.CONST, (), {"value": 1.0}, Type("scalar", "T"))),
    ),
    "logic_takes_bools": (
        lambda: graph_of(apply_op(ops.AND, X, G, type_=MASK)),
        lambda: graph_of(apply_op(ops.WHERE, X, X, G)),
        lambda: graph_of(apply_op(ops.ANY, X, axis=None, keepdims=False, type_=MASK)),
    ),
    "arithmetic_takes_numbers": (
        lambda: graph_of(
            apply_op(ops.ADD, leaf("tin", MASK), constant(1)), inputs=(leaf("tin", MASK),)
        ),
        lambda: graph_of(apply_op(ops.MUL, X, apply_op(ops.GT, X, constant(0), type_=MASK))),
    ),
    "integers_are_for_integer_ops": (
        lambda: graph_of(apply_op(ops.BITWISE_AND, X, G)),
        lambda: graph_of(apply_op(ops.BITWISE_INVERT, X)),
        lambda: graph_of(apply_op(ops.EXP, WHOLE, type_=WHOLE.type), inputs=(WHOLE,)),
    ),
    "float_operands_share_a_dtype": (
        lambda: graph_of(apply_op(ops.ADD, X, apply_op(ops.CAST, X, dtype="float16", type_=HALF))),
    ),
    "type_follows_from_operands": (
        lambda: graph_of(apply_op(ops.ABS, X, type_=HALF)),
        lambda: graph_of(apply_op(ops.GT, X, G, type_=INPUT)),
        lambda: graph_of(apply_op(ops.SIZE, X, type_=FLOAT_SCALAR)),
        lambda: graph_of(
            apply_op(ops.WHERE, apply_op(ops.GT, X, G, type_=MASK), constant(1.0), constant(2.0))
        ),
    ),
}


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_every_check_refuses_the_nodes_it_is_for(check: str) -> None:
    for build in BROKEN[check]:
        with pytest.raises(InvalidGraph, match=rf"^broken: \w+ is illegal \({check}\): ."):
            verify(build())


def test_an_invalid_graph_is_a_multigrad_error() -> None:
    assert issubclass(InvalidGraph, MultigradError)
    assert set(BROKEN) == {check.__name__ for check in verifying.CHECKS}


def test_what_capture_makes_of_every_rule_is_legal() -> None:
    for name in LIBRARY:
        family = xg.get(name).bound_rule().specialization
        verify(family.graph(True, {}))
        verify(family.graph(False, {}))


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w: x + 1, INPUT),
        (lambda x, w: x > w, MASK),
        (lambda x, w: w > 0, BOOL_SCALAR),
        (lambda x, w: w * 2, FLOAT_SCALAR),
        (lambda x, w: xp.size(x) * 2, INT_SCALAR),
        (lambda x, w: xp.size(x) / 2, FLOAT_SCALAR),
        (lambda x, w: xp.sum(x), Type("tensor", "T", ())),
        (lambda x, w: xp.sum(x, axis=0), Type("tensor", "T", ("reduced", 0, False))),
        (lambda x, w: x * xp.sum(x, axis=0, keepdims=True), INPUT),
        (lambda x, w: x * xp.sum(x, axis=0), Type("tensor", "T", UNKNOWN)),
        (lambda x, w: (x > 0) * 1.5, INPUT),
        (lambda x, w: xp.where(x > 0, 1.0, 0.0), INPUT),
        (lambda x, w: xp.where(w > 0, x, 0.0), INPUT),
        (lambda x, w: xp.astype(x, "int32") & 3, WHOLE.type),
        (lambda x, w: xp.astype(x, "int32") * 2 - (x > 0), WHOLE.type),
        (lambda x, w: xp.astype(x, "int32") * w, INPUT),
        (lambda x, w: xp.astype(x, "int32") + x, INPUT),
        (lambda x, w: xp.exp(xp.astype(x, "int32")), INPUT),
        (lambda x, w: xp.sum(xp.astype(x, "int32")), Type("tensor", "int64", ())),
        (lambda x, w: xp.size(x) // 2, INT_SCALAR),
        (lambda x, w: w % 2, FLOAT_SCALAR),
    ],
)
def test_result_types_follow_from_the_operands(function: Any, expected: Type) -> None:
    trace = Trace("types")
    x, w = trace.input("tin", INPUT), trace.input("width", FLOAT_SCALAR)
    assert function(x, w).node.type == expected


def test_a_result_of_unknown_shape_is_checked_when_it_is_there() -> None:
    def broadcasts(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * xp.sum(grad_out, axis=1)

    rule = resolve(broadcasts)
    square, column = np.ones((3, 3), np.float32), np.ones((3, 1), np.float32)
    np.testing.assert_array_equal(rule(None, square, square), 3 * square)
    with pytest.raises(xg.GradientError, match=r"broadcasts.*\(3, 3\).*\(3, 1\)"):
        rule(None, column, column)
