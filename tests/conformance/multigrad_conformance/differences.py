"""The differences that the backends declare, as the tests consult them."""

from __future__ import annotations

from typing import Any

import numpy as np

from multigrad.core.backend.discovery import load_backend
from multigrad.engine.backend.differences import Difference

DESIGNED = 4.0  # eps of the largest value on the way, unless a row says otherwise


def kept(backend: str, kind: str | None = None, what: str | None = None) -> list[Difference]:
    """The rows of a backend, of one kind and about one thing where these are given."""
    rows = load_backend(backend).differences.kept
    return [row for row in rows if kind in (None, row.kind) and what in (None, row.what)]


def allowed(backend: str, what: str, kind: str, dtype: Any) -> float:
    """How many eps a result may be off."""
    name = np.dtype(dtype).name
    rows = [row for row in kept(backend, kind, what) if row.ulps and name in row.dtypes]
    return max((row.ulps for row in rows if row.ulps), default=DESIGNED)


def flushes(backend: str, dtype: Any) -> bool:
    """Whether numbers below the smallest normal one are taken for zero."""
    rows = kept(backend, "subnormals", "*")
    return any(np.dtype(dtype).name in row.dtypes for row in rows)


def regroups(backend: str) -> bool:
    """Whether compiled code may not overflow where its ops, one by one, do."""
    return bool(kept(backend, "compiled", "*"))


def unsettled(backend: str, what: str, x: Any, params: dict[str, Any] | None = None) -> Any:
    """The mask of the elements of which the backend promises nothing, for an activation, its op, or
    a rule.
    """
    mask = np.zeros(x.shape, bool)
    for row in kept(backend):
        is_meant = row.what.lower() == what.lower() and x.dtype.name in row.dtypes
        if row.unsettled is not None and is_meant:
            mask |= row.unsettled(x, params or {})
    return mask
