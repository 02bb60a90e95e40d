"""The differences that the backends declare, as the tests consult them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from multigrad.cli.docs import DIFFERENCES
from multigrad.lowering.differences import Difference

DESIGNED = 4.0  # eps of the largest value on the way, unless a row says otherwise


def kept(backend: str, kind: str | None = None, what: str | None = None) -> list[Difference]:
    """The rows of a backend, of one kind and about one thing where these are given."""
    rows = import_module(DIFFERENCES[backend]).KEPT
    return [row for row in rows if kind in (None, row.kind) and what in (None, row.what)]


def allowed(backend: str, what: str, kind: str, dtype: Any) -> float:
    """How many eps a result may be off."""
    name = np.dtype(dtype).name
    rows = [row for row in kept(backend, kind, what) if row.ulps and name in row.dtypes]
    return max((row.ulps for row in rows if row.ulps), default=DESIGNED)
