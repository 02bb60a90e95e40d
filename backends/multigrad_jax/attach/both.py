"""Both modes in one object: what a call of a Function runs.

`custom_vjp` (jax 0.10) has no forward mode, and the transpose of a `custom_jvp` rule keeps what
that reads. So the rule here computes what the backward keeps, and applies one primitive to it and
to the tangents, which is linear in them: forward mode runs it as the tangent map, and its transpose
is the backward that was emitted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from multigrad.errors import GradientError, UnsupportedOp
from multigrad.graph.support.data import dataclass

from ..distributed.manual_axes import within
from ..versions import core, primal_of

if TYPE_CHECKING:
    from multigrad.backend import Emitted

Tensor: TypeAlias = Any
# (residuals, what it is linear in) -> results
Linear: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
MOVED = core.Primitive("multigrad_tangents")
MOVED.multiple_results = True


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A map that is linear but in its residuals, and its transpose.

    Attributes:
        count: how many of the arguments are residuals; the map is linear in the others.
        found: the types of the results.
    """

    run: Linear
    transposed: Linear
    count: int
    found: tuple[Any, ...]

    def apply(self, *args: Tensor) -> list[Tensor]:
        """Return the results for the residuals and the others."""
        return list(self.run(args[: self.count], args[self.count :]))

    def mapped(self, axis: Any, axes: tuple[Any, ...]) -> Pair:
        """Return the map over the first axis of what it is linear in, and of residuals over these
        axes, or None.
        """
        named = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}

        def over(run: Linear) -> Linear:
            each = jax.vmap(run, in_axes=(axes, 0), **named)
            return lambda kept, given: each(tuple(kept), tuple(given))

        found = tuple([type_.update(shape=(axis.size, *type_.shape)) for type_ in self.found])
        return Pair(over(self.run), over(self.transposed), self.count, found)


@MOVED.def_impl
def _run(*args: Tensor, pair: Pair) -> list[Tensor]:
    return pair.apply(*args)


@MOVED.def_abstract_eval
def _describe(*_: Any, pair: Pair) -> tuple[Any, ...]:
    return pair.found


def _transpose(cotangents: Sequence[Any], *args: Any, pair: Pair) -> list[Any]:
    kept, given = args[: pair.count], args[pair.count :]
    full = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    found = pair.transposed(kept, full)
    asked = map(ad.is_undefined_primal, given)
    own = [each if is_asked else None for each, is_asked in zip(found, asked, strict=True)]
    return [None] * pair.count + own


def _push(primals: Sequence[Tensor], tangents: Sequence[Any], *, pair: Pair) -> Any:
    """Differentiate what the map computes, of its residuals too."""
    moves = [ad.instantiate_zeros(tangent) for tangent in tangents]
    return jax.jvp(pair.apply, list(primals), moves)


def _batch(axis: Any, args: Sequence[Tensor], axes: Sequence[Any], *, pair: Pair) -> Any:
    size, count = axis.size, pair.count
    given = [
        jnp.broadcast_to(x, (size, *x.shape)) if place is None else jnp.moveaxis(x, place, 0)
        for x, place in zip(args[count:], axes[count:], strict=True)
    ]
    results = MOVED.bind(*args[:count], *given, pair=pair.mapped(axis, tuple(axes[:count])))
    return results, [0] * len(results)


ad.primitive_transposes[MOVED] = _transpose
ad.primitive_jvps[MOVED] = _push
batching.fancy_primitive_batchers[MOVED] = _batch
mlir.register_lowering(
    MOVED, mlir.lower_fun(lambda *args, pair: pair.apply(*args), multiple_results=True)
)


def in_both_modes(native: Any, emitted: Emitted) -> Any:
    """Return a custom function that is an emitted `custom_vjp`, and has forward mode, too."""
    own = dict(inspect.unwrap(primal_of(native)).__globals__)
    forward = within(own, inspect.unwrap(native.fwd))
    count, dual = len(emitted.inputs), emitted.dual
    places = [i for i, name in enumerate(emitted.inputs) if name in emitted.wrt]
    carried = [i for i, carries in enumerate(emitted.carries) if carries]

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        outputs, residuals = forward(*primals)
        flat = (outputs,) if emitted.single else outputs
        live = [i for i in places if type(tangents[i]) is not SymbolicZero]
        kept, tree = jax.tree.flatten(residuals)
        types = [jax.typeof(x).to_tangent_aval() for x in primals[:count]]
        found = [jax.typeof(y).to_tangent_aval() for y in flat]

        def push(kept: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
            moves = dict(zip(live, given, strict=True))
            whole = [moves[i] if i in moves else _zeros(types[i]) for i in range(count)]
            shapes = tuple(map(_zeros, found))
            return _tangent_map(dual)(jax.tree.unflatten(tree, kept), whole, shapes)

        def pull(kept: Sequence[Tensor], given: Sequence[Tensor]) -> Sequence[Tensor]:
            moves = dict(zip(carried, given, strict=True))
            whole = [moves[i] if i in moves else _zeros(t) for i, t in enumerate(found)]
            cotangents = whole[0] if emitted.single else tuple(whole)
            gradients = native.bwd(jax.tree.unflatten(tree, kept), cotangents)
            return [gradients[i] for i in live]

        moved: dict[int, Tensor] = {}
        if live and carried:
            pair = Pair(push, pull, len(kept), tuple(found[i] for i in carried))
            results = MOVED.bind(*kept, *[tangents[i] for i in live], pair=pair)
            moved.update(zip(carried, results, strict=True))
        changes = [moved[i] if i in moved else _zeros(type_) for i, type_ in enumerate(found)]
        return outputs, changes[0] if emitted.single else tuple(changes)

    function = jax.custom_jvp(primal_of(native))
    function.defjvp(rule, symbolic_zeros=True)
    function.in_reverse_mode = native
    own[emitted.identifier] = function
    return function


def _tangent_map(dual: Callable[[], Any] | None) -> Callable[..., Any]:
    """Return the tangent map that was emitted.

    Raises:
        GradientError: there is none.
    """
    assert dual is not None
    try:
        return dual().native.push
    except UnsupportedOp as error:
        raise GradientError(str(error)) from error


def _zeros(type_: Any) -> Tensor:
    """Return no tangent: that of an integer has no bytes."""
    make = np.zeros if type_.dtype == jax.dtypes.float0 else jnp.zeros
    return make(type_.shape, type_.dtype)
