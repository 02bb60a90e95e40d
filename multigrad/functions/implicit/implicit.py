"""`xg.implicit`: the implicit-function theorem as a Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...capture.code.options import settled
from ...capture.code.signature import name_of
from ...errors import RuleValueError, suggest
from ...graph.support.trees import optree
from ...graph.support.typed import P, R
from ...trace.xp import all as xp
from ..custom_gradient import refuse_class, refuse_rule
from ..function import Function
from .backward import Written
from .solution import ImplicitRecipe, backend_in
from .systems import WAYS, Linear


class SolveReport(NamedTuple):
    """How well a call of an implicit Function was solved; numbers in eager code, tensors in
    compiled code.

    Attributes:
        residual: the largest number in the residual of the solution.
        iterations: the number of iterations for the linear system of backward.
        error: the residual of that system, relative to its right-hand side.
        converged: whether both are as small as requested; if not, gradients raise an error, or are
            NaN in compiled code.
    """

    residual: Any
    iterations: Any
    error: Any
    converged: Any


def implicit(
    residual: Callable[..., Any],
    solver: Callable[P, R],
    *,
    solve: str = "gmres",
    tol: float | None = None,
    maxiter: int = 1000,
    accept: float | None = None,
    dialect: str | None = None,
) -> Implicit[P, R]:
    """Return a Function of a solver, with the gradient of the equation that it solves.

    Where `residual(x, *params)` is zero at `x = solver(*params)`, the implicit-function theorem
    gives the gradient: for a cotangent u of x it solves (d residual / d x)^T w = -u, and returns (d
    residual / d params)^T w (Blondel et al., Efficient and modular implicit differentiation, 2022).
    The solver's iterations are neither kept nor differentiated.

    Examples:
        >>> def solver(theta):  # Newton's iteration, as it is
        ...     x = xp.ones_like(theta)
        ...     for _ in range(20):
        ...         x = x - (x * x - theta) / (2 * x)
        ...     return x
        >>> root = xg.implicit(lambda x, theta: x * x - theta, solver)
        >>> y, pull = xg.vjp(root, np.array([1.0, 4.0]))
        >>> y, pull(np.ones(2))[0].round(6)  # 1 / (2 sqrt(theta))
        (array([1., 2.]), array([0.5 , 0.25]))

        A fixed point x = T(x, theta) has the residual x - T(x, theta):

        >>> def solver(theta):
        ...     x = xp.zeros_like(theta)
        ...     for _ in range(60):
        ...         x = 0.5 * xp.tanh(x) + theta
        ...     return x
        >>> layer = xg.implicit(
        ...     lambda x, theta: x - (0.5 * xp.tanh(x) + theta), solver, solve="fixed_point"
        ... )
        >>> layer.report(np.array([0.25])).converged
        True

    Args:
        residual: `residual(x, *params)` gives tensors nested and shaped like x, all zero at the
            solution. It is captured as `xg.function` does, so it may be written with any library;
            tensors that are to have a gradient are params, not read from around it.
        solver: `solver(*params)` gives x, a float tensor or a nesting of such. It may iterate as it
            likes: on tensors of its own library (of all, with `xg.xp`) it runs as it is, on others
            it is captured. Params are without gradient in it.
        solve: how the linear system is solved: "gmres", for any matrix; "cg", for symmetric
            definite ones, as of a minimum; "fixed_point", for the residual of a contraction;
            "direct", by the whole matrix: of as many numbers squared as x has.
        tol: the error at which its iterations end, relative to the right-hand side; None: eps of
            the dtype to the power 3/4, which is 2e-12 in float64, 6e-6 in float32.
        maxiter: the largest number of iterations.
        accept: the largest number that may be in the residual of the solution, relative to 1 plus
            the largest in x; None: the cube root of eps, which is 6e-6 in float64, 5e-3 in float32.
        dialect: the library whose methods the code means, where its file imports several.

    Returns:
        A Function, called like `solver`: `layer(*params)`; `layer.report(*params)` gives a
        `SolveReport`. Its gradient may be differentiated again, once where code is compiled or
        transformed. 16 bits are computed in float32.

    Raises:
        RuleValueError: `solve`, `tol`, `maxiter` or `accept` is none of these.
        TypeError: residual or solver is a class, a rule, or not callable.
        GradientError: at a call, in eager code: the residual is of another shape than x, or is not
            zero there; in its backward: the iterations did not converge, or the matrix is singular.
            In compiled code (`jax.jit`, `vmap`, `tf.function`, `torch.compile`) the gradient is NaN
            then. Where there is NaN or infinity in params, x or u, NaN is passed on.
        TraceError: in backward: the residual cannot be captured, or reads a tensor from around it
            that asks for a gradient.
    """
    for each in (residual, solver):
        refuse_class(each)
        refuse_rule(each)
    check_options(solve, tol, maxiter, accept)
    library = settled(None, None, dialect).library
    recipe = ImplicitRecipe(
        Written(residual, library),
        solver,
        how=Linear(solve, tol, maxiter),
        accept=accept,
        name=name_of(solver),
    )
    return Implicit(recipe, solver, prove=False)


def check_options(solve: str, tol: float | None, maxiter: int, accept: float | None) -> None:
    """Check how a system is to be solved.

    Raises:
        RuleValueError: it cannot be.
    """
    if solve not in WAYS:
        ways = ", ".join(map(repr, WAYS))
        raise RuleValueError(f"no way to solve {solve!r}{suggest(solve, WAYS)}; there are {ways}")
    for name, value in (("tol", tol), ("accept", accept), ("maxiter", maxiter)):
        if value is not None and not value > 0:
            raise RuleValueError(f"{name} is a number above zero, not {value!r}")


class Implicit(Function[P, R]):
    """What `xg.implicit` returns: a Function whose gradient solves a linear system.

    Examples:
        >>> solver = lambda theta: xp.sqrt(theta)
        >>> root = xg.implicit(lambda x, theta: x * x - theta, solver, solve="cg")
        >>> report = root.report(np.array([1.0, 4.0]))
        >>> report.converged, report.iterations
        (True, 2)
    """

    recipe: ImplicitRecipe

    def report(self, *params: Any, cotangent: Any = None, **named: Any) -> SolveReport:
        """Return how well the equation and the linear system of backward are solved.

        Examples:
            >>> xg.implicit(lambda x, theta: x - theta, lambda theta: theta).report(np.ones(2))
            SolveReport(residual=0.0, iterations=1, error=..., converged=True)

        Args:
            *params: as in a call.
            cotangent: that of x, nested like it; None: ones.
        """
        recipe = self.recipe
        x = recipe.solution(params, named, strict=False)
        u = optree.tree_map(xp.ones_like, x) if cotangent is None else cotangent
        _, turns, error, size, is_well = recipe.asked(u, x, params, named)
        backend = backend_in(x)
        if backend.tensors.is_traced(is_well):
            return SolveReport(size, turns, error, is_well)
        told = [backend.tensors.to_numpy(each).item() for each in (size, turns, error, is_well)]
        return SolveReport(told[0], int(told[1]), told[2], bool(told[3]))
