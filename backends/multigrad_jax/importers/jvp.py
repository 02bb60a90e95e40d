"""`jax.custom_jvp` functions as recipes.

Their rule runs on symbolic values. It is linear in the tangents, so that its transpose is its VJP
with respect to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax

from multigrad.errors import GradientError
from multigrad.functions.calls.recipe import Pushed, Recorded
from multigrad.functions.recipes.tangents import as_outputs, make_tangent
from multigrad.graph.ir.graph import Graph, Node, walk
from multigrad.graph.ir.types import is_float
from multigrad.graph.passes.simplify import substitute
from multigrad.graph.support.data import dataclass
from multigrad.graph.support.trees import optree
from multigrad.trace.derived.derivatives import accumulate_all
from multigrad.trace.trace import Trace, Value

from ..versions import primal_of
from .custom_functions import (
    Call,
    CustomRecipe,
    call_in,
    check_forward,
    closed_over,
    flatten,
    has_tangent,
    resolve,
    split_pair,
)

Tensor: TypeAlias = Any
PER_ARGUMENT = ("jvps", "self")  # what the rule closes over that jax (0.10) makes of `defjvps(...)`


@dataclass(frozen=True, slots=True, eq=False)
class JvpRecipe(CustomRecipe):
    """A `jax.custom_jvp` function."""

    @property
    def gives_tangents(self) -> bool:
        return True

    def functions(self) -> tuple[Any, ...]:
        return (self.function.jvp,)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        function = self.function
        arguments = resolve(function, args, kwargs)
        leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
        tangents = [make_tangent(trace, i, leaf) for i, leaf in enumerate(leaves)]
        call = call_in(trace, function, arguments)
        nested = optree.tree_unflatten(tree, [0.0 if t is None else t for t in tangents])
        jvps = closed_over(function.jvp, PER_ARGUMENT)
        if jvps is None:
            result = call(function.jvp, *arguments.fixed, arguments.primals, nested)
            outputs, changes = split_pair(self.name, "the outputs and their tangents", result)
            check_forward(call, function, arguments, outputs)
            found = flatten(changes)
        else:
            outputs = call(primal_of(function), *arguments.primals)
            kept = as_outputs(outputs)
            found = _add_up(call, jvps, kept, arguments.primals, nested)

        def pull(upstream: Any) -> tuple[Any, ...]:
            seeds = [
                (change.node, cotangent)
                for change, cotangent in zip(found, flatten(upstream), strict=True)
                if isinstance(change, Value) and is_float(change.node.type)
            ]
            gradients = self._transpose(trace, seeds, leaves, tangents)
            return arguments.arrange(optree.tree_unflatten(tree, gradients))

        pairs = zip(leaves, tangents, strict=True)
        moved = [(leaf.node, tangent.node) for leaf, tangent in pairs if tangent is not None]
        return Recorded(outputs, pull, push=lambda: Pushed(moved, found, is_first=True))

    def _transpose(
        self,
        trace: Trace,
        seeds: Sequence[tuple[Node, Value]],
        leaves: Sequence[Any],
        tangents: Sequence[Value | None],
    ) -> list[Value | None]:
        """Return the gradient of each primal: the cotangent of its tangent.

        Raises:
            GradientError: the rule is not linear in the tangents.
        """
        primals = {
            tangent.node: leaf.node
            for tangent, leaf in zip(tangents, leaves, strict=True)
            if tangent is not None
        }
        cotangents = accumulate_all(trace, seeds, tuple(primals))
        gradients = dict(zip(primals, cotangents, strict=True))
        nodes = tuple(value.node for value in cotangents if value is not None)
        if any(depends(node, set(primals)) for node in nodes):
            raise GradientError(
                f"function {self.name!r}: its rule is not linear in the tangents, so that it has "
                "no gradient; only sums of tangents and products with what does not depend on "
                "them are"
            )
        # Their shapes alone are read, which are those of the primals.
        graph = substitute(Graph(self.name, (), nodes, {}), primals)
        plain = dict(zip(nodes, graph.outputs, strict=True))
        return [
            None
            if tangent is None or (gradient := gradients[tangent.node]) is None
            else trace.value(plain[gradient.node])
            for tangent in tangents
        ]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        arguments = resolve(self.function, args, kwargs)
        leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
        floats = [i for i, leaf in enumerate(leaves) if has_tangent(leaf)]

        def call(*given: Tensor) -> Any:
            whole = list(leaves)
            for i, value in zip(floats, given, strict=True):
                whole[i] = value
            return self.function(*arguments.merge(optree.tree_unflatten(tree, whole)))

        outputs, pullback = jax.vjp(call, *(leaves[i] for i in floats))

        def pull(upstream: Any) -> tuple[Any, ...]:
            gradients: list[Any] = [None] * len(leaves)
            for i, gradient in zip(floats, pullback(upstream), strict=True):
                gradients[i] = gradient
            return arguments.arrange(optree.tree_unflatten(tree, gradients))

        return Recorded(outputs, pull)


def _add_up(
    call: Call, jvps: Sequence[Any], outputs: Any, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Return the tangents of the outputs: the sum over the arguments that have a rule."""
    total: list[Any] = [None] * len(flatten(outputs))
    for jvp, tangent in zip(jvps, tangents, strict=False):
        if jvp is None:
            continue
        shares = flatten(call(jvp, tangent, outputs, *primals))
        total = [
            share if known is None else known + share
            for known, share in zip(total, shares, strict=True)
        ]
    return total


def depends(node: Node, sources: set[Node]) -> bool:
    """Return whether a node depends on one of the sources by more than its shape."""
    found = set(sources)
    for each in walk((node,)):
        shape_only = each.op.shape_only
        if any(o in found for i, o in enumerate(each.operands) if i not in shape_only):
            found.add(each)
    return node in found
