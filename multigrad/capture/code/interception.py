"""Interception: methods of a library's class that come to us while something is captured.

A custom gradient runs its forward on whatever it is given; on symbolic values its own backward
would be lost, wherever it is called from. So it would be on another framework's tensors, where what
is not captured runs as it is. A method is replaced for as long as a capture or such a run lasts,
in any thread, and put back after the last one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...backend.finding.discovery import backend_of
from ...errors import BackendNotFound, TraceError
from ...graph.ir import questions
from ...graph.support.threads import in_child, make_lock
from ...graph.support.trees import optree
from ...trace.trace import Value

_ABSENT = object()


def comes_to_us(args: tuple[Any, ...], kwargs: dict[str, Any], *takes: str) -> bool:
    """Return whether a call of a library's custom gradient is ours: it has symbolic values, or
    tensors of other frameworks than those it takes, whose autodiff would not see its backward.
    """
    given: set[str] = set()
    for each in optree.tree_leaves((args, kwargs), none_is_leaf=True):
        if isinstance(each, Value):
            return True
        if hasattr(each, "dtype"):
            try:
                given.add(backend_of(each).name)
            except BackendNotFound:
                continue
    return bool(given - {*takes, "numpy"}) or (given == {"numpy"} and "numpy" not in takes)


def call_by_own_gradient(
    own: Callable[..., Any], plain: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function with a gradient of its own; where that is not captured, no derivative may be
    taken.
    """
    asked = questions.count()
    try:
        return own(*args, **kwargs)
    except TraceError:
        leaves = optree.tree_leaves((args, kwargs), none_is_leaf=True)
        trace = next((leaf.trace for leaf in leaves if isinstance(leaf, Value)), None)
        if trace is None:
            raise
        questions.forget(asked)
        trace.backward.lost_gradient = getattr(own, "name", "a function")
        return plain(*args, **kwargs)


class Interception:
    """A method of a class or a function of a module, and `others` by name, replaced while captures
    run; a context manager, entered any number of times.
    """

    def __init__(
        self, owner: type | ModuleType, name: str, replacement: Any, /, **others: Any
    ) -> None:
        self.owner = owner
        self.replacements = {name: replacement, **others}
        self._entered: Counter[int] = Counter()  # by thread
        self._originals: dict[str, Any] = {}
        self._lock = make_lock()
        in_child(self._forget_others)

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                own = vars(self.owner)
                self._originals = {name: own.get(name, _ABSENT) for name in self.replacements}
                for name, replacement in self.replacements.items():
                    setattr(self.owner, name, replacement)
            self._entered[threading.get_ident()] += 1

    def __exit__(self, *exception: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._entered[thread] -= 1
            if not self._entered[thread]:
                del self._entered[thread]
            for name, original in self._originals.items() if not self._entered else ():
                if original is _ABSENT:  # inherited
                    delattr(self.owner, name)
                else:
                    setattr(self.owner, name, original)

    def _forget_others(self, own: int) -> None:
        """In a forked child: captures on threads that it lacks never end."""
        if self._entered:
            mine = self._entered[own]
            self._entered = Counter({own: mine or 1})
            if not mine:
                self.__exit__()
