"""torch's fast kernels for masks: comparisons, masked gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import Pattern, is_number, is_tensor, is_zero, kernel, taking
from multigrad.core.ir.graph import Node, make_node
from multigrad.core.ir.op import (
    BOOL,
    INPUT_SHAPE,
    SCALAR_SHAPE,
    Op,
    T,
    chosen,
    compared,
    elementwise,
)

from ..state import scalar
from .elementwise import fitting
from .elementwise import where as plain_where

Tensor: TypeAlias = torch.Tensor
# Exact in every dtype; a 0-d tensor mixes with tensors of any dtype and device that are not 0-d.
ZERO = scalar(0.0)
LARGE = 1 << 14  # elements from which a pass over memory costs more than calling a kernel
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by itemsize

# --- comparisons ----------------------------------------------------------------------------------

# torch compares into bools 4 times slower than into floats (2.13, CPU): see PATTERNS.
COMPARISONS: dict[Op, Callable[..., Tensor]] = {
    op: getattr(torch, op.name) for op in (ops.LT, ops.LE, ops.GT, ops.GE, ops.EQ, ops.NE)
}
MIRRORED = {ops.LT: ops.GT, ops.LE: ops.GE, ops.GT: ops.LT, ops.GE: ops.LE}


def into_float(compare: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compare_into_float(x: Tensor, other: Any) -> Tensor:
        return compare(x, other, out=torch.empty_like(x))

    return compare_into_float


def pays(x: Tensor) -> bool:
    """Return whether computing by bits pays: on CPUs, for large contiguous tensors."""
    return x.numel() >= LARGE and x.is_cpu and x.is_contiguous()


def window(lower: Callable[..., Tensor], upper: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a conjunction of two comparisons, computed as whether a clamp changes x."""
    are_open = lower is torch.gt, upper is torch.lt

    def compare_both(x: Tensor, low: Any, high: Any) -> Tensor:
        if type(low) is float and type(high) is float:
            least, most = closed_window(low, high, *are_open, x.dtype)
            if least <= most:
                clamped = torch.clamp(x, least, most)
                if x.numel() < LARGE or not x.is_cpu:
                    return torch.eq(clamped, x)
                # By way of floats; their memory is free again for the output.
                return torch.eq(clamped, x, out=clamped).to(torch.bool)
        return lower(x, low).logical_and_(upper(x, high))

    return compare_both


