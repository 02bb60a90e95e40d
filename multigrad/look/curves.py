"""Curves of rules and Functions as data: lines, bands, dots and labels, computed by NumPy.

Points are denser where a curve is steep. A jump is narrowed until no screen can show its width, so
that no edge is smeared; of a random formula there are many draws. What a rule does is found by
trying it, whether it is captured or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..core.rules.rule import Rule
from ..core.support.params import read_params
from ..errors import MultigradError, RuleValueError

Array: TypeAlias = np.ndarray[Any, Any]

# --- what a rule does -----------------------------------------------------------------------------
SEED = 15  # of the gradients that a rule is tried on


@dataclass(frozen=True, slots=True)
class Behavior:
    """What a rule does, as trying it shows.

    Attributes:
        reads_tin: another input gives another gradient.
        is_linear: twice the gradient gives twice the result, its negative the negative one.
        is_elementwise: the other elements change nothing.
        is_random: another key gives another result.
    """

    reads_tin: bool
    is_linear: bool
    is_elementwise: bool
    is_random: bool

    @property
    def is_factor(self) -> bool:
        """Whether it multiplies each element of the gradient by a number of its own."""
        return self.is_linear and self.is_elementwise


def apply(
    rule: Rule, grad_out: Array, tin: Array | None, params: Mapping[str, Any], key: int = 0
) -> Array:
    keys = {} if rule.signature.takes("key") else {"key": key}
    return np.asarray(rule(None, grad_out, tin, **params, **keys))


def observe(rule: Rule, params: Mapping[str, Any]) -> Behavior:
    """Return a rule's behavior with these params.

    Raises:
        MultigradError: the rule does not accept them, or fails.
    """
    sizes = np.geomspace(1e-3, 12.0, 40)
    tin = by_size(np.concatenate([-sizes, [0.0], sizes]))
    grad_out = by_size(np.random.default_rng(SEED).standard_normal(tin.shape))
    # Zeros among them, for rules that look for signs; a few, for those that look at all.
    other_inputs = (tin + 0.37, np.zeros_like(tin), -tin)
    part = len(tin) // 3
    with naming(f"rule {rule.name!r}"):
        result = apply(rule, grad_out, tin, params)
        return Behavior(
            reads_tin=not all(same(result, apply(rule, grad_out, x, params)) for x in other_inputs),
            is_linear=same(2.0 * result, apply(rule, 2.0 * grad_out, tin, params))
            and same(-result, apply(rule, -grad_out, tin, params)),
            is_elementwise=same(result[:part], apply(rule, grad_out[:part], tin[:part], params)),
            is_random=not same(result, apply(rule, grad_out, tin, params, key=1)),
        )


@contextmanager
def naming(subject: str, advice: str = "") -> Iterator[None]:
    """Raise an error that names what is drawn if its code fails."""
    try:
        yield
    except MultigradError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise RuleValueError(
            f"{subject} cannot be drawn: on a row of numbers it fails: {error}{advice}"
        ) from error


def by_size(x: Array) -> Array:
    """Return numbers by magnitude: the first ones lack only the extremes."""
    return x[np.argsort(np.abs(x), kind="stable")]


def same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.allclose(one, other, 1e-9, 1e-12, equal_nan=True)


# --- points of a curve ----------------------------------------------------------------------------


Formula = Callable[[Array], Array]
POINTS = 401  # odd: zero is among them
STEEP = 0.01  # of the curve's height, between neighbors
CLOSE = 1e-9  # of the window's width: no picture shows less
MOST = 20_000  # points of one curve
ROUNDING = 1e-12  # a height below that part of the values is none
WINDOWS = (0.2, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0)  # half widths, the narrowest first
USUAL, WIDE = 2.0, 8.0  # half widths: of most curves, and of those that never end


class Points(NamedTuple):
    """A curve: at a break, and where it has no finite value, y is NaN."""

    x: Array
    y: Array

    def alone(self) -> Points:
        """Return the points between two breaks: a value that holds at one place."""
        gap = np.concatenate([[True], np.isnan(self.y), [True]])
        is_alone = ~gap[1:-1] & gap[:-2] & gap[2:]
        return Points(self.x[is_alone], self.y[is_alone])


def sample(formula: Formula, x: Array, *, refine: bool = True, steep: float = STEEP) -> Points:
    """Return a curve at the places x, in order, and between them where it is steep or jumps.

    Args:
        steep: the part of the curve's height that is not left to one line between two places.
        refine: False for a formula whose values depend on the other places: x alone is taken.
    """
    y = finite(formula(x))
    while refine and len(x) < MOST:
        # Halve steep intervals until they are flat, or too narrow for any screen: a jump.
        middle = np.flatnonzero(is_steep(y, steep) & (np.diff(x) > CLOSE * (x[-1] - x[0])))
        if not len(middle):
            break
        middles = 0.5 * (x[middle] + x[middle + 1])
        x = np.insert(x, middle + 1, middles)
        y = np.insert(y, middle + 1, finite(formula(middles)))
    if not refine:
        return Points(x, y)
    jumps = 1 + np.flatnonzero(is_steep(y, steep) & (np.diff(x) <= CLOSE * (x[-1] - x[0])))
    return Points(np.insert(x, jumps, x[jumps]), np.insert(y, jumps, np.nan))


def finite(y: Array) -> Array:
    return np.where(np.isfinite(y), y, np.nan)


def is_steep(y: Array, part: float) -> Array:
    """Return which intervals between neighbors span more than a part of the curve's height."""
    finite_y = y[np.isfinite(y)]
    height = np.ptp(finite_y) if len(finite_y) else 0.0
    # A height below the rounding of the values is that of a constant.
    height = height if height > ROUNDING * np.abs(finite_y).max(initial=0.0) else 0.0
    gap = np.abs(np.diff(y))
    return (gap > part * height) & (height > 0.0)


