"""The linear systems of implicit differentiation, recorded: each way to solve them is a loop over
products with the matrix, which are VJPs of the residual, so that no matrix is ever held but by the
direct way.

Unknowns are one vector here, and the right side is scaled to a sum of one, so that nothing
underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...capture.control.loops import as_tensor, guess_dtype, record_loop
from ...graph.support.data import dataclass
from ...trace.trace import Trace
from ...trace.xp import all as xp

Tensor = Any
Action = Callable[[Tensor], Tensor]
WINDOW = 20  # directions that are kept


@dataclass(frozen=True, slots=True)
class Linear:
    """How systems are solved.

    Attributes:
        way: a name in `WAYS`.
        tol: the error at which iterations end, relative to the right side; None: eps to the 3/4.
        maxiter: they end after so many, too.
    """

    way: str
    tol: float | None
    maxiter: int

    def tolerance(self, eps: float) -> float:
        return eps**0.75 if self.tol is None else self.tol


class Solved(NamedTuple):
    """What a way gives.

    Attributes:
        vector: the solution.
        turns: how many iterations that took.
        has_ended: whether its own measure of the error says that it is done.
    """

    vector: Tensor
    turns: Tensor
    has_ended: Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    return xp.sum(xp.multiply(a, b))


def norm(a: Tensor) -> Tensor:
    return xp.sqrt(dot(a, a))


def guarded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a / b, zero where b is; and whether it is."""
    is_zero = xp.equal(b, 0.0)
    return xp.where(is_zero, 0.0, xp.divide(a, xp.where(is_zero, 1.0, b))), is_zero


def turned(
    trace: Trace,
    start: Sequence[Any],
    goes_on: Callable[..., Tensor],
    step: Callable[..., Sequence[Tensor]],
    most: int | None,
) -> list[Any]:
    """Return what a loop carries after it, and how often it has turned: `most` times at most."""
    initial = [as_tensor(trace, x, guess_dtype(trace, x)) for x in (*start, 0)]

    def condition(carried: Sequence[Any]) -> Any:
        *own, turns = carried
        found = goes_on(*own)
        return found if most is None else xp.logical_and(xp.less(turns, most), found)

    def turn(carried: Sequence[Any]) -> list[Any]:
        *own, turns = carried
        return [*step(*own), turns + 1]

    return record_loop(trace, initial, condition, turn)


def solve_cg(trace: Trace, action: Action, b: Tensor, tol: float, most: int, eps: float) -> Solved:
    """Conjugate gradients: Hestenes and Stiefel 1952; for symmetric definite matrices."""
    least = xp.multiply(dot(b, b), tol * tol)

    def goes_on(w: Any, r: Any, p: Any, rest: Any, is_stuck: Any) -> Any:
        return xp.logical_and(xp.greater(rest, least), xp.logical_not(is_stuck))

    def step(w: Any, r: Any, p: Any, rest: Any, is_stuck: Any) -> tuple[Any, ...]:
        q = action(p)
        length, is_stuck = guarded(rest, dot(p, q))
        r = r - length * q
        new = dot(r, r)
        return w + length * p, r, r + (new / rest) * p, new, is_stuck

    start = (xp.zeros_like(b), b, b, dot(b, b), False)
    w, _, _, rest, _, turns = turned(trace, start, goes_on, step, most)
    return Solved(w, turns, xp.less_equal(rest, least))


def solve_gmres(
    trace: Trace, action: Action, b: Tensor, tol: float, most: int, eps: float
) -> Solved:
    """The least residual over the last directions: of so many unknowns what GMRES gives, as GCR
    (Eisenstat, Elman, Schultz 1983); where a residual leads nowhere, its image is the next
    direction, as in ORTHODIR (Young, Jea 1980).
    """
    least = xp.multiply(dot(b, b), tol * tol)
    none = xp.repeat(xp.expand_dims(xp.zeros_like(b), 0), WINDOW, 0)

    def goes_on(w: Any, r: Any, p: Any, ps: Any, qs: Any, rest: Any, is_stuck: Any) -> Any:
        return xp.logical_and(xp.greater(rest, least), xp.logical_not(is_stuck))

    def step(w: Any, r: Any, p: Any, ps: Any, qs: Any, rest: Any, is_stuck: Any) -> tuple[Any, ...]:
        q = action(p)
        before = norm(q)
        for _ in range(2):  # once more, as rounding leaves a part
            shares = xp.matmul(qs, q)
            p, q = p - xp.matmul(shares, ps), q - xp.matmul(shares, qs)
        size = norm(q)
        is_stuck = xp.less_equal(size, before * (4 * eps))
        factor = xp.where(is_stuck, 0.0, 1.0 / xp.where(is_stuck, 1.0, size))
        p, q = p * factor, q * factor
        length = dot(q, r)
        w, r = w + length * p, r - length * q
        leads = xp.greater(length * length, rest * 0.01)
        ps, qs = pushed(ps, p), pushed(qs, q)
        return w, r, xp.where(leads, r, q), ps, qs, dot(r, r), is_stuck

    start = (xp.zeros_like(b), b, b, none, none, dot(b, b), False)
    w, _, _, _, _, rest, _, turns = turned(trace, start, goes_on, step, most)
    return Solved(w, turns, xp.less_equal(rest, least))


