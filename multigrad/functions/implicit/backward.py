"""What backward computes of a residual, captured: the linear system, and the pull to params.

Of a residual of 16 bits all of this is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...capture.copies.capture import run_written_in
from ...errors import GradientError
from ...graph.ir.types import FLOATS_OF_16_BITS, T, is_float
from ...graph.support.data import dataclass
from ...graph.support.trees import optree
from ...trace.derived.derivatives import accumulate_all
from ...trace.trace import NeedsConcrete, Trace, Value, cast_node
from ...trace.xp import all as xp
from ..calls.recipe import Recorded
from ..custom_gradient import library_of, named_library
from ..recipes.record import CodeRecipe
from .systems import Linear, solve_linear

Tensor = Any
Tree = Any


# --- what is zero at the solution -----------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A residual as the user wrote it."""

    function: Callable[..., Any]
    library: str

    def record(self, trace: Trace, x: Tree, args: Sequence[Any], kwargs: Any) -> Tree:
        return run_written_in(self.library, self.function, trace, x, *args, **kwargs)

    def functions(self) -> tuple[Any, ...]:
        return (self.function,)

    def dialect(self) -> str:
        return named_library(self.library) if self.library else library_of(self.function)


@dataclass(frozen=True, slots=True, eq=False)
class Transposed:
    """The residual of the linear system of another: (d residual / d x)^T w + u."""

    of: Residual

    def record(self, trace: Trace, w: Tree, args: Sequence[Any], kwargs: Any) -> Tree:
        u, x, params, named = args
        outputs = self.of.record(trace, x, params, named)
        found = pulled(trace, flat_tree(outputs), flat_tree(w), values_in(x))
        return [share + own for share, own in zip(found, flat_tree(u), strict=True)]

    def functions(self) -> tuple[Any, ...]:
        return self.of.functions()

    def dialect(self) -> str:
        return self.of.dialect()


Residual = Written | Transposed


def flat_tree(tree: Tree) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


# --- backward, captured ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class OfResidual(CodeRecipe):
    """What backward computes of a residual."""

    residual: Residual
    name: str
    native: ClassVar[bool] = False

    def functions(self) -> tuple[Any, ...]:
        return self.residual.functions()

    def dialect(self) -> str:
        return self.residual.dialect()


@dataclass(frozen=True, slots=True, eq=False)
class AdjointRecipe(OfResidual):
    """`(u, x, args, kwargs) -> w, iterations, error, largest residual, whether all is well`; w is
    NaN where it is not.
    """

    how: Linear
    accept: float | None

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        u, x, params, named = widened(trace, args)
        outputs = self.residual.record(trace, x, params, named)
        unknowns, left = values_in(x), flat_tree(outputs)
        if len(left) != len(unknowns):
            raise unlike(self.subject, f"{len(left)} tensors", len(unknowns))

        def action(w: Tensor) -> Tensor:
            return flat(pulled(trace, left, unflat(w, unknowns), unknowns))

        eps = eps_of(dtype_of(trace))
        found = solve_linear(trace, action, -flat(flat_tree(u)), self.how, eps)
        size = largest(left)
        is_well = found.has_ended
        if self.accept != np.inf:
            limit = (1.0 + largest(unknowns)) * accepted(self.accept, eps)
            is_well = xp.logical_and(is_well, xp.less_equal(size, limit))
        w = unflat(xp.where(is_well, found.vector, np.nan), unknowns)
        told = (w, found.turns, found.error, size, is_well)
        return Recorded(told, None, undifferentiable=tuple(flat_tree(told)))


@dataclass(frozen=True, slots=True, eq=False)
class ParameterPullRecipe(OfResidual):
    """`(w, x, args, kwargs) -> (d residual / d params)^T w`, nested like (args, kwargs)."""

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        w, x, params, named = widened(trace, args)
        outputs = self.residual.record(trace, x, params, named)
        leaves, tree = optree.tree_flatten((params, named), none_is_leaf=True)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value) and is_tensor(leaf)]
        found = pulled(trace, flat_tree(outputs), flat_tree(w), [leaves[i] for i in places])
        rows = dict(zip(places, found, strict=True))
        return Recorded(
            optree.tree_unflatten(tree, [rows.get(i) for i in range(len(leaves))]), None
        )


def unlike(subject: str, found: Any, expected: Any) -> GradientError:
    """Return what says that a residual is none of its unknowns."""
    return GradientError(
        f"{subject}: its residual has {found}, and x {expected}; expected the same"
    )


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value in tensors, 0 where they have no elements."""
    values = xp.abs(flat(tensors))
    return xp.max(xp.concat([values, xp.zeros_like(xp.reshape(xp.sum(values), (1,)))]))


def eps_of(dtype: str) -> float:
    return float(np.finfo("float32" if dtype in FLOATS_OF_16_BITS else dtype).eps)


def accepted(accept: float | None, eps: float) -> float:
    return eps ** (1 / 3) if accept is None else accept


# --- trees ----------------------------------------------------------------------------------------
def values_in(tree: Any) -> list[Value]:
    """Return the float tensors of a tree."""
    leaves = optree.tree_leaves(tree, none_is_leaf=True)
    return [x for x in leaves if isinstance(x, Value) and is_tensor(x)]


def is_tensor(value: Value) -> bool:
    return value.node.type.kind == "tensor" and is_float(value.node.type)


def flat(leaves: Sequence[Tensor]) -> Tensor:
    """Return the elements of tensors as one vector."""
    rows = [xp.reshape(leaf, (-1,)) for leaf in leaves]
    return rows[0] if len(rows) == 1 else xp.concatenate(rows)


def unflat(vector: Tensor, likes: Sequence[Tensor]) -> list[Tensor]:
    """Return the elements of a vector in the shapes of tensors."""
    if len(likes) == 1:
        return [xp.reshape_like(vector, likes[0])]
    found, start = [], 0
    for like in likes:
        row = xp.part(vector, xp.reshape(like, (-1,)), start, axis=0)
        found.append(xp.reshape_like(row, like))
        start = start + xp.size(like)
    return found


def pulled(
    trace: Trace, outputs: Sequence[Value], cotangents: Sequence[Value], targets: Sequence[Value]
) -> list[Value]:
    """Return the cotangents of targets, zeros where no output depends on them."""
    pairs = zip(outputs, cotangents, strict=True)
    with trace.plainly():
        seeds = [(y.node, ct) for y, ct in pairs if isinstance(y, Value)]
        found = accumulate_all(trace, seeds, [x.node for x in targets])
        return [
            xp.zeros_like(x) if share is None else share
            for x, share in zip(targets, found, strict=True)
        ]


def widened(trace: Trace, tree: Any) -> Any:
    """Return a tree in which floats of 16 bits are of 32."""
    own = dtype_of(trace)

    def widen(leaf: Any) -> Any:
        if not (isinstance(leaf, Value) and is_tensor(leaf)):
            return leaf
        dtype = leaf.node.type.dtype
        if (own if dtype == T else dtype) not in FLOATS_OF_16_BITS:
            return leaf
        return trace.value(cast_node(leaf.node, T if own == "float32" else "float32"))

    return optree.tree_map(widen, tree, none_is_leaf=True)


def dtype_of(trace: Trace) -> str:
    """Return the dtype of the first tensor.

    Raises:
        NeedsConcrete: it is not fixed yet.
    """
    if "dtype" not in trace.facts:
        raise NeedsConcrete("dtype")
    return trace.facts["dtype"]
