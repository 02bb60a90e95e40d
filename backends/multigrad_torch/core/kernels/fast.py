"""torch's fast kernels for code that nobody differentiates, with the time that each saves.

Times are for 1,000,000 float32 elements on one CPU thread, torch 2.13; `tools/bench` measures them
again. Every kernel has the bits of the plain code, also for NaN, infinities and signed zeros, but
for those that stand for several ops: some of them round less often, by a few units in the last
place. These are used only where no edge value could show it, in float32 and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import (
    FastKernels,
    LateRows,
    Pattern,
    find_one_plus_square,
    find_scaled_quotient,
    is_number,
    is_tensor,
    is_whole_norm,
    is_zero,
    kernel,
    square_products,
    take_norms_as_numbers,
    taking,
)
from multigrad.core.ir.graph import Node, make_node
from multigrad.core.ir.op import FLOAT_SCALAR, UNKNOWN, Op, Type, elementwise
from multigrad.core.support.lazy_modules import late_function, late_value

from ..state import scalar
from . import masks
from .elementwise import fitting
from .ops import norm

Tensor: TypeAlias = torch.Tensor


# Exact in every dtype; a tensor without dimensions meets tensors of any.
ONE = scalar(1.0)
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
    factor_node = make_node(ALPHA, (number,), {}, FLOAT_SCALAR)
    return make_node(ONE_MINUS_SCALED, (x, number, factor_node), {}, node.type)


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
    operands = find_one_plus_square(node)
    if operands is None:
        return None
    square_node = make_node(SQUARED, operands[1:], {}, FLOAT_SCALAR)
    return make_node(ONE_PLUS_SQUARE, (*operands, square_node), {}, node.type)


def divide_gradient(node: Node) -> Node | None:
    """Rewrite grad * (number / u) as (grad / u) * number, where u is at least 1."""
    operands = find_scaled_quotient(node)
    if operands is None or operands[2].op is not ONE_PLUS_SQUARE:
        return None
    x, number, divisor = operands
    factor_node = make_node(FACTOR, (number,), {}, FLOAT_SCALAR)
    return make_node(DIVIDED, (x, number, factor_node, divisor), {}, node.type)


NORM_NUMBER = kernel("torch.norm_number", "x", lambda x: FLOAT_SCALAR)


def norm_number(x: Tensor) -> Any:
    result = torch.linalg.vector_norm(x)
    # On another device `item` would wait for it.
    return result.item() if x.is_cpu and x.dtype in WIDE else result


# --- signs, clamps and norms ----------------------------------------------------------------------
InPlace = Callable[..., Any]


def divide_by_reciprocal(node: Node) -> Node | None:
    """Rewrite a number divided by a tensor as torch itself computes it."""
    number, x = node.operands
    if number.type.kind != "scalar" or x.type.kind != "tensor":
        return None
    if x.op is ONE_PLUS_SQUARE:  # left to `divide_gradient`
        return None
    reciprocal = make_node(ops.RECIPROCAL, (x,), {}, x.type)
    return make_node(ops.MUL, (reciprocal, number), {}, node.type)


ONE_MINUS = kernel("torch.one_minus", "x", elementwise)
# torch's own sign, which is 0 for NaN; that of the op is NaN.
SIGN_OR_ZERO = kernel("torch.sign_or_zero", "x", elementwise)
# 1 where x >= 0, else -1; NaN stays NaN.
SIGN_OR_ONE = kernel("torch.sign_or_one", "x", elementwise)
SIGN_OR_NAN = kernel("torch.sign_or_nan", "x", elementwise)
LARGEST = kernel("torch.largest", "x", lambda x: Type("tensor", x.dtype))
NORM = kernel("torch.vector_norm", "x", lambda x: Type("tensor", x.dtype))


def take_own_sign(node: Node) -> Node | None:
    """Rewrite where(isnan(x), 0, sign(x)), as which `torch.sign` is captured."""
    condition, zero, sign = node.operands
    if condition.op is not ops.ISNAN or sign.op not in (ops.SIGN, SIGN_OR_NAN) or not is_zero(zero):
        return None
    (x,) = sign.operands
    if condition.operands[0] is not x or x.type.kind != "tensor":
        return None
    return make_node(SIGN_OR_ZERO, (x,), {}, node.type)


def take_sign_of_zero(node: Node) -> Node | None:
    """Rewrite where(x == 0, 1, sign(x)), as binary networks write it."""
    condition, one, sign = node.operands
    if condition.op is not ops.EQ or not is_number(one, 1):
        return None
    if sign.op not in (ops.SIGN, SIGN_OR_NAN):
        return None
    (x,) = sign.operands
    is_of_x = condition.operands[0] is x and is_number(condition.operands[1], 0)
    return make_node(SIGN_OR_ONE, (x,), {}, node.type) if is_of_x else None


def sign_or_one(x: Tensor) -> Tensor:
    """Return 1 where x >= 0, else -1, in four passes over one memory."""
    positive_is_least = torch.threshold_(x.neg(), 0, -1)
    # -x is -1 where x >= 0. Its negative is 1 there, and what is at most 0 becomes -1.
    return torch.threshold_(positive_is_least.neg_(), 0, -1)


def sign_or_nan(x: Tensor) -> Tensor:
    """Return torch.sign, but NaN for NaN, which a clamp between equal bounds keeps; 0 for -0."""
    sign = torch.sign(x)
    return torch.clamp(x, sign, sign, out=sign).add_(0.0)


def take_largest(node: Node) -> Node | None:
    attrs = {"axis": None, "keepdims": False, "ord": math.inf}
    return make_node(LARGEST, node.operands, {}, node.type) if dict(node.attrs) == attrs else None


def largest(x: Tensor) -> Tensor:
    """Return the largest absolute value; torch's norm uses no vector instructions for it."""
    if not x.is_cpu or not x.numel():
        return norm(x, axis=None, keepdims=False, ord=math.inf)
    if x.numel() < masks.LARGE:
        return x.abs().max()
    low, high = torch.aminmax(x)
    return torch.maximum(low.abs_(), high.abs_())