def pushed(rows: Tensor, row: Tensor) -> Tensor:
    """Return rows with another one at their head; the last falls out."""
    return xp.concatenate([xp.expand_dims(row, 0), xp.getitem(rows, slice(None, -1))])


def solve_fixed_point(
    trace: Trace, action: Action, b: Tensor, tol: float, most: int, eps: float
) -> Solved:
    """The iteration of a residual x - T(x) or T(x) - x, whose T is a contraction."""
    least = xp.multiply(dot(b, b), tol * tol)
    sign = xp.where(xp.less(dot(b, action(b)), 0.0), -1.0, 1.0)

    def goes_on(w: Any, r: Any, rest: Any) -> Any:
        return xp.greater(rest, least)

    def step(w: Any, r: Any, rest: Any) -> tuple[Any, ...]:
        w = w + sign * r
        r = b - action(w)
        return w, r, dot(r, r)

    start = (xp.zeros_like(b), b, dot(b, b))
    w, _, rest, turns = turned(trace, start, goes_on, step, most)
    return Solved(w, turns, xp.less_equal(rest, least))


def solve_directly(
    trace: Trace, action: Action, b: Tensor, tol: float, most: int, eps: float
) -> Solved:
    """By the matrix, a column for each product with a unit vector, and its LU factors."""
    places = xp.cumsum(xp.ones_like(b)) - 1.0
    count = xp.sum(xp.ones_like(b))
    nothing = xp.expand_dims(xp.zeros_like(b), -1) * xp.expand_dims(xp.zeros_like(b), 0)

    def step(matrix: Any, place: Any) -> tuple[Any, ...]:
        is_here = xp.equal(places, place)
        column = action(xp.where(is_here, xp.ones_like(b), 0.0))
        rows = xp.where(xp.expand_dims(is_here, -1), xp.expand_dims(column, 0), matrix)
        return rows, place + 1.0

    def goes_on(matrix: Any, place: Any) -> Any:
        return xp.less(place, count)

    start = (nothing, xp.zeros_like(count))
    matrix, _, turns = turned(trace, start, goes_on, step, None)
    w = xp.solve_matrices(xp.matrix_transpose(matrix), xp.expand_dims(b, -1))
    return Solved(xp.squeeze(w, -1), turns, xp.equal(count, count))


WAYS: dict[str, Callable[..., Solved]] = {
    "cg": solve_cg,
    "direct": solve_directly,
    "fixed_point": solve_fixed_point,
    "gmres": solve_gmres,
}


class Answer(NamedTuple):
    """The solution of a system.

    Attributes:
        vector: it.
        turns: how many iterations that took.
        error: what is left of the right side, relative to it.
        has_ended: whether that is as little as was asked for.
    """

    vector: Tensor
    turns: Tensor
    error: Tensor
    has_ended: Tensor


def solve_linear(trace: Trace, action: Action, b: Tensor, how: Linear, eps: float) -> Answer:
    """Return the w of action(w) = b."""
    scale = xp.sum(xp.abs(b))
    unit = b / xp.where(xp.greater(scale, 0.0), scale, 1.0)
    tol = how.tolerance(eps)
    found = WAYS[how.way](trace, action, unit, tol, how.maxiter, eps)
    error, _ = guarded(norm(unit - action(found.vector)), norm(unit))
    # What a recurrence says of the error may be less than there is, by rounding.
    is_small = xp.less_equal(error, max(10 * tol, eps**0.5))
    return Answer(
        found.vector * scale, found.turns, error, xp.logical_and(found.has_ended, is_small)
    )
