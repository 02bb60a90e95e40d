"""The meaning in ops of primitives: elementwise, of shapes and axes, of linear algebra; see
`traced.py`.

`ELEMENTS`, `SHAPES` and `LINALG` are the tables: each primitive's name, and the handler of an
equation of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.core import ops
from multigrad.core.ir.op import BOOL, INT32, INTEGERS
from multigrad.core.trace.trace import Value, apply, cast
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import composites, matrices
from multigrad.engine.trace.xp import transposes

from ..jaxprs import einsum_subscripts
from .arrays import counting_along
from .equations import WEAK, EquationStep, Handler, Operand, Shape, Unknown, integers
from .families import ALIASES, reduce_and, reduce_or

REDUCED = (ops.SUM, ops.MEAN, ops.MAX, ops.MIN, ops.PROD, ops.ANY, ops.ALL)


def reduction(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        axes = tuple(int(axis) for axis in step.params["axes"])
        is_total = len(axes) == len(step.shapes[0])
        return step.result(function(step.whole(), None if is_total else axes))

    return handle


def along(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        x, axis, reverse = step.whole(), step.params["axis"], step.params["reverse"]
        along_axis = function(xp.flip(x, axis) if reverse else x, axis)
        return step.result(xp.flip(along_axis, axis) if reverse else along_axis)

    return handle


def with_integers(function: Callable[..., Any], name: str) -> Handler:
    def handle(step: EquationStep) -> Operand:
        return step.result(function(step.whole(), integers(step.params[name])))

    return handle


def joined(function: Callable[..., Any], name: str) -> Handler:
    def handle(step: EquationStep) -> Operand:
        parts = [step.whole(i) for i in range(len(step.operands))]
        return step.result(function(parts, step.params[name]))

    return handle


def broadcast_in_dim(step: EquationStep) -> Operand:
    """Move the operand's axes, with ones along new axes, repeated later where it matters."""
    operand, places = step.operands[0], step.params["broadcast_dimensions"]
    if not operand.shape:
        return operand
    rank = len(step.params["shape"])
    new_axes = tuple(axis for axis in range(rank) if axis not in places)
    shape = list(operand.shape)
    for axis in new_axes:
        shape.insert(axis, 1)
    node = operand.value.node
    # a reduction whose axes are added again is one with keepdims
    if node.op in REDUCED and node.attr("axis") == new_axes and not node.attr("keepdims"):
        attrs = {**dict(node.attrs), "keepdims": True}
        x = step.scope.trace.value(node.operands[0])
        return Operand(apply(node.op, x, **attrs), tuple(shape))
    x = operand.value
    for axis in new_axes:
        x = xp.expand_dims(x, axis)
    return Operand(x, tuple(shape))


def reshape(step: EquationStep) -> Operand:
    lengths = [step.scope.length(n) for n in step.params["new_sizes"]]
    x, order = step.whole(), step.params["dimensions"]
    if order is not None:
        x = xp.permute_dims(x, integers(order))
    # an open length is known by another tensor of that shape; one alone can be -1
    like = step.scope.examples.get(step.shape)
    open_positions = [i for i, n in enumerate(lengths) if not isinstance(n, int)]
    if like is not None and open_positions:
        return step.result(xp.reshape_like(x, like))
    if len(open_positions) > 1:
        raise Unknown(f"a reshape to {step.shape}")
    sizes = [-1 if i in open_positions else n for i, n in enumerate(lengths)]
    return step.result(xp.reshape(x, sizes))


def slice_(step: EquationStep) -> Operand:
    starts, limits = step.params["start_indices"], step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * len(starts)
    items = []
    for start, limit, stride, n in zip(starts, limits, strides, step.shapes[0], strict=True):
        is_whole = start == 0 and limit == n and stride == 1
        items.append(slice(None) if is_whole else slice(*integers((start, limit, stride))))
    return step.result(xp.getitem(step.whole(), tuple(items)))


def split(step: EquationStep) -> list[Operand]:
    axis, start, parts = step.params["axis"], 0, []
    for size in integers(step.params["sizes"]):
        index = (*(slice(None),) * axis, slice(start, start + size))
        shape = (*step.shapes[0][:axis], size, *step.shapes[0][axis + 1 :])
        parts.append(Operand(xp.getitem(step.whole(), index), shape))
        start += size
    return parts


def unstack(step: EquationStep) -> list[Operand]:
    axis, shape = step.params["axis"], step.shapes[0]
    part_shape = (*shape[:axis], *shape[axis + 1 :])
    (count,) = integers(shape[axis : axis + 1])
    index = (slice(None),) * axis
    return [Operand(xp.getitem(step.whole(), (*index, i)), part_shape) for i in range(count)]


