"""What differs between releases of Keras 3; docs/versions.md says which are supported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def those_of(module: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a module has in the release that is installed."""
    return tuple(name for name in names if hasattr(module, name))
