"""A picture as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..rulebook.rule import Rule
from .behavior import Behavior
from .sampling import Points

Array = Any
Role = Literal["forward", "derivative", "surrogate", "unchanged"]
DRAWS = 1000  # of a random rule, for its mean and its band


@dataclass(frozen=True, slots=True)
class Curve:
    """One line with its name.

    Attributes:
        points: the line, with breaks.
        group: curves of one number have one color; None: what all are compared with.
        dots: a single draw, of a random rule.
        band: what lies around the line.
    """

    name: str
    role: Role
    points: Points
    group: int | None = None
    dots: Points | None = None
    band: tuple[Array, Array] | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What is on one pair of axes; `is_vector`: the places are elements of one gradient."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    is_vector: bool = False


class Ruled(NamedTuple):
    """A rule with numbers for its params, and what it then does."""

    rule: Rule
    params: Mapping[str, Any]
    behavior: Behavior
