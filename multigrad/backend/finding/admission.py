"""What a stranger's package offers, looked at before it stands beside the others.

A backend that lacks a part would fail where all backends are asked in turn, for tensors of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from ...errors import BackendNotFound
from ..contract import Backend

# What is called of each backend sooner or later, without a look whether it is there.
CALLED = {
    "tensors": ("dtype", "to_numpy", "from_numpy", "is_traced"),
    "autodiff": ("render", "finish", "call", "attach"),
}


def admit(found: Any, name: str, where: str) -> Backend:
    """Return what an entry point names, a Backend of the entry point's name that holds all groups.

    Raises:
        BackendNotFound: it is something else.
    """
    if not isinstance(found, Backend):
        raise BackendNotFound(
            f"backend {name!r} cannot be used: {where} is a {type(found).__name__}; "
            f"expected a multigrad.backend.Backend"
        )
    fault = _fault_of(found, name)
    if fault:
        raise BackendNotFound(f"backend {name!r} cannot be used: {where} {fault}")
    return found


def _fault_of(found: Backend, name: str) -> str | None:
    if found.name != name:
        return (
            f"is named {found.name!r}, and its entry point {name!r}; "
            f"both are the name under which the framework is imported"
        )
    for group, kind in _groups().items():
        given = getattr(found, group)
        if not isinstance(given, kind):
            return f"has {given!r} for {group}; expected multigrad.backend.{kind.__name__}(...)"
    for group, called in CALLED.items():
        for each in called:
            if not callable(getattr(getattr(found, group), each)):
                return f"has no function for {group}.{each}"
    types = found.tensors.types
    is_tuple = isinstance(types, tuple) and types
    if not is_tuple or not all(isinstance(each, type) for each in types) or object in types:
        return f"has {types!r} for tensors.types; expected the classes of its tensors in a tuple"
    if not isinstance(found.kernels.rows, Mapping):
        return "has no mapping of ops to functions for kernels.rows"
    return None


def _groups() -> dict[str, type]:
    """Return the groups of a Backend that are never None, by field."""
    hints = get_type_hints(Backend)
    return {
        each.name: hints[each.name]
        for each in fields(Backend)
        if each.default is not None and isinstance(hints[each.name], type) and each.name != "name"
    }
