"""The Function of a solver: run as it is, with a gradient of captured steps.

The solution of the linear system is implicit in its turn, with the transposed system for its
backward: so where values are at hand there are derivatives of any order. As graphs, whose loops
have no derivative, the steps have one more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from ...backend.contract import Backend, never
from ...backend.finding.discovery import backend_among
from ...capture.copies.capture import run_written_in
from ...errors import GradientError
from ...graph.ir.types import FLOATS, dtype_name
from ...graph.support.data import dataclass
from ...graph.support.trees import optree
from ...trace.trace import Trace
from ...trace.xp import all as xp
from ..calls.arguments import owner_of, signature_of
from ..calls.recipe import Recorded
from ..custom_gradient import library_of, named_library
from ..function import Function
from ..plain import function
from ..recipes.record import CodeRecipe
from .backward import (
    AdjointRecipe,
    ParameterPullRecipe,
    Residual,
    Transposed,
    Written,
    accepted,
    eps_of,
    flat_tree,
    unlike,
)
from .systems import Linear

Tensor = Any
Tree = Any


@dataclass(frozen=True, eq=False)
class ImplicitRecipe(CodeRecipe):
    """A solver, and the residual that is zero at what it gives.

    Attributes:
        below: whose linear system it is that is solved; None: it is the user's own equation.
    """

    residual: Residual
    solver: Callable[..., Any]
    how: Linear
    accept: float | None
    name: str
    native: bool | None = None
    looks_at_values: bool = True
    below: ImplicitRecipe | None = None

    @property
    def signature(self) -> inspect.Signature | None:
        """The solver's own signature."""
        return signature_of(self.solver)

    def functions(self) -> tuple[Any, ...]:
        return (self.solver, *self.residual.functions())

    def dialect(self) -> str:
        return ""  # it calls what is written for one library as that has to be called

    # --- what it is made of -----------------------------------------------------------------------
    @cached_property
    def evaluate(self) -> Any:
        """The residual, as a Function: it is proven as any other."""
        assert isinstance(self.residual, Written)
        return function(self.residual.function, dialect=self.residual.library or None)

    @cached_property
    def captured_solver(self) -> Any:
        """The solver, for tensors of another library than the one that it seems to mean."""
        return function(self.solver, no_gradient, prove=False)

    @cached_property
    def solve(self) -> Any:
        recipe = AdjointRecipe(self.residual, self.name, self.how, self.accept)
        return Function(recipe, prove=False)

    @cached_property
    def pull_params(self) -> Any:
        return Function(ParameterPullRecipe(self.residual, self.name), prove=False)

    @cached_property
    def steps(self) -> Steps:
        """What backward is made of where values are at hand: of derivatives of any order."""
        return Steps(self, looks_at_values=True)

    @cached_property
    def captured_steps(self) -> Steps:
        """The same as graphs, which have one derivative more."""
        return Steps(self, looks_at_values=False)

    # --- on symbols -------------------------------------------------------------------------------
    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        if self.below is not None:
            outputs = self.below.solve(*args)[0]
        else:
            library = self.residual.library if isinstance(self.residual, Written) else ""
            outputs = run_written_in(library, self.solver, trace, *args, **kwargs)
        return Recorded(outputs, partial(self.pull_once, outputs, args, kwargs), keeps_output=True)

    def pull_once(
        self, x: Tree, args: Sequence[Any], kwargs: dict[str, Any], upstream: Tree
    ) -> Tree:
        """Return the gradients of the arguments, without derivatives."""
        w = self.solve(upstream, x, tuple(args), kwargs)[0]
        return as_gradients(self.pull_params(w, x, tuple(args), kwargs))

    # --- on tensors -------------------------------------------------------------------------------
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        solution = self.solution(args, kwargs)
        return Recorded(solution, partial(self.pull, solution, args, kwargs))

    def pull(self, x: Tree, args: tuple[Any, ...], kwargs: dict[str, Any], upstream: Tree) -> Tree:
        """Return the gradients of the arguments; each step has a derivative of its own."""
        is_open = not backend_in(x).tensors.is_traced(flat_tree(x)[0])
        steps = self.steps if is_open else self.captured_steps
        x = steps.attach(x, args, kwargs)
        w = steps.adjoint(as_arrays(upstream), x, args, kwargs)
        return as_gradients(self.pull_params(w, x, args, kwargs))

    def solution(self, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool = True) -> Tree:
        """Return what the solver gives.

        Raises:
            GradientError: it is no solution, or not of tensors without a gradient.
        """
        args, kwargs = optree.tree_map(stopped, (args, kwargs), none_is_leaf=True)
        if self.below is not None:
            return self.below.answer(*args)
        assert isinstance(self.residual, Written)
        backend = backend_in((args, kwargs))
        home = self.residual.library or library_of(self.solver)
        solver = self.solver if named_library(home) in ("", backend.name) else self.captured_solver
        x = as_arrays(solver(*args, **kwargs))
        self.check_tensors(backend, x, (args, kwargs))
        left = as_arrays(self.evaluate(x, *args, **kwargs))
        found, expected = shapes_of(left), shapes_of(x)
        if found != expected:
            raise unlike(self.subject, f"the shapes {found}", expected)
        if strict and self.accept != np.inf:
            self.check_zero(backend, x, left)
        return x

    def check_tensors(self, backend: Backend, x: Tree, given: Tree) -> None:
        """Check what the solver gave for params without gradient.

        Raises:
            GradientError: it is not of float tensors without a gradient.
        """
        asks = backend.tensors.requires_grad or never
        tensors = [leaf for leaf in flat_tree(given) if owner_of(leaf) is not None]
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

    def check_zero(self, backend: Backend, x: Tree, left: Tree) -> None:
        """Check the solution, where its numbers are at hand.

        Raises:
            GradientError: its residual is too large.
        """
        if any(map(backend.tensors.is_traced, flat_tree((x, left)))):
            return
        size, reach = (largest_in(backend, tree) for tree in (left, x))
        accept = accepted(self.accept, eps_of(dtype_name(flat_tree(x)[0].dtype)))
        if size > accept * (1 + reach):
            raise GradientError(
                f"{self.subject} did not converge: the largest number in the residual is "
                f"{size:.3g} where at most {accept:.1g} * (1 + {reach:.3g}) is accepted. Let it "
                "iterate longer, or say accept= if that is a solution"
            )

    def answer(self, u: Tree, x: Tree, params: tuple[Any, ...], named: dict[str, Any]) -> Tree:
        """Return the w of the linear system.

        Raises:
            GradientError: there is none, or it was not found, and values are at hand.
        """
        w, *told = self.asked(u, x, params, named)
        backend = backend_in(x)
        turns, error, size, is_well = (number_in(backend, each) for each in told)
        if is_well is not None and not is_well and all_finite(backend, (u, x, params, named)):
            raise GradientError(
                f"{self.subject}: its gradient was not found by solve={self.how.way!r}: after "
                f"{turns:.0f} iterations {error:.3g} of the right side is left, and the largest "
                f"number in the residual is {size:.3g}. {advice(self.how.way)}"
            )
        return w

    def asked(self, u: Tree, x: Tree, params: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return what `AdjointRecipe` gives.

        Raises:
            GradientError: a library says that the matrix is singular.
        """
        try:
            return self.solve(u, x, params, named)
        except Exception as error:
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


def advice(way: str) -> str:
    """Return what may help where a way has failed."""
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


def shapes_of(tree: Tree) -> list[tuple[Any, ...]]:
    return [tuple(getattr(leaf, "shape", ("no tensor",))) for leaf in flat_tree(tree)]


def stopped(leaf: Any) -> Any:
    """Return a leaf without a gradient."""
    is_one = owner_of(leaf) is not None and dtype_name(leaf.dtype) in FLOATS
    return xp.stop_gradient(leaf) if is_one else leaf


def backend_in(tree: Tree) -> Backend:
    """Return the backend of the tensors in a tree."""
    return backend_among(leaf for leaf in flat_tree(tree) if owner_of(leaf) is not None)


def number_in(backend: Backend, tensor: Tensor) -> float | None:
    """Return the number in a tensor; None where it is not at hand."""
    if backend.tensors.is_traced(tensor):
        return None
    return float(np.asarray(backend.tensors.to_numpy(tensor)))


def largest_in(backend: Backend, tree: Tree) -> float:
    """Return the largest absolute value in tensors at hand; NaN where one is."""
    leaves = [leaf for leaf in flat_tree(tree) if 0 not in leaf.shape]
    found = [backend.tensors.to_numpy(xp.max(xp.abs(leaf))) for leaf in leaves]
    return float(np.max(np.asarray(found, float), initial=0.0))


def as_arrays(tree: Tree) -> Tree:
    """Return a tree in which NumPy's scalars, which pass for numbers, are arrays again."""
    return optree.tree_map(
        lambda x: np.asarray(x) if isinstance(x, np.generic | float) else x, tree, none_is_leaf=True
    )


def all_finite(backend: Backend, tree: Tree) -> bool:
    """Return whether there is neither NaN nor infinity in the floats of a tree."""
    leaves = [x for x in flat_tree(tree) if owner_of(x) is not None]
    floats = [x for x in leaves if dtype_name(x.dtype) in FLOATS]
    return all(np.isfinite(backend.tensors.to_numpy(x).astype(float)).all() for x in floats)


def no_gradient(upstream: Tree, *args: Any, **kwargs: Any) -> Tree:
    return (None,) * len(args)


def as_gradients(pulled: Tree) -> Tree:
    """Return gradients that are nested like (args, kwargs) as a backward returns them."""
    args, kwargs = pulled
    return (*args, kwargs) if kwargs else tuple(args)


@dataclass(frozen=True, slots=True, eq=False)
class AttachRecipe(CodeRecipe):
    """`(x, args, kwargs) -> x`, a solution that is known, with the gradient that it has."""

    of: ImplicitRecipe
    native: bool
    name: str

    def functions(self) -> tuple[Any, ...]:
        return self.of.functions()

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self.pulled_by(self.of.pull_once, *args)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self.pulled_by(self.of.pull, *args)

    def pulled_by(
        self, pull: Callable[..., Tree], x: Tree, params: tuple[Any, ...], named: dict[str, Any]
    ) -> Recorded:
        def pull_all(upstream: Tree) -> Tree:
            found = pull(x, params, named, upstream)
            return None, tuple(found[: len(params)]), found[-1] if named else None

        return Recorded(x, pull_all)


class Steps:
    """What backward is made of.

    Attributes:
        attach: `(x, args, kwargs) -> x`, with the gradient of the solution.
        adjoint: `(u, x, args, kwargs) -> w`, which is implicit too.
    """

    def __init__(self, of: ImplicitRecipe, looks_at_values: bool) -> None:
        self.attach = Function(AttachRecipe(of, looks_at_values, of.name), prove=False)
        recipe = ImplicitRecipe(
            Transposed(of.residual),
            solver=of.answer,
            how=of.how,
            accept=np.inf,
            name=f"{of.name}'s backward",
            native=None if looks_at_values else False,
            looks_at_values=looks_at_values,
            below=of,
        )
        self.adjoint = Function(recipe, prove=False)
