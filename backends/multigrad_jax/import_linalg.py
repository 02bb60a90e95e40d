"""What the primitives of linear algebra mean in a jaxpr; see `import_primitives.py`."""

from __future__ import annotations

from collections.abc import Callable

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


LINALG: dict[str, Callable[[Step], Operand]] = {
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
}
