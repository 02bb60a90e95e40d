"""Arguments that stand for tensors to come: how a library that builds models takes a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

CallOnPlaceholders: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_calls: dict[type, CallOnPlaceholders] = {}


def take_placeholders(type_: type, call: CallOnPlaceholders) -> None:
    """Let `call(function, args, kwargs)` act where an argument of a Function is of this type."""
    _calls[type_] = call


def find_call(leaves: Sequence[Any]) -> CallOnPlaceholders | None:
    """Return what acts for these arguments; None: the Function itself."""
    for type_, call in _calls.items():
        if any(isinstance(leaf, type_) for leaf in leaves):
            return call
    return None
