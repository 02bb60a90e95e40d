"""`xg.override` for functions of jax: traced at each call, computed with the rules.

A function is traced anew at each call, as what it closes over may have changed; under `jax.jit`
that is once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from multigrad.functions.custom_gradient import name_of
from multigrad.models.over import over

from .override_jaxpr import Rewriting
from .override_operations import find, is_operation
from .override_state import is_object, objects_of, refuse_changed

__all__ = ["is_operation", "leaves", "override"]

leaves = jax.tree_util.tree_leaves


def override(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls."""
    assert isinstance(rules, Mapping)
    rows = [
        (find(part), rule)
        for selector, rule in rules.items()
        for part in (selector if isinstance(selector, tuple) else (selector,))
    ]
    name = f"function {name_of(function)!r}"
    known: dict[tuple[Any, ...], Rewriting] = {}

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        acting = tuple(over(rule) for _, rule in rows)  # a name means what it means now
        rewriting = known.get(acting)
        if rewriting is None:
            known.clear()
            rewriting = known[acting] = Rewriting(
                [(meant, rule) for (meant, _), rule in zip(rows, acting, strict=True)]
            )
        return call(name, rewriting, function, args, kwargs)

    return overridden


def call(
    name: str, rewriting: Rewriting, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Trace a call, and compute it with the rules.

    Raises:
        RuleValueError: it calls none of the operations that a selector means.
    """
    given, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=is_object)
    places = [i for i, leaf in enumerate(given) if isinstance(leaf, jax.Array)]
    objects = objects_of(function, given)
    result: list[Any] = []

    def traced(arrays: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        whole = list(given)
        for i, array in zip(places, arrays, strict=True):
            whole[i] = array
        called, copies = function, []
        if objects is not None:
            copies = objects.copies(state)
            called = objects.put_into(whole, copies)
        args, kwargs = jax.tree_util.tree_unflatten(tree, whole)
        outputs, tree_out = jax.tree_util.tree_flatten(called(*args, **kwargs))
        found = [i for i, leaf in enumerate(outputs) if isinstance(leaf, jax.Array)]
        result[:] = [tree_out, found, [None if i in found else o for i, o in enumerate(outputs)]]
        return [outputs[i] for i in found], objects.state_of(copies) if objects else []

    arrays, state = [given[i] for i in places], objects.arrays if objects else []
    try:
        closed = jax.make_jaxpr(traced)(arrays, state)
    except Exception as error:
        refuse_changed(name, error)
        raise
    rewriting.check(name, closed.jaxpr)
    computed = rewriting.run(closed.jaxpr, closed.consts, [*arrays, *state])
    tree_out, found, outputs = result
    for i, each in zip(found, computed, strict=False):
        outputs[i] = each
    if objects is not None:
        objects.update(computed[len(found) :])
    return jax.tree_util.tree_unflatten(tree_out, outputs)
