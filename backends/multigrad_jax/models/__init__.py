"""Rules on existing functions of JAX: the public functions of this folder.

They import their code when called: attribution rules make Functions, which need this backend, and
most programs never override.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import tree_util as tree

from multigrad.backend.contract import Parts

leaves = tree.tree_leaves


def container(obj: Any) -> Parts | None:
    """Return how to flatten and rebuild an object of a class registered with `jax.tree_util`."""
    structure = split_once(obj)[1]
    return None if tree.treedef_is_leaf(structure) else (split_once, tree.tree_unflatten)


def split_once(obj: Any) -> tuple[list[Any], Any]:
    return tree.tree_flatten(obj, is_leaf=lambda part: part is not obj)


def is_operation(selector: Any) -> bool:
    from .operations import is_operation

    return is_operation(selector)


def kept_by_call(*args: Any) -> Any:
    from .layer_memory import kept_by_call

    return kept_by_call(*args)


def override_function(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    from .override import override_calls

    return override_calls(function, rules)
