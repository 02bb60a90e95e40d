"""Nested values by optree, as everything here uses it: its annotations know one type of leaf in a
tree, ours hold any.

Classes that a framework's users have registered with that framework are known to us alone: they
stand in a namespace of ours, beside what is registered for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import optree as _optree

from .threads import make_lock

NAMESPACE = "multigrad"
OURS = ("tree_flatten", "tree_leaves", "tree_map", "tree_structure")
optree: Any = SimpleNamespace(
    **{name: partial(getattr(_optree, name), namespace=NAMESPACE) for name in OURS},
    tree_unflatten=_optree.tree_unflatten,
    treespec_paths=_optree.treespec_paths,
)
_learned: set[type] = set()
_learning = make_lock()


def learn(
    cls: type,
    take_apart: Callable[[Any], tuple[Any, Any]],
    put_together: Callable[[Any, Any], Any],
) -> None:
    """Take objects of a class apart from now on: to their parts, and what puts others together."""
    with _learning:
        if cls not in _learned:
            _optree.register_pytree_node(cls, take_apart, put_together, namespace=NAMESPACE)
            _learned.add(cls)


# What a class says that a capture has made of another: the other one.
STANDS_FOR = "__multigrad_stands_for__"


def with_own_classes(tree: Any) -> Any:
    """Return a tree in which objects have the classes that were written, where stand-ins of these
    have made them.
    """
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=True)
    own = [vars(type(leaf)).get(STANDS_FOR) for leaf in leaves]
    if not any(own):
        return tree
    for i, (leaf, kind) in enumerate(zip(leaves, own, strict=True)):
        if kind is not None:
            leaves[i] = object.__new__(kind)
            vars(leaves[i]).update(vars(leaf))
    return optree.tree_unflatten(structure, leaves)
