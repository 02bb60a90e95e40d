"""What a picture is asked for: the places, and a set of params for each curve."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import RuleValueError

Array = Any
MOST_CURVES = 12


def read_places(x: Any) -> Array:
    """Return the places to draw at, in order.

    Raises:
        RuleValueError: they are no numbers in one row, or fewer than two.
    """
    try:
        places = np.unique(np.asarray(x, np.float64)) if np.ndim(x) == 1 else np.empty(0)
    except (TypeError, ValueError):
        places = np.empty(0)
    if len(places) < 2 or not np.isfinite(places).all():
        raise RuleValueError(
            f"x is a row of at least two finite numbers, such as np.linspace(-3, 3, 301); got "
            f"{describe_value(x)}"
        )
    return places


def describe_value(x: Any) -> str:
    shape = getattr(x, "shape", None)
    return f"{x!r:.60}" if shape is None else f"shape {tuple(shape)}"


def spread(params: Mapping[str, Any] | None, rows: type = np.ndarray) -> list[dict[str, Any]]:
    """Return one set of params for each curve: each combination of the values in lists.

    Args:
        rows: what is a list of values too; a Function takes arrays as they are.

    Raises:
        RuleValueError: there are none, or too many for one picture.
    """
    each: list[list[tuple[str, Any]]] = []
    for name, value in (params or {}).items():
        is_row = isinstance(value, list | range | rows) and np.ndim(value) == 1
        row = value.tolist() if isinstance(value, np.ndarray) else value
        values = list(row) if is_row else [value]
        each.append([(name, one) for one in values])
    found = [dict(chosen) for chosen in itertools.product(*each)]
    if not 0 < len(found) <= MOST_CURVES:
        raise RuleValueError(
            f"these params ask for {len(found)} curves; one picture has 1 to {MOST_CURVES}"
        )
    return found
