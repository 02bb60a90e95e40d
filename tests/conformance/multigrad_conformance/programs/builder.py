"""A graph under construction: each step is checked by the row's own result rule and NumPy
meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from multigrad.core import ops
from multigrad.core.ir.graph import Node, make_node
from multigrad.core.ir.op import BOOL, WHOLE, Op, T, is_float
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.ops.properties import Domain
from multigrad.core.passes.simplify import constant
from multigrad.core.trace.coercion import coerce
from multigrad.engine.ops.result_shapes import formula_of

from .attributes import Draw, Refused, Shape, pick

NUMBERS = (0.5, 2.0, 0.0, 1.0, -1.0, 0.1, 3.0, -0.3, 100.0, 1e-3)
INTEGERS = (1, 0, 2, -1, 5, 31, -7, 1000)
MOST_ELEMENTS = 200


@dataclass
class Builder:
    """A graph under construction: its values, each with an array of its shape and dtype."""

    draw: Draw
    dtype: str
    samples: dict[Node, Any] = field(default_factory=dict)

    def tensors(self, wanted: Callable[[Node], bool]) -> list[Node]:
        """The tensors of a kind, the latest first."""
        found = [n for n in self.samples if n.type.kind == "tensor" and wanted(n)]
        return found[::-1]

    def shape(self, node: Node) -> Shape:
        return np.shape(self.samples[node])

    def pick(self, nodes: list[Node]) -> Node:
        if not nodes:
            raise Refused
        return self.draw(st.sampled_from(nodes))

    def float_tensor(self, fits: Callable[[Node], bool] = lambda node: True) -> Node:
        return self.pick(self.tensors(lambda n: is_float(n.type) and fits(n)))

    def any_tensor(self, fits: Callable[[Node], bool] = lambda node: True) -> Node:
        return self.pick(self.tensors(fits))

    def mask(self, fits: Callable[[Node], bool] = lambda node: True) -> Node:
        masks = self.tensors(lambda n: n.type.dtype == BOOL and fits(n))
        if masks and self.draw(st.booleans()):
            return self.pick(masks)
        return self.apply(
            ops.GT, self.float_tensor(fits), constant(self.draw(st.sampled_from(NUMBERS)))
        )

    def integers(self, fits: Callable[[Node], bool] = lambda node: True) -> Node:
        whole = self.tensors(lambda n: n.type.dtype in WHOLE and fits(n))
        if whole and self.draw(st.booleans()):
            return self.pick(whole)
        dtype = self.draw(st.sampled_from(WHOLE))
        return self.apply(ops.CAST, self.float_tensor(fits), dtype=dtype)

    def places(self, x: Node, axis: int) -> Node:
        """Places along an axis of x, in the other axes as long as x."""
        ways = [ops.ARGSORT, ops.ARGMAX, ops.ARGMIN, ops.REMAINDER]
        way = self.draw(st.sampled_from(ways))
        other = self.float_tensor(self.same_shape(x))
        if way is ops.REMAINDER:
            number = self.apply(ops.CAST, other, dtype=self.draw(st.sampled_from(WHOLE)))
            length = self.shape(x)[axis] if self.shape(x) else 1
            return self.apply(way, number, constant(length))
        attrs = {"descending": self.draw(st.booleans())} if way is ops.ARGSORT else {}
        return self.apply(way, other, axis=axis, **(attrs or {"keepdims": True}))

    def inside(self, domain: Domain, x: Node) -> Node:
        """Take a tensor into an interval."""
        low, high = map(constant, domain[:2])
        if np.isinf(domain.high):
            return self.apply(ops.ADD, self.apply(ops.EXP, x), low)
        if np.isinf(domain.low):
            return self.apply(ops.SUB, high, self.apply(ops.EXP, x))
        share = self.apply(ops.MUL, self.apply(ops.SIGMOID, x), constant(domain.high - domain.low))
        return self.apply(ops.ADD, share, low)

    def scalar(self) -> Node:
        known = [n for n in self.samples if n.type.kind == "scalar" and n.type.dtype != "bool"]
        numbers = [constant(number) for number in (*NUMBERS, *INTEGERS[:4])]
        return self.note(self.pick([*numbers, *known]))

    def note(self, node: Node) -> Node:
        """Remember a constant."""
        if node.op is ops.CONST:
            self.samples.setdefault(node, node.attr("value"))
        return node

    def key(self) -> Node:
        keys = [n for n in self.samples if n.type.kind == "key"]
        return self.pick(keys)

    def fitting(self, node: Node) -> Callable[[Node], bool]:
        """Shapes that can be broadcast with a node's."""

        def fits(other: Node) -> bool:
            try:
                np.broadcast_shapes(self.shape(node), self.shape(other))
            except ValueError:
                return False
            return True

        return fits

    def same_shape(self, node: Node) -> Callable[[Node], bool]:
        return lambda other: self.shape(other) == self.shape(node)

    def attrs(self, op: Op, *operands: Node) -> dict[str, Any]:
        """Draw a row's attributes."""
        shapes = [self.shape(operand) for operand in operands if operand.type.kind == "tensor"]
        drawn: dict[str, Any] = {}
        for name in op.attrs:
            drawn[name] = pick(self.draw, op, name, shapes or [()], drawn)
        return drawn

    def apply(self, op: Op, *operands: Node, **attrs: Any) -> Node:
        """Append an operation.

        Raises:
            Refused: the row's result rule or its meaning does not take these operands.
        """
        for operand in operands:
            self.note(operand)
        try:
            nodes = coerce(op, list(operands), {"dtype": self.dtype})
            for node in nodes:
                if node not in self.samples:
                    self.append(node)
            node = make_node(op, nodes, attrs, op.result(*(n.type for n in nodes), **attrs))
        except TypeError as error:
            raise Refused from error
        return self.append(node)

    def append(self, node: Node) -> Node:
        for operand in node.operands:
            if operand not in self.samples:
                self.append(self.note(operand)) if operand.op is not ops.CONST else self.note(
                    operand
                )
        if node in self.samples:
            return node
        attrs = dict(node.attrs)
        if "dtype" in attrs:
            attrs["dtype"] = np.float32 if attrs["dtype"] in (T, None) else attrs["dtype"]
        given = [self.samples[operand] for operand in node.operands]
        try:
            with np.errstate(all="ignore"), ignoring_warnings():
                sample = sample_of(node, given, attrs)
        except (ValueError, TypeError, IndexError, AttributeError, ArithmeticError) as error:
            raise Refused from error
        if node.type.kind == "tensor":
            sample = np.asarray(sample)
            if not 0 < sample.size <= MOST_ELEMENTS or sample.ndim > 4:
                raise Refused
            sample = np.zeros(sample.shape, sample.dtype)
        self.samples[node] = sample
        return node


def sample_of(node: Node, given: list[Any], attrs: dict[str, Any]) -> Any:
    """Return a result of samples."""
    if node.type.kind == "scalar" and node.op.on_numbers is not None:
        return node.op.on_numbers(*given)
    try:
        return node.op.numpy(*given, **attrs)
    except np.linalg.LinAlgError:  # zeros have no inverse
        formula = formula_of(node.op)
        assert formula is not None
        shape = formula(*map(np.shape, given), **attrs)
        return np.zeros(shape, np.result_type(given[0]))
