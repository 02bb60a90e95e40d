"""A picture as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..rulebook.rule import Rule
from .behavior import Behavior
from .sampling import Points

Array = Any
Over = Literal["input", "gradient", "one", "vector"]
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
    """What is on one pair of axes.

    Attributes:
        over: what its places are: the forward's input; a gradient; a gradient of one element, of a
            rule that looks at all of it; the elements of one gradient.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    over: Over = "input"

    @property
    def is_vector(self) -> bool:
        """Whether its places are the elements of one gradient."""
        return self.over == "vector"


class Ruled(NamedTuple):
    """A rule with numbers for its params, and what it then does."""

    rule: Rule
    params: Mapping[str, Any]
    behavior: Behavior
