"""Passes make graphs smaller and change no bit of any value; what they leave is legal after each
step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import FLOAT_SCALAR, INPUT, INPUT_SHAPE, Type
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.passes.simplify import rebuild, rewrites_for, simplify
from multigrad.core.trace.trace import Trace, apply, cast_node, constant
from multigrad.engine.passes.verify import verify
from multigrad_conformance.oracles import (
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    edge_values,
    spread,
    subnormals,
)
from multigrad_conformance.vjps.test_vjps import FUNCTIONS, X, record

xp = xg.xp
RuleBody = Callable[[Any, Any, Any], Any]


def recorded(body: RuleBody) -> Graph:
    """The graph of `(grad_out, tin, width)`, as it is recorded."""
    trace = Trace("recorded")
    g, x = trace.input("grad_out", INPUT), trace.input("tin", INPUT)
    width = trace.input("width", FLOAT_SCALAR)
    result = body(g, x, width)
    inputs = [g.node, x.node, width.node]
    return Graph("recorded", (*inputs, *([trace.key] if trace.key else [])), (result.node,))


def lines_of(body: RuleBody) -> list[str]:
    """What remains of a rule, without header and types."""
    text = str(simplify(recorded(body))).splitlines()[1:]
    return [line.partition(" = ")[2] or line.strip() for line in text]


def scalar_sum(g: Any, a: float, b: float) -> Any:
    """a + b as a node: a substitution leaves such, recording adds at once."""
    return g.trace.value(make_node(ops.ADD, (constant(a), constant(b)), {}, FLOAT_SCALAR))


def put_twice(g: Any, x: Any, w: Any) -> Any:
    once = apply(ops.PUT, g, 0.0, index=(0,))
    return apply(ops.PUT, once, apply(ops.GETITEM, x, index=(1,)), index=(0,)) * apply(
        ops.GETITEM, once, index=(1,)
    )


def cast_twice(g: Any, x: Any, w: Any) -> Any:
    mask = (x > 0).node
    half = cast_node(mask, "float16")
    return g * g.trace.value(cast_node(half, "T"))


def to_own_dtype(g: Any, x: Any, w: Any) -> Any:
    return g.trace.value(cast_node((g + x).node, "T"))


def slope_of_one(x: Any) -> Any:
    """|x| as jax.numpy has it, whose slope at 0 is 1."""
    return xp.where(xp.equal(x, 0), x + 0.0, xp.abs(x))


def to_own_shape(g: Any, x: Any, w: Any) -> Any:
    return xp.sum_to(g * x, x) + xp.broadcast_to(g, x)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda g, x, w: g * scalar_sum(g, 0.1, 0.2),
            ["mul(grad_out, 0.30000000000000004)", "return %1"]),
        (lambda g, x, w: 1 * g, ["return grad_out"]),
        (lambda g, x, w: (g * 1.0) / 1, ["return grad_out"]),
        (lambda g, x, w: -xp.negative(g), ["return grad_out"]),
        (lambda g, x, w: -g + xp.exp(x), ["exp(tin)", "sub(%1, grad_out)", "return %2"]),
        (lambda g, x, w: g * (x + -g) * w,
            ["sub(tin, grad_out)", "mul(grad_out, %1)", "mul(%2, width)", "return %3"]),
        (lambda g, x, w: xp.where(~~(x > 0), g, 0.0),
            ["gt(tin, 0)", "where(%1, grad_out, 0.0)", "return %2"]),
        (cast_twice, ["gt(tin, 0)", "cast(%1, dtype='T')", "mul(grad_out, %2)", "return %3"]),
        (to_own_dtype, ["add(grad_out, tin)", "return %1"]),
        (lambda g, x, w: xp.where(slope_of_one(x) < w, g, 0.0),
            ["abs(tin)", "lt(%1, width)", "where(%2, grad_out, 0.0)", "return %3"]),
        (to_own_shape, ["mul(grad_out, tin)", "add(%1, grad_out)", "return %2"]),
        (lambda g, x, w: g * xp.size(x), ["size(grad_out)", "mul(grad_out, %1)", "return %2"]),
        (lambda g, x, w: g + xp.zeros_like(x),
            ["full_like(grad_out, 0.0, dtype='T')", "add(grad_out, %1)", "return %2"]),
        (lambda g, x, w: g * xp.dim(x, 0),
            ["dim(grad_out, axis=0)", "mul(grad_out, %1)", "return %2"]),
    ],
)  # fmt: skip
def test_what_is_left_of_a_rule(body: RuleBody, expected: list[str]) -> None:
    assert lines_of(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        lambda g, x, w: g + 0.0,  # -0.0 + 0.0 is 0.0
        lambda g, x, w: g * 0.0,  # NaN and infinities do not vanish
        lambda g, x, w: g - g,
        lambda g, x, w: x / x,
        lambda g, x, w: 0.0 - g,  # not -g: 0.0 - 0.0 is 0.0
        lambda g, x, w: (g * 3.0) * 4.0,  # rounds twice
        lambda g, x, w: xp.square(xp.sqrt(g)),
        lambda g, x, w: xp.where(x > 0, g, g * 1.5),
        lambda g, x, w: g * slope_of_one(x),  # a derivative may follow
        lambda g, x, w: g * (xp.where(xp.equal(g, 0), x + 0.0, xp.abs(x)) < w),
    ],
)
def test_what_would_change_a_bit_is_left_alone(body: RuleBody) -> None:
    graph = recorded(body)
    assert simplify(graph).nodes == graph.nodes


def test_what_no_output_needs_is_gone() -> None:
    def body(g: Any, x: Any, w: Any) -> Any:
        xp.exp(xp.norm(x))
        return g * w

    assert lines_of(body) == ["mul(grad_out, width)", "return %1"]


def test_numbers_are_folded_in_float64_by_the_meaning_of_the_op() -> None:
    def body(g: Any, x: Any, w: Any) -> Any:
        third = scalar_sum(g, 1 / 3, 0.0)
        return g * xp.sqrt(third) * xp.minimum(third / 0.0, 2.0)

    assert lines_of(body) == [f"mul(grad_out, {(1 / 3) ** 0.5!r})", "mul(%1, 2.0)", "return %2"]


# --- bits -----------------------------------------------------------------------------------------

RULES: dict[str, RuleBody] = {
    "masks": lambda g, x, w: g * ((x >= -w) & ~~(x <= w)) * 1,
    "units": lambda g, x, w: -xp.negative(1.0 * g / 1) * (w * 1.0),
    "shapes": lambda g, x, w: g + xp.zeros_like(x) * xp.size(x) - xp.full_like(x, 1.0) * -0.0,
    "casts": cast_twice,
    "slopes": lambda g, x, w: g * ((slope_of_one(x) > w) | (w >= slope_of_one(g))),
    "own": to_own_shape,
    "puts": put_twice,
    "negatives": lambda g, x, w: (-g + x) * w + -x,
    "folds": lambda g, x, w: g * xp.maximum(w, 1e-6) / 3.0 + (x * scalar_sum(g, 0.1, 0.2)),
}


def run(graph: Graph, *arguments: Any) -> Any:
    return emit_rule(graph, load_backend("numpy"))[0](*arguments)


def assert_same_bits(actual: Any, expected: Any, what: str) -> None:
    assert actual.dtype == expected.dtype, what
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan, err_msg=what)
    bits = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(bits)[~nan], expected.view(bits)[~nan], err_msg=what)


@pytest.mark.parametrize("name", RULES)
def test_simplified_rules_give_the_same_bits(name: str) -> None:
    graph = recorded(RULES[name])
    for dtype in DTYPES:
        x = np.concatenate([edge_values(dtype), subnormals(dtype)])
        g = np.concatenate([edge_values(dtype)[::-1], spread(4, dtype)])
        for width in (1.0, 0.3, -0.0, np.inf, np.nan):
            expected = run(graph, g, x, width)
            assert_same_bits(run(simplify(graph), g, x, width), expected, f"{name}, {dtype}")


def test_simplified_derivatives_give_the_same_bits() -> None:
    x, g = spread(X.shape, FLOAT32), spread(X.shape, FLOAT32, seed=1)
    x[0, :2], g[1, :2] = (np.nan, -0.0), (np.inf, -0.0)
    for name in FUNCTIONS:
        graph = pullback(record(name))
        try:
            expected = run(graph, g, x)
        except np.linalg.LinAlgError:  # NaN has no pseudo-inverse
            continue
        assert_same_bits(run(simplify(graph), g, x), expected, name)


# --- legality -------------------------------------------------------------------------------------


def graphs() -> list[Graph]:
    return [recorded(body) for body in RULES.values()] + [pullback(record(n)) for n in FUNCTIONS]


REWRITES = {rewrite: None for row in ops.OPS.values() for rewrite in rewrites_for(row)}


def rewritten(rewrite: Any, grad_out: Node | None, node: Node) -> Node:
    return (rewrite(node, grad_out) if rewrite in rewrites_for(node.op) else None) or node


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_a_graph_is_legal_after_each_rewrite(rewrite: Any) -> None:
    changed = 0
    for graph in graphs():
        grad_out = graph.input("grad_out")
        after = rebuild(graph, partial(rewritten, rewrite, grad_out))
        verify(after)
        assert after.inputs == graph.inputs
        assert [n.type.shape for n in after.outputs] == [n.type.shape for n in graph.outputs]
        changed += after.outputs != graph.outputs
    assert changed, "no graph here shows what it does"


def test_simplifying_twice_changes_nothing_more_and_never_adds() -> None:
    for graph in graphs():
        once = simplify(graph)
        verify(once)
        assert simplify(once).outputs == once.outputs
        assert len(once.nodes) <= len(graph.nodes) + 1  # grad_out may come in


def test_lines_of_the_source_survive(tmp_path: Any) -> None:
    def doubled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        half = grad_out * 1.0 / 2.0
        return -xp.negative(half)

    assert f"test_passes.py:{doubled.__code__.co_firstlineno + 1}" in xg.show(doubled)


def test_a_draw_keeps_its_own_dtype() -> None:
    # Only the shape of what a draw is like may be read off grad_out; its dtype says which numbers
    # are drawn.
    def body(g: Any, x: Any, w: Any) -> Any:
        wide = g.trace.value(cast_node(x.node, "float32"))
        return xp.cast_like(xp.rand_like(wide), g) * g

    graph = recorded(body)
    simple = simplify(graph)
    verify(simple)
    drawn = [node for node in simple.nodes if node.op is ops.UNIFORM_LIKE]
    assert [node.type for node in drawn] == [Type("tensor", "float32", INPUT_SHAPE)]
    for dtype in (FLOAT16, FLOAT64):
        x = spread(50, dtype)
        arguments = (np.ones_like(x), x, 1.0, (0, 7))
        assert_same_bits(run(simple, *arguments), run(graph, *arguments), "draw")
