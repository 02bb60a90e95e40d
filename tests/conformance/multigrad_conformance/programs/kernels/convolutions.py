"""What convolutions mean in float64, and programs with them and with windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from multigrad.core import ops
from multigrad.core.ir.graph import Node
from multigrad.core.ir.op import Op

from ..bounded import Array, Bounded, Function
from ..builder import Builder
from .arrays import bilinear

PRODUCTS = (ops.CONV, ops.CONV_LEFT, ops.CONV_RIGHT)


def product_of(op: Op) -> Function:
    """A backend may meet zeros of its own: nothing is known where anything may not be finite."""

    def meaning(*operands: Bounded, **attrs: Any) -> Bounded:
        rest = [np.zeros(like.shape) for like in operands[2:]]

        def function(a: Array, b: Array) -> Array:
            given = (np.asarray(each, np.float64) for each in (a, b))
            return op.numpy(*given, *rest, **attrs)

        return bilinear(function, operands[0], operands[1])

    return meaning


WIDE: dict[str, Function] = {op.name: product_of(op) for op in PRODUCTS}


# --- programs -------------------------------------------------------------------------------------
def steps(build: Builder) -> dict[str, tuple[int, ...]]:
    number = st.integers(1, 2)
    return {name: (build.draw(number),) for name in ("strides", "dilations")}


def make_windows(build: Builder, op: Op) -> Node:
    x = build.float_tensor(lambda n: len(build.shape(n)) > 0 and build.shape(n)[-1] > 1)
    attrs = {"sizes": (build.draw(st.integers(1, 2)),), **steps(build)}
    seen = build.apply(ops.WINDOWS, x, **attrs)
    return seen if op is ops.WINDOWS else build.apply(op, seen, x, **attrs)


def make_product(build: Builder, op: Op) -> Node:
    """A convolution of what is left and right of it, made flat, or one of its cotangents."""
    x, w = (build.float_tensor(lambda n: 0 not in build.shape(n)) for _ in range(2))
    x, w = (build.apply(ops.RESHAPE, each, shape=(1, 1, -1)) for each in (x, w))
    attrs = {**steps(build), "groups": 1}
    y = build.apply(ops.CONV, x, w, **attrs)
    operands = {ops.CONV: (x, w), ops.CONV_LEFT: (y, w, x), ops.CONV_RIGHT: (x, y, w)}
    return y if op is ops.CONV else build.apply(op, *operands[op], **attrs)


RECIPES = {
    **dict.fromkeys((ops.WINDOWS, ops.UNWINDOWS), make_windows),
    **dict.fromkeys(PRODUCTS, make_product),
}
