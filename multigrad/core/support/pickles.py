"""Pickles: how an object is made again, with the version that wrote it.

Pickles of each release are loaded by tests in all later ones. So this module, `remake` and every
function that `pickled` was given stay where they are, or leave a name behind there.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

from ...errors import FormatError


def pickled(make: Callable[..., Any], *args: Any, **keywords: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the value of `__reduce__` for an object that `make(*args, **keywords)` remakes."""
    # By its place, as pickle's own error for a name that is gone would not tell of versions.
    return remake, (own_version(), f"{make.__module__}:{make.__qualname__}", args, keywords)


def remake(version: str, place: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the object of a pickle.

    Raises:
        FormatError: another minor version wrote it, and this one cannot make it.
    """
    module, _, name = place.partition(":")
    try:
        return attrgetter(name)(import_module(module))(*args, **keywords)
    except Exception as error:
        own = own_version()
        if version.split(".")[:2] == own.split(".")[:2]:
            raise
        raise FormatError(
            f"this pickle was written by multigrad {version}, and {own} cannot read it ({error}): "
            f"load it with multigrad {version} and write a file by xg.save, which later versions "
            "and many earlier ones read"
        ) from error


def own_version() -> str:
    return import_module(__name__.partition(".")[0]).__version__
