"""How a framework chooses the dtypes of calls by itself, as autocast does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..graph.ir.op import Op


class Casts(NamedTuple):
    """What the core asks of it.

    Attributes:
        is_on: whether the framework does so now; it is asked at each call.
        without: a context in which it does not.
        of: whether it may do so for the kernel of an op.
    """

    is_on: Callable[[], bool]
    without: Callable[[], AbstractContextManager[Any]]
    of: Callable[[Op], bool]
