"""NumPy's fast rows: ops over fresh temporaries, selection by bits, blocks that stay in a cache.

Times are of float32 arrays on one CPU, NumPy 2.4; `tools/bench` measures them again. A row gives
the bits of the plain code unless it has `rounds=True`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...backend.rows import (
    WHOLE,
    FastKernels,
    LateRows,
    Pattern,
    find_one_plus_square,
    find_scaled_quotient,
    is_number,
    is_whole_norm,
    is_zero,
    kernel,
    square_products,
    take_norms_as_numbers,
    taking,
)
from ...ir.graph import Node, make_node
from ...ir.op import FLOAT_SCALAR, INPUT_SHAPE, Op, T, Type, chosen, elementwise
from ...ops.numerics import vecdot
from ...support.lazy_modules import late_value

Array = Any
ndarray, sqrt = np.ndarray, np.sqrt
SMALL, BIG = 1e-30, 1e30  # well within the range of float32
BLOCK = 1 << 17  # elements
MANY = 1 << 21  # elements from which blocks pay
LIMITED = 4096  # elements from which one np.clip, which is vectorized, wins over two other calls
ROW = 4096  # elements whose squares are summed in the dtype itself
NATIVE = frozenset(map(np.dtype, ("float32", "float64")))
NUMBERS = (float, int, bool)
INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}  # by itemsize


def over(ufunc: np.ufunc, position: int) -> Callable[..., Array]:
    """Return a kernel by which a ufunc writes over its operand at `position`, passed first."""

    # NumPy's operations on 0-d arrays give scalars, which have no memory to write to.
    def write_over_one(x: Array) -> Array:
        return ufunc(x, out=x) if isinstance(x, ndarray) else ufunc(x)

    def write_over_first(x: Array, other: Array) -> Array:
        return ufunc(x, other, out=x) if isinstance(x, ndarray) else ufunc(x, other)

    def write_over_second(x: Array, other: Array) -> Array:
        return ufunc(other, x, out=x) if isinstance(x, ndarray) else ufunc(other, x)

    return write_over_one if ufunc.nin == 1 else (write_over_first, write_over_second)[position]


# Ops whose numbers are prepared as arrays without dimensions.
MEETING = (
    ops.ADD, ops.SUB, ops.MUL, ops.DIV, ops.MAXIMUM, ops.MINIMUM,
    ops.LT, ops.LE, ops.GT, ops.GE, ops.EQ, ops.NE,
)  # fmt: skip
SELECT = kernel("numpy.select", "mask x", lambda mask, x: elementwise(x))
CHOOSE_NUMBER = kernel(
    "numpy.choose_number", "mask like a b", lambda mask, like, a, b: elementwise(like)
)
CHOOSE = kernel("numpy.choose", "mask a b", chosen)


def select(mask: Array, x: Array) -> Array:
    """Return x where the mask holds, else 0: all bits of x, or none of them."""
    if np.ndim(x) == 0 or np.shape(mask) != x.shape:
        return np.where(mask, x, x.dtype.type(0))
    return np.multiply(mask, x.view(INTEGERS[x.dtype.itemsize])).view(x.dtype)


def choose_number(mask: Array, like: Array, a: Any, b: Any) -> Array:
    dtype = like.dtype
    integer = INTEGERS[dtype.itemsize]
    # By bits: those in which the numbers differ are flipped where the mask holds.
    b_bits = dtype.type(b).view(integer)
    return (np.multiply(mask, dtype.type(a).view(integer) ^ b_bits) ^ b_bits).view(dtype)


def choose(mask: Array, a: Any, b: Any) -> Array:
    x = a if type(b) in NUMBERS else b
    dtype = x.dtype
    a = dtype.type(a) if type(a) in NUMBERS else a
    b = dtype.type(b) if type(b) in NUMBERS else b
    is_alike = a.dtype == b.dtype and x.shape == np.shape(mask) and a.shape in ((), x.shape)
    if x.size < LIMITED or not is_alike:
        return np.where(mask, a, b)
    integer = INTEGERS[dtype.itemsize]
    b_bits = b.view(integer)
    # The bits in which a and b differ are flipped in b, where the mask holds.
    bits = np.bitwise_xor(a.view(integer), b_bits)
    np.multiply(bits, mask, out=bits)
    return np.bitwise_xor(bits, b_bits, out=bits).view(dtype)


def choose_bits(node: Node) -> Node | None:
    mask, a, b = node.operands
    tensors = [each for each in (a, b) if each.type.kind == "tensor"]
    if mask.type.kind != "tensor" or any(each.type.dtype != T for each in tensors) or not tensors:
        return None
    full = mask.type.shape == INPUT_SHAPE and a.type.shape == INPUT_SHAPE
    if full and a.op is ops.FULL_LIKE and b.type.kind == "scalar" and a.operands[0].type == a.type:
        if is_zero(b) and is_number(a.operands[1], 1):
            return make_node(ops.CAST, (mask,), {"dtype": T}, node.type)
        return make_node(CHOOSE_NUMBER, (mask, *a.operands, b), {}, node.type)
    if full and is_zero(b):
        return make_node(SELECT, (mask, a), {}, node.type)
    return make_node(CHOOSE, (mask, a, b), {}, node.type)


CLIP = kernel("numpy.clip", "x low high", lambda x, low, high: elementwise(x))
MAXIMUM = kernel("numpy.maximum", "x low", lambda x, low: elementwise(x))
MINIMUM = kernel("numpy.minimum", "x high", lambda x, high: elementwise(x))


def clip(x: Array, low: Any, high: Any, out: Array | None = None) -> Array:
    """Return min(max(x, low), high), with the same sign of zero as the plain code."""
    dtype = x.dtype
    low, high = dtype.type(low), dtype.type(high)
    if x.size < LIMITED or dtype not in NATIVE or is_minus_zero(low) or is_minus_zero(high):
        return np.minimum(np.maximum(x, low, out=out), high, out=out)
    result = np.clip(x, low, high, out=out)
    # np.clip leaves -0 unchanged where a bound is 0.
    return result if low and high else np.add(result, dtype.type(0), out=result)


def is_minus_zero(number: Any) -> bool:
    return not number and bool(np.signbit(number))


def maximum(x: Array, low: Any, out: Array | None = None) -> Array:
    if x.size < LIMITED:
        return np.maximum(x, low if type(low) is ndarray else x.dtype.type(low), out=out)
    return clip(x, low, np.inf, out)


def minimum(x: Array, high: Any, out: Array | None = None) -> Array:
    if x.size < LIMITED:
        return np.minimum(x, high if type(high) is ndarray else x.dtype.type(high), out=out)
    return clip(x, -np.inf, high, out)


def over_itself(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a kernel that writes over its first operand; a number has no memory."""

    def write_over(x: Array, *numbers: Any) -> Array:
        return function(x, *numbers, out=x if isinstance(x, ndarray) else None)

    return write_over


