"""Reductions that kernels have, and others in terms of them: norms, softmax, deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...graph import ops
from ...graph.ir.graph import Node, derive_node
from ...graph.ir.op import Op
from ...graph.support.params import CannotFuseError

REDUCTIONS = (ops.SUM, ops.MEAN, ops.VAR, ops.STD, ops.MAX, ops.MIN, ops.SUM_TO)
SQUARED = (ops.VAR, ops.STD)  # sums of squares of centered values


def _make(op: Op, *operands: Node, **attrs: object) -> Node:
    return derive_node(op, operands, attrs)


def in_sums(node: Node) -> Node:
    """Return norms, the softmax family and deviations in terms of sums and maxima."""
    if node.op not in MADE_OF and node.op not in SQUARED:
        return node
    x, attrs = node.operands[0], dict(node.attrs)
    over = {"axis": attrs["axis"], "keepdims": attrs.get("keepdims", True)}
    # Centered first, because the squares of large numbers would cancel.
    if node.op in SQUARED:
        centered = _make(ops.SUB, x, _make(ops.MEAN, x, **{**over, "keepdims": True}))
        return _make(node.op, centered, **over, correction=attrs["correction"])
    return MADE_OF[node.op](x, over, attrs)


def norm(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    if attrs["ord"] == 2:
        return _make(ops.SQRT, _make(ops.SUM, _make(ops.SQUARE, x), **over))
    if attrs["ord"] not in (1, float("inf")):
        raise CannotFuseError(f"a norm of order {attrs['ord']}")
    return _make(ops.SUM if attrs["ord"] == 1 else ops.MAX, _make(ops.ABS, x), **over)


def shifted(x: Node, over: Mapping[str, object]) -> Node:
    return _make(ops.SUB, x, _make(ops.MAX, x, **{**over, "keepdims": True}))


def softmax(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    powers = _make(ops.EXP, shifted(x, over))
    return _make(ops.DIV, powers, _make(ops.SUM, powers, **over))


def log_softmax(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    own = shifted(x, over)
    return _make(ops.SUB, own, _make(ops.LOG, _make(ops.SUM, _make(ops.EXP, own), **over)))


MADE_OF: Mapping[Op, Callable[..., Node]] = {
    ops.NORM: norm,
    ops.SOFTMAX: softmax,
    ops.LOG_SOFTMAX: log_softmax,
}
