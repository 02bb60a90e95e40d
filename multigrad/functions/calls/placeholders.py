"""Calls with placeholders of a library that builds models (Keras tensors), which it handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# `call(function, args, kwargs)`
CallOnPlaceholders: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
# By the type of placeholders. Written by `take_placeholders` while backends load; never emptied.
_on_placeholders: dict[type, CallOnPlaceholders] = {}


def take_placeholders(type_: type, call: CallOnPlaceholders) -> None:
    """Register `call(function, args, kwargs)` for calls with placeholders of this type."""
    _on_placeholders[type_] = call


def find_call(leaves: Sequence[Any]) -> CallOnPlaceholders | None:
    """Return the function that handles calls with such placeholders; None if no leaf is one."""
    for type_, call in _on_placeholders.items():
        if any(isinstance(leaf, type_) for leaf in leaves):
            return call
    return None
