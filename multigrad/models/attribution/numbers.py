"""The numbers of attribution, checked where they are given: no map of NaN says what made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...backend.finding.discovery import backend_of
from ...errors import BackendNotFound, RuleValueError
from ...graph.support.params import Range

Tensor = Any
NOT_NEGATIVE = Range.read(">= 0 and finite")
NAMES = ("epsilon", "gamma", "alpha", "beta", "stabilizer")
RANGES: Mapping[str, Range] = dict.fromkeys(NAMES, NOT_NEGATIVE)


def check_numbers(subject: str, numbers: Mapping[str, Any]) -> None:
    """Check a rule's numbers, as far as they are known.

    Raises:
        RuleValueError: one is out of its range.
    """
    for name, value in numbers.items():
        known = as_array(value)
        if known is None:
            continue
        if name in RANGES:
            RANGES[name].check(subject, name, float(known) if known.ndim == 0 else value)
        elif np.isnan(known).any():
            raise RuleValueError(f"{subject}: param {name!r} holds NaN; expected numbers")
    low, high = as_array(numbers.get("low")), as_array(numbers.get("high"))
    if low is not None and high is not None and not np.all(low <= high):
        raise RuleValueError(
            f"{subject}: param 'low' is <= high everywhere, got {numbers['low']!r:.40} and "
            f"{numbers['high']!r:.40}"
        )


def as_array(value: Any) -> Any:
    """Return a number or a tensor as an array; None: it is no number, or not known yet."""
    if isinstance(value, int | float | np.ndarray | np.number):
        return np.asarray(value)
    try:
        tensors = backend_of(value).tensors
    except BackendNotFound:
        return None
    return None if tensors.is_traced(value) else np.asarray(tensors.to_numpy(value))


def check_deviation(sigma: Any) -> None:
    """Check a deviation of noise, as far as it is known.

    Raises:
        RuleValueError: it is negative or not finite.
    """
    known = as_array(sigma)
    if known is not None and not (np.isfinite(known) & (known >= 0)).all():
        raise RuleValueError(f"sigma is a deviation, finite and 0 or more, not {sigma!r:.40}")


def check_baseline(x: Tensor, baseline: Any) -> None:
    """Check that a baseline is a number, or a tensor that broadcasts to x.

    Raises:
        RuleValueError: it is none.
    """
    own, given = tuple(x.shape), getattr(baseline, "shape", None)
    if given is None:
        if isinstance(baseline, bool | str) or not isinstance(baseline, int | float):
            raise RuleValueError(
                f"a baseline is a number or a tensor, not {type(baseline).__name__} "
                f"{baseline!r:.40}"
            )
        return
    last = own[len(own) - len(given) :]
    fits = len(given) <= len(own) and all(a in (1, b) for a, b in zip(given, last, strict=True))
    if not fits:
        raise RuleValueError(
            f"a baseline of shape {tuple(given)} does not broadcast to the input's shape {own}"
        )
