"""`jax.custom_vjp` functions as recipes: their rules run on symbolic values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from multigrad.errors import GradientError
from multigrad.functions.calls.arguments import Layout
from multigrad.functions.calls.recipe import Recorded, kind_name
from multigrad.graph.support.data import dataclass
from multigrad.graph.support.trees import optree
from multigrad.trace.axes import known_shape
from multigrad.trace.trace import Trace, Value

from ..versions import takes_symbolic_zeros
from .custom_functions import (
    Call,
    CustomRecipe,
    call_in,
    call_plainly,
    check_forward,
    has_tangent,
    resolve,
    split_pair,
)

REFUSAL = (
    "{} has no gradient for its argument {!r}, which is in nondiff_argnums. Take it from there and "
    "let the backward return a gradient for it, or stop the gradient of what is given for it"
)


@dataclass(frozen=True, slots=True, eq=False)
class VjpRecipe(CustomRecipe):
    """A `jax.custom_vjp` function."""

    def functions(self) -> tuple[Any, ...]:
        return (self.function.fwd, self.function.bwd)

    def refused(self, layout: Layout) -> Mapping[str, str]:
        """Refuse derivatives by arguments in `nondiff_argnums`: jax refuses each tracer there."""
        own = [x for x in layout.tensors if x.path.partition("[")[0] in self.fixed_names]
        return {leaf.name: REFUSAL.format(self.subject, leaf.path) for leaf in own}

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        given = resolve(self.function, args, kwargs)
        call = call_in(trace, self.function, given)
        recorded = self._run(call, args, kwargs)
        check_forward(call, self.function, given, recorded.outputs)
        return recorded

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self._run(call_plainly, args, kwargs)

    def _run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        function, name = self.function, self.name
        arguments = resolve(function, args, kwargs)
        given = arguments.primals
        if takes_symbolic_zeros(function):
            given = tuple(optree.tree_map(_as_primal, each, none_is_leaf=True) for each in given)
        result = call(function.fwd, *arguments.merge(given))
        outputs, residuals = split_pair(name, "the outputs and the residuals", result)

        def pull(upstream: Any) -> tuple[Any, ...]:
            found = call(function.bwd, *arguments.fixed, residuals, upstream)
            count = len(arguments.positions)
            if not isinstance(found, tuple | list) or len(found) != count:
                shown = (
                    f"{len(found)}" if isinstance(found, tuple | list) else f"a {kind_name(found)}"
                )
                raise GradientError(
                    f"function {name!r}: its backward returned {shown} for {count} arguments; "
                    "expected a tuple with one cotangent for each, None where there is none"
                )
            return arguments.arrange(found)

        return Recorded(outputs, pull, missing=_zero_of if takes_symbolic_zeros(function) else None)


def _as_primal(value: Any) -> CustomVJPPrimal:
    """Return an argument as a forward gets it that asks for symbolic zeros; each float counts as
    perturbed.
    """
    return CustomVJPPrimal(value, has_tangent(value))


def _zero_of(output: Value) -> SymbolicZero:
    """Return what a backward that asks for symbolic zeros gets for an output without a cotangent;
    its shape is known where it is to be.
    """
    return SymbolicZero(jax.core.ShapedArray(known_shape(output) or (), jnp.float32))
