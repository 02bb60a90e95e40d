"""Rules on functions of JAX that exist: the door of this room.

What is behind it is imported where it is used: the rules of attribution make Functions, which ask
for this backend; and most never override.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import tree_util as tree

from multigrad.backend.contract import Parts

leaves = tree.tree_leaves


def container(obj: Any) -> Parts | None:
    """Return how an object of a class that is registered with `jax.tree_util` is taken apart."""
    structure = split_once(obj)[1]
    return None if tree.treedef_is_leaf(structure) else (split_once, tree.tree_unflatten)


def split_once(obj: Any) -> tuple[list[Any], Any]:
    return tree.tree_flatten(obj, is_leaf=lambda part: part is not obj)


def is_operation(selector: Any) -> bool:
    """Return whether a selector of `override` is an operation of jax."""
    from .operations import is_operation

    return is_operation(selector)


def kept_by_call(*args: Any) -> Any:
    """Tell what layers of a Keras model keep for backward; see `multigrad.memory`."""
    from .layer_memory import kept_by_call

    return kept_by_call(*args)


def override_function(function: Callable[..., Any], rules: Any) -> Callable[..., Any]:
    """Return a function with rules on the operations that it calls; see `multigrad.override`."""
    from .override import override_calls

    return override_calls(function, rules)