def limit_by_numbers(node: Node) -> Node | None:
    x, *numbers = node.operands  # with the number first the sign of a zero differs
    if x.type.kind != "tensor" or any(each.type.kind != "scalar" for each in numbers):
        return None
    if node.op is ops.RELU:
        numbers = [make_node(ops.CONST, (), {"value": 0.0}, FLOAT_SCALAR)]
    return make_node(BY_NUMBERS[node.op], (x, *numbers), {}, node.type)


BY_NUMBERS = {ops.CLIP: CLIP, ops.MAXIMUM: MAXIMUM, ops.MINIMUM: MINIMUM, ops.RELU: MAXIMUM}
NORM = kernel("numpy.norm", "x", lambda x: Type("tensor", x.dtype))
NORM_NUMBER = kernel("numpy.norm_number", "x", lambda x: FLOAT_SCALAR)
plain_norm = ops.NORM.numpy


def norm(x: Array) -> Array:
    """Return the Euclidean norm of all elements by dot products of rows, added in float64."""
    x = x if type(x) is ndarray else np.asarray(x)
    dtype = x.dtype
    if x.size < ROW and dtype in NATIVE and x.flags.c_contiguous:  # the same, nothing to add to it
        flat = x if x.ndim == 1 else x.reshape(-1)
        return sqrt(flat.dot(flat))
    if dtype.kind != "f" or dtype.itemsize < 4 or not x.flags.c_contiguous:
        return plain_norm(x, **WHOLE)
    # One dot product of 1e6 float32 numbers is off by 13 eps, of 1e7 by 380; this by less than 1.
    flat = x.reshape(-1)
    length = flat.size // ROW * ROW
    rows, tail = flat[:length].reshape(-1, ROW), flat[length:]
    total = vecdot(rows, rows).sum(dtype=np.float64) + np.float64(np.dot(tail, tail))
    return np.sqrt(dtype.type(total))


def norm_number(x: Array) -> Any:
    """Return the norm for Python to compute with."""
    # In 16 bits every op on it rounds, which Python's floats would not.
    return norm(x) if x.dtype.itemsize < 4 else float(norm(x))


DIVIDED = kernel("numpy.divided", "x number divisor", lambda x, number, divisor: elementwise(x))


