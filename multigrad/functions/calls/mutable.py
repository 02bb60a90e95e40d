"""Lists and dicts among arguments, which code may change: a graph would do so once, and on copies
of the containers.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .arguments import flatten
from .failures import NotCaptured

CONTAINERS = frozenset((list, dict, tuple, deque, OrderedDict, defaultdict))
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# The arguments of the call that runs, where containers or another library's arrays are among them,
# and the leaves that stand for them.
GIVEN: ContextVar[tuple[Arguments, Sequence[Any]] | None] = ContextVar(
    "multigrad_given", default=None
)


def has_containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call is given a list or a dict, or a tuple, which may hold one."""
    return not CONTAINERS.isdisjoint(map(type, (*args, *kwargs.values())))


@contextmanager
def giving(arguments: Arguments, leaves: Sequence[Any]) -> Iterator[None]:
    """Let the original, where that runs with these leaves, have the caller's own arguments, into
    whose containers it may write.
    """
    reset = GIVEN.set((arguments, leaves))
    try:
        yield
    finally:
        GIVEN.reset(reset)


def callers_own(rebuilt: Arguments, leaves: Sequence[Any]) -> Arguments:
    """Return the caller's own arguments where they have these leaves, else those rebuilt."""
    given = GIVEN.get()
    if given is None:
        return rebuilt
    arguments, own = given
    is_same = len(own) == len(leaves) and all(a is b for a, b in zip(own, leaves, strict=True))
    return arguments if is_same else rebuilt


def check_containers(before: Arguments, after: Arguments, error: Any) -> None:
    """Refuse to capture what changes a list or a dict that it is given.

    Args:
        before: the arguments, with containers of their own.
        after: those that the code was run with.
        error: makes an error of a problem.

    Raises:
        NotCaptured: it does.
    """
    (own, tree), (now, new) = (flatten(*arguments) for arguments in (before, after))
    if tree != new or any(a is not b for a, b in zip(own, now, strict=True)):
        raise NotCaptured(error("changes a list or dict that it is given, which a graph does not"))
