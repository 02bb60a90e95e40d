"""What a function does besides returning: updates in place, attributes, changed containers.

A graph has none of these. On its own framework the function runs itself; elsewhere they are left
out (a warning says so of updates, and captured code that reads such an attribute is refused there);
inside another capture they are done to the symbols there (`effects.py`).
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import combinations
from typing import Any, NamedTuple

from ....errors import TraceError
from ...ir.graph import Location, Node
from ...ir.types import BOOL, dtype_name
from ...support.tensors import Tensor
from ...support.threads import set_within
from ...support.trees import optree
from .arguments import Leaf, flatten, owner_of

# --- updates of arguments in place ----------------------------------------------------------------
COPIES = "xg.Capture(copies=True)"  # in messages


class Update(NamedTuple):
    """An argument that was updated.

    Attributes:
        node: what it holds afterwards.
        output: which output it has become, as autodiff sees it; None: autodiff was not told.
        where: the line that did it.
    """

    leaf: Leaf
    node: Node
    output: int | None
    where: Location | None


def describe_updates(updates: Sequence[Update]) -> str:
    paths = " and ".join(repr(update.leaf.path) for update in updates)
    return f"updates its argument {paths} in place"


def warn_left_out(subject: str, updates: Sequence[Update], backend: str, module: str) -> None:
    location = next((update.where for update in updates if update.where is not None), None)
    file, line = ("<unknown>", 1) if location is None else (location.file, location.line)
    message = (
        f"{subject} {describe_updates(updates)}; captured for {backend}, it leaves the caller's as "
        f"it is. By xg.convert(..., capture={COPIES}) it does so on its own framework, too"
    )
    warnings.warn_explicit(message, UserWarning, file, line, module=module)


def copied(leaf: Any) -> Any:
    """Return a tensor of the same values in memory of its own; anything else as it is."""
    if owner_of(leaf) is None:
        return leaf
    # Ops that every framework has, and differentiates.
    return leaf | leaf if dtype_name(leaf.dtype) == BOOL else leaf * 1


def copied_all(tree: Any) -> Any:
    # By identity: a tensor given twice stays one tensor.
    copies: dict[int, Any] = {}
    return optree.tree_map(lambda x: copies.setdefault(id(x), copied(x)), tree, none_is_leaf=True)


def check_apart(subject: str, updates: Sequence[Update], tensors: Sequence[Any]) -> None:
    """Raise if a tensor is given twice: the function would see its own update."""
    if any(a is b for a, b in combinations(tensors, 2)):
        raise TraceError(
            f"{subject} {describe_updates(updates)} and gets one tensor twice. Copy it first"
        )


# --- attributes that code sets on tensors (`out._scale = s`) --------------------------------------
# By backend, the names of attributes that results there lack.
left_out: set[tuple[str, str]] = set()


class Note(NamedTuple):
    """An attribute that was set.

    Attributes:
        holder: whose it is: an argument by name, an output by position.
        value: a plain one, a node of the forward, or a holder; `kind` says which.
    """

    holder: str | int
    name: str
    value: Any
    kind: str


def attribute_of(name: str, value: Tensor) -> bool | None:
    """Return whether an argument has an attribute; None: it may have lost it."""
    if hasattr(value, name):
        return True
    owner = owner_of(value)
    return None if owner is not None and (owner.name, name) in left_out else False


# --- lists and dicts among the arguments, into which code as written may write --------------------
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, and by name

CONTAINERS = frozenset((list, dict, tuple, deque, OrderedDict, defaultdict))
# The arguments of the call that runs, where containers or another library's arrays are among them,
# and the leaves that stand for them.
GIVEN: ContextVar[tuple[Arguments, Sequence[Any]] | None] = ContextVar(
    "multigrad_given", default=None
)


def has_containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call is given a list or a dict, or a tuple, which may hold one."""
    return not CONTAINERS.isdisjoint(map(type, (*args, *kwargs.values())))


def giving(arguments: Arguments, leaves: Sequence[Any]) -> AbstractContextManager[Any]:
    """Let an original that runs with these leaves get the caller's own arguments."""
    return set_within(GIVEN, (arguments, leaves))


def callers_own(rebuilt: Arguments, leaves: Sequence[Any]) -> Arguments:
    """Return the caller's own arguments where they have these leaves, else those rebuilt."""
    call = GIVEN.get()
    if call is None:
        return rebuilt
    arguments, known_leaves = call
    is_same = len(known_leaves) == len(leaves) and all(
        a is b for a, b in zip(known_leaves, leaves, strict=True)
    )
    return arguments if is_same else rebuilt


def changes_containers(before: Arguments, after: Arguments) -> bool:
    """Return whether code has changed a list or a dict among the arguments that it ran with."""
    # Before, these had the same leaves in containers of their own.
    (old, nesting), (new, new_nesting) = (flatten(*arguments) for arguments in (before, after))
    return nesting != new_nesting or any(a is not b for a, b in zip(old, new, strict=True))
