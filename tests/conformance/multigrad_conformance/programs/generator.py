"""Random programs: graphs of the rule IR, made from the declarations of the op table's rows.

A row says how many operands it takes, of what kind (`coerce`, their names), in which domain, and
which attributes: these say what values they may have (`attributes.py`). A step that the row's own
result rule or NumPy meaning refuses is left out, so nothing about shapes is told twice. Rows that
undo another are given that one's result (`RECIPES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from multigrad.core import ops
from multigrad.core.ir.graph import Graph, Node, make_node
from multigrad.core.ir.op import FLOAT_SCALAR, INPUT, KEY, UNKNOWN, Op, T, Type
from multigrad.core.ops.properties import REALS
from multigrad.core.passes.simplify import constant
from multigrad.engine.passes.verify import verify

from ..declared import domain_of
from .attributes import TAKING_PART, Draw, Refused, Shape
from .builder import INTEGERS, Builder
from .kernels import convolutions, linalg

SHAPES: tuple[Shape, ...] = ((3, 5), (2, 3, 4), (4, 4), (9,), (), (1, 4))


@dataclass(frozen=True)
class Program:
    """A graph with several outputs, and what it is run on.

    Attributes:
        shape: that of `grad_out` and `tin`; `row` has `row_shape`, which can be broadcast to it.
        edges: whether infinities, NaN and the like are among the inputs.
        fast: emit the kernels for code that nobody takes a derivative of.
    """

    graph: Graph
    dtype: str
    shape: Shape
    row_shape: Shape
    scalar: float
    key: tuple[int, int]
    seed: int
    edges: bool
    fast: bool

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    def __repr__(self) -> str:
        return (
            f"{self.dtype}, grad_out and tin of shape {self.shape}, row of {self.row_shape}, "
            f"scalar={self.scalar}, key={self.key}, seed={self.seed}, edges={self.edges}, "
            f"fast={self.fast}\n{self.graph}"
        )


# --- steps ----------------------------------------------------------------------------------------


def undoing(forward: Op) -> Callable[[Builder, Op], Node]:
    """A row whose first operand is the result of another, and whose second is that one's
    operand.
    """

    def recipe(build: Builder, op: Op) -> Node:
        like = build.float_tensor()
        other = build.float_tensor(build.same_shape(like))
        attrs = build.attrs(forward, like)
        return build.apply(op, build.apply(forward, other, **attrs), like, **attrs)

    return recipe


def make_put(build: Builder, op: Op) -> Node:
    x = build.float_tensor()
    attrs = build.attrs(ops.GETITEM, x)
    if build.draw(st.booleans()):
        return build.apply(op, x, build.scalar(), **attrs)
    other = build.float_tensor(lambda n: build.same_shape(x)(n) and n.type.dtype == x.type.dtype)
    return build.apply(op, x, build.apply(ops.GETITEM, other, **attrs), **attrs)


def make_reshape_like(build: Builder, op: Op) -> Node:
    like = build.any_tensor()
    flat = build.apply(ops.RESHAPE, build.any_tensor(build.same_shape(like)), shape=(-1,))
    return build.apply(op, flat, like)


def make_sum_to(build: Builder, op: Op) -> Node:
    like = build.float_tensor()
    fits = build.fitting(like)
    x = build.float_tensor(
        lambda n: (
            fits(n) and np.broadcast_shapes(build.shape(n), build.shape(like)) == build.shape(n)
        )
    )
    return build.apply(op, x, like)


def make_broadcast_to(build: Builder, op: Op) -> Node:
    x = build.any_tensor()
    fits = build.fitting(x)
    like = build.any_tensor(
        lambda n: fits(n) and np.broadcast_shapes(build.shape(n), build.shape(x)) == build.shape(n)
    )
    return build.apply(op, x, like)


def matrices(build: Builder) -> tuple[Node, Node]:
    def is_vector(node: Node) -> bool:
        return len(build.shape(node)) > 0

    a = build.float_tensor(is_vector)
    inner = build.shape(a)[-1]
    b = build.float_tensor(
        lambda n: is_vector(n) and build.shape(n)[-2 if len(build.shape(n)) > 1 else -1] == inner
    )
    return a, b


def make_matmul(build: Builder, op: Op) -> Node:
    return build.apply(op, *matrices(build))


def make_matmul_left(build: Builder, op: Op) -> Node:
    a, b = matrices(build)
    return build.apply(op, build.apply(ops.MATMUL, a, b), b, a)


def make_matmul_right(build: Builder, op: Op) -> Node:
    a, b = matrices(build)
    return build.apply(op, a, build.apply(ops.MATMUL, a, b), b)


def make_part(build: Builder, op: Op) -> Node:
    like = build.any_tensor(lambda n: len(build.shape(n)) > 0)
    other = build.any_tensor(
        lambda n: build.same_shape(like)(n) and n.type.dtype == like.type.dtype
    )
    axis = build.draw(st.integers(-1, 0))
    joined = build.apply(ops.CONCATENATE, other, like, axis=axis)
    length = build.shape(like)[axis]
    starts = [constant(0), constant(1), constant(length), build.apply(ops.DIM, other, axis=axis)]
    return build.apply(op, joined, like, build.pick(starts), axis=axis)


def make_unpart(build: Builder, op: Op) -> Node:
    x = build.float_tensor(lambda n: len(build.shape(n)) > 0)
    axis = build.draw(st.integers(-1, 0))
    like = build.apply(ops.CONCATENATE, x, x, axis=axis)
    starts = [constant(0), constant(1), build.apply(ops.DIM, x, axis=axis)]
    return build.apply(op, x, like, build.pick(starts), axis=axis)


def make_full_like(build: Builder, op: Op) -> Node:
    x = build.float_tensor()
    return build.apply(op, x, build.scalar(), **build.attrs(op, x))


def make_array(build: Builder, op: Op) -> Node:
    like = build.float_tensor(lambda n: n.op is ops.INPUT)
    return build.apply(op, like, **build.attrs(op, like))


def make_length(build: Builder, op: Op) -> Node:
    """A length in arithmetic: a number by itself is no output."""
    x = build.any_tensor()
    length = build.apply(op, x, **build.attrs(op, x))
    meets = build.draw(st.sampled_from([ops.DIV, ops.ADD, ops.LT]))
    return build.apply(meets, build.float_tensor(), length)


def make_fold_in(build: Builder, op: Op) -> Node:
    key = build.apply(op, build.key(), **build.attrs(op))
    return build.apply(
        build.draw(st.sampled_from([ops.UNIFORM_LIKE, ops.NORMAL_LIKE])), key, build.float_tensor()
    )


def make_take(build: Builder, op: Op) -> Node:
    x = build.any_tensor(lambda n: op is ops.TAKE_ALONG or len(build.shape(n)) > 0)
    axis = build.attrs(op, x)["axis"]
    return build.apply(op, x, build.places(x, axis), axis=axis)


def make_untake(build: Builder, op: Op) -> Node:
    like = build.float_tensor(lambda n: op is ops.UNTAKE_ALONG or len(build.shape(n)) > 0)
    axis = build.attrs(op, like)["axis"]
    indices = build.places(like, axis)
    other = build.float_tensor(build.same_shape(like))
    taken = ops.TAKE_ALONG if op is ops.UNTAKE_ALONG else ops.TAKE_AT
    return build.apply(op, build.apply(taken, other, indices, axis=axis), indices, like, axis=axis)


def make_last_put(build: Builder, op: Op) -> Node:
    like = build.any_tensor()
    axis = build.attrs(op, like)["axis"]
    return build.apply(op, build.places(like, axis), like, axis=axis)


RECIPES: dict[Op, Callable[[Builder, Op], Node]] = {
    ops.SETITEM: undoing(ops.GETITEM), ops.UNTAKE: undoing(ops.TAKE), ops.UNTILE: undoing(ops.TILE),
    ops.PUT: make_put,
    ops.UNREPEAT: undoing(ops.REPEAT), ops.RESHAPE_LIKE: make_reshape_like, ops.SUM_TO: make_sum_to,
    ops.BROADCAST_TO: make_broadcast_to, ops.MATMUL: make_matmul, ops.MATMUL_LEFT: make_matmul_left,
    ops.MATMUL_RIGHT: make_matmul_right, ops.PART: make_part, ops.UNPART: make_unpart,
    ops.DIM: make_length, ops.SIZE: make_length, ops.FOLD_IN: make_fold_in,
    ops.FULL_LIKE: make_full_like, ops.ARRAY: make_array, ops.TAKE_ALONG: make_take,
    ops.TAKE_AT: make_take, ops.UNTAKE_ALONG: make_untake, ops.UNTAKE_AT: make_untake,
    ops.TAKE_INSIDE: make_take, ops.TAKE_NEAREST: make_take,
    ops.LAST_PUT: make_last_put, **dict.fromkeys(linalg.MATRICES, linalg.make),
    **convolutions.RECIPES,
}  # fmt: skip


def make_step(build: Builder, op: Op) -> Node:
    """Append an operation of this row, its operands chosen by the declaration."""
    if op in RECIPES:
        return RECIPES[op](build, op)
    if op.variadic:
        first = build.float_tensor()
        others = [
            build.float_tensor(build.same_shape(first) if op is ops.STACK else any_node)
            for _ in range(build.draw(st.integers(0, 2)))
        ]
        operands = [first, *others]
        return build.apply(op, *operands, **build.attrs(op, *operands))
    operands: list[Node] = []
    for name in op.operands:
        tensors = [n for n in operands if n.type.kind == "tensor"]
        operands.append(pick_operand(build, op, name, tensors))
    known = all(n.op is ops.CONST for n in operands)
    if all(n.type.kind == "scalar" for n in operands) and (known or op.on_numbers is None):
        raise Refused
    return build.apply(op, *operands, **build.attrs(op, *operands))


def any_node(node: Node) -> bool:
    return True


def pick_operand(build: Builder, op: Op, name: str, earlier: list[Node]) -> Node:
    """Choose one operand: what its name and the row's `coerce` say, of a shape that fits the
    others.
    """
    related = op.coerce == "raw"
    fits = any_node
    if earlier:
        fits = build.same_shape(earlier[0]) if related else build.fitting(earlier[-1])
    if name == "key":
        return build.key()
    if name in ("mask", "condition") or op.coerce == "bool":
        return build.mask(fits)
    several = len(op.operands) > 1
    if op.coerce == "int":
        if several and build.draw(st.integers(0, 3)) == 3:
            return build.note(constant(build.draw(st.sampled_from(INTEGERS))))
        return build.integers(fits)
    if name == "p" or (several and not related and build.draw(st.integers(0, 3)) == 3):
        return build.scalar()
    if not (several and related) and build.draw(st.integers(0, 7)) == 7:
        return build.any_tensor(fits)
    tensor = build.float_tensor(fits)
    domain = domain_of(op, op.operands.index(name))
    if domain == REALS or build.draw(st.booleans()):
        return tensor
    return build.inside(domain, tensor)


@st.composite
def programs(draw: Draw, table: Sequence[Op] = TAKING_PART, most_steps: int = 12) -> Program:
    """Draw a program."""
    dtype = draw(st.sampled_from(["float32"] * 6 + ["float64"] * 2 + ["float16", "bfloat16"]))
    shape = draw(st.sampled_from(SHAPES))
    row_shape = draw(st.sampled_from([shape, shape[-1:], tuple(1 for _ in shape), ()]))
    scalar = draw(st.sampled_from([0.5, 1.5, -2.0, 0.25]))
    build = Builder(draw, dtype)
    kinds = {
        "grad_out": (INPUT, shape),
        "tin": (INPUT, shape),
        "row": (Type("tensor", T, UNKNOWN), row_shape),
    }
    inputs = {}
    for name, (type_, size) in kinds.items():
        inputs[name] = make_node(ops.INPUT, (), {"name": name}, type_)
        build.samples[inputs[name]] = np.zeros(size, np.float32)
    inputs["scalar"] = make_node(ops.INPUT, (), {"name": "scalar"}, FLOAT_SCALAR)
    inputs["key"] = make_node(ops.INPUT, (), {"name": "key"}, KEY)
    key = (0, draw(st.integers(0, 2)))
    build.samples[inputs["scalar"]], build.samples[inputs["key"]] = scalar, key
    for _ in range(draw(st.integers(3, most_steps))):
        before = dict(build.samples)
        try:
            make_step(build, draw(st.sampled_from(table)))
        except Refused:
            build.samples = before
    outputs = sinks(list(build.samples))
    graph = Graph("program", tuple(inputs.values()), outputs or (inputs["grad_out"],))
    verify(graph)
    return Program(
        graph,
        dtype,
        shape,
        row_shape,
        scalar,
        key,
        draw(st.integers(0, 999)),
        draw(st.integers(0, 2)) == 2,
        draw(st.booleans()),
    )


def sinks(nodes: list[Node]) -> tuple[Node, ...]:
    """The tensors that no other value needs."""
    used = {operand for node in nodes for operand in node.operands}
    return tuple(
        n for n in nodes if n.type.kind == "tensor" and n not in used and n.op is not ops.INPUT
    )
