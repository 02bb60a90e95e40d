"""`xg.override` for functions of jax: traced at each call, computed with the rules.

A function is traced anew at each call, as what it closes over may have changed; under `jax.jit`
that is once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from multigrad.functions.custom_gradient import name_of
from multigrad.models.interpose import Following, parts_of

from .jaxpr import Rewriting
from .operations import find
from .relevance import composite_of, reads_layers, run
from .state import is_object, objects_of, refuse_changed

Compute = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def override_calls(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls."""
    if reads_layers(rules):
        composite = composite_of(rules)

        @functools.wraps(function)
        def attributed(*args: Any, **kwargs: Any) -> Any:
            compute = functools.partial(run, composite, name_of(function))
            return call(f"function {name_of(function)!r}", compute, function, args, kwargs)

        return attributed
    parts = parts_of(rules)
    meant = [find(part) for part, _ in parts]
    name = f"function {name_of(function)!r}"

    def make(found: Sequence[Any]) -> Rewriting:
        return Rewriting(list(zip(meant, found, strict=True)))

    acting = Following([rule for _, rule in parts], make)

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        checked = functools.partial(acting.now().checked, name)
        return call(name, checked, function, args, kwargs)

    return overridden


def call(name: str, compute: Compute, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Trace a call, and compute it with the rules.

    Args:
        compute: what computes a jaxpr of arguments, and of what objects among them hold, with the
            rules.

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
    computed = compute(closed, arrays, state)
    tree_out, found, outputs = result
    for i, each in zip(found, computed, strict=False):
        outputs[i] = each
    if objects is not None:
        objects.update(computed[len(found) :])
    return jax.tree_util.tree_unflatten(tree_out, outputs)
