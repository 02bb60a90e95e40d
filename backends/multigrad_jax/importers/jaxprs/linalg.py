"""The meaning in ops of primitives of linear algebra, convolutions and windows of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from multigrad.capture.meanings import convolutions, matrices
from multigrad.graph.ir.types import INT32
from multigrad.trace.derived.derivatives import accumulate_all
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import transposes

from .primitives import EquationStep, Handler, Operand, Unknown, integers

Tensor = Any


def cholesky(step: EquationStep) -> Operand:
    # jax's reads the lower triangle; its jaxpr makes the matrix symmetric before
    return step.result(xp.cholesky(step.whole()))


def triangular_solve(step: EquationStep) -> Operand:
    params = step.params
    result = matrices.solve_triangular(
        step.whole(0),
        step.whole(1),
        lower=params["lower"],
        transposed=params["transpose_a"],
        unit=params["unit_diagonal"],
        left=params["left_side"],
    )
    return step.result(result)


# --- factors --------------------------------------------------------------------------------------
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


# --- jax's own functions with a derivative of their own ------------------------------------------
def det(x: Any) -> tuple[Any]:
    return (xp.det(x),)


def slogdet(x: Any) -> tuple[Any, Any]:
    return tuple(xp.slogdet(x))


def pinv(x: Any) -> tuple[Any]:
    """Return the pseudo-inverse with jax's own cutoff."""
    return (matrices.pinv(x, None, 10.0),)


def has_own_cutoff(jaxpr: Any) -> bool:
    """Return whether a pseudo-inverse computes jax's own cutoff first, ten eps a row."""
    (x,) = jaxpr.invars
    equation = jaxpr.eqns[0]
    if equation.primitive.name in ("jit", "pjit"):
        return equation.invars == [x] and has_own_cutoff(equation.params["jaxpr"].jaxpr)
    numbers = [float(each.val) for each in equation.invars if hasattr(each, "val")]
    if equation.primitive.name != "mul" or len(numbers) != 2:
        return False
    wanted = 10 * max(x.aval.shape[-2:]) * float(np.finfo(x.aval.dtype).eps)
    return bool(np.isclose(numbers[0] * numbers[1], wanted, 1e-6, 0))


# The derivative of their steps fails for a singular matrix; the op has the derivative of jax's own.
OWN: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "_det": det,
    "_pinv": pinv,
    "_slogdet_lu": slogdet,
}
# Functions whose derivative only the op has, and the condition for it.
ONLY_OWN: dict[str, Callable[[Any], bool]] = {"_pinv": has_own_cutoff}


# --- convolutions and windows ---------------------------------------------------------------------
def border_of(step: EquationStep) -> convolutions.Pairs:
    pairs = map(integers, step.params["padding"])
    return tuple((before, after) for before, after in pairs)


def conv_general_dilated(step: EquationStep) -> Operand:
    params, numbers = step.params, step.params["dimension_numbers"]
    x, kernels = step.whole(0), step.whole(1)
    wanted = params["preferred_element_type"]
    if wanted is not None and wanted != step.dtypes[0]:  # the sums have this dtype too
        x, kernels = (cast(each, step.scope.dtype_name(wanted)) for each in (x, kernels))
    x, groups = xp.permute_dims(x, numbers.lhs_spec), params["feature_group_count"]
    if params["batch_group_count"] > 1:  # parts of the batch, each with kernels of its own
        groups = params["batch_group_count"]
        channels, *lengths = (step.shapes[0][axis] for axis in numbers.lhs_spec[1:])
        parts = xp.reshape(x, integers((groups, -1, channels, *lengths)))
        x = xp.reshape(xp.moveaxis(parts, 0, 1), integers((-1, groups * channels, *lengths)))
    result = convolutions.convolution(
        convolutions.spread(x, integers(params["lhs_dilation"])),
        xp.permute_dims(kernels, numbers.rhs_spec),
        strides=integers(params["window_strides"]),
        border=border_of(step),
        dilations=integers(params["rhs_dilation"]),
        groups=groups,
    )
    order = [numbers.out_spec.index(i) for i in range(len(numbers.out_spec))]
    return step.result(xp.permute_dims(result, order))


def windows_of(step: EquationStep) -> tuple[Any, ...]:
    params = step.params
    if set(params.get("base_dilation", ())) - {1}:
        raise Unknown("windows with base_dilation", lacks="windows with base_dilation")
    sizes, strides = integers(params["window_dimensions"]), integers(params["window_strides"])
    spacing = integers(params.get("window_dilation", (1,) * len(sizes)))
    return sizes, strides, border_of(step), spacing


def reduce_window(step: EquationStep, reduce: Callable[..., Tensor]) -> Operand:
    return step.result(reduce(step.whole(), *windows_of(step)))


def select_and_scatter_add(step: EquationStep) -> Operand:
    """Record the gradient of a pooling, from its cotangent and the pooled tensor."""
    pool = convolutions.max_pool if step.params["select_prim"] is jax.lax.ge_p else smallest
    x = step.whole_tensor(1)
    pooled = pool(x, *windows_of(step))
    seeds = [(pooled.node, step.whole_tensor())]
    return step.result(accumulate_all(step.scope.trace, seeds, [x.node])[0])


def smallest(x: Tensor, *windows: Any) -> Tensor:
    return xp.negative(convolutions.max_pool(xp.negative(x), *windows))


def summed(x: Tensor, sizes: Any, strides: Any, border: Any, spacing: Any) -> Tensor:
    seen = xp.windows(convolutions.bordered(x, border), sizes, strides, spacing)
    return xp.sum(seen, tuple(range(-len(sizes), 0)))


LINALG: dict[str, Handler] = {
    "cholesky": cholesky,
    "eigh": eigh,
    "lu": lu,
    "lu_pivots_to_permutation": lu_pivots_to_permutation,
    "qr": qr,
    "svd": svd,
    "triangular_solve": triangular_solve,
    "conv_general_dilated": conv_general_dilated,
    "reduce_window_max": partial(reduce_window, reduce=convolutions.max_pool),
    "reduce_window_min": partial(reduce_window, reduce=smallest),
    "reduce_window_sum": partial(reduce_window, reduce=summed),
    "select_and_scatter_add": select_and_scatter_add,
}
