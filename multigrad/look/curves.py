"""Curves of rules and Functions as data: lines, bands, dots and labels, computed by NumPy.

Points are denser where a curve is steep. A jump is narrowed until no screen can show its width, so
that no edge is smeared; of a random formula there are many draws. What a rule does is found by
trying it, whether it is captured or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..capture.user_code.signature import unknown_param
from ..errors import MultigradError, RuleTypeError, RuleValueError
from ..functions.function import Function
from ..rules.activation import Activation
from ..rules.model.activation_function import as_forward, put_under
from ..rules.model.rule import Rule
from ..rules.registry import resolve
from ..rules.vjp import vjp

Array = Any
SIDES = (-1.0, 1.0)  # values of tin, for rules that look at its sign beside the gradient
INPUT, OVER_INPUT = "input tin", "factor d(tin) = grad_in / grad_out"
ARRIVING, PASSED_ON = "grad_out (arrives)", "grad_in (is passed on)"


def make_picture(
    what: Any,
    forward: Any = None,
    params: Mapping[str, Any] | None = None,
    x: Any = None,
    key: int = 0,
) -> Picture:
    """Return the picture that `xg.plot` draws; the arguments are explained there."""
    places = None if x is None else read_places(x)
    inner = getattr(what, "_activation", what)  # of a module or layer
    if isinstance(inner, Activation):
        if inner.rule is None:
            raise RuleValueError("this activation has no rule of its own; plot a rule by its name")
        forward = inner.forward if forward is None else forward
        inner, params = inner.rule, {**inner.params, **(params or {})}
    if isinstance(inner, Function):
        if forward is not None:
            raise RuleTypeError(f"{inner.name} is a Function, which has a forward of its own")
        return of_function(inner, spread(params, list), places, key)
    given = list(inner) if isinstance(inner, list | tuple) else [inner]
    if not given:
        raise RuleValueError("plot got no rule; name one, such as 'triangular'")
    return of_rules([resolve(each) for each in given], forward, spread(params), places, key)


# --- rules --------------------------------------------------------------------------------------


def of_rules(
    rules: Sequence[Rule],
    forward: Any,
    spreads: Sequence[Mapping[str, Any]],
    x: Array | None,
    key: int,
) -> Picture:
    """Return the picture of some rules, each with each set of the params that it takes."""
    for name in spreads[0]:
        if not any(rule.signature.takes(name) for rule in rules):
            raise unknown_param(rules[0].name, name, sorted(rules[0].params))
    ruled: list[Ruled] = []
    for rule in rules:
        sets = [{k: v for k, v in each.items() if rule.signature.takes(k)} for each in spreads]
        for i, params in enumerate(sets):
            # A rule that does not take a spread param would be drawn several times.
            if params not in sets[:i]:
                ruled.append(Ruled(rule, params, observe(rule, params)))
    if len(ruled) > MOST_CURVES:
        raise RuleValueError(f"{len(ruled)} curves; one picture has 1 to {MOST_CURVES}")
    names = name_curves(ruled, len(rules) > 1)
    title = make_title(ruled, forward)
    # Rules that multiply the gradient are drawn over the input, others over the gradient.
    if all(each.behavior.is_factor for each in ruled) and (
        forward is not None or any(each.behavior.reads_tin for each in ruled)
    ):
        return over_input(ruled, names, title=title, forward=forward, x=x, key=key)
    if forward is not None:
        first = next(each.rule.name for each in ruled if not each.behavior.is_factor)
        raise RuleTypeError(
            f"rule {first!r} does not multiply each gradient by a number, so it has no curve over "
            "the input; plot it without forward"
        )
    if all(each.behavior.is_elementwise or is_told_by_one(each) for each in ruled):
        return over_gradient(ruled, names, title, x, key)
    return of_vector(ruled, names, title, key)


def over_input(
    ruled: Sequence[Ruled],
    names: Sequence[str],
    *,
    title: str,
    forward: Any,
    x: Array | None,
    key: int,
) -> Picture:
    factors = [factor_of(each, key) for each in ruled]
    if x is None:
        # A random factor is too rough to choose a window by.
        calm = [f for f, each in zip(factors, ruled, strict=True) if not each.behavior.is_random]
        x = grid(max(map(choose_window, calm), default=8.0))
    curves = [] if forward is None else forward_curves(forward, x)
    for group, (each, factor, name) in enumerate(zip(ruled, factors, names, strict=True)):
        named = f"surrogate {name}" if forward is not None and name else name or each.rule.name
        curves.append(draw(each, factor, x, name=named, group=group))
    y_label = OVER_INPUT if forward is None else "value; surrogate: factor d(tin)"
    return Picture(title, INPUT, y_label, tuple(curves))


def factor_of(each: Ruled, key: int) -> Callable[[Array], Array]:
    def factor(tin: Array) -> Array:
        return apply(each.rule, np.ones_like(tin), tin, each.params, key)

    return factor


def draw(
    each: Ruled, formula: Callable[[Array], Array], x: Array, *, name: str, group: int
) -> Curve:
    random, refine = each.behavior.is_random, each.behavior.is_elementwise
    return make_curve(formula, x, name=name, group=group, is_random=random, refine=refine)


def forward_curves(forward: Any, x: Array) -> list[Curve]:
    """Return an activation and its true derivative, whatever rule is in force."""
    row = as_forward(forward)
    function = put_under(None, row)

    def derivative(tin: Array) -> Array:
        return vjp(function, tin)[1](np.ones_like(tin))[0]

    return [
        Curve(f"forward {row.name}", "forward", sample(function, x)),
        Curve("true derivative", "derivative", sample(derivative, x)),
    ]


def over_gradient(
    ruled: Sequence[Ruled], names: Sequence[str], title: str, x: Array | None, key: int
) -> Picture:
    """Return a picture of the gradient passed on over the one that arrives, by the sign of tin."""
    x = grid() if x is None else x
    curves = [Curve("unchanged", "unchanged", Points(x, x))]
    alone = any(not each.behavior.is_elementwise for each in ruled)
    for each, name in zip(ruled, names, strict=True):
        for tin in SIDES if each.behavior.reads_tin else (0.0,):
            side = f"tin = {tin:g}" if each.behavior.reads_tin else ""
            named = ", ".join(filter(None, (name, side))) or each.rule.name
            formula, group = passed_on(each, tin, key), len(curves) - 1
            curves.append(draw(each, formula, x, name=named, group=group))
    arriving = "grad_out, a gradient of one element" if alone else ARRIVING
    return Picture(title, arriving, PASSED_ON, tuple(curves), "one" if alone else "gradient")


def passed_on(each: Ruled, tin: float, key: int) -> Callable[[Array], Array]:
    """Return a rule as a function of gradients; if it uses all elements, each is given alone."""

    def formula(grad_out: Array) -> Array:
        if each.behavior.is_elementwise:
            return apply(each.rule, grad_out, np.full_like(grad_out, tin), each.params, key)
        ones = grad_out.reshape(-1, 1)
        return np.concatenate(
            [apply(each.rule, one, np.full_like(one, tin), each.params, key) for one in ones]
        )

    return formula


def is_told_by_one(each: Ruled) -> bool:
    """Return whether gradients of one element show what a rule does to a larger one."""
    if each.behavior.is_random or each.behavior.reads_tin:
        return False
    places = grid(points=9)
    passed = passed_on(each, 0.0, 0)(places)
    return bool(np.any(passed)) and not np.allclose(passed, places)


def of_vector(ruled: Sequence[Ruled], names: Sequence[str], title: str, key: int) -> Picture:
    """Return an example gradient before and after rules that look at all of it."""
    places = np.arange(len(EXAMPLE), dtype=np.float64)
    tin = np.linspace(-2.0, 2.0, len(EXAMPLE))
    curves = [Curve("grad_out, before", "unchanged", Points(places, EXAMPLE))]
    for group, (each, name) in enumerate(zip(ruled, names, strict=True)):
        after = apply(each.rule, EXAMPLE, tin, each.params, key)
        named = f"grad_in, after {name or each.rule.name}"
        curves.append(Curve(named, "surrogate", Points(places, after), group))
    return Picture(title, "element", "gradient", tuple(curves), "vector")


# --- pictures of Functions ------------------------------------------------------------------------
# A vector, for Functions and rules that look at all of it.
EXAMPLE = np.array([0.9, -0.4, 1.6, 0.2, -1.2, 0.7, 2.2, -0.1, -0.8, 0.5, 1.1, -1.9])


Values = Callable[..., tuple[Array, Array]]


def values_of(function: Function, params: Mapping[str, Any], seed: int) -> Values:
    """Return `(x, key=0)` -> the output, and the gradient for x where each element's is 1."""

    def values(x: Array, key: int = 0) -> tuple[Array, Array]:
        keyed = function.keyed(seed + key)
        outputs, pull = vjp(keyed.bind(params) if params else keyed, x)
        if not isinstance(outputs, tuple | list):
            return np.asarray(outputs), pull(np.ones_like(outputs))[0]
        first, *others = outputs
        nested = type(outputs)([np.ones_like(first), *(None for _ in others)])
        return np.asarray(first), pull(nested)[0]

    return values