def iota(step: EquationStep) -> Operand:
    lengths = integers(step.params["shape"])
    axis = step.params["dimension"]
    row = counting_along(lengths[axis], axis, len(lengths))
    return step.scope.lift(np.broadcast_to(row, lengths))


def dot_general(step: EquationStep) -> Operand:
    numbers, (left, right) = step.params["dimension_numbers"], step.shapes
    subscripts = einsum_subscripts(numbers, len(left), len(right))
    return step.result(xp.einsum(subscripts, step.whole(0), step.whole(1)))


def several(step: EquationStep) -> list[Operand]:
    return list(step.operands)


def empty(step: EquationStep) -> Operand:
    return step.scope.lift(np.zeros(integers(step.shape)))


SHAPES: dict[str, Handler] = {
    "broadcast_in_dim": broadcast_in_dim, "concatenate": joined(xp.concatenate, "dimension"),
    "cummax": along(xp.cummax), "cummin": along(xp.cummin),
    "cumprod": along(xp.cumprod), "cumlogsumexp": along(xp.logcumsumexp),
    "cumsum": along(xp.cumsum), "device_put": several, "dot_general": dot_general,
    "empty2": empty, "iota": iota, "reduce_and": reduction(reduce_and),
    "reduce_max": reduction(xp.max), "reduce_min": reduction(xp.min),
    "reduce_or": reduction(reduce_or), "reduce_prod": reduction(xp.prod),
    "reduce_sum": reduction(xp.sum),
    "reshape": reshape, "rev": with_integers(xp.flip, "dimensions"), "slice": slice_,
    "split": split, "squeeze": with_integers(xp.squeeze, "dimensions"),
    "stack": joined(xp.stack, "axis"), "tile": with_integers(xp.tile, "reps"),
    "transpose": with_integers(xp.permute_dims, "permutation"), "unstack": unstack,
}  # fmt: skip


