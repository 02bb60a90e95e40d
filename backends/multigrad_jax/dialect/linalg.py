"""The meaning in ops of primitives of linear algebra, and of jax's own functions made of them.

`LINALG` and `OWN`, at the end, are the tables of both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from multigrad.core.ir.op import INT32
from multigrad.core.trace.trace import cast
from multigrad.core.trace.xp import all as xp
from multigrad.core.trace.xp import transposes
from multigrad.engine.capture.meanings import matrices

from .equations import EquationStep, Handler, Operand, Unknown


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
