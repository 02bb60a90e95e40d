"""Lists and dicts among the arguments of a call, into which code as written may write."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from ....graph.support.threads import set_within
from ..arguments import flatten

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
    # It may write into their lists and dicts.
    return set_within(GIVEN, (arguments, leaves))


def callers_own(rebuilt: Arguments, leaves: Sequence[Any]) -> Arguments:
    """Return the caller's own arguments where they have these leaves, else those rebuilt."""
    known = GIVEN.get()
    if known is None:
        return rebuilt
    arguments, known_leaves = known
    is_same = len(known_leaves) == len(leaves) and all(
        a is b for a, b in zip(known_leaves, leaves, strict=True)
    )
    return arguments if is_same else rebuilt


def changes_containers(before: Arguments, after: Arguments) -> bool:
    """Return whether code has changed a list or a dict among the arguments that it ran with."""
    # Before, these had the same leaves in containers of their own.
    (old, tree), (now, new) = (flatten(*arguments) for arguments in (before, after))
    return tree != new or any(a is not b for a, b in zip(old, now, strict=True))
