"""Rules on existing functions and objects of JAX."""

from __future__ import annotations

from typing import Any

from jax import tree_util as tree

from multigrad.engine.backend.features import Parts


def container(obj: Any) -> Parts | None:
    """Return how to flatten and rebuild an object of a class registered with `jax.tree_util`."""
    structure = split_once(obj)[1]
    return None if tree.treedef_is_leaf(structure) else (split_once, tree.tree_unflatten)


def split_once(obj: Any) -> tuple[list[Any], Any]:
    return tree.tree_flatten(obj, is_leaf=lambda part: part is not obj)
