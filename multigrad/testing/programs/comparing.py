"""Comparing what a backend gives with what may come out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bounded import INT32, INT64, Bounded

Array = Any


@dataclass
class Tally:
    """What has been run."""

    programs: int = 0
    elements: int = 0
    compared: int = 0
    ops: Counter[str] = field(default_factory=Counter)


def compare(actual: Array, expected: Bounded, tally: Tally) -> str:
    """Say what is wrong; nothing, where all is right."""
    narrow = (actual.dtype, expected.dtype) == (INT32, INT64)  # JAX, without int64
    if actual.dtype != expected.dtype and not narrow:
        return f"dtype {actual.dtype}, not {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    got, want = np.asarray(actual, np.float64), np.asarray(expected.value, np.float64)
    limit = np.broadcast_to(expected.error, want.shape)
    if actual.dtype == bool:
        limit = np.where(limit > 0, np.inf, 0.0)
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        wrong = ~(same | (np.abs(got - want) <= limit) | np.isinf(limit))
    tally.elements += got.size
    tally.compared += int(np.sum(~np.isinf(limit)))
    if not np.any(wrong):
        return ""
    places = [tuple(map(int, index)) for index in np.argwhere(wrong)[:4]]
    rows = [f"{at}: {got[at]}, expected {want[at]} +- {limit[at]:.3g}" for at in places]
    return f"{np.sum(wrong)} of {wrong.size} differ\n  " + "\n  ".join(rows)
