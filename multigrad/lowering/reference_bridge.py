"""NumPy as a host and as a guest of other frameworks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .lent import borrow_array as borrow
from .lent import lend_array as lend

if TYPE_CHECKING:
    from ..bridging.foreign import Foreign

Array = Any
__all__ = ["borrow", "bridge", "lend", "outside"]


def bridge(foreign: Foreign, tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of what runs in another framework; NumPy takes no gradients."""
    return tuple(borrow(y, own=True) for y in foreign.run([lend(x) for x in tensors]))


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Silence floating-point warnings."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return call
