"""Dtypes that depend on more than dtypes: what autocast chooses, and tensors that give way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..graph.ir.op import Op


class Casts(NamedTuple):
    """How a framework chooses the dtypes of calls by itself.

    Attributes:
        is_on: whether the framework does so now; it is asked at each call.
        without: a context in which it does not.
        of: whether it may do so for the kernel of an op.
    """

    is_on: Callable[[], bool]
    without: Callable[[], AbstractContextManager[Any]]
    of: Callable[[Op], bool]


class WeakTypes(NamedTuple):
    """Tensors whose dtype gives way to others', as those that are made of Python's numbers.

    Attributes:
        is_weak: whether a tensor is one.
        weaken: a tensor as one.
        find: (run, tensors) -> for each of the results that `run(*tensors)` lists, whether it is
            one; none where that cannot be told.
    """

    is_weak: Callable[[Any], bool]
    weaken: Callable[[Any], Any]
    find: Callable[[Callable[..., Any], Sequence[Any]], Sequence[bool]]
