"""How the arguments of a call are read: which leaves are tensors, numbers, or fixed; and names.

They are any nesting of tensors, numbers and other values, among them containers that a framework
registered, and variables that hold a tensor.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ....core.backend.contract import Backend
from ....core.backend.discovery import backend_among, in_use, refuse_unusable
from ....core.backend.values import owner_of
from ....core.functions.arguments import KNOWN_LEAVES, Layout, Leaf, flatten
from ....core.ir.op import (
    BOOL,
    FLOATS,
    FLOATS_OF_16_BITS,
    INPUT,
    UNKNOWN,
    WHOLE,
    T,
    Type,
    dtype_name,
    is_name,
)
from ....core.lowering.function_graph import OWN_NAMES
from ....core.support.records import record
from ....core.support.trees import Tensor, learn, optree
from ....core.trace.identity import is_plain, value_key
from ....core.trace.trace import Value
from ....errors import GradientError, RuleTypeError
from ...trace.contents import with_own_classes

PLAIN = (bool, int, str, bytes, type(None))


# --- layouts --------------------------------------------------------------------------------------
@record(eq=True)
class Forgotten:
    """Stands for a static value that is not kept, of the class named `kind`."""

    kind: str


@record()
class LayoutOfCode(Layout):
    """The layout of arguments that are nested at will.

    Attributes:
        is_apart: whether floats of 16 bits are part of the key: libraries compute wider here and
            there.
        holds_objects: whether static values among the leaves are the call's own.
    """

    is_apart: bool = False
    holds_objects: bool = field(init=False)

    def __post_init__(self) -> None:
        Layout.__post_init__(self)
        statics = (leaf.value for leaf in self.leaves if leaf.kind == "static")
        object.__setattr__(self, "holds_objects", not all(map(is_plain, statics)))

    @property
    def needs_dtype(self) -> bool:
        return self.is_apart or mixes_floats(self)

    @property
    def key_of_wide(self) -> Any:
        if not self.is_apart or mixes_floats(self):
            return None
        tree, parts = self.key
        first_dtype = self.dtype
        return tree, tuple(
            (kind, T if dtype == first_dtype else dtype, value) for kind, dtype, value in parts
        )

    def without_objects(self) -> Layout:
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
        filled_leaves = (
            replace(leaf, value=value) if isinstance(leaf.value, Forgotten) else leaf
            for leaf, value in zip(self.leaves, leaves, strict=True)
        )
        return replace(self, leaves=tuple(filled_leaves))


def lay_out(tree: Any, rows: Sequence[Leaf], is_apart: bool = False) -> Layout:
    first_dtype = next((leaf.dtype for leaf in rows if leaf.is_float), None)
    parts = [
        (
            leaf.kind,
            T if leaf.dtype == first_dtype and not is_apart else leaf.dtype,
            value_key(leaf.value) if leaf.kind == "static" else None,
        )
        for leaf in rows
    ]
    return LayoutOfCode(tree, tuple(rows), (tree, tuple(parts)), is_apart)


def mixes_floats(layout: Layout) -> bool:
    return len({leaf.dtype for leaf in layout.leaves if leaf.is_float}) > 1


def type_of(layout: Layout, leaf: Leaf) -> Type:
    """Return a tensor argument's type; shape and dtype relate to the first float's."""
    floats = [each for each in layout.tensors if each.dtype in (*FLOATS, T)]
    if floats and leaf is floats[0]:
        return INPUT
    is_like_first = bool(floats) and leaf.dtype == floats[0].dtype
    return Type("tensor", T if is_like_first else leaf.dtype, UNKNOWN)


def describe_layout(layout: Layout) -> str:
    words = [f"{leaf.path}: {leaf.dtype or leaf.kind}" for leaf in layout.leaves]
    return ", ".join(words) if words else "nothing"


def read_layout(
    function: str, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
) -> Layout:
    """Return the layout of a call, whose tensors are unwrapped already.

    Args:
        function: its name, for messages.
        parameters: its signature, which names the arguments.
    """
    paths = name_paths(positional_names(parameters), tree)
    used_names: set[str] = set()
    rows = []
    for value, path in zip(leaves, paths, strict=True):
        name = identify(path, used_names)
        used_names.add(name)
        rows.append(_read_leaf(function, value, path, name))
    first_dtype = next((leaf.dtype for leaf in rows if leaf.is_float), "")
    return lay_out(tree, rows, is_apart=first_dtype in FLOATS_OF_16_BITS)


def _read_leaf(function: str, value: Any, path: str, name: str) -> Leaf:
    if isinstance(value, Value):
        kind, dtype = value.node.type.kind, value.node.type.dtype
        return Leaf("tensor" if kind == "tensor" else "number", path, name, dtype)
    # A `np.float64` is a Python float, but an array here.
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Leaf("number", path, name)
    if owner_of(value) is None:
        return Leaf("static", path, name, value=value)
    dtype = dtype_name(value.dtype)
    if dtype not in (*FLOATS, *WHOLE, BOOL):
        advice = ", or its real and its imaginary part" if dtype.startswith("complex") else ""
        raise GradientError(
            f"function {function!r} got a tensor of dtype {dtype} for argument {path!r}; expected "
            f"one of {', '.join((*FLOATS, *WHOLE, BOOL))}: cast it first{advice}"
        )
    return Leaf("tensor", path, name, dtype)


def name_paths(names: list[str], tree: Any) -> list[str]:
    """Return a name for each leaf of a call: x, pair[0]; `names`: of the positional parameters."""
    paths = []
    for entries in optree.treespec_paths(tree):
        (part, argument, *inner) = entries
        if part == 0:
            head = names[argument] if argument < len(names) else f"args[{argument}]"
        else:
            head = str(argument)
        paths.append(head + "".join(f"[{entry!r}]" for entry in inner))
    return paths


def identify(path: str, taken: Iterable[str]) -> str:
    """Return a path as an identifier that is not taken."""
    word = re.sub(r"\W+", "_", path).strip("_")
    if not is_name(word):  # "\u00b2" is a word to a pattern, but no part of a name
        word = re.sub(r"\W+", "_", path[:80], flags=re.ASCII).strip("_")
    # Names that lowered code uses itself.
    if not is_name(word) or word in ("key", "tin") or OWN_NAMES.fullmatch(word):
        word = f"argument_{word}".rstrip("_")
    name, serial = word, 0
    while name in taken:
        serial += 1
        name = f"{word}_{serial}"
    return name


def one_backend(function: str, layout: Layout, leaves: Sequence[Any]) -> Backend:
    """Return the backend of a call's tensors."""
    tensors = [leaf for leaf in leaves if owner_of(leaf) is not None]
    if not tensors:
        refuse_unusable(*map(type, leaves))
        raise RuleTypeError(
            f"function {function!r} got no tensor ({describe_layout(layout)}); pass an array or a "
            "tensor"
        )
    return backend_among(tensors)


