"""Calls of a Function with placeholders of a library that builds models (Keras tensors)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...core.functions.function import Function
from ..capture.dialect import load_dialects

CallOnPlaceholders: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
# How a library handles a call, as `call(function, args, kwargs)`, by the type of its placeholders.
# Written by `take_placeholders` as backends load; never emptied.
_on_placeholders: dict[type, CallOnPlaceholders] = {}


def take_placeholders(type_: type, call: CallOnPlaceholders) -> None:
    """Register `call(function, args, kwargs)` for calls with placeholders of this type."""
    _on_placeholders[type_] = call


def call_with_placeholders(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]
) -> tuple[Any] | None:
    """Return the result of such a call in a tuple; None: no leaf is a placeholder."""
    load_dialects()  # they register the types of placeholders
    for type_, call in _on_placeholders.items():
        if any(isinstance(leaf, type_) for leaf in leaves):
            return (call(function, args, kwargs),)
    return None
