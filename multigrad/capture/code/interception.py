"""Interception: a library's methods replaced while something is captured.

A custom gradient runs its forward on any arguments, so on symbolic values its own backward would be
lost, wherever it is called from; so it would on another framework's tensors, where uncaptured code
runs unchanged. A method stays replaced while any capture or such run lasts, in any thread, and is
restored after the last one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...backend.discovery import backend_of
from ...errors import BackendNotFound, TraceError
from ...graph.ir import questions
from ...graph.support.threads import in_child, make_lock
from ...graph.support.trees import optree
from ...trace.trace import Value

_ABSENT = object()


def comes_to_us(args: tuple[Any, ...], kwargs: dict[str, Any], *takes: str) -> bool:
    """Return whether a call of a library's custom gradient is ours to record.

    It is with symbolic values, or with tensors of frameworks other than the given ones, whose
    autodiff would not see its backward.
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
    """Call a function with its own gradient; if that is not captured, refuse derivatives."""
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
    """A method of a class or a function of a module (and `others`), replaced during captures.

    A context manager that can be entered any number of times, in several threads.
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
        # The first entry stores the originals, the last exit restores them.
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
        # In a forked child: captures on the parent's other threads never end here.
        if self._entered:
            mine = self._entered[own]
            self._entered = Counter({own: mine or 1})
            # No capture of this process will exit, so the originals are restored now.
            if not mine:
                self.__exit__()