def positional_names(parameters: inspect.Signature | None) -> list[str]:
    if parameters is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters.parameters.values() if p.kind in kinds]


# --- leaves ---------------------------------------------------------------------------------------
def open_leaves(inputs: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Return the leaves of arguments by position, opened, and the nesting of (args, kwargs)."""
    leaves, tree = flatten(inputs, {})
    if learn_containers(leaves):
        leaves, tree = flatten(inputs, {})
    return [unwrap(leaf) for leaf in leaves], tree


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


def flatten_outputs(outputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of what a function returned, None among them, and their nesting."""
    outputs = with_own_classes(outputs)
    leaves, tree = optree.tree_flatten(outputs, none_is_leaf=True)
    if learn_containers(leaves):
        return optree.tree_flatten(outputs, none_is_leaf=True)
    return leaves, tree


def as_numbers(leaves: Sequence[Any]) -> list[Any] | None:
    """Return the leaves with NumPy scalars as Python numbers, None if there are none to change.

    Next to another framework's tensors these are all scalars that widen no tensor, next to NumPy
    arrays those of NumPy's scalar types.
    """
    arrays = [(i, x) for i, x in enumerate(leaves) if isinstance(x, np.ndarray | np.generic)]
    scalars = [i for i, x in arrays if x.ndim == 0 and x.dtype.kind in "biuf"]
    if not scalars:
        return None
    foreign_leaves = [leaf for leaf in leaves if not isinstance(leaf, np.ndarray | np.generic)]
    tensors = [leaf for leaf in foreign_leaves if hasattr(leaf, "dtype")]
    if tensors:
        scalars = [i for i in scalars if not _widens(leaves[i], tensors)]
    else:
        has_array = any(isinstance(leaf, np.ndarray) for leaf in leaves)
        scalars = [i for i in scalars if has_array and isinstance(leaves[i], np.generic)]
    if not scalars:
        return None
    numbers = list(leaves)
    for i in scalars:
        numbers[i] = numbers[i].item()
    return numbers


def _widens(scalar: Any, tensors: Sequence[Tensor]) -> bool:
    owner = next((each for each in map(owner_of, tensors) if each is not None), None)
    # In some libraries an array without axes widens tensors as any other array does.
    if owner is None or not owner.tensors.numbers_widen or scalar.dtype.kind != "f":
        return False
    dtype = dtype_name(owner.tensors.from_numpy(np.asarray(scalar)).dtype)
    floats = [name for x in tensors if (name := dtype_name(x.dtype)) in FLOATS]
    # Of the two dtypes of 16 bits, which come first, neither is the wider one.
    return bool(floats) and FLOATS.index(dtype) > max(1, *map(FLOATS.index, floats))
