"""The arguments of a call as flat leaves, and their layout: the nesting, and the kind of each leaf.

A float is a run-time number, as a rule's params are; an int, bool, str, None or any other object is
static, part of what is captured. A layout is a key: equal layouts share code. A rule has one tensor
and numbers; the arguments of code are nested at will (`LayoutOfCode` of the engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ..ir.op import FLOATS, T
from ..support.records import record
from ..support.trees import optree
from ..trace.trace import Value

# No containers, which is known without asking the backends.
KNOWN_LEAVES = (Value, bool, int, str, bytes, type(None), float, np.ndarray, np.generic)


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


@record()
class Layout:
    """How the arguments of a call are laid out; `key` is equal where one capture serves.

    In the key a float dtype is T, where it is that of the first float tensor.

    Attributes:
        tree: the nesting of (args, kwargs).
        dtype: of the first float tensor, which the others relate to.
    """

    tree: Any
    leaves: tuple[Leaf, ...]
    key: Any = field(repr=False)
    dtype: str | None = field(init=False)
    tensors: tuple[Leaf, ...] = field(init=False)
    numbers: tuple[Leaf, ...] = field(init=False)

    def __post_init__(self) -> None:
        kinds: dict[str, list[Leaf]] = {"tensor": [], "number": [], "static": []}
        for leaf in self.leaves:
            kinds[leaf.kind].append(leaf)
        dtypes = [leaf.dtype for leaf in kinds["tensor"] if leaf.dtype in FLOATS]
        object.__setattr__(self, "dtype", dtypes[0] if dtypes else None)
        object.__setattr__(self, "tensors", tuple(kinds["tensor"]))
        object.__setattr__(self, "numbers", tuple(kinds["number"]))

    @property
    def needs_dtype(self) -> bool:
        """Whether each dtype has a capture of its own; one of a rule serves all."""
        return False

    @property
    def key_of_wide(self) -> Any:
        """The key of the wide floats whose capture may serve these of 16 bits, too; None: none."""
        return None

    def indices(self, kind: str) -> tuple[int, ...]:
        return tuple([i for i, leaf in enumerate(self.leaves) if leaf.kind == kind])

    def rebuild(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return optree.tree_unflatten(self.tree, leaves)

    def without_objects(self) -> Layout:
        """Return this layout without a call's objects, so that keeping it keeps none alive."""
        return self

    def with_objects(self, leaves: Sequence[Any]) -> Layout:
        """Return this layout with the static values of a call."""
        return self


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the leaves of a call's arguments, None among them, and their nesting."""
    return optree.tree_flatten((args, kwargs), none_is_leaf=True)


def lay_out_flat(rows: Sequence[Leaf]) -> Layout:
    """Return the layout of arguments by position that are not nested: a tensor, then numbers."""
    tree = flatten(tuple(rows), {})[1]
    parts = [(leaf.kind, T if leaf.dtype in FLOATS else leaf.dtype, None) for leaf in rows]
    return Layout(tree, tuple(rows), (tree, tuple(parts)))