DISTANCES = kernel("torch.distances", "x y", lambda x, y: Type("tensor", x.dtype, UNKNOWN))
APART = {"axis": -1, "keepdims": False, "ord": 2}


def take_distances(node: Node) -> Node | None:
    """Rewrite the norms of the differences between all rows of two tensors, without these."""
    (difference,) = node.operands
    if dict(node.attrs) != APART or difference.op is not ops.SUB:
        return None
    x, y = difference.operands
    new_axes = [each.attr("axis") if each.op is ops.EXPAND_DIMS else None for each in (x, y)]
    if new_axes != [-2, -3]:
        return None
    return make_node(DISTANCES, (*x.operands, *y.operands), {}, node.type)


def distances(x: Tensor, y: Tensor) -> Tensor:
    # By differences, as the plain code has them: a product of matrices would cancel.
    if x.dtype is y.dtype and x.dtype in WIDE and x.shape[-1] == y.shape[-1] > 1:
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), 2, -1)


def subtract_from_one(node: Node) -> Node | None:
    one, x = node.operands
    fits = x.type.kind == "tensor" and is_number(one, 1)
    return make_node(ONE_MINUS, (x,), {}, node.type) if fits else None


def one_minus(x: Tensor) -> Tensor:
    return torch.rsub(x, 1.0)


def one_minus_(x: Tensor) -> Tensor:
    return torch.sub(ONE, x, out=x) if x.is_cpu else torch.rsub(x, 1.0)


def limit_by_number(node: Node) -> Node | None:
    """Rewrite a clamp with a literal bound, which needs no check against the dtype."""
    fast = LIMITS[node.op]
    for x, number in (node.operands, node.operands[::-1]):
        if x.type.kind == "tensor" and is_small(number):
            if is_zero(number) and node.op is ops.MAXIMUM:  # relu has the faster kernel
                return make_node(ops.RELU, (x,), {}, node.type)
            return make_node(fast, (x, number), {}, node.type)
    return None


def limit_by_numbers(node: Node) -> Node | None:
    x, low, high = node.operands
    if x.type.kind == "tensor" and is_small(low) and is_small(high):
        return make_node(CLAMP, node.operands, {}, node.type)
    return None


def is_small(node: Node) -> bool:
    """Return whether a node is a number that is finite in every dtype, also float16."""
    return node.op is ops.CONST and abs(node.attr("value")) <= 65504.0


CLAMP = kernel("torch.clamp", "x low high", lambda x, low, high: elementwise(x))
CLAMP_MIN = kernel("torch.clamp_min", "x number", elementwise)
CLAMP_MAX = kernel("torch.clamp_max", "x number", elementwise)
LIMITS = {ops.MAXIMUM: CLAMP_MIN, ops.MINIMUM: CLAMP_MAX}


def clamp_once(node: Node) -> Node | None:
    """Rewrite min(max(x, low), high) as one clamp, which returns high where low > high, too."""
    inner, high = node.operands
    if inner.op not in (ops.MAXIMUM, CLAMP_MIN) or not masks.is_full(inner.operands[0]):
        return None
    x, low = inner.operands
    are_numbers = low.op is ops.CONST and high.op is ops.CONST
    return make_node(ops.CLIP, (x, low, high), {}, node.type) if are_numbers else None


