"""What each primitive of a jaxpr means that computes element by element; see `jaxpr.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.capture.meanings import composites
from multigrad.graph.ir.types import BOOL, INTEGERS
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

from ...dialect.families import ALIASES
from .primitives import WEAK, Handler, Operand, Shape, Step, Unknown

Tensor = Any


def repeated(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an elementwise result: 1 where all operands have it."""
    full = [shape for shape in shapes if shape]
    if not full:
        return ()
    return tuple(next((n for n in lengths if n != 1), 1) for lengths in zip(*full, strict=True))


def elementwise(function: Callable[..., Any]) -> Handler:
    """Return the handler of a primitive that computes element by element."""

    def handle(step: Step) -> Operand:
        result = function(*(operand.value for operand in step.operands))
        return Operand(result, repeated([operand.shape for operand in step.operands]))

    return handle


def integer_pow(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(xp.pow(x.value, int(step.params["y"])), x.shape)


def rounded(x: Tensor, method: Any) -> Tensor:
    """Halves go away from zero, unless they are to go to the even number."""
    if method == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return xp.round(x)
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def polygamma(step: Step) -> Operand:
    """At its poles XLA gives NaN, where the order is even."""
    order, x = step.operands
    if order.known is None:
        raise Unknown("polygamma of an order that is a tensor")
    return Operand(composites.polygamma(float(order.known), x.value, math.nan), x.shape)


def round_(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(rounded(x.value, step.params["rounding_method"]), x.shape)


def convert_element_type(step: Step) -> Operand:
    (x,) = step.operands
    return Operand(cast(x.value, step.scope.dtype_name(step.params["new_dtype"])), x.shape)


def dim_as_value(step: Step) -> Operand:
    length = step.scope.length(step.params["dim"])
    return Operand(length, ()) if isinstance(length, Value) else step.scope.lift(length)


def less_in_order(a: Tensor, b: Tensor) -> Tensor:
    """a < b where -0 is less than 0 and a NaN, by its sign, less or more than every number."""
    less = xp.less(a, b)
    if all(x.node.type.dtype in ("int", *INTEGERS) for x in (a, b)):
        return less
    signs = xp.signbit(a), xp.signbit(b)
    is_zero = xp.logical_and(xp.equal(a, b), xp.logical_and(signs[0], xp.logical_not(signs[1])))
    sides = [
        xp.where(xp.isnan(x), xp.where(sign, -1.0, 1.0), 0.0)
        for x, sign in zip((a, b), signs, strict=True)
    ]
    apart = xp.less(sides[0], sides[1])
    together = xp.logical_and(xp.equal(sides[0], sides[1]), xp.logical_or(less, is_zero))
    return xp.logical_or(apart, together)


def equal_in_order(a: Tensor, b: Tensor) -> Tensor:
    return xp.logical_not(xp.logical_or(less_in_order(a, b), less_in_order(b, a)))


def at_most_in_order(a: Tensor, b: Tensor) -> Tensor:
    return xp.logical_not(less_in_order(b, a))


def select_n(which: Tensor, *cases: Tensor) -> Tensor:
    are_scalars = all(case.node.type.kind == "scalar" for case in cases)
    if are_scalars and which.node.type.kind == "tensor":  # their kind says which dtype
        cases = (xp.full_like(which, cases[0], WEAK[cases[0].node.type.dtype]), *cases[1:])
    if which.node.type.dtype == BOOL:
        return xp.where(which, cases[1], cases[0]) if len(cases) == 2 else cases[0]
    result = cases[-1]
    for i, case in enumerate(cases[:-1]):
        result = xp.where(xp.equal(which, i), case, result)
    return result


def reduce_precision(step: Step) -> Operand:
    """A number in the format that it has."""
    given = jnp.finfo(step.dtypes[0])
    if (step.params["exponent_bits"], step.params["mantissa_bits"]) != (given.nexp, given.nmant):
        raise Unknown("reduce_precision to another format")
    return step.operands[0]


# These are what the functions of `jax.lax` of their names mean in a rule.
FUNCTIONS = """
    abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp cos cosh
    digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt is_finite le lgamma log log1p
    logistic lt max min mul ne neg nextafter optimization_barrier pow rem rsqrt sign sin sinh sqrt
    square stop_gradient sub tan tanh
"""
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: ALIASES[getattr(jax.lax, name)] for name in FUNCTIONS.split()},
    **dict.fromkeys(("copy", "copy_p", "name"), ALIASES[jax.nn.identity]),
    "add_any": xp.add, "and": xp.bitwise_and, "eq_to": equal_in_order,
    "le_to": at_most_in_order, "lt_to": less_in_order, "not": xp.bitwise_invert,
    "or": xp.bitwise_or, "select_n": select_n, "xor": xp.bitwise_xor,
}  # fmt: skip

ELEMENTS: dict[str, Handler] = {
    **{name: elementwise(function) for name, function in ELEMENTWISE.items()},
    "convert_element_type": convert_element_type, "dim_as_value": dim_as_value,
    "integer_pow": integer_pow, "polygamma": polygamma, "reduce_precision": reduce_precision,
    "round": round_,
}  # fmt: skip