def grid(half_width: float = USUAL, points: int = POINTS) -> Array:
    return np.linspace(-half_width, half_width, points)


def choose_window(formula: Formula) -> float:
    """Return the half width that shows a curve: most of its ups and downs, and not a needle."""
    sizes = np.geomspace(1e-4, 64.0, 400)
    x = np.concatenate([-sizes[::-1], [0.0], sizes])
    change = np.nan_to_num(np.abs(np.diff(finite(formula(x)))))
    place, total = np.minimum(np.abs(x[:-1]), np.abs(x[1:])), change.sum()
    if total == 0.0:
        return USUAL
    for window in WINDOWS:
        left_out = change[place >= 0.6 * window].sum()
        at_zero = change[place < window / 50].sum()
        # A jump at zero alone looks the same in every window.
        if left_out <= 0.25 * total and (window >= USUAL or at_zero < 0.5 * total):
            return window
    return WIDE  # it goes on for ever


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
        return self.over == "vector"


class Ruled(NamedTuple):
    """A rule with numbers for its params, and what it then does."""

    rule: Rule
    params: Mapping[str, Any]
    behavior: Behavior


BAND = (5.0, 95.0)  # the percentiles between which the band of a random formula lies
DOTS = 161  # of one draw
STEEP_MEAN = 0.25  # a jump of a mean of draws; they scatter by a hundredth


def make_curve(
    formula: Callable[[Array], Array],
    x: Array,
    *,
    name: str,
    role: Role = "surrogate",
    group: int | None = None,
    is_random: bool = False,
    refine: bool = True,
) -> Curve:
    """Return a curve; of a random formula the mean of many draws, the band of most, and one draw.

    Args:
        formula: of an array of any shape, each element by itself.
        refine: see `sample`.
    """
    if not is_random:
        return Curve(name, role, sample(formula, x, steep=STEEP, refine=refine), group)
    places = x if len(x) <= DOTS else np.linspace(x[0], x[-1], DOTS)

    def mean(at: Array) -> Array:
        return formula(np.tile(at, (DRAWS, 1))).mean(axis=0)

    points = sample(mean, places, steep=STEEP_MEAN)
    draws = formula(np.tile(points.x, (DRAWS, 1)))
    low, high = np.where(np.isnan(points.y), np.nan, np.percentile(draws, BAND, axis=0))
    dots = Points(places, formula(places))
    return Curve(name, role, points, group, dots=dots, band=(low, high))


# --- what is asked for ----------------------------------------------------------------------------


MOST_CURVES = 12  # in one picture


def read_places(x: Any) -> Array:
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
        rows: a type that counts as a list of values; a Function takes arrays whole.
    """
    each: list[list[tuple[str, Any]]] = []
    for name, value in read_params(params).items():
        is_row = isinstance(value, list | range | rows) and np.ndim(value) == 1
        row = value.tolist() if isinstance(value, np.ndarray) else value
        values = list(row) if is_row else [value]
        each.append([(name, item) for item in values])
    chosen_params = [dict(pairs) for pairs in itertools.product(*each)]
    if not 0 < len(chosen_params) <= MOST_CURVES:
        raise RuleValueError(
            f"these params ask for {len(chosen_params)} curves; one picture has 1 to {MOST_CURVES}"
        )
    return chosen_params
