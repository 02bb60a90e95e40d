"""The Python function that a callable runs, and the package that it comes from."""

from __future__ import annotations

import functools
import types
from functools import partial
from typing import Any

from .table import registered_dialects


def plain_function(function: Any) -> types.FunctionType | None:
    """Return the Python function that a callable runs, or None where it has none."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        wrapped = wrapped_function(function)
        if wrapped is not None:
            return wrapped
        # The class's own, unbound.
        function = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(function, types.MethodType):
        function = function.__func__
    return function if isinstance(function, types.FunctionType) else None


def wrapped_function(wrapper: Any) -> types.FunctionType | None:
    """Return the Python function in an object that computes just what it does (`jax.jit(f)`)."""
    for dialect in registered_dialects().values():
        name = dialect.wrappers.get(type(wrapper))
        if name is not None:
            inner = getattr(wrapper, name, None)
            return inner if isinstance(inner, types.FunctionType) else wrapped_function(inner)
    if isinstance(wrapper, functools._lru_cache_wrapper):
        inner = wrapper.__wrapped__
        return inner if isinstance(inner, types.FunctionType) else None
    return None


def root_module(function: Any) -> str:
    """Return the top-level package in which a callable is defined."""
    plain = plain_function(function)
    return ((plain.__module__ if plain else None) or "").partition(".")[0]


def own_root(function: Any) -> str:
    """Return the same, "" for a library's whose calls reach us by themselves."""
    root = root_module(function)
    dialect = registered_dialects().get(root)
    return "" if dialect is not None and dialect.protocol else root


def home(value: Any) -> str:
    """Return the top-level package that a callable comes from."""
    name = getattr(value, "__module__", None)
    return (name if isinstance(name, str) else type(value).__module__).partition(".")[0]


def method_of(value: Any) -> types.FunctionType | None:
    """Return the function that stands in a class, bare or wrapped."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value if isinstance(value, types.FunctionType) else None