def repeated(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an elementwise result: 1 where all operands have 1."""
    full = [shape for shape in shapes if shape]
    if not full:
        return ()
    return tuple(next((n for n in lengths if n != 1), 1) for lengths in zip(*full, strict=True))


def elementwise(function: Callable[..., Any]) -> Handler:
    def handle(step: EquationStep) -> Operand:
        result = function(*(operand.value for operand in step.operands))
        return Operand(result, repeated([operand.shape for operand in step.operands]))

    return handle


def integer_pow(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(xp.pow(x.value, int(step.params["y"])), x.shape)


def rounded(x: Value, method: Any) -> Value:
    if method == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return xp.round(x)
    truncated = xp.trunc(x)
    return xp.where(xp.abs(x - truncated) >= 0.5, truncated + xp.sign(x), truncated)


def polygamma(step: EquationStep) -> Operand:
    order, x = step.operands
    if order.known is None:
        raise Unknown("polygamma of an order that is a tensor")
    # at its poles XLA gives NaN for an even order
    return Operand(composites.polygamma(float(order.known), x.value, math.nan), x.shape)


def round_(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(rounded(x.value, step.params["rounding_method"]), x.shape)


def convert_element_type(step: EquationStep) -> Operand:
    (x,) = step.operands
    return Operand(cast(x.value, step.scope.dtype_name(step.params["new_dtype"])), x.shape)


def dim_as_value(step: EquationStep) -> Operand:
    length = step.scope.length(step.params["dim"])
    return Operand(length, ()) if isinstance(length, Value) else step.scope.lift(length)


def less_in_order(a: Value, b: Value) -> Value:
    """Return a < b in a total order: -0 before 0, NaN by its sign before or after all numbers."""
    less = xp.less(a, b)
    if all(x.node.type.dtype in ("int", *INTEGERS) for x in (a, b)):
        return less
    signs = xp.signbit(a), xp.signbit(b)
    is_zero = xp.logical_and(xp.equal(a, b), xp.logical_and(signs[0], xp.logical_not(signs[1])))
    sides = [
        xp.where(xp.isnan(x), xp.where(sign, -1.0, 1.0), 0.0)
        for x, sign in zip((a, b), signs, strict=True)
    ]
    by_side = xp.less(sides[0], sides[1])
    by_value = xp.logical_and(xp.equal(sides[0], sides[1]), xp.logical_or(less, is_zero))
    return xp.logical_or(by_side, by_value)


def equal_in_order(a: Value, b: Value) -> Value:
    return xp.logical_not(xp.logical_or(less_in_order(a, b), less_in_order(b, a)))


def at_most_in_order(a: Value, b: Value) -> Value:
    return xp.logical_not(less_in_order(b, a))


def select_n(which: Value, *cases: Value) -> Value:
    are_scalars = all(case.node.type.kind == "scalar" for case in cases)
    if are_scalars and which.node.type.kind == "tensor":  # the kind of number decides the dtype
        cases = (xp.full_like(which, cases[0], WEAK[cases[0].node.type.dtype]), *cases[1:])
    if which.node.type.dtype == BOOL:
        return xp.where(which, cases[1], cases[0]) if len(cases) == 2 else cases[0]
    result = cases[-1]
    for i, case in enumerate(cases[:-1]):
        result = xp.where(xp.equal(which, i), case, result)
    return result


def reduce_precision(step: EquationStep) -> Operand:
    limits = jnp.finfo(step.dtypes[0])
    if (step.params["exponent_bits"], step.params["mantissa_bits"]) != (limits.nexp, limits.nmant):
        raise Unknown("reduce_precision to another format")
    return step.operands[0]


# Primitives that mean the same as the functions of `jax.lax` of their names.
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


# --- linear algebra, and jax's own functions made of it: the tables `LINALG` and `OWN` ------------
def cholesky(step: EquationStep) -> Operand:
    # jax's reads the lower triangle; its jaxpr makes the matrix symmetric before
    return step.result(xp.cholesky(step.whole()))


def triangular_solve(step: EquationStep) -> Operand:
    params = step.params
    result = matrices.solve_triangular(
        step.whole(0),
        step.whole(1),
        params["left_side"],
        lower=params["lower"],
        transposed=params["transpose_a"],
        unit_diagonal=params["unit_diagonal"],
    )
    return step.result(result)


def lu(step: EquationStep) -> list[Operand]:
    x = step.whole()
    *batch, rows, columns = step.shapes[0]
    packed, pivots = xp.lu(x)
    permutation = cast(transposes.lu_permutation(pivots, x), INT32)
    count = min(rows, columns)
    return [
        step.result(packed),
        Operand(cast(pivots, INT32), (*batch, count)),
        Operand(permutation, (*batch, rows)),
    ]


def lu_pivots_to_permutation(step: EquationStep) -> Operand:
    like = np.zeros((step.params["permutation_size"], 1))
    return step.result(cast(transposes.lu_permutation(step.whole(), like), INT32))


def beyond(what: str) -> Unknown:
    reason = f"{what}; use full_matrices=False, or the reduced mode"
    return Unknown(reason, lacks=reason)


def svd(step: EquationStep) -> list[Operand]:
    *batch, rows, columns = step.shapes[0]
    u, s, vh = xp.svd(step.whole())
    count = min(rows, columns)
    values = Operand(s, (*batch, count))
    if not step.params["compute_uv"]:
        return [values]
    if step.params["full_matrices"] and rows != columns:
        raise beyond("singular vectors beyond the singular values")
    return [values, Operand(u, (*batch, rows, count)), Operand(vh, (*batch, count, columns))]


def eigh(step: EquationStep) -> list[Operand]:
    w, v = matrices.eigh(step.whole(), not step.params["lower"])
    return [Operand(v, step.shapes[0]), Operand(w, step.shapes[0][:-1])]


def qr(step: EquationStep) -> list[Operand]:
    *batch, rows, columns = step.shapes[0]
    if step.params["pivoting"]:
        raise Unknown("a QR factorization with pivots")
    if step.params["full_matrices"] and rows > columns:
        raise beyond("columns of q beyond those of the matrix")
    q, r = xp.qr(step.whole())
    count = min(rows, columns)
    return [Operand(q, (*batch, rows, count)), Operand(r, (*batch, count, columns))]


def has_own_cutoff(jaxpr: Any) -> bool:
    """Return whether a pseudo-inverse computes jax's own cutoff first, ten eps a row."""
    (x,) = jaxpr.invars
    equation = jaxpr.eqns[0]
    if equation.primitive.name in ("jit", "pjit"):
        return equation.invars == [x] and has_own_cutoff(equation.params["jaxpr"].jaxpr)
    numbers = [float(each.val) for each in equation.invars if hasattr(each, "val")]
    if equation.primitive.name != "mul" or len(numbers) != 2:
        return False
    jax_cutoff = 10 * max(x.aval.shape[-2:]) * float(np.finfo(x.aval.dtype).eps)
    return bool(np.isclose(numbers[0] * numbers[1], jax_cutoff, 1e-6, 0))


# The derivative of their steps fails for a singular matrix; the op has the derivative of jax's own.
OWN: dict[str, Callable[[Any], Any]] = {
    "_det": xp.det,
    "_pinv": functools.partial(matrices.pinv, rtol=None, epsilons=10.0),
    "_slogdet_lu": xp.slogdet,
}
# Functions whose derivative only the op has, and the condition for it.
ONLY_OWN: dict[str, Callable[[Any], bool]] = {"_pinv": has_own_cutoff}


LINALG: dict[str, Handler] = {
    "cholesky": cholesky,
    "eigh": eigh,
    "lu": lu,
    "lu_pivots_to_permutation": lu_pivots_to_permutation,
    "qr": qr,
    "svd": svd,
    "triangular_solve": triangular_solve,
}