def limit_one_side(node: Node) -> Node | None:
    """Rewrite a clamp with one infinite bound, as which a one-sided one is captured."""
    x, low, high = node.operands
    if x.type.kind != "tensor" or low.op is not ops.CONST or high.op is not ops.CONST:
        return None
    if high.attr("value") == math.inf and is_small(low):
        return make_node(CLAMP_MIN, (x, low), {}, node.type)
    if low.attr("value") == -math.inf and is_small(high):
        return make_node(CLAMP_MAX, (x, high), {}, node.type)
    return None


# --- in place -------------------------------------------------------------------------------------


def subtract_from(x: Tensor, other: Any) -> Tensor:
    if isinstance(other, Tensor):
        return torch.sub(other, x, out=x)
    return x.neg_().add_(other)


def divide_into(x: Tensor, other: Any) -> Tensor:
    """Write other / x over x, rounded as torch divides a number by a tensor."""
    if isinstance(other, Tensor):
        return torch.div(other, x, out=x)
    return x.reciprocal_().mul_(other)


def maximum_(x: Tensor, other: Any) -> Tensor:
    if isinstance(other, Tensor):
        other = other.to(x) if other.ndim == 0 else other
        return torch.maximum(x, other, out=x)
    return x.clamp_min_(other if x.dtype is not torch.float16 else fitting(other, x.dtype))


def minimum_(x: Tensor, other: Any) -> Tensor:
    if isinstance(other, Tensor):
        other = other.to(x) if other.ndim == 0 else other
        return torch.minimum(x, other, out=x)
    return x.clamp_max_(other if x.dtype is not torch.float16 else fitting(other, x.dtype))


def clip_(x: Tensor, low: Any, high: Any) -> Tensor:
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return minimum_(maximum_(x, low), high)
    return x.clamp_(fitting(low, x.dtype), fitting(high, x.dtype))


UNARY = """
    abs neg square sqrt rsqrt reciprocal floor ceil round trunc exp expm1 log log1p sin cos atan
    tanh sigmoid relu
"""
NAMES = {name: getattr(ops, name.upper()) for name in UNARY.split()}
# By op, for each operand the kernel that writes over it; None: it may not be overwritten.
IN_PLACE: dict[Op, tuple[InPlace | None, ...]] = {
    **masks.IN_PLACE,
    **{op: (getattr(Tensor, f"{name}_"),) for name, op in NAMES.items()},
    ops.ADD: (Tensor.add_, Tensor.add_),
    ops.SUB: (Tensor.sub_, subtract_from),
    ops.MUL: (Tensor.mul_, Tensor.mul_),
    ops.DIV: (Tensor.div_, divide_into),
    ops.MAXIMUM: (maximum_, maximum_),
    ops.MINIMUM: (minimum_, minimum_),
    ops.AND: (Tensor.logical_and_, Tensor.logical_and_),
    ops.OR: (Tensor.logical_or_, Tensor.logical_or_),
    SIGN_OR_ZERO: (Tensor.sign_,),
    ONE_MINUS: (one_minus_,),
    ops.CLIP: (clip_, None, None),
    CLAMP: (Tensor.clamp_, None, None),
    CLAMP_MIN: (Tensor.clamp_min_, None),
    CLAMP_MAX: (Tensor.clamp_max_, None),
    ONE_PLUS_SQUARE: (one_plus_square_, None, None),
    ONE_MINUS_SCALED: (one_minus_scaled_, None, None),
    DIVIDED: (None, None, None, divided_into),
}

# By op, the kernel with `out=`.
INTO: dict[Op, Callable[..., Tensor]] = {
    **{op: getattr(torch, name) for name, op in NAMES.items() if name != "relu"},
    **{op: getattr(torch, op.name) for op in (ops.ADD, ops.SUB, ops.MUL, ops.DIV)},
    masks.HEAVISIDE: masks.heaviside,
}

# By op, the operands that are prepared once as 0-d tensors if they are numbers.
CONSTANTS: dict[Op, tuple[int, ...]] = {
    **dict.fromkeys((ops.ADD, ops.SUB, ops.MUL, ops.DIV), (0, 1)),
    **masks.CONSTANTS,
    ONE_MINUS_SCALED: (1,),
    ONE_PLUS_SQUARE: (1,),
    DIVIDED: (1,),
}

