"""Lists, dicts and objects among arguments, which code may change: a graph would do so once, and on
copies of the containers.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...errors import TraceError
from .arguments import flatten
from .failures import NotCaptured

CONTAINERS = frozenset((list, dict, deque, OrderedDict, defaultdict))
FIXED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# The arguments of the call that runs, where containers or another library's arrays are among them,
# and the leaves that stand for them.
GIVEN: ContextVar[tuple[Arguments, Sequence[Any]] | None] = ContextVar(
    "multigrad_given", default=None
)


def has_containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call is given a list or a dict."""
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


@contextmanager
def keeping_objects(name: str, leaves: Sequence[Any]) -> Iterator[None]:
    """Give objects among arguments back what a capture and its proof have changed of them.

    Raises:
        NotCaptured: the code changes an attribute; what is new may be a cache.
    """
    for leaf in leaves:
        holder = getattr(leaf, "__self__", None)
        if isinstance(leaf, types.BuiltinFunctionType) and type(holder) in CONTAINERS:
            raise NotCaptured(
                TraceError(f"function {name!r} is given {leaf.__qualname__}, which has an effect")
            )
    objects = [leaf for leaf in leaves if not isinstance(leaf, FIXED)]
    before = [
        (each, dict(vars(each)))
        for each in objects
        if type(getattr(each, "__dict__", None)) is dict
    ]
    states = [(each, state) for each in objects if (state := _state_of(each)) is not None]
    changed = ""
    try:
        yield
    finally:
        for each, state in states:
            each.set_state(state)
        for each, known in before:
            now = vars(each)
            for attribute in [*now, *(known.keys() - now.keys())]:
                is_new = attribute not in known and not hasattr(type(each), attribute)
                if not is_new and now.get(attribute) is not known.get(attribute, now):
                    changed = changed or f"{attribute!r} of a {type(each).__name__}"
            if changed:
                now.clear()
                now.update(known)
    if changed:
        problem = f"changes {changed} that it is given, which a graph does not"
        raise NotCaptured(TraceError(f"function {name!r} {problem}"))


def _state_of(value: Any) -> Any:
    """Return the state of what draws numbers, as torch's generators do; None: it has none."""
    if not (hasattr(value, "get_state") and hasattr(value, "set_state")):
        return None
    try:
        return value.get_state()
    except TypeError:  # something else of that name
        return None