def divided(x: Array, number: Array, divisor: Array) -> Array:
    return divided_into(np.array(divisor), x, number)


def divided_into(divisor: Array, x: Array, number: Array) -> Array:
    """Return x * (number / divisor) for a divisor of at least 1."""
    out = divisor if isinstance(divisor, np.ndarray) else None
    # In 16 bits x / divisor alone could underflow.
    if divisor.dtype.itemsize >= 4 and SMALL < number < BIG:
        quotient = np.divide(x, divisor, out=out)
        return quotient if number == 1 else np.multiply(quotient, number, out=out)
    return np.multiply(np.divide(number, divisor, out=out), x, out=out)


def divide_gradient(node: Node) -> Node | None:
    parts = find_scaled_quotient(node)
    if parts is None or find_one_plus_square(parts[2]) is None:
        return None
    return make_node(DIVIDED, parts, {}, node.type)


def by_blocks(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return an elementwise function that runs block by block, where memory allows it."""

    @functools.wraps(function)
    def call(x: Array, *args: Any) -> Array:
        arrays = [a for a in (x, *args) if isinstance(a, np.ndarray) and a.ndim]
        # Flat slices match only for arrays of one shape that lie in order.
        if not all(a.shape == x.shape and a.flags.c_contiguous for a in arrays):
            return function(x, *args)
        result = np.empty_like(x)
        flat = [a.reshape(-1) if isinstance(a, np.ndarray) and a.ndim else a for a in (x, *args)]
        for start in range(0, x.size, BLOCK):
            part = slice(start, start + BLOCK)
            inner = (a[part] if isinstance(a, np.ndarray) and a.ndim else a for a in flat)
            result.reshape(-1)[part] = function(*inner)
        return result

    return call


def find_write_over(op: Op) -> tuple[Callable[..., Any] | None, ...] | None:
    """Return the row of `put`, the only one of an op that rules do not need."""
    place = "multigrad.engine.ops.indexing:put_over"
    return (late_value(place)(), None) if op.name == "put" else None


FAST = FastKernels(
    patterns=(
        Pattern(
            "numpy.in_place", "triangular's backward of 1e6 elements 644 us, over one temporary 572"
        ),
        Pattern("numpy.constants", "a number that meets 1,000 elements 0.7 us, prepared 0.5"),
        Pattern("numpy.blocks", "the same of 1e7 elements 15.6 ms, in blocks of 131,072 11.9"),
        Pattern(
            "numpy.select_bits",
            "np.where(mask, x, 0) of 1e6 3.6 ms, by the bits 0.2; np.where(mask, x, y) by them 1.0",
            {ops.WHERE: choose_bits},
        ),
        Pattern(
            "numpy.clip",
            "min(max(x, -1), 1) of 1e6 elements 740 us, np.clip 150",
            dict.fromkeys(BY_NUMBERS, limit_by_numbers),
        ),
        Pattern(
            "numpy.norm",
            "the norm of 1e6 elements by squares 300 us, by dots 54",
            {ops.NORM: taking(NORM, is_whole_norm)},
            rounds=True,
        ),
        Pattern(
            "numpy.norm_number",
            "clip_norm's factor as arrays 10 us, as numbers 4",
            rewrite_graph=functools.partial(take_norms_as_numbers, kernel=NORM_NUMBER),
            rounds=True,
        ),
        Pattern(
            "numpy.divided",
            "arctan's backward of 1e6 elements 460 us, with grad / u for grad * (number / u) 380",
            {ops.MUL: divide_gradient},
            rounds=True,
        ),
        Pattern(
            "numpy.square",
            "u * u of 1e6 elements into new memory 69 us, over u 48",
            {ops.MUL: square_products},
        ),
    ),
    kernels={
        SELECT: select,
        CHOOSE_NUMBER: choose_number,
        CHOOSE: choose,
        CLIP: clip,
        MAXIMUM: maximum,
        MINIMUM: minimum,
        NORM: norm,
        NORM_NUMBER: norm_number,
        DIVIDED: divided,
    },
    in_place=LateRows(
        {
            **{
                op: tuple(over(op.numpy, i) for i in range(len(op.operands)))
                for op in ops.CORE_OPS
                if isinstance(op.numpy, np.ufunc) and not op.attrs and op.numpy.nout == 1
            },
            DIVIDED: (None, None, divided_into),
            CLIP: (over_itself(clip), None, None),
            MAXIMUM: (over_itself(maximum), None),
            MINIMUM: (over_itself(minimum), None),
        },
        find_write_over,
    ),
    constants={**dict.fromkeys(MEETING, (0, 1)), **dict.fromkeys((MAXIMUM, MINIMUM), (1,))},
)
