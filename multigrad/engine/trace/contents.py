"""Objects that hold others: their keys, by identity and by contents as far as they are cheap to
read; their attributes, read without running their code; and the user's classes of those that a
capture made.
"""

from __future__ import annotations

import enum
import threading
import types
from contextlib import suppress
from typing import Any

from ...core.backend.discovery import entry_points
from ...core.support.trees import optree
from ...core.trace.identity import Same, key_within

# The attribute by which a class that a capture made names the user's class.
STANDS_FOR = "__multigrad_stands_for__"
MOST_HELD = 256  # objects that are read inside one object, at any depth
FIXED = (type, enum.Enum, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def key_of_object(value: Any, seen: list[Any]) -> Any:
    """Return the key of an object with contents.

    Args:
        seen: the objects around it, which are not read again.
    """
    kind = type(value)
    # A framework's own class defines equality: a device, a dtype, a shape.
    defines_hash = kind.__hash__ is not None and kind.__hash__ is not object.__hash__
    if defines_hash and kind.__module__.partition(".")[0] in (*entry_points(), "jaxlib"):
        # torch's tensors are hashed by identity, and a key would keep them alive.
        return (kind, Same(value) if _is_hashed_by_id(value) else value)
    contents = _contents(value, seen)
    if kind in (list, dict) and contents is not None:  # nor what is in these
        return (kind, id(value), contents)
    return (Same(value), contents)


def _is_hashed_by_id(value: Any) -> bool:
    with suppress(TypeError):  # TensorFlow's tensors have no hash, and say so only when asked
        return hash(value) == id(value)
    return False


def _contents(value: Any, seen: list[Any]) -> Any:
    # Contents as a key, so that a change shows; None if there are too many to read.
    if isinstance(value, FIXED) or any(value is each for each in seen):
        return ()
    if type(value) in (list, set, frozenset):
        rows = [("", each) for each in [*value]]
    elif type(value) is dict:
        rows = [*value.items()]
    else:
        rows = attributes_of(value)
    if len(seen) + len(rows) > MOST_HELD:
        return None
    # The objects themselves, so that no id is reused during the walk.
    seen.append(value)
    return tuple((key_within(name, seen), key_within(item, seen)) for name, item in rows)


def dict_of(value: Any) -> dict[str, Any]:
    """Return the dict of an object, of a `threading.local` that of the present thread."""
    is_local = isinstance(value, threading.local)
    read = threading.local.__getattribute__ if is_local else object.__getattribute__
    found: dict[str, Any] = read(value, "__dict__")
    return found


def attributes_of(value: Any) -> list[tuple[Any, Any]]:
    """Return an object's own attributes without running code of its class."""
    rows: list[tuple[Any, Any]] = []
    with suppress(AttributeError):
        rows += dict_of(value).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                with suppress(AttributeError):  # a slot without a value
                    rows.append((name, member.__get__(value)))
    return rows


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
