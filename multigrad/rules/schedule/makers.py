"""What people call to make a schedule, and the way back from saved ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import FormatError, RuleTypeError, RuleValueError, suggest
from .arguments import find_function, read_number, read_whole
from .schedule import Schedule


def linear(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """start + (end - start) * min((step - begin) / steps, 1), and start before begin.

    Examples:
        >>> width = xg.schedule.linear(2.0, 0.5, steps=100)
        >>> [width(step) for step in (0, 50, 100, 200)]
        [2.0, 1.25, 0.5, 0.5]

    Raises:
        RuleTypeError: an argument is not a number.
        RuleValueError: one is NaN or infinite, steps is not above 0, or begin is negative.
    """
    numbers = {
        "start": read_number("linear: start", start),
        "end": read_number("linear: end", end),
        "steps": read_whole("linear: steps", steps, 1),
        "begin": read_whole("linear: begin", begin, 0),
    }
    return Schedule("linear", numbers)


def cosine(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """end + (start - end) * (1 + cos(pi * min((step - begin) / steps, 1))) / 2: half a cosine.

    Args, errors: as for `linear`.

    Examples:
        >>> width = xg.schedule.cosine(2.0, 0.0, steps=100)
        >>> [round(width(step), 3) for step in (0, 25, 50, 100)]
        [2.0, 1.707, 1.0, 0.0]
    """
    numbers = {
        "start": read_number("cosine: start", start),
        "end": read_number("cosine: end", end),
        "steps": read_whole("cosine: steps", steps, 1),
        "begin": read_whole("cosine: begin", begin, 0),
    }
    return Schedule("cosine", numbers)


def exponential(
    start: float,
    rate: float,
    every: int = 1,
    staircase: bool = False,
    end: float | None = None,
    begin: int = 0,
) -> Schedule:
    """start * rate ** ((step - begin) / every), and start before begin; `optax.exponential_decay`.

    Examples:
        >>> width = xg.schedule.exponential(1.0, 0.5, every=10, staircase=True)
        >>> [width(step) for step in (0, 9, 10, 25)]
        [1.0, 1.0, 0.5, 0.25]

    Args:
        start: the first value.
        rate: what the value is multiplied by after each `every` steps; above 0.
        every: how many steps that takes.
        staircase: whether the value stays the same in between.
        end: where it stops.
        begin: the step at which it begins.

    Raises:
        RuleTypeError: an argument is not a number.
        RuleValueError: one is NaN or infinite, or below its range.
    """
    if not isinstance(staircase, bool):
        raise RuleTypeError(f"exponential: staircase is a bool, got {staircase!r:.40}")
    numbers = {
        "start": read_number("exponential: start", start),
        "rate": read_number("exponential: rate", rate),
        "every": read_whole("exponential: every", every, 1),
        "staircase": staircase,
        "end": None if end is None else read_number("exponential: end", end),
        "begin": read_whole("exponential: begin", begin, 0),
    }
    if numbers["rate"] <= 0.0:
        raise RuleValueError(f"exponential: rate is > 0, got {rate!r}")
    return Schedule("exponential", numbers)


def piecewise(
    boundaries: Mapping[int, float] | Iterable[int], values: Iterable[float] | None = None
) -> Schedule:
    """Values that hold until the next one's first step: `piecewise({0: 1.0, 100: 0.5})`.

    Examples:
        >>> width = xg.schedule.piecewise([100, 200], [1.0, 0.5, 0.25])
        >>> [width(step) for step in (0, 99, 100, 200)]
        [1.0, 1.0, 0.5, 0.25]

    Args:
        boundaries: values by their first step, one of which is 0; or the first steps of all values
            but the first.
        values: then the values, one more than the boundaries.

    Raises:
        RuleTypeError: there is not a number in a place of one.
        RuleValueError: the steps do not ascend from 0, or the lengths do not fit.
    """
    if isinstance(boundaries, Mapping):
        if values is not None:
            raise RuleTypeError("piecewise takes values by first step, or boundaries and values")
        pairs = sorted((read_whole("piecewise: a step", k, 0), v) for k, v in boundaries.items())
        if not pairs or pairs[0][0] != 0:
            raise RuleValueError(f"piecewise needs the value at step 0, got {boundaries!r:.60}")
        steps, given = [step for step, _ in pairs[1:]], [value for _, value in pairs]
    elif values is None or not _are_items(boundaries) or not _are_items(values):
        raise RuleTypeError(
            "piecewise takes values by first step, {0: 1.0, 100: 0.5}, or boundaries and values, "
            f"[100], [1.0, 0.5]; got {boundaries!r:.40}, {values!r:.40}"
        )
    else:
        steps = [read_whole("piecewise: a boundary", step, 1) for step in boundaries]
        given = list(values)
    if len(given) != len(steps) + 1:
        raise RuleValueError(
            f"piecewise takes one value more than boundaries, got {len(given)} and {len(steps)}"
        )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise RuleValueError(f"piecewise: the boundaries ascend, got {steps}")
    numbers = tuple(read_number("piecewise: a value", value) for value in given)
    return Schedule("piecewise", {"boundaries": tuple(steps), "values": numbers})


def of(fn: Callable[[Any], Any]) -> Schedule:
    """fn(step), for any function of the step: an int gives a number; asked for a tensor, a tensor.

    Schedules of optax are such functions. `step()` calls it, once per step.

    Examples:
        >>> width = xg.schedule.of(lambda step: 1.0 / (1 + step))
        >>> width.step(3)
        >>> width.value
        0.25

    Raises:
        RuleTypeError: it is not a function, or gives no number at step 0.
        RuleValueError: it gives NaN or infinity there.
    """
    if isinstance(fn, Schedule) or not callable(fn):
        raise RuleTypeError(f"of: fn is a function of the step, got {fn!r:.60}")
    return Schedule("of", {"fn": fn})


MAKERS: dict[str, Callable[..., Schedule]] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "piecewise": piecewise,
}


def from_dict(data: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `to_dict` described, with its count.

    Nothing is imported: the function of an `of` must be in a module that is imported already.

    Examples:
        >>> data = {"schedule": "linear", "start": 1.0, "end": 0.0, "steps": 4}
        >>> width = xg.schedule.from_dict(data)
        >>> width.step()
        >>> width
        linear(start=1.0, end=0.0, steps=4, begin=0) at step 1: 0.75

    Raises:
        FormatError: it does not describe a schedule.
    """
    kind = data.get("schedule") if isinstance(data, Mapping) else None
    if kind not in (*MAKERS, "of"):
        known = suggest(str(kind), [*MAKERS, "of"])
        raise FormatError(f"no schedule {kind!r:.60}{known} (schedules: {', '.join(MAKERS)}, of)")
    numbers = {name: each for name, each in data.items() if name not in ("schedule", "count")}
    try:
        schedule = of(find_function(**numbers)) if kind == "of" else MAKERS[kind](**numbers)
        count = read_whole("count", data.get("count", 0), 0)
        return Schedule(kind, schedule._numbers, count)
    except (TypeError, ValueError) as error:
        raise FormatError(f"a saved schedule is malformed: {error}") from error


def _are_items(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
