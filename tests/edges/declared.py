"""What differs from a library at an edge, and is documented: rows of `docs/differences.md`."""

from __future__ import annotations

from typing import Any


def is_declared(case: Any, backend: str, way: str, got: Any, want: Any) -> bool:
    """Return whether a difference is documented."""
    return False
