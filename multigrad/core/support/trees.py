"""Nested values by `optree`, typed for leaves of any type, in a namespace of our own; and `Tensor`,
the type of what a tensor of any framework has, and a symbol that stands for one.

That namespace has the classes that users registered with a framework, in addition to the classes
registered for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from .threads import make_lock


class Tensor(Protocol):
    """A tensor of any framework, or the symbol of one in a capture.

    Its shape and dtype are of the framework's own types, and so are the results of operators.
    """

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __abs__(self) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...


NAMESPACE = "multigrad"
OURS = ("tree_flatten", "tree_leaves", "tree_map", "tree_structure")


class Trees:
    """Functions of `optree`, in our namespace; it takes 8 ms to load, which few calls need."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(import_module("optree"), name)
        function = partial(function, namespace=NAMESPACE) if name in OURS else function
        setattr(self, name, function)  # which is found at once from now on
        return function


optree: Any = Trees()
# The classes in our namespace; one is registered once, and never removed.
_learned: set[type] = set()
_learning = make_lock()


def learn(
    cls: type,
    take_apart: Callable[[Any], tuple[Any, Any]],
    put_together: Callable[[Any, Any], Any],
) -> None:
    """Take objects of a class apart from now on, and put their parts together again."""
    with _learning:
        if cls not in _learned:
            optree.register_pytree_node(cls, take_apart, put_together, namespace=NAMESPACE)
            _learned.add(cls)
