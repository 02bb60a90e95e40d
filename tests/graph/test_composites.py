"""Ops that are made of others: a row of the table is their meaning, their kernel and, where it has
no VJP, their derivative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import backend as door
from multigrad.backend.finding.discovery import load_backend
from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph
from multigrad.graph.ir.op import Op
from multigrad.graph.ir.types import INPUT
from multigrad.graph.ops.table import DECLARED, composite, parts_of
from multigrad.lowering.lower import emit_rule
from multigrad.trace.derived.derivatives import pullback
from multigrad.trace.trace import Trace, apply

xp = xg.xp
COMPOSITES = [op for op in ops.CALLABLE_OPS if op.made_of is not None]


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_parts_of_a_composite_are_other_ops_down_to_some_that_are_made_of_none(op: Op) -> None:
    below, waiting = set(), [op]
    while waiting:
        parts = {part for part in parts_of(waiting.pop()) if part.made_of is not None} - below
        below |= parts
        waiting += parts
    assert op not in below


def test_backend_without_a_part_has_no_row_for_what_is_made_of_it() -> None:
    own = {op: op.numpy for op in ops.CALLABLE_OPS if op.made_of is None}
    composed = door.compositions(own, lambda row: row)
    assert set(composed) >= set(COMPOSITES)
    lacking = {op: row for op, row in own.items() if op is not ops.ERFC}
    rest = set(door.compositions(lacking, lambda row: row))
    assert set(composed) - rest == {ops.NDTR, ops.LOG_NDTR, ops.GELU}


def test_composite_without_a_vjp_has_the_derivative_of_its_composition() -> None:
    def skewed(x: Any) -> Any:
        # One operand is made of the other, as is one composite of another.
        return xp.frac(xp.deg2rad(x) * x) * xp.rad2deg(x)

    x = np.array([3.25, -7.5, 100.0])
    y, pullback = xg.vjp(xg.function(skewed), x)
    square, turn = math.pi / 180 * x * x, 180 / math.pi
    part = square - np.trunc(square)
    np.testing.assert_allclose(y, part * turn * x, rtol=1e-12)
    expected = turn * (part + 2 * square)
    np.testing.assert_allclose(pullback(np.ones(3))[0], expected, rtol=1e-12)


def test_operand_of_a_composite_may_be_made_of_another() -> None:
    def way(xp: Any, a: Any, b: Any) -> Any:
        return a * xp.sin(b)

    row = composite(way, None, "a sin(b).", "a b")
    del DECLARED["way"]
    trace = Trace("way")
    tin = trace.input("tin", INPUT)
    graph = Graph("way", (tin.node,), (apply(row, tin, tin * tin).node,))
    derivative, _ = emit_rule(pullback(graph), load_backend("numpy"))
    x = np.array([0.5, -1.25])
    expected = np.sin(x * x) + 2 * x * x * np.cos(x * x)
    np.testing.assert_allclose(derivative(np.ones(2), x), expected, rtol=1e-14)


def test_composite_that_asks_for_what_is_no_op_says_so() -> None:
    row = composite(made_of_nothing, None, "Nothing.")
    with pytest.raises(AttributeError, match=r"no op is called xp\.no_such_op"):
        row.numpy(np.ones(2))
    del DECLARED["made_of_nothing"]


def made_of_nothing(xp: Any, x: Any) -> Any:
    return xp.no_such_op(x)
