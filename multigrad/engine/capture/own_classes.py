"""The user's classes in place of those that a capture made for them."""

from __future__ import annotations

from typing import Any

from ...core.support.trees import optree

# The attribute by which a class that a capture made names the user's class.
STANDS_FOR = "__multigrad_stands_for__"


def with_own_classes(tree: Any) -> Any:
    """Return a tree whose objects have the user's classes, not those that a capture made."""
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=True)
    classes = [vars(type(leaf)).get(STANDS_FOR) for leaf in leaves]
    if not any(classes):
        return tree
    for i, (leaf, kind) in enumerate(zip(leaves, classes, strict=True)):
        if kind is not None:
            # Without `__init__`, whose effects are in the attributes.
            leaves[i] = object.__new__(kind)
            vars(leaves[i]).update(vars(leaf))
    return optree.tree_unflatten(structure, leaves)