class FunctionCurve(NamedTuple):
    """A Function with values for its other arguments, and what it does.

    Attributes:
        is_elementwise: the other elements change nothing.
        is_random: another key gives another output, another gradient.
    """

    values: Values
    params: Mapping[str, Any]
    is_elementwise: bool
    is_random: tuple[bool, bool]

    def part(self, which: int) -> Formula:
        return lambda x: self.values(x)[which]


def of_function(
    function: Function, spreads: Sequence[Mapping[str, Any]], x: Array | None, key: int
) -> Picture:
    x = grid() if x is None else x
    applied = [observe_function(function, params, x, key) for params in spreads]
    several = len(applied) > 1
    params = "" if several or not spreads[0] else f" ({format_params(spreads[0])})"
    title = f"{function.name}{params}"
    if any(any(each.is_random) for each in applied):
        title += say_random(mean=all(each.is_elementwise for each in applied))
    name = next(iter(function.parameters.parameters if function.parameters else ()), "x")
    if not all(each.is_elementwise for each in applied):
        curves = vector_curves(applied, name)
        return Picture(title, "element", "value; gradient", tuple(curves), "vector")
    curves = []
    for group, each in enumerate(applied):
        of = f", {format_params(each.params)}" if several else ""
        more = {"role": "forward", "group": group if several else None}
        for i, part in enumerate(("forward", "gradient")):
            told = {"name": f"{part}{of}", "is_random": each.is_random[i], **more}
            curves.append(make_curve(each.part(i), x, **told))
            more = {"role": "surrogate", "group": group}
    y_label = f"value; gradient for {name} where the output's is 1"
    return Picture(title, f"input {name}", y_label, tuple(curves))


