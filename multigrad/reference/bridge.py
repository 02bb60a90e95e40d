"""NumPy as a host and as a guest of other frameworks."""

from __future__ import annotations

from typing import Any

from ..backend.guest import Guest
from ..backend.memory import borrow_array as borrow
from ..backend.memory import lend_array as lend

Array = Any
__all__ = ["borrow", "bridge", "lend"]


def bridge(foreign: Guest, tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of what runs in another framework; NumPy takes no gradients."""
    return tuple(borrow(y, own=True) for y in foreign.run([lend(x) for x in tensors]))
