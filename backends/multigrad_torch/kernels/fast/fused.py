"""torch's fused fast kernels: one kernel, or a Python number, for two to five ops.

Some round less often than the ops, so their bits may differ from those of the plain code by a few
units in the last place. They are used only where no edge value could show it, in float32 and
float64.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from multigrad.backend import Pattern, kernel
from multigrad.backend.fast import (
    find_one_plus_square,
    find_scaled_quotient,
    is_number,
    is_tensor,
    take_norms_as_numbers,
)
from multigrad.graph import ops
from multigrad.graph.ir.graph import Graph, Node, make_node
from multigrad.graph.ir.types import FLOAT_SCALAR
from multigrad.graph.ops.results import elementwise

Tensor: TypeAlias = torch.Tensor
ONE = torch.ones((), device="cpu")  # exact in every dtype
SMALL, BIG = 1e-30, 1e30  # well within the range of float32


# Dtypes in which a fused kernel computes as the ops would: 16-bit floats round after each op.
WIDE = frozenset({torch.float32, torch.float64})


# --- 1 - x / number -------------------------------------------------------------------------------

ALPHA = kernel("torch.alpha", "number", lambda number: FLOAT_SCALAR)
ONE_MINUS_SCALED = kernel(
    "torch.one_minus_scaled", "x number alpha", lambda x, number, alpha: elementwise(x)
)


def alpha(number: Any) -> float | None:
    """Return -1 / number if its product is the exact quotient, as for powers of two, else None."""
    if type(number) is float and SMALL < number < BIG and math.frexp(number)[0] == 0.5:
        return -1.0 / number
    return None


def one_minus_scaled(x: Tensor, number: Any, alpha: float | None) -> Tensor:
    return one_minus_scaled_(x.clone(), number, alpha)


def one_minus_scaled_(x: Tensor, number: Any, alpha: float | None) -> Tensor:
    # Numbers are prepared as tensors only on CPUs, in 32 or 64 bits.
    if type(number) is Tensor:
        if alpha is not None:
            return torch.add(ONE, x, alpha=alpha, out=x)
        return torch.sub(ONE, x.div_(number), out=x)
    return x.div_(number).neg_().add_(1.0)


def fuse_one_minus_quotient(node: Node) -> Node | None:
    one, quotient = node.operands
    if quotient.op is not ops.DIV or not is_number(one, 1) or not is_tensor(quotient.operands[0]):
        return None
    x, number = quotient.operands
    if is_tensor(number):
        return None
    exact = make_node(ALPHA, (number,), {}, FLOAT_SCALAR)
    return make_node(ONE_MINUS_SCALED, (x, number, exact), {}, node.type)


# --- 1 + (number x)^2, and what is divided by it --------------------------------------------------

SQUARED = kernel("torch.squared", "number", lambda number: FLOAT_SCALAR)
ONE_PLUS_SQUARE = kernel(
    "torch.one_plus_square", "x number squared", lambda x, number, squared: elementwise(x)
)
FACTOR = kernel("torch.factor", "number", lambda number: FLOAT_SCALAR)
DIVIDED = kernel(
    "torch.divided",
    "x number factor divisor",
    lambda x, number, factor, divisor: elementwise(x),
)


def squared(number: Any) -> float | None:
    """Return the square of a number if it is far from the limits of float32, else None."""
    square = number * number if type(number) is float else 0.0
    return square if SMALL < square < BIG else None


def factor(number: Any) -> float | None:
    """Return a number if it is far from the limits of float32, else None."""
    return number if type(number) is float and SMALL < number < BIG else None


def one_plus_square(x: Tensor, number: Any, squared: float | None) -> Tensor:
    if squared is not None and type(number) is Tensor:  # prepared: see `one_minus_scaled_`
        return torch.addcmul(ONE, x, x, value=squared)
    return (x * number).square_().add_(1.0)


def one_plus_square_(x: Tensor, number: Any, squared: float | None) -> Tensor:
    if squared is not None and type(number) is Tensor:
        return torch.addcmul(ONE, x, x, value=squared, out=x)
    return x.mul_(number).square_().add_(1.0)


def divided(x: Tensor, number: Any, factor: float | None, divisor: Tensor) -> Tensor:
    return divided_into(divisor.clone(), x, number, factor)


def divided_into(divisor: Tensor, x: Tensor, number: Any, factor: float | None) -> Tensor:
    """Write x * (number / divisor) over the divisor; in 16 bits x / divisor could underflow."""
    if factor is not None and type(number) is Tensor:
        quotient = torch.div(x, divisor, out=divisor)
        return quotient if factor == 1.0 else quotient.mul_(number)
    quotient = divisor.reciprocal_()
    return (quotient if factor == 1.0 else quotient.mul_(number)).mul_(x)


def fuse_one_plus_square(node: Node) -> Node | None:
    found = find_one_plus_square(node)
    if found is None:
        return None
    safe = make_node(SQUARED, found[1:], {}, FLOAT_SCALAR)
    return make_node(ONE_PLUS_SQUARE, (*found, safe), {}, node.type)


def divide_gradient(node: Node) -> Node | None:
    """Rewrite grad * (number / u) as (grad / u) * number, where u is at least 1."""
    found = find_scaled_quotient(node)
    if found is None or found[2].op is not ONE_PLUS_SQUARE:
        return None
    x, number, divisor = found
    safe = make_node(FACTOR, (number,), {}, FLOAT_SCALAR)
    return make_node(DIVIDED, (x, number, safe, divisor), {}, node.type)


# --- norms as numbers -----------------------------------------------------------------------------

NORM_NUMBER = kernel("torch.norm_number", "x", lambda x: FLOAT_SCALAR)


def norm_number(x: Tensor) -> Any:
    norm = torch.linalg.vector_norm(x)
    # On another device `item` would wait for it.
    return norm.item() if x.is_cpu and x.dtype in WIDE else norm


def take_norms(graph: Graph) -> Graph:
    return take_norms_as_numbers(graph, NORM_NUMBER)


PATTERNS = (
    Pattern(
        "torch.norm_number",
        "clip_norm's factor as tensors 5.5 us, as numbers 4.0",
        rewrite_graph=take_norms,
        rounds=True,
    ),
    Pattern(
        "torch.one_plus_square",
        "1 + (k x)^2 by one addcmul 1.6 us at 1,000 elements, by three calls 2.8",
        {ops.ADD: fuse_one_plus_square},
    ),
    Pattern(
        "torch.divided",
        "grad * (number / u) by one division 0.9 us, by three calls 2.3",
        {ops.MUL: divide_gradient},
    ),
    Pattern(
        "torch.one_minus_scaled",
        "1 - x / width by one call 1.2 us at 1,000 elements, by two 1.9; for powers of two",
        {ops.SUB: fuse_one_minus_quotient},
    ),
)
CONSTANTS = {ONE_MINUS_SCALED: (1,), ONE_PLUS_SQUARE: (1,), DIVIDED: (1,)}
KERNELS = {
    ALPHA: alpha,
    FACTOR: factor,
    SQUARED: squared,
    ONE_MINUS_SCALED: one_minus_scaled,
    ONE_PLUS_SQUARE: one_plus_square,
    DIVIDED: divided,
    NORM_NUMBER: norm_number,
}
IN_PLACE = {
    ONE_PLUS_SQUARE: (one_plus_square_, None, None),
    ONE_MINUS_SCALED: (one_minus_scaled_, None, None),
    DIVIDED: (None, None, None, divided_into),
}
