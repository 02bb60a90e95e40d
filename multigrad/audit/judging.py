"""What judges of laws share.

A judge returns "" or a remark where its law is kept, else what it saw; it raises `NotApplicable`
where the law says nothing about a case, and whatever the code itself raises is that code's refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .trial import Arrays, Run, Trial

Weigh = Callable[[Arrays], float]


class NotApplicable(Exception):
    """A law says nothing about a case, for the reason that is its message."""


class Remark(str):
    """What is said where a law is kept: it is false, as "" is."""

    def __bool__(self) -> bool:
        return False


def worst(found: Arrays, wanted: Arrays, loose: float, noise: float = 0.0) -> str:
    """Return where two lists of gradients are furthest apart, "" where they agree.

    Args:
        loose: what may be between them, relative to the largest of a gradient.
        noise: what may be between them besides, where large terms cancel.
    """
    for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if got is None or want is None:
            if (got is None) != (want is None):
                return f"argument {n} has {'no' if got is None else 'a'} gradient"
            continue
        if got.shape != want.shape:
            return f"argument {n}: shape {got.shape}, expected {want.shape}"
        if got.dtype.kind not in "fV" and got.dtype.name != "bfloat16":
            continue
        a, b = got.astype(np.float64), want.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        allowed = loose * (finite.max(initial=0.0) + np.finfo(np.float64).tiny) + noise
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
        if not same.all():
            error = np.where(same, -1.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
            place = tuple(int(i) for i in np.unravel_index(int(error.argmax()), a.shape))
            where = "".join(f"[{i}]" for i in place)
            return f"argument {n}{where}: {a[place]:.9g}, expected {b[place]:.9g}"
    return ""


def exactly(found: Arrays, wanted: Arrays) -> str:
    """Return the same where not even a rounding may be between them."""
    return worst(found, wanted, 0.0)


def differ(a: Any, b: Any) -> Any:
    """Return where two arrays hold other numbers; NaN is like NaN."""
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def scaled(arrays: Arrays, factor: float) -> Arrays:
    """Return arrays times a number, in their dtypes."""
    return [None if a is None else (a * a.dtype.type(factor)).astype(a.dtype) for a in arrays]


def start(trial: Trial) -> tuple[Run, Arrays]:
    """Return a forward in the widest dtype, and cotangents for it."""
    run = trial.run(trial.cast(trial.wide))
    if not run.outputs:
        raise NotApplicable("it has no float output")
    return run, trial.cotangents(run)


# --- what differences are taken of ----------------------------------------------------------------


def weighed(trial: Trial, cotangents: Arrays) -> Weigh:
    """Return the sum of the outputs, times these numbers, as a function of the tensors."""

    def weigh(given: Arrays) -> float:
        outputs = trial.run(given).arrays()
        pairs = zip(cotangents, outputs, strict=True)
        return float(sum(np.sum(c.astype(np.float64) * y.astype(np.float64)) for c, y in pairs))

    return weigh


def moved_along(weigh: Weigh, arrays: Arrays, ways: Mapping[int, Any]) -> Callable[[float], float]:
    """Return what is weighed some steps away, each tensor in a direction of its own or not at
    all.
    """

    def moved(steps: float) -> float:
        ends = [
            (a + steps * ways[n]).astype(a.dtype) if n in ways else a for n, a in enumerate(arrays)
        ]
        return weigh(ends)

    return moved
