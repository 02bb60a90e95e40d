"""The arguments of a Function: any nesting of tensors, numbers and other values, as flat leaves.

A float is a run-time number, as a rule's params are; an int, bool, str, None or any other object is
static, part of what is captured. The layout of a call (its nesting, and the kind of each leaf) is a
key: equal layouts share code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ...errors import GradientError, RuleTypeError
from ..backend.contract import Backend
from ..backend.discovery import backend_among, in_use, refuse_unusable
from ..backend.values import owner_of
from ..ir.attributes import is_name
from ..ir.op import BOOL, FLOATS, FLOATS_OF_16_BITS, INPUT, UNKNOWN, WHOLE, T, Type, dtype_name
from ..lowering.function_graph import OWN_NAMES
from ..support.records import record
from ..support.trees import Tensor, learn, optree, with_own_classes
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


def flatten_outputs(outputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of what a function returned, None among them, and their nesting."""
    outputs = with_own_classes(outputs)
    leaves, tree = optree.tree_flatten(outputs, none_is_leaf=True)
    if learn_containers(leaves):
        return optree.tree_flatten(outputs, none_is_leaf=True)
    return leaves, tree


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
            f"function {function!r} got no tensor ({layout.describe()}); pass an array or a tensor"
        )
    return backend_among(tensors)


def type_of(layout: Layout, leaf: Leaf) -> Type:
    """Return a tensor argument's type; shape and dtype relate to the first float's."""
    floats = [each for each in layout.tensors if each.dtype in (*FLOATS, T)]
    if floats and leaf is floats[0]:
        return INPUT
    is_like_first = bool(floats) and leaf.dtype == floats[0].dtype
    return Type("tensor", T if is_like_first else leaf.dtype, UNKNOWN)


def positional_names(parameters: inspect.Signature | None) -> list[str]:
    if parameters is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters.parameters.values() if p.kind in kinds]
