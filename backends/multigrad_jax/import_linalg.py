"""What the primitives of linear algebra mean in a jaxpr; see `import_primitives.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.capture import linalg
from multigrad.tracing import xp_all as xp

from .import_primitives import Operand, Step


def cholesky(step: Step) -> Operand:
    """Of the lower triangle: what makes the matrix symmetric stands before it."""
    return step.result(xp.cholesky(step.whole()))


def triangular_solve(step: Step) -> Operand:
    params = step.params
    result = linalg.solve_triangular(
        step.whole(0),
        step.whole(1),
        lower=params["lower"],
        transposed=params["transpose_a"],
        unit=params["unit_diagonal"],
        left=params["left_side"],
    )
    return step.result(result)


# --- jax's own functions with a derivative of their own ------------------------------------------
def det(x: Any) -> tuple[Any]:
    return (xp.det(x),)


def slogdet(x: Any) -> tuple[Any, Any]:
    return tuple(xp.slogdet(x))


# What factors a matrix in them has no op; what they compute, and its derivative, has one.
OWN: dict[str, Callable[[Any], tuple[Any, ...]]] = {"_det": det, "_slogdet_lu": slogdet}
LINALG: dict[str, Callable[[Step], Operand]] = {
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
}
