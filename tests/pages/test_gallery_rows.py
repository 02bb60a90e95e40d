"""What the gallery's page computes for one op is what the op means in NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.graph import ops
from pages.gallery.javascript import LACKING, REDUCTIONS, ROWS, emit, fill

from ..harness.models.node import TOLD, as_numbers, needs_node, run_node

ELEMENTWISE = [op for op in ops.CALLABLE_OPS if op.result in (ops.ADD.result, ops.LT.result)]


def test_every_elementwise_op_has_a_row_or_a_reason() -> None:
    known = {*ROWS, *REDUCTIONS, *LACKING}
    assert {op.name for op in ELEMENTWISE if op not in known and not op.in_vjps} == set()
    assert not ROWS.keys() & LACKING.keys()


COMPARED = [op for op in ROWS if not op.random and op not in (ops.CLIP, ops.WHERE, ops.FULL_LIKE)]


@needs_node
def test_every_row_computes_what_its_op_means(tmp_path: Path) -> None:
    given = np.array([-40.0, -7.0, -2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.5, 30.0])
    edges = np.array([math.nan, math.inf, -math.inf])
    lines, wanted = [], []
    for op in COMPARED:
        is_logical = op in (ops.AND, ops.OR, ops.XOR, ops.NOT)
        values = given > 0.4 if is_logical else np.concatenate([given, edges])
        others = [np.roll(values, k) for k in (0, 3, 7)[: len(op.operands)]]
        attrs = {name: attr.samples[0] for name, attr in op.attrs.items()}
        with np.errstate(all="ignore"):
            wanted.append((op, others, op.numpy(*others, **attrs)))
        row = fill(ROWS[op], attrs)
        arrays = ", ".join(map(listed, others))
        lines.append(f"each(({', '.join('abc'[: len(others)])}) => {row}, {arrays}).map(Number)")
    results = run_node(tmp_path, f"const results = [{', '.join(lines)}];" + TOLD)
    for (op, others, expected), found in zip(wanted, results, strict=True):
        told = f"{op.name} of {others}"
        np.testing.assert_allclose(
            as_numbers(found), np.asarray(expected, float), 1e-13, 1e-300, err_msg=told
        )


def listed(values: Any) -> str:
    """Return an array as JavaScript, which has JSON's words for NaN and infinity."""
    return json.dumps(values.tolist())


@needs_node
def test_every_reduction_computes_what_its_op_means(tmp_path: Path) -> None:
    values = np.array([0.5, -1.5, 2.0, 0.0, 3.0])
    lines, wanted = [], []
    for op in REDUCTIONS:
        own = {name: attr for name, attr in op.attrs.items() if name not in ("axis", "keepdims")}
        array = values > 0.4 if op in (ops.ANY, ops.ALL) else values
        for i in range(max([1, *(len(attr.samples) for attr in own.values())])):
            attrs = {name: attr.samples[i] for name, attr in own.items()}
            whole = {name: None for name in op.attrs if name == "axis"}
            whole |= {"axis": 0} if op is ops.DIM else {}
            whole |= {"keepdims": False} if "keepdims" in op.attrs else {}
            wanted.append((op, attrs, float(op.numpy(array, **attrs, **whole))))
            lines.append(f"Number(((a) => {fill(REDUCTIONS[op], attrs)})({listed(array)}))")
    found = as_numbers(run_node(tmp_path, f"const results = [{', '.join(lines)}];" + TOLD))
    for (op, attrs, expected), result in zip(wanted, found, strict=True):
        assert result == pytest.approx(expected, rel=1e-13), (op.name, attrs)


def test_a_graph_without_rows_is_refused_by_the_name_of_the_op() -> None:
    @xg.register("gallery_sorted")
    def in_order(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.sort(grad_out)

    try:
        with pytest.raises(xg.UnsupportedOp, match="sort has no row in JavaScript"):
            emit(in_order.bound_rule().graph())
    finally:
        xg.unregister("gallery_sorted")
