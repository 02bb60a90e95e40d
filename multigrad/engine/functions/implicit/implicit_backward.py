"""The backward of an implicit Function, captured: the linear system, and the pull to params.

Each way to solve a system is a loop over products with the matrix, which are VJPs of the residual,
so that only the direct way ever holds a matrix. The unknowns are one vector, and the right side is
scaled to a sum of one, so that nothing underflows. For a residual of 16 bits all of this is
computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ....core.functions.recipe import Options, Recipe, Recorded, library_of, never_run
from ....core.ir.op import FLOATS_OF_16_BITS, T, is_float
from ....core.lowering.derivatives import accumulate_all
from ....core.support.trees import optree
from ....core.trace.trace import NeedsConcrete, Value, cast_node
from ....core.trace.xp import all as xp
from ....errors import GradientError, RuleValueError, suggest
from ...capture.copies.run_or_import import run_written_in
from ...capture.meanings.loops import as_tensor, guess_dtype, record_loop
from ...trace.code_trace import CodeTrace

Tree = Any
Tensor = Any
Action = Callable[[Tensor], Tensor]
Solution = tuple[Tensor, Tensor, Tensor]


# --- what is zero at the solution -----------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class EquationResidual:
    """What is zero at the solution x.

    Attributes:
        record: `record(trace, x, args, kwargs)` records it.
        function: the user's.
        library: what its author says that it is written in.
    """

    record: Callable[[CodeTrace, Tree, Sequence[Any], Any], Tree]
    function: Callable[..., Any]
    library: str


def residual_of(function: Callable[..., Any], library: str) -> EquationResidual:
    """Return a residual as the user wrote it."""

    def record(trace: CodeTrace, x: Tree, args: Sequence[Any], kwargs: Any) -> Tree:
        return run_written_in(library, function, trace, x, *args, **kwargs)

    return EquationResidual(record, function, library)


def transposed(of: EquationResidual) -> EquationResidual:
    """Return the residual of the linear system of another: (d residual / d x)^T w + u."""

    def record(trace: CodeTrace, w: Tree, args: Sequence[Any], kwargs: Any) -> Tree:
        u, x, params, named = args
        outputs = of.record(trace, x, params, named)
        shares = pulled(trace, flat_tree(outputs), flat_tree(w), values_in(x))
        return [share + cotangent for share, cotangent in zip(shares, flat_tree(u), strict=True)]

    return replace(of, record=record)


# --- backward, captured ---------------------------------------------------------------------------
def recipe_of_linear_system(residual: EquationResidual, name: str, how: LinearSolver) -> Recipe:
    """Return the recipe of `(u, x, args, kwargs) -> (w, iterations, error, size, is_solved)`.

    `size` is the largest number in the residual. Where it is not solved, w is NaN.
    """

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        u, x, params, named = widened(trace, args)
        outputs = residual.record(trace, x, params, named)
        unknowns, residual_leaves = values_in(x), flat_tree(outputs)
        if len(residual_leaves) != len(unknowns):
            raise unlike(recipe.subject, f"{len(residual_leaves)} tensors", len(unknowns))

        def action(w: Tensor) -> Tensor:
            return flat(pulled(trace, residual_leaves, unflat(w, unknowns), unknowns))

        eps = eps_of(dtype_of(trace))
        b = -flat(flat_tree(u))
        vector, turns, error, is_solved = solve_linear(trace, action, b, how, eps)
        size = largest(residual_leaves)
        # It is infinite in the systems of higher derivatives, whose solution is checked here.
        if how.accept != np.inf:
            limit = (1.0 + largest(unknowns)) * how.accepted(eps)
            is_solved = xp.logical_and(is_solved, xp.less_equal(size, limit))
        w = unflat(xp.where(is_solved, vector, np.nan), unknowns)
        report = (w, turns, error, size, is_solved)
        return Recorded(report, None, undifferentiable=tuple(flat_tree(report)))

    recipe = _recipe_of_graph(residual, name, record)
    return recipe


def recipe_of_parameter_pull(residual: EquationResidual, name: str) -> Recipe:
    """Return the recipe of `(w, x, args, kwargs) -> (d residual / d params)^T w`.

    The result is nested like (args, kwargs).
    """

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        w, x, params, named = widened(trace, args)
        outputs = residual.record(trace, x, params, named)
        leaves, tree = optree.tree_flatten((params, named), none_is_leaf=True)
        places = [i for i, leaf in enumerate(leaves) if is_float_symbol(leaf)]
        cotangents = pulled(trace, flat_tree(outputs), flat_tree(w), [leaves[i] for i in places])
        by_place = dict(zip(places, cotangents, strict=True))
        gradients = [by_place.get(i) for i in range(len(leaves))]
        return Recorded(optree.tree_unflatten(tree, gradients), None)

    return _recipe_of_graph(residual, name, record)


def _recipe_of_graph(
    residual: EquationResidual, name: str, record: Callable[..., Recorded]
) -> Recipe:
    # What backward computes from a residual is always captured.
    return Recipe(
        name,
        never_run,
        record,
        functions=(residual.function,),
        written_in=residual.library or partial(library_of, (residual.function,), ""),
        options=Options(native=False),
    )


def unlike(subject: str, residual: Any, expected: Any) -> GradientError:
    return GradientError(
        f"{subject}: its residual has {residual}, and x {expected}; expected the same"
    )


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value in tensors, 0 where they have no elements."""
    values = xp.abs(flat(tensors))
    return xp.max(xp.concat([values, xp.zeros_like(xp.reshape(xp.sum(values), (1,)))]))


