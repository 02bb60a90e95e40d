"""The numbers of a rule of relevance, checked where they are given.

No map of NaN tells which number made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...core.backend.discovery import backend_of
from ...core.support.params import Range
from ...errors import BackendNotFound, RuleTypeError, RuleValueError

NOT_NEGATIVE = Range.read(">= 0 and finite")
LIMITED = ("epsilon", "gamma", "alpha", "beta", "stabilizer")


def check_numbers(subject: str, numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if value is None or isinstance(value, Sequence):  # a str, too
            message = f"{subject}: param {name!r} is a number or a tensor, got {value!r:.40}"
            raise RuleTypeError(message)
        array = as_array(value)
        if array is None:
            continue
        if name in LIMITED:
            NOT_NEGATIVE.check(subject, name, float(array) if array.ndim == 0 else value)
        elif np.isnan(array).any():
            raise RuleValueError(f"{subject}: param {name!r} holds NaN; expected numbers")
    bounds: list[Any] = [as_array(numbers.get(name)) for name in ("low", "high")]
    low, high = bounds
    is_box = any(each is None for each in bounds)
    with suppress(ValueError):  # shapes that do not broadcast
        is_box = is_box or np.all(low <= high)
    if not is_box:
        raise RuleValueError(
            f"{subject}: param 'low' is <= high everywhere, got {numbers['low']!r:.40} and "
            f"{numbers['high']!r:.40}, of shapes {low.shape} and {high.shape}"
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