def observe_function(
    function: Function, params: Mapping[str, Any], x: Array, key: int
) -> FunctionCurve:
    values = values_of(function, params, key)
    with naming(function.name, "; give its other arguments as params={...}"):
        output, _ = values(x)
    if np.shape(output) != x.shape:
        raise RuleValueError(
            f"{function.name} has no curve: of {len(x)} numbers it makes shape {np.shape(output)}"
        )
    # A part of the row, a column and another key show how the Function treats its elements.
    x, count = by_size(x), max(len(x) // 3, 1)
    pairs = values(x)
    parts, columns, others = values(x[:count]), of_columns(values, x), values(x, key=1)
    alike = [same(a[:count], b) for a, b in zip(pairs, parts, strict=True)]
    alike += map(same, pairs, columns)
    output, gradient = (not same(a, b) for a, b in zip(pairs, others, strict=True))
    return FunctionCurve(values, params, all(alike), (output, gradient))


def of_columns(values: Values, x: Array) -> tuple[Array, Array]:
    """Return output and gradient of a column, or of the row if the Function takes no column."""
    try:
        output, gradient = values(x.reshape(-1, 1))
    except Exception:  # a user's code may raise anything
        return values(x)
    return output.reshape(-1), gradient.reshape(-1)


def vector_curves(applied: Sequence[FunctionCurve], name: str) -> list[Curve]:
    places = np.arange(len(EXAMPLE), dtype=np.float64)
    curves = [Curve(f"input {name}", "unchanged", Points(places, EXAMPLE))]
    for i, each in enumerate(applied):
        of = f", {format_params(each.params)}" if len(applied) > 1 else ""
        columns = of_columns(each.values, EXAMPLE)
        # A softmax over the last axis of a column is constant: then the row shows more.
        values = columns if np.ptp(columns[0]) > 0 else each.values(EXAMPLE)
        for part, ys in zip(("forward", "gradient"), values, strict=True):
            group = 2 * i + (part == "gradient")
            curves.append(Curve(f"{part}{of}", "surrogate", Points(places, ys), group))
    return curves


# --- titles and names of curves -------------------------------------------------------------------


def format_params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={format_value(value)}" for name, value in params.items())


def format_value(value: Any) -> str:
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"


def name_curves(ruled: Sequence[Ruled], several: bool) -> list[str]:
    varied = {
        name
        for each in ruled
        for name in each.params
        if any(each.params[name] != other.params.get(name) for other in ruled)
    }
    names = []
    for each in ruled:
        own = format_params({k: v for k, v in each.params.items() if k in varied})
        words = (each.rule.name, f"({own})" if own else "") if several else (own,)
        names.append(" ".join(filter(None, words)))
    return names


def make_title(ruled: Sequence[Ruled], forward: Any) -> str:
    """Return a picture's title: the rules, with the params that all curves share."""
    first = ruled[0]
    names = dict.fromkeys(each.rule.name for each in ruled)
    if len(names) == 1:
        shared = {**first.rule.params, **first.params}
        shared = {
            name: value
            for name, value in shared.items()
            if all(each.params.get(name, value) == value for each in ruled)
        }
        bound = format_params({**first.rule.bound, **shared})
        title = f"{first.rule.name} ({bound})" if bound else first.rule.name
    else:
        title = ", ".join(names) if len(names) <= 3 else f"{len(names)} rules"
    title += f" under {as_forward(forward).name}" if forward is not None else ""
    return title + (say_random() if any(each.behavior.is_random for each in ruled) else "")


def say_random(mean: bool = True) -> str:
    """Return the line of a title that says how random curves are drawn."""
    return (
        f"\none draw (dots), mean of {DRAWS} and where 90 % of them lie" if mean else "\none draw"
    )


# --- what a rule does -----------------------------------------------------------------------------
SEED = 15


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
    """Return the gradient that a rule gives, its draws by a key."""
    keys = {} if rule.signature.takes("key") else {"key": key}
    return np.asarray(rule(None, grad_out, tin, **params, **keys))


def observe(rule: Rule, params: Mapping[str, Any]) -> Behavior:
    """Return a rule's behavior with these params.

    Raises:
        MultigradError: the rule does not accept them, or fails.
    """
    with naming(f"rule {rule.name!r}"):
        return _observe(rule, params)


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


def _observe(rule: Rule, params: Mapping[str, Any]) -> Behavior:
    sizes = np.geomspace(1e-3, 12.0, 40)
    tin = by_size(np.concatenate([-sizes, [0.0], sizes]))
    grad_out = by_size(np.random.default_rng(SEED).standard_normal(tin.shape))
    result = apply(rule, grad_out, tin, params)
    # Zeros among them, for rules that look for signs; a few, for those that look at all.
    others = (tin + 0.37, np.zeros_like(tin), -tin)
    few = len(tin) // 3
    return Behavior(
        reads_tin=not all(same(result, apply(rule, grad_out, x, params)) for x in others),
        is_linear=same(2.0 * result, apply(rule, 2.0 * grad_out, tin, params))
        and same(-result, apply(rule, -grad_out, tin, params)),
        is_elementwise=same(result[:few], apply(rule, grad_out[:few], tin[:few], params)),
        is_random=not same(result, apply(rule, grad_out, tin, params, key=1)),
    )


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
MOST = 20_000
ROUNDING = 1e-12  # a height below that part of the values is none
WINDOWS = (0.2, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0)
USUAL, WIDE = 2.0, 8.0


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
        between = 0.5 * (x[middle] + x[middle + 1])
        x = np.insert(x, middle + 1, between)
        y = np.insert(y, middle + 1, finite(formula(between)))
    if not refine:
        return Points(x, y)
    jumps = 1 + np.flatnonzero(is_steep(y, steep) & (np.diff(x) <= CLOSE * (x[-1] - x[0])))
    return Points(np.insert(x, jumps, x[jumps]), np.insert(y, jumps, np.nan))


def finite(y: Array) -> Array:
    return np.where(np.isfinite(y), y, np.nan)


def is_steep(y: Array, part: float) -> Array:
    """Return which intervals between neighbors span more than a part of the curve's height."""
    known = y[np.isfinite(y)]
    height = np.ptp(known) if len(known) else 0.0
    # A height below the rounding of the values is that of a constant.
    height = height if height > ROUNDING * np.abs(known).max(initial=0.0) else 0.0
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
DOTS = 161
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


MOST_CURVES = 12


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
    for name, value in (params or {}).items():
        is_row = isinstance(value, list | range | rows) and np.ndim(value) == 1
        row = value.tolist() if isinstance(value, np.ndarray) else value
        values = list(row) if is_row else [value]
        each.append([(name, one) for one in values])
    chosen_params = [dict(chosen) for chosen in itertools.product(*each)]
    if not 0 < len(chosen_params) <= MOST_CURVES:
        raise RuleValueError(
            f"these params ask for {len(chosen_params)} curves; one picture has 1 to {MOST_CURVES}"
        )
    return chosen_params
