"""The arguments of a Function: any nesting of tensors, numbers and other values, as flat leaves.

A float is a run-time number, as a rule's params are; an int, bool, str, None or any other object is
static, part of what is captured. The layout of a call (its nesting, and the kind of each leaf) is a
key: equal layouts share code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ..backend.discovery import in_use
from ..backend.values import owner_of
from ..ir.op import FLOATS, INPUT, UNKNOWN, T, Type
from ..support.records import record
from ..support.trees import learn, optree
from ..trace.identity import is_plain, value_key
from ..trace.trace import Value

PLAIN = (bool, int, str, bytes, type(None))
# No containers, which is known without asking the backends.
KNOWN_LEAVES = (Value, *PLAIN, float, np.ndarray, np.generic)


@record(eq=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        kind: "tensor", "number" (a float, known at run time) or "static".
        path: how messages call it: `x`, `layers[0]`, `options['slope']`.
        name: the same as a Python identifier, unique in the layout.
        dtype: of a tensor, by its IR name.
        value: of a static leaf.
    """

    kind: str
    path: str
    name: str
    dtype: str = ""
    value: Any = None

    @property
    def is_float(self) -> bool:
        return self.kind == "tensor" and self.dtype in FLOATS


@record(eq=True)
class Forgotten:
    """Stands for a static value that is not kept, of the class named `kind`."""

    kind: str


@record()
class Layout:
    """How the arguments of a call are laid out; `key` is equal where one capture serves.

    In the key a float dtype is T, where it is that of the first float tensor.

    Attributes:
        dtype: of the first float tensor, which the others relate to.
    """

    tree: Any
    leaves: tuple[Leaf, ...]
    positional: int  # leaves of positional arguments; those of keywords follow
    key: Any = field(repr=False)
    # Floats of 16 bits are part of the key: libraries compute wider here and there.
    is_apart: bool = False
    dtype: str | None = field(init=False)
    tensors: tuple[Leaf, ...] = field(init=False)
    numbers: tuple[Leaf, ...] = field(init=False)
    holds_objects: bool = field(init=False)  # which are the call's own

    def __post_init__(self) -> None:
        dtype, holds_objects = None, False
        kinds: dict[str, list[Leaf]] = {"tensor": [], "number": [], "static": []}
        for leaf in self.leaves:
            kinds[leaf.kind].append(leaf)
            if dtype is None and leaf.kind == "tensor" and leaf.dtype in FLOATS:
                dtype = leaf.dtype
            elif leaf.kind == "static" and not is_plain(leaf.value):
                holds_objects = True
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "tensors", tuple(kinds["tensor"]))
        object.__setattr__(self, "numbers", tuple(kinds["number"]))
        object.__setattr__(self, "holds_objects", holds_objects)

    @property
    def key_of_wide(self) -> Any:
        """The key that it would have with floats of more than 16 bits."""
        tree, parts = self.key
        first_dtype = self.dtype
        return tree, tuple(
            (kind, T if dtype == first_dtype else dtype, value) for kind, dtype, value in parts
        )

    @property
    def mixes_floats(self) -> bool:
        return len({leaf.dtype for leaf in self.leaves if leaf.is_float}) > 1

    def indices(self, kind: str) -> tuple[int, ...]:
        return tuple([i for i, leaf in enumerate(self.leaves) if leaf.kind == kind])

    def rebuild(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return optree.tree_unflatten(self.tree, leaves)

    def without_objects(self) -> Layout:
        """Return this layout without a call's objects, so that keeping it keeps none alive."""
        if not self.holds_objects:
            return self
        leaves = tuple(
            leaf
            if is_plain(leaf.value)
            else replace(leaf, value=Forgotten(type(leaf.value).__name__))
            for leaf in self.leaves
        )
        return replace(self, leaves=leaves)

    def with_objects(self, leaves: Sequence[Any]) -> Layout:
        """Return this layout with the static values of a call."""
        filled_leaves = (
            replace(leaf, value=value) if isinstance(leaf.value, Forgotten) else leaf
            for leaf, value in zip(self.leaves, leaves, strict=True)
        )
        return replace(self, leaves=tuple(filled_leaves))

    def describe(self) -> str:
        words = [f"{leaf.path}: {leaf.dtype or leaf.kind}" for leaf in self.leaves]
        return ", ".join(words) if words else "nothing"


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the leaves of a call's arguments, None among them, and their nesting."""
    return optree.tree_flatten((args, kwargs), none_is_leaf=True)


def learn_containers(leaves: Sequence[Any]) -> bool:
    """Register classes among the leaves that a framework knows as containers.

    Returns whether there were any: the call is then to be flattened anew.
    """
    has_learned = False
    for leaf in leaves:
        if isinstance(leaf, KNOWN_LEAVES) or owner_of(unwrap(leaf)) is not None:
            continue
        for backend in in_use():
            container = backend.imports.container
            parts = None if container is None else container(leaf)
            if parts is not None:
                learn(type(leaf), *parts)
                has_learned = True
                break
    return has_learned


def replace_at(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    replaced = list(leaves)
    for i, value in zip(places, values, strict=True):
        replaced[i] = value
    return replaced


def unwrap(leaf: Any) -> Any:
    """Return the tensor that a variable of Keras or flax nnx holds now, or the leaf itself."""
    if isinstance(leaf, KNOWN_LEAVES) or owner_of(leaf) is not None:
        return leaf
    # flax nnx 0.12, whose variables have both, warns about reads of `.value`.
    has_both = hasattr(type(leaf), "value") and hasattr(type(leaf), "get_value")
    tensor = leaf.get_value() if has_both else getattr(leaf, "value", None)
    return tensor if tensor is not None and owner_of(tensor) is not None else leaf


def lay_out(tree: Any, rows: Sequence[Leaf], is_apart: bool = False) -> Layout:
    (args, _) = optree.tree_unflatten(tree, range(len(rows)))
    positional = len(optree.tree_leaves(args, none_is_leaf=True))
    floats = [leaf.dtype for leaf in rows if leaf.is_float]
    first_dtype = floats[0] if floats else None
    parts = [
        (
            leaf.kind,
            T if leaf.dtype == first_dtype and not is_apart else leaf.dtype,
            value_key(leaf.value) if leaf.kind == "static" else None,
        )
        for leaf in rows
    ]
    return Layout(tree, tuple(rows), positional, (tree, tuple(parts)), is_apart)


def type_of(layout: Layout, leaf: Leaf) -> Type:
    """Return a tensor argument's type; shape and dtype relate to the first float's."""
    floats = [each for each in layout.tensors if each.dtype in (*FLOATS, T)]
    if floats and leaf is floats[0]:
        return INPUT
    is_like_first = bool(floats) and leaf.dtype == floats[0].dtype
    return Type("tensor", T if is_like_first else leaf.dtype, UNKNOWN)