@functools.lru_cache(1024)
def closed_window(
    low: float, high: float, opens_low: bool, opens_high: bool, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the least and the largest number of a dtype in a window."""
    ends = [(low, opens_low, 1), (high, opens_high, -1)]
    least, most = (
        step(n, dtype, sign) if is_open else fitting(n, dtype) for n, is_open, sign in ends
    )
    return least, most


def step(number: float, dtype: torch.dtype, way: int) -> float:
    """Return the next number of a dtype, above the given one (`way` 1) or below it (-1)."""
    x = torch.tensor(fitting(number, dtype), dtype=dtype, device="cpu")
    end = torch.full_like(x, way * math.inf)
    return math.nan if x == end else torch.nextafter(x, end).item()


def with_tensor_first(node: Node) -> tuple[Op, Node, Node] | None:
    """Return a comparison as (op, a, b), where a has the shape of the input if any has."""
    if node.op not in COMPARISONS:
        return None
    op, (a, b) = node.op, node.operands
    if not is_of_input(a) or (is_full(b) and not is_full(a)):
        op, a, b = MIRRORED.get(op, op), b, a
    return (op, a, b) if is_of_input(a) else None


def compare_twice(node: Node) -> Node | None:
    lower, upper = map(with_tensor_first, node.operands)
    if lower is None or upper is None:
        return None
    (first, x, low), (second, y, high) = lower, upper
    are_numbers = low.type.kind == high.type.kind == "scalar"
    if x is not y or not are_numbers or (first, second) not in WINDOWS:
        return None
    return make_node(WINDOWS[first, second], (x, low, high), {}, node.type)


WINDOWS: dict[tuple[Op, Op], Op] = {
    (a, b): kernel(f"torch.{a.name}_and_{b.name}", "x low high", lambda x, low, high: compared(x))
    for a in (ops.GT, ops.GE)
    for b in (ops.LT, ops.LE)
}
FLOAT_RESULT = {op: kernel(f"torch.{op.name}_float", "a b", elementwise) for op in COMPARISONS}
HEAVISIDE = kernel("torch.heaviside", "x", elementwise)


def heaviside(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    return torch.gt(x, ZERO if x.is_cpu else 0, out=torch.empty_like(x) if out is None else out)


def compare_into_floats(node: Node) -> Node | None:
    found = with_tensor_first(node.operands[0]) if node.type.dtype == T else None
    if found is None:
        return None
    op, a, b = found
    if is_tensor(b) and (not is_full(a) or b.type != a.type):
        return None  # `out=` is allocated like the first operand
    return make_node(FLOAT_RESULT[op], (a, b), {}, node.type)


def is_of_input(node: Node) -> bool:
    """Return whether a value is a tensor of the input's dtype, of any shape."""
    return is_tensor(node) and node.type.dtype == T


def is_full(node: Node) -> bool:
    return is_of_input(node) and node.type.shape == INPUT_SHAPE


# --- masked gradients -----------------------------------------------------------------------------

MASKED = kernel("torch.masked", "x mask", lambda x, mask: elementwise(x))
SELECT = kernel("torch.select", "mask x", lambda mask, x: chosen(mask, x, x))
CHOOSE = kernel("torch.choose", "mask a b", chosen)
SOFTPLUS = kernel("torch.softplus", "x", elementwise)
THRESHOLD = kernel("torch.threshold", "grad x limit", lambda grad, x, limit: elementwise(grad))
RECTIFIED = kernel("torch.rectified", "grad x", lambda grad, x: elementwise(grad))


def masked(x: Tensor, mask: Tensor) -> Tensor:
    if mask.numel() >= LARGE and pays(mask) and x.shape == mask.shape:
        return mask.view(torch.int8).to(x.dtype).mul_(x)
    return x * mask


def masked_(x: Tensor, mask: Tensor) -> Tensor:
    return x.mul_(mask.view(torch.uint8))


def select(mask: Tensor, x: Tensor) -> Tensor:
    if x.numel() < LARGE and x.is_cpu:
        return torch.where(mask, x, ZERO if x.ndim else torch.zeros_like(x))
    integer = INTEGERS[x.dtype.itemsize]
    if not pays(x) or not pays(mask) or x.shape != mask.shape:
        return torch.mul(x.view(integer), mask).view(x.dtype)
    return mask.to(integer).neg_().bitwise_and_(x.view(integer)).view(x.dtype)


def choose(mask: Tensor, a: Any, b: Any) -> Tensor:
    """Return a where the mask holds, else b: b with those bits flipped that differ in a."""
    x = a if type(a) is Tensor and a.shape == mask.shape else b
    if not (type(x) is Tensor and x.shape == mask.shape and pays(x) and pays(mask)):
        return plain_where(mask, a, b)
    integer = INTEGERS[x.dtype.itemsize]
    a_bits, b_bits = (_bits(each, x, integer) for each in (a, b))
    if a_bits is None or b_bits is None:
        return plain_where(mask, a, b)
    bits = mask.to(integer).neg_()
    return bits.bitwise_and_(a_bits ^ b_bits).bitwise_xor_(b_bits).view(x.dtype)


def _bits(value: Any, like: Tensor, integer: torch.dtype) -> Tensor | None:
    if not isinstance(value, Tensor):
        value = like.new_full((), fitting(value, like.dtype))
    is_alike = value.ndim == 0 or (value.shape == like.shape and value.is_contiguous())
    return value.view(integer) if is_alike and value.dtype is like.dtype else None


def threshold(grad: Tensor, x: Tensor, limit: Any) -> Tensor:
    return torch.ops.aten.threshold_backward(grad, x, limit)


def rectified(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad * (x > 0), by the gradient of a leaky rectifier with slope 0."""
    return torch.ops.aten.leaky_relu_backward.default(grad, x, 0.0, False)


def rectify_gradients(node: Node) -> Node | None:
    for grad, mask in (node.operands, node.operands[::-1]):
        if mask.op is not FLOAT_RESULT[ops.GT] or not is_full(grad) or mask.type != grad.type:
            continue
        x, limit = mask.operands
        if is_full(x) and is_zero(limit):
            return make_node(RECTIFIED, (grad, x), {}, node.type)
    return None


def multiply_by_bytes(node: Node) -> Node | None:
    for x, mask in (node.operands, node.operands[::-1]):
        is_cast = mask.op is ops.CAST and mask.operands[0].type.dtype == BOOL
        if is_cast and is_full(x) and mask.type == x.type:
            return make_node(MASKED, (x, mask.operands[0]), {}, node.type)
    return None


def select_bits(node: Node) -> Node | None:
    mask, x, other = node.operands
    fits = is_tensor(mask) and is_of_input(x)
    return make_node(SELECT, (mask, x), {}, node.type) if fits and is_zero(other) else None


def choose_bits(node: Node) -> Node | None:
    mask, a, b = node.operands
    if not is_tensor(mask) or node.type.shape == SCALAR_SHAPE:
        return None
    fits = all(is_of_input(x) or not is_tensor(x) for x in (a, b))
    return make_node(CHOOSE, (mask, a, b), {}, node.type) if fits else None


def subtract_chosen(node: Node) -> Node | None:
    """Rewrite where(mask, a - b, a) as a - where(mask, b, 0): the same bits, and less to choose."""
    mask, difference, a = node.operands
    if difference.op is not ops.SUB or difference.operands[0] is not a or not is_tensor(mask):
        return None
    b = difference.operands[1]
    if not is_of_input(a) or not is_of_input(b):
        return None
    chosen_b = make_node(SELECT, (mask, b), {}, SELECT.result(mask.type, b.type))
    return make_node(ops.SUB, (a, chosen_b), {}, node.type)


def threshold_gradients(node: Node) -> Node | None:
    """Rewrite where(x <= limit, 0, grad): NaN in x lets the gradient pass, as in the kernel."""
    condition, zero, grad = node.operands
    if not is_zero(zero):
        return None
    if condition.op is not ops.LE or not is_full(grad):
        return None
    x, limit = condition.operands
    if not is_full(x) or limit.op is not ops.CONST:
        return None
    return make_node(THRESHOLD, (grad, x, limit), {}, node.type)


def threshold_softplus(node: Node) -> Node | None:
    """Rewrite where(x > 20, x, softplus(x)), which is torch's own softplus by default."""
    condition, x, smooth = node.operands
    if condition.op is not ops.GT or smooth.op is not ops.SOFTPLUS:
        return None
    above, limit = condition.operands
    if not is_full(x) or x is not smooth.operands[0] or x is not above or not is_number(limit, 20):
        return None
    return make_node(SOFTPLUS, (x,), {}, node.type)


PATTERNS = (
    Pattern(
        "torch.heaviside",
        "(x > 0).to(dtype) 366 us, gt(out=) 89",
        {ops.HEAVISIDE: taking(HEAVISIDE)},
    ),
    Pattern(
        "torch.compare_into_float",
        "a comparison and its cast 366 us, into floats 71",
        {ops.CAST: compare_into_floats},
    ),
    Pattern(
        "torch.window",
        "low <= x <= high by three passes 640 us, by a clamp 240",
        {ops.AND: compare_twice},
    ),
    Pattern(
        "torch.rectified",
        "grad * (x > 0) by a comparison into floats and a product 410 us, one kernel 230",
        {ops.MUL: rectify_gradients},
    ),
    Pattern(
        "torch.masked_product",
        "grad * mask.to(dtype) 476 us, mask.view(int8).to(dtype).mul_(grad) 114",
        {ops.MUL: multiply_by_bytes},
    ),
    Pattern(
        "torch.threshold",
        "where(x <= limit, 0, grad) 3.4 ms, one kernel 101 us",
        {ops.WHERE: threshold_gradients},
    ),
    Pattern(
        "torch.softplus",
        "where(x > 20, x, softplus(x)) 3.3 ms, one kernel 1.7",
        {ops.WHERE: threshold_softplus},
    ),
    Pattern(
        "torch.select_bits",
        "where(mask, x, 0) 3.4 ms, by the bits 230 us",
        {ops.WHERE: select_bits},
    ),
    Pattern(
        "torch.subtract_chosen",
        "where(mask, a - b, a) by a choice 8.1 ms, by the bits of b 640 us",
        {ops.WHERE: subtract_chosen},
    ),
    Pattern(
        "torch.choose_bits",
        "where(mask, a, b) 5.5 ms, by the bits 740 us",
        {ops.WHERE: choose_bits},
    ),
)
KERNELS: dict[Op, Callable[..., Any]] = {
    HEAVISIDE: heaviside,
    MASKED: masked,
    SELECT: select,
    CHOOSE: choose,
    THRESHOLD: threshold,
    RECTIFIED: rectified,
    SOFTPLUS: torch.nn.functional.softplus,
    **{op: window(COMPARISONS[a], COMPARISONS[b]) for (a, b), op in WINDOWS.items()},
    **{FLOAT_RESULT[op]: into_float(compare) for op, compare in COMPARISONS.items()},
}
IN_PLACE: dict[Op, tuple[Callable[..., Any] | None, ...]] = {MASKED: (masked_, None)}
CONSTANTS: dict[Op, tuple[int, ...]] = dict.fromkeys((*COMPARISONS, *FLOAT_RESULT.values()), (0, 1))