def eps_of(dtype: str) -> float:
    return float(np.finfo("float32" if dtype in FLOATS_OF_16_BITS else dtype).eps)


# --- the linear system ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LinearSolver:
    """How systems are solved, by a name in `WAYS`; the numbers are those of `xg.implicit`."""

    way: str
    tol: float | None
    maxiter: int
    accept: float | None

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            ways = f"{suggest(self.way, WAYS)}; there are {', '.join(map(repr, WAYS))}"
            raise RuleValueError(f"no way to solve {self.way!r}{ways}")
        for name in ("tol", "accept", "maxiter"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RuleValueError(f"{name} is a number above zero, not {value!r}")

    def accepted(self, eps: float) -> float:
        return eps ** (1 / 3) if self.accept is None else self.accept


def solve_linear(
    trace: CodeTrace, action: Action, b: Tensor, how: LinearSolver, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (w of action(w) = b, iterations, error relative to b, whether it is small enough)."""
    scale = xp.sum(xp.abs(b))
    unit = b / xp.where(xp.greater(scale, 0.0), scale, 1.0)
    tol = eps**0.75 if how.tol is None else how.tol
    least = xp.multiply(dot(unit, unit), tol * tol)
    w, square, turns = WAYS[how.way](trace, action, unit, least, how.maxiter, eps)
    error, _ = guarded(norm(unit - action(w)), norm(unit))
    # What a recurrence says of the error may be less than there is, by rounding.
    is_small = xp.less_equal(error, max(10 * tol, eps**0.5))
    return w * scale, turns, error, xp.logical_and(xp.less_equal(square, least), is_small)


# The ways to solve action(w) = b, where action is the product with the matrix. Each returns (w, the
# square of the residual's norm, the number of iterations), `most` at most, or until it is `least`.
WINDOW = 20  # directions that GCR keeps


def iterate(
    trace: CodeTrace, start: Sequence[Any], step: Callable[..., Any], least: Tensor, most: int
) -> Solution:
    """Repeat a step on a carry (w, ..., square of the residual's norm, whether it is stuck)."""

    def goes_on(*carried: Any) -> Tensor:
        *_, square, is_stuck, turns = carried
        is_open = xp.logical_and(xp.greater(square, least), xp.logical_not(is_stuck))
        return xp.logical_and(xp.less(turns, most), is_open)

    w, *_, square, _, turns = loop(trace, start, goes_on, step)
    return w, square, turns


def solve_cg(
    trace: CodeTrace, action: Action, b: Tensor, least: Tensor, most: int, eps: float
) -> Solution:
    """Conjugate gradients: Hestenes and Stiefel 1952; for symmetric definite matrices."""

    def step(w: Any, r: Any, p: Any, square: Any, is_stuck: Any) -> tuple[Any, ...]:
        q = action(p)
        # Stuck: without curvature along p no step is defined.
        length, is_stuck = guarded(square, dot(p, q))
        r = r - length * q
        new_square = dot(r, r)
        return w + length * p, r, r + (new_square / square) * p, new_square, is_stuck

    return iterate(trace, (xp.zeros_like(b), b, b, dot(b, b), False), step, least, most)


def solve_gmres(
    trace: CodeTrace, action: Action, b: Tensor, least: Tensor, most: int, eps: float
) -> Solution:
    """GCR: the least residual over the last directions (Eisenstat, Elman, Schultz 1983)."""
    # For as many unknowns it gives what GMRES gives. Where a residual leads nowhere, its image is
    # the next direction, as in ORTHODIR (Young, Jea 1980).
    no_directions = xp.repeat(xp.expand_dims(xp.zeros_like(b), 0), WINDOW, 0)

    def step(
        w: Any, r: Any, p: Any, ps: Any, qs: Any, square: Any, is_stuck: Any
    ) -> tuple[Any, ...]:
        q = action(p)
        norm_before = norm(q)
        for _ in range(2):  # once more, as rounding leaves a part
            shares = xp.matmul(qs, q)
            p, q = p - xp.matmul(shares, ps), q - xp.matmul(shares, qs)
        size = norm(q)
        # Stuck: rounding is all that is left of the new direction.
        is_stuck = xp.less_equal(size, norm_before * (4 * eps))
        factor = xp.where(is_stuck, 0.0, 1.0 / xp.where(is_stuck, 1.0, size))
        p, q = p * factor, q * factor
        length = dot(q, r)
        w, r = w + length * p, r - length * q
        # A residual that this step hardly shrank is a bad direction: its image comes next.
        leads = xp.greater(length * length, square * 0.01)
        ps, qs = pushed(ps, p), pushed(qs, q)
        return w, r, xp.where(leads, r, q), ps, qs, dot(r, r), is_stuck

    start = (xp.zeros_like(b), b, b, no_directions, no_directions, dot(b, b), False)
    return iterate(trace, start, step, least, most)


def pushed(rows: Tensor, row: Tensor) -> Tensor:
    return xp.concatenate([xp.expand_dims(row, 0), xp.getitem(rows, slice(None, -1))])


def solve_fixed_point(
    trace: CodeTrace, action: Action, b: Tensor, least: Tensor, most: int, eps: float
) -> Solution:
    """The iteration of a residual x - T(x) or T(x) - x, whose T is a contraction."""
    # One product tells which of the two it is.
    sign = xp.where(xp.less(dot(b, action(b)), 0.0), -1.0, 1.0)

    def step(w: Any, r: Any, square: Any, is_stuck: Any) -> tuple[Any, ...]:
        w = w + sign * r
        r = b - action(w)
        return w, r, dot(r, r), is_stuck

    return iterate(trace, (xp.zeros_like(b), b, dot(b, b), False), step, least, most)


def solve_directly(
    trace: CodeTrace, action: Action, b: Tensor, least: Tensor, most: int, eps: float
) -> Solution:
    """Solve by the matrix, one product for each column, and its LU factors."""
    places = xp.cumsum(xp.ones_like(b)) - 1.0
    count = xp.sum(xp.ones_like(b))
    nothing = xp.expand_dims(xp.zeros_like(b), -1) * xp.expand_dims(xp.zeros_like(b), 0)

    def step(matrix: Any, place: Any) -> tuple[Any, ...]:
        is_here = xp.equal(places, place)
        column = action(xp.where(is_here, xp.ones_like(b), 0.0))
        new_matrix = xp.where(xp.expand_dims(is_here, -1), xp.expand_dims(column, 0), matrix)
        return new_matrix, place + 1.0

    def goes_on(matrix: Any, place: Any, turns: Any) -> Any:
        return xp.less(place, count)

    matrix, _, turns = loop(trace, (nothing, xp.zeros_like(count)), goes_on, step)
    w = xp.solve_matrices(xp.matrix_transpose(matrix), xp.expand_dims(b, -1))
    return xp.squeeze(w, -1), xp.zeros_like(count), turns


WAYS: dict[str, Callable[..., Solution]] = {
    "cg": solve_cg,
    "direct": solve_directly,
    "fixed_point": solve_fixed_point,
    "gmres": solve_gmres,
}


def dot(a: Tensor, b: Tensor) -> Tensor:
    return xp.sum(xp.multiply(a, b))


def norm(a: Tensor) -> Tensor:
    return xp.sqrt(dot(a, a))


def guarded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a / b, but 0 where b is 0, and where that is."""
    is_zero = xp.equal(b, 0.0)
    return xp.where(is_zero, 0.0, xp.divide(a, xp.where(is_zero, 1.0, b))), is_zero


def loop(
    trace: CodeTrace,
    start: Sequence[Any],
    goes_on: Callable[..., Tensor],
    step: Callable[..., Sequence[Tensor]],
) -> list[Any]:
    """Record a loop; return its final carry, and the number of turns, which `goes_on` gets last."""
    initial = [as_tensor(trace, x, guess_dtype(trace, x)) for x in (*start, 0)]

    def turn(carried: Sequence[Any]) -> list[Any]:
        *values, turns = carried
        return [*step(*values), turns + 1]

    return record_loop(trace, initial, lambda carried: goes_on(*carried), turn)


# --- trees ----------------------------------------------------------------------------------------
def flat_tree(tree: Tree) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


def values_in(tree: Any) -> list[Value]:
    return [leaf for leaf in flat_tree(tree) if is_float_symbol(leaf)]


def is_float_symbol(leaf: Any) -> bool:
    type_ = leaf.node.type if isinstance(leaf, Value) else None
    return type_ is not None and type_.kind == "tensor" and is_float(type_)


def flat(leaves: Sequence[Tensor]) -> Tensor:
    vectors = [xp.reshape(leaf, (-1,)) for leaf in leaves]
    return vectors[0] if len(vectors) == 1 else xp.concatenate(vectors)


def unflat(vector: Tensor, likes: Sequence[Tensor]) -> list[Tensor]:
    if len(likes) == 1:
        return [xp.reshape_like(vector, likes[0])]
    tensors, start = [], 0
    for like in likes:
        piece = xp.part(vector, xp.reshape(like, (-1,)), start, axis=0)
        tensors.append(xp.reshape_like(piece, like))
        start = start + xp.size(like)
    return tensors


def pulled(
    trace: CodeTrace,
    outputs: Sequence[Value],
    cotangents: Sequence[Value],
    targets: Sequence[Value],
) -> list[Value]:
    """Return the cotangents of targets, zeros where no output depends on them."""
    pairs = zip(outputs, cotangents, strict=True)
    with trace.backward.plainly():
        seeds = [(y.node, ct) for y, ct in pairs if isinstance(y, Value)]
        shares = accumulate_all(trace, seeds, [x.node for x in targets])
        return [
            xp.zeros_like(x) if share is None else share
            for x, share in zip(targets, shares, strict=True)
        ]


def widened(trace: CodeTrace, tree: Any) -> Any:
    """Return a tree in which floats of 16 bits are of 32."""
    first_dtype = dtype_of(trace)

    def widen(leaf: Any) -> Any:
        if not is_float_symbol(leaf):
            return leaf
        dtype = leaf.node.type.dtype
        if (first_dtype if dtype == T else dtype) not in FLOATS_OF_16_BITS:
            return leaf
        return trace.value(cast_node(leaf.node, T if first_dtype == "float32" else "float32"))

    return optree.tree_map(widen, tree, none_is_leaf=True)


def dtype_of(trace: CodeTrace) -> str:
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return trace.facts["dtype"]
