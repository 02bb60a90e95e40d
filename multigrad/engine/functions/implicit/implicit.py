"""`xg.implicit`: the implicit-function theorem as a Function.

Read from the top: `implicit` has the theorem; `Equation` runs the solver, and the two steps of
backward; the first of these, a linear system, is an `AdjointEquation`. `implicit_backward.py` has
the graphs of these steps, and the ways to solve the system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ....core.backend.contract import Backend, never
from ....core.backend.discovery import backend_among
from ....core.backend.values import is_float_tensor, owner_of
from ....core.functions.recipe import Options, Recipe, Recorded, library_of
from ....core.ir.op import FLOATS, dtype_name
from ....core.rules.capture import capture_options
from ....core.rules.signature import name_of, refuse_class
from ....core.support.params import P, R
from ....core.support.records import cached_property
from ....core.support.trees import Tensor, optree
from ....core.trace.xp import all as xp
from ....errors import GradientError
from ...capture.copies.run_or_import import run_written_in
from ...trace.code_trace import CodeTrace
from ..calls.parameters import signature_of
from ..custom_gradient import function, refuse_rule
from ..function import Function
from .implicit_backward import (
    EquationResidual,
    LinearSolver,
    eps_of,
    flat_tree,
    recipe_of_linear_system,
    recipe_of_parameter_pull,
    residual_of,
    transposed,
    unlike,
)

Tree = Any


class SolveReport(NamedTuple):
    """How well a call of an implicit Function was solved.

    These are numbers in eager code, tensors in compiled code.

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
        TraceError: in backward: residual is not captured, or reads an outer tensor with a gradient.
    """
    for each in (residual, solver):
        refuse_class(each)
        refuse_rule(each)
    how = LinearSolver(solve, tol, maxiter, accept)
    library = capture_options(None, None, dialect).library
    equation = Equation(residual_of(residual, library), solver, how, name_of(solver))
    return Implicit(equation.recipe(), solver, prove=False)


class Implicit(Function[P, R]):
    """What `xg.implicit` returns: a Function whose gradient solves a linear system.

    Examples:
        >>> solver = lambda theta: xp.sqrt(theta)
        >>> root = xg.implicit(lambda x, theta: x * x - theta, solver, solve="cg")
        >>> report = root.report(np.array([1.0, 4.0]))
        >>> report.converged, report.iterations
        (True, 2)
    """

    def report(self, *params: Any, cotangent: Any = None, **named: Any) -> SolveReport:
        """Return how well the equation and the linear system of backward are solved.

        Examples:
            >>> xg.implicit(lambda x, theta: x - theta, lambda theta: theta).report(np.ones(2))
            SolveReport(residual=0.0, iterations=1, error=..., converged=True)

        Args:
            *params: as in a call.
            cotangent: that of x, nested like it; None: ones.
        """
        equation: Equation = self.recipe.origin
        x, _ = equation.run_solver(*without_gradients((params, named)))
        u = optree.tree_map(xp.ones_like, x) if cotangent is None else cotangent
        _, turns, error, size, is_solved = equation.try_adjoint(u, x, params, named)
        backend = backend_in(x)
        if backend.tensors.is_traced(is_solved):
            return SolveReport(size, turns, error, is_solved)
        number = partial(number_in, backend)
        return SolveReport(number(size), int(number(turns)), number(error), bool(number(is_solved)))


@dataclass(frozen=True, eq=False)
class Equation:
    """A solver, and the residual that is zero at its result x.

    Both run on tensors (`run_solver`, `pull`) and on the symbols of a capture (`record_solver`,
    `pull_once`). In what follows u is the cotangent of x, w the solution of the linear system.
    """

    residual: EquationResidual
    solver: Callable[..., Any]
    how: LinearSolver
    name: str

    @property
    def subject(self) -> str:
        return f"function {self.name!r}"

    def recipe(self, *, native: bool | None = None, looks_at_values: bool = True) -> Recipe:
        """Return the recipe of `(*params) -> x`."""

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
            x = self.solution(args, kwargs)
            return Recorded(x, lambda u: as_gradients(*self.pull(u, x, args, kwargs)))

        def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
            x = self.record_solver(trace, args, kwargs)
            return Recorded(
                x, lambda u: as_gradients(*self.pull_once(u, x, args, kwargs)), keeps_output=True
            )

        def copied(copy: Callable[[Any], Any]) -> Recipe:
            equation = replace(self, solver=copy(self.solver))
            return equation.recipe(native=native, looks_at_values=looks_at_values)

        return Recipe(
            self.name,
            run,
            record,
            # Of no library: it calls what is written for one as that has to be called.
            functions=(self.solver, self.residual.function),
            signature=signature_of(self.solver),
            origin=self,
            copied=copied,
            options=Options(native, looks_at_values),
        )

    # --- forward: x -------------------------------------------------------------------------------
    def record_solver(
        self, trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tree:
        return run_written_in(self.residual.library, self.solver, trace, *args, **kwargs)

    def solution(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """Return x.

        Raises:
            GradientError: it is not a solution, or not made of float tensors without a gradient.
        """
        x, residual = self.run_solver(*without_gradients((args, kwargs)))
        self.check_zero(x, residual)
        return x

    def run_solver(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tree, Tree]:
        """Return x and its residual, for params without gradients, which are to be zero."""
        backend = backend_in((args, kwargs))
        home = library_of((self.solver,), self.residual.library, backend.name)
        solver = self.solver if home in ("", backend.name) else self.captured_solver
        x = as_arrays(solver(*args, **kwargs))
        self.check_tensors(backend, x, (args, kwargs))
        residual = as_arrays(self.captured_residual(x, *args, **kwargs))
        shapes, expected = shapes_of(residual), shapes_of(x)
        if shapes != expected:
            raise unlike(self.subject, f"the shapes {shapes}", expected)
        return x, residual

    @cached_property
    def captured_solver(self) -> Any:
        """The solver as a Function, for tensors of another library than its own."""
        return function(self.solver, lambda u, *args, **kwargs: (None,) * len(args), prove=False)

    @cached_property
    def captured_residual(self) -> Any:
        """The residual as a Function, which is proven as any other."""
        return function(self.residual.function, dialect=self.residual.library or None)

    def check_tensors(self, backend: Backend, x: Tree, arguments: Tree) -> None:
        asks = backend.tensors.requires_grad or never
        tensors = [leaf for leaf in flat_tree(arguments) if owner_of(leaf) is not None]
        is_told = not any(map(asks, tensors))  # under transforms all seem to ask
        for leaf in flat_tree(x):
            if owner_of(leaf) is not backend or dtype_name(leaf.dtype) not in FLOATS:
                raise GradientError(
                    f"{self.subject} gives {type(leaf).__name__} {leaf!r:.40} where an implicit "
                    "function has float tensors of its params' framework"
                )
            if is_told and asks(leaf):
                raise GradientError(
                    f"{self.subject} reads a tensor from around it that asks for a gradient, which "
                    "it would not get. Pass the tensor as a param, to solver and residual"
                )

    def check_zero(self, x: Tree, left: Tree) -> None:
        """Raise if the residual that is left is too large, where its numbers are known."""
        backend = backend_in(x)
        if any(map(backend.tensors.is_traced, flat_tree((x, left)))):
            return
        size, reach = (largest_in(backend, tree) for tree in (left, x))
        accept = self.how.accepted(eps_of(dtype_name(flat_tree(x)[0].dtype)))
        if size > accept * (1 + reach):
            raise GradientError(
                f"{self.subject} did not converge: the largest number in the residual is "
                f"{size:.3g} where at most {accept:.1g} * (1 + {reach:.3g}) is accepted. Let it "
                "iterate longer, or say accept= if that is a solution"
            )

    # --- backward: w, and the gradients by it -----------------------------------------------------
    def pull_once(self, u: Tree, x: Tree, args: Sequence[Any], kwargs: dict[str, Any]) -> Tree:
        """Return the gradients of (args, kwargs), recorded without derivatives of their own."""
        w = self.linear_system(u, x, tuple(args), kwargs)[0]
        return self.pull_params(w, x, tuple(args), kwargs)

    def pull(self, u: Tree, x: Tree, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """Return the gradients of (args, kwargs); each step has a derivative of its own."""
        # Under a trace no values are known that an error could depend on.
        is_open = not backend_in(x).tensors.is_traced(flat_tree(x)[0])
        attach, adjoint = self.steps[is_open]
        x = attach(x, args, kwargs)
        w = adjoint(as_arrays(u), x, args, kwargs)
        return self.pull_params(w, x, args, kwargs)

    @cached_property
    def steps(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """`attach` and `adjoint` as graphs, which have one derivative more; and where values are
        known: with derivatives of any order.
        """
        return self.make_steps(looks_at_values=False), self.make_steps(looks_at_values=True)

    def make_steps(self, looks_at_values: bool) -> tuple[Any, Any]:
        """Return `(x, args, kwargs) -> x` with x's gradient, and `(u, x, args, kwargs) -> w`."""
        adjoint = AdjointEquation(
            transposed(self.residual),
            solver=self.find_adjoint,
            how=replace(self.how, accept=np.inf),
            name=f"{self.name}'s backward",
            of=self,
        )
        native = None if looks_at_values else False
        recipe = adjoint.recipe(native=native, looks_at_values=looks_at_values)
        attach = self.recipe_of_attach(native=looks_at_values)
        return Function(attach, prove=False), Function(recipe, prove=False)

    def recipe_of_attach(self, *, native: bool) -> Recipe:
        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
            return Recorded(args[0], lambda u: (None, *self.pull(u, *args)))

        def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
            return Recorded(args[0], lambda u: (None, *self.pull_once(u, *args)))

        functions = (self.solver, self.residual.function)
        return Recipe(self.name, run, record, functions=functions, options=Options(native))

    @cached_property
    def pull_params(self) -> Any:
        return Function(recipe_of_parameter_pull(self.residual, self.name), prove=False)

    @cached_property
    def linear_system(self) -> Any:
        recipe = recipe_of_linear_system(self.residual, self.name, self.how)
        return Function(recipe, prove=False)

    def find_adjoint(
        self, u: Tree, x: Tree, params: tuple[Any, ...], named: dict[str, Any]
    ) -> Tree:
        """Return w.

        Raises:
            GradientError: there is none, or it was not found, and values are known.
        """
        w, *report = self.try_adjoint(u, x, params, named)
        backend = backend_in(x)
        turns, error, size, is_solved = (number_in(backend, each) for each in report)
        # NaN and infinity in the inputs are passed on: no fault of the solver's.
        if is_solved == 0 and all_finite(backend, (u, x, params, named)):
            raise GradientError(
                f"{self.subject}: its gradient was not found by solve={self.how.way!r}: after "
                f"{turns:.0f} iterations {error:.3g} of the right side is left, and the largest "
                f"number in the residual is {size:.3g}. {advice(self.how.way)}"
            )
        return w

    def try_adjoint(self, u: Tree, x: Tree, params: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the results of `linear_system`; NaN where non-finite values make it singular."""
        try:
            return self.linear_system(u, x, params, named)
        except Exception as error:
            # Each backend has an error of its own for a singular matrix, so the words decide.
            words = str(error).lower()
            if self.how.way != "direct" or not ("singular" in words or "invertible" in words):
                raise
            if all_finite(backend_in(x), (u, x, params, named)):
                raise GradientError(
                    f"{self.subject}: its gradient was not found by solve='direct'. "
                    f"{advice('direct')}"
                ) from error
            unknown = [xp.full_like(each, np.nan) for each in flat_tree(x)]
            return (unknown, *([xp.sum(xp.zeros_like(unknown[0]))] * 4))


@dataclass(frozen=True, eq=False)
class AdjointEquation(Equation):
    """The linear system of the equation `of`, which is an equation of w for the params (u, x, ...).

    So w has a gradient by the same theorem, and derivatives of any order follow.
    """

    of: Equation

    def record_solver(
        self, trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tree:
        return self.of.linear_system(*args)[0]

    def solution(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        return self.of.find_adjoint(*without_gradients(args))


def advice(way: str) -> str:
    if way == "direct":
        return (
            "The matrix d residual / d x is singular, or nearly: add a term that makes it regular, "
            "or leave out equations that follow from others"
        )
    hints = {
        "cg": "It needs a symmetric definite matrix: else solve='gmres'",
        "fixed_point": "It needs the residual x - T(x) of a contraction T: else solve='gmres'",
        "gmres": "solve='direct' needs no iterations, where x is small",
    }
    return f"{hints[way]}; or give a larger maxiter or tol; a singular matrix has no solution"


# --- trees of tensors -----------------------------------------------------------------------------
def shapes_of(tree: Tree) -> list[tuple[Any, ...]]:
    return [tuple(getattr(leaf, "shape", ("no tensor",))) for leaf in flat_tree(tree)]


def without_gradients(tree: Tree) -> Tree:
    """Return a tree of which nothing is differentiated, as the iterations of a solver are not."""
    return optree.tree_map(
        lambda x: xp.stop_gradient(x) if is_float_tensor(x) else x, tree, none_is_leaf=True
    )


def backend_in(tree: Tree) -> Backend:
    return backend_among(leaf for leaf in flat_tree(tree) if owner_of(leaf) is not None)


def number_in(backend: Backend, tensor: Tensor) -> Any:
    """Return a tensor's number; None in a trace, which has none yet."""
    if backend.tensors.is_traced(tensor):
        return None
    return float(np.asarray(backend.tensors.to_numpy(tensor)))


def largest_in(backend: Backend, tree: Tree) -> float:
    """Return the largest absolute value in tensors whose numbers are known; NaN where one is."""
    leaves = [leaf for leaf in flat_tree(tree) if 0 not in leaf.shape]
    sizes = [backend.tensors.to_numpy(xp.max(xp.abs(leaf))) for leaf in leaves]
    return float(np.max(np.asarray(sizes, float), initial=0.0))


def as_arrays(tree: Tree) -> Tree:
    """Return a tree in which NumPy's scalars, which pass for numbers, are arrays again."""
    return optree.tree_map(
        lambda x: np.asarray(x) if isinstance(x, np.generic | float) else x, tree, none_is_leaf=True
    )


def all_finite(backend: Backend, tree: Tree) -> bool:
    floats = filter(is_float_tensor, flat_tree(tree))
    return all(np.isfinite(backend.tensors.to_numpy(x).astype(float)).all() for x in floats)


def as_gradients(args: Sequence[Any], kwargs: dict[str, Any]) -> Tree:
    """Return gradients as a backward does: the keywords' in a dict at the end, if there are any."""
    return (*args, kwargs) if kwargs else tuple(args)