# The kernels of our own ops; `gradient_lists.py` adds those for lists of tensors.
KERNELS: dict[Op, Callable[..., Any]] = {
    ALPHA: alpha,
    FACTOR: factor,
    SQUARED: squared,
    ONE_MINUS_SCALED: one_minus_scaled,
    ONE_PLUS_SQUARE: one_plus_square,
    DIVIDED: divided,
    NORM_NUMBER: norm_number,
    **masks.KERNELS,
    SIGN_OR_ZERO: torch.sign,
    SIGN_OR_ONE: sign_or_one,
    SIGN_OR_NAN: sign_or_nan,
    DISTANCES: distances,
    LARGEST: largest,
    ONE_MINUS: one_minus,
    NORM: torch.linalg.vector_norm,
    CLAMP: torch.clamp,
    CLAMP_MIN: torch.clamp_min,
    CLAMP_MAX: torch.clamp_max,
}


def find_write_over(op: Op) -> Any:
    """Return the row of `put`, the only one of an op that rules do not need."""
    return load_write_overs().get(op) if op.name == "put" else None


load_write_overs = late_value("multigrad_torch.kernels.arrays:IN_PLACE")


# Patterns are tried in this order: each sees the nodes that earlier ones have made.
FAST = FastKernels(
    patterns=(
        Pattern(
            "torch.in_place",
            "an op over a fresh temporary 40 to 80 us, into new memory 80 to 300; triangular's "
            "backward 760 to 490 us; at 1,000 elements 25 to 23 us",
        ),
        Pattern(
            "torch.turns",
            "25 steps of 100,000 spiking neurons, forward and backward: 10.6 ms where rows are "
            "stacked, 8.0 where each turn writes into the stack",
        ),
        Pattern(
            "torch.constants",
            "a call with a tensor and a number 2.1 us at 1,000 elements, with a prepared constant "
            "1.0",
        ),
        Pattern(
            "torch.norm_number",
            "clip_norm's factor as tensors 5.5 us, as numbers 4.0",
            rewrite_graph=partial(take_norms_as_numbers, kernel=NORM_NUMBER),
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
        Pattern(
            "torch.sign",
            "where(isnan(x), 0, sign(x)) 2.3 ms, torch.sign 97 us",
            {ops.WHERE: take_own_sign},
        ),
        Pattern(
            "torch.sign_or_one",
            "where(x == 0, 1, sign(x)) 2.6 ms, by thresholds 330 us",
            {ops.WHERE: take_sign_of_zero},
        ),
        Pattern(
            "torch.sign_or_nan",
            "sign(x) that stays NaN by a choice 1.4 ms, by a clamp 270 us",
            {ops.SIGN: taking(SIGN_OR_NAN, is_tensor)},
        ),
        *masks.PATTERNS,
        Pattern(
            "torch.square", "u * u into new memory 84 us, square_ 41", {ops.MUL: square_products}
        ),
        Pattern("torch.clamp", "two clamps 160 us, one 79", {ops.MINIMUM: clamp_once}),
        Pattern(
            "torch.one_side",
            "a clamp with an infinite bound 2.9 us at 24 elements, without it 2.0",
            {ops.CLIP: limit_one_side},
        ),
        Pattern(
            "torch.reciprocal",
            "number / tensor is reciprocal and product, here over one temporary: 160 to 80 us",
            {ops.DIV: divide_by_reciprocal},
        ),
        Pattern(
            "torch.one_minus",
            "over a temporary as one pass 43 us, as neg_ and add_ 85",
            {ops.SUB: subtract_from_one},
        ),
        Pattern(
            "torch.limit",
            "a bound without a look at its dtype: 0.4 us a call; relu_ for a bound of 0: 1.1 us",
            {**dict.fromkeys(LIMITS, limit_by_number), ops.CLIP: limit_by_numbers},
        ),
        Pattern(
            "torch.norm",
            "the whole norm without its axes: 0.7 us a call",
            {ops.NORM: taking(NORM, is_whole_norm)},
        ),
        Pattern(
            "torch.distances",
            "2,048 rows of 32 from 256 others by their differences 37 ms, by one kernel 7.3",
            {ops.NORM: take_distances},
        ),
        Pattern(
            "torch.largest",
            "the largest |x| by a norm 4.6 ms, by aminmax 110 us",
            {ops.NORM: take_largest},
        ),
    ),
    kernels=KERNELS,
    in_place=LateRows(IN_PLACE, find_write_over),
    into=INTO,
    turns=late_function("multigrad_torch.kernels.loops:turns"),
    constants=CONSTANTS,
)
