"""The memory that layers of a Keras model keep for backward.

It is read from a trace of `jax.vjp`; nothing runs. Layers are named scopes, which JAX writes to
equations of the forward and its transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util as tree

from multigrad.models.layer_memory import Residual, Scopes

from ..core.versions import core


def kept_by_call(
    call: Callable[..., Any],
    weights: Sequence[Any],
    others: Sequence[Any],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> list[Residual]:
    """Return the residuals that `jax.vjp` keeps for a call."""
    scopes = Scopes()
    inputs = [
        jax.ShapeDtypeStruct(shape, jnp.dtype(name))
        for shape, name in zip(shapes, dtypes, strict=True)
    ]

    def within(name: str, run: Any, args: Any, kwargs: Any) -> Any:
        with jax.named_scope(scopes.enter(name)):
            return run(*args, **kwargs)

    def forward(weights: Any, others: Any, inputs: Any) -> Any:
        def of_weights(primals: Any) -> Any:
            return call(primals, others, inputs, within)

        def of_inputs(floats: Any) -> Any:
            float_iterator = iter(floats)
            all_inputs = [next(float_iterator) if is_float(each) else each for each in inputs]
            return call(weights, others, all_inputs, within)

        # without weights, the derivative is with respect to the inputs
        if weights:
            return jax.vjp(of_weights, weights)
        return jax.vjp(of_inputs, list(filter(is_float, inputs)))

    closed, (outputs, pull) = jax.make_jaxpr(forward, return_shape=True)(weights, others, inputs)
    backward = jax.make_jaxpr(lambda f, cotangents: f(cotangents))(pull, outputs).jaxpr
    n_outputs = len(tree.tree_leaves(outputs))
    graph = closed.jaxpr
    # weights are kept by the model anyway
    model_variables = {*graph.invars[: len(weights) + len(others)], *graph.constvars}
    makers: dict[Any, str | None] = dict.fromkeys(graph.invars)
    readers: dict[Any, set[str | None]] = {}
    for each in graph.eqns:
        layer = scopes.layer_of(str(each.source_info.name_stack))
        makers |= dict.fromkeys(each.outvars, layer)
        note_readers(readers, each.invars, layer)
    note_readers(readers, graph.outvars[:n_outputs], None)
    keepers: dict[Any, set[str | None]] = {}
    for each in backward.eqns:
        layer = scopes.layer_of(str(each.source_info.name_stack))
        note_readers(keepers, each.invars, layer)
    done = set(model_variables)
    # each result of the forward beyond its outputs is an argument of the backward, its twin
    for residual, twin in zip(graph.outvars[n_outputs:], backward.invars, strict=False):
        if isinstance(residual, core.Literal) or residual in done or twin not in keepers:
            continue
        done.add(residual)
        aval, maker = residual.aval, makers[residual]
        # the layer that made it, if its backward reads it; else the first reader
        layer = maker if maker in keepers[twin] else min(map(str, keepers[twin]))
        scopes.add(
            str(layer),
            maker,
            is_read_elsewhere=bool(readers.get(residual, set()) - {layer}),
            shape=aval.shape,
            dtype=str(aval.dtype),
            size=aval.size * aval.dtype.itemsize,
        )
    return scopes.rows


def note_readers(
    readers: dict[Any, set[str | None]], operands: Sequence[Any], layer: str | None
) -> None:
    for each in operands:
        if not isinstance(each, core.Literal):
            readers.setdefault(each, set()).add(layer)


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
