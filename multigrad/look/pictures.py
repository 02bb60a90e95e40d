"""Pictures of rules and Functions as data: which curves are drawn over what, and their names.

NumPy computes all of it, as the reference; no framework is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.rules.activation import Activation
from ..core.rules.activation_function import as_forward, put_under
from ..core.rules.registry import resolve
from ..core.rules.rule import Rule
from ..core.rules.signature import unknown_param
from ..core.rules.vjp import vjp
from ..core.trace.active_rules import Moving
from ..engine.functions.function import Function, as_function
from ..errors import RuleTypeError, RuleValueError
from .curves import (
    DRAWS,
    MOST_CURVES,
    Curve,
    Formula,
    Picture,
    Points,
    Ruled,
    apply,
    by_size,
    choose_window,
    grid,
    make_curve,
    naming,
    observe,
    read_places,
    same,
    sample,
    spread,
)

Array: TypeAlias = np.ndarray[Any, Any]
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
    whats = what if isinstance(what, list | tuple) else [what]
    rules = [getattr(each, "_activation", each) for each in whats]  # of modules and layers
    activations = [each for each in rules if isinstance(each, Activation)]
    if forward is None and len({each.forward for each in activations}) == 1:
        forward = activations[0].forward
    for i, each in enumerate(rules):
        if isinstance(each, Activation):
            if each.rule is None:
                raise RuleValueError("this activation has no own rule; plot a rule by its name")
            own = {name: v for name, v in each.params.items() if name not in (params or {})}
            rules[i] = resolve(each.rule).with_params(**own)
        elif isinstance(each, Function):
            if len(rules) > 1:
                raise RuleTypeError(
                    f"{each.name} is a Function, whose curves have axes of their own: plot it alone"
                )
            if forward is not None:
                raise RuleTypeError(f"{each.name} is a Function, which has a forward of its own")
            return of_function(each, spread(params, list), places, key)
    if not rules:
        raise RuleValueError("plot got no rule; name one, such as 'triangular'")
    return of_rules([resolve(each) for each in rules], forward, spread(params), places, key)


# --- rules --------------------------------------------------------------------------------------


def of_rules(
    rules: Sequence[Rule],
    forward: Any,
    spreads: Sequence[Mapping[str, Any]],
    x: Array | None,
    key: int,
) -> Picture:
    for name in spreads[0]:
        if not any(rule.signature.takes(name) for rule in rules):
            raise unknown_param(rules[0].name, name, sorted(rules[0].params))
    rows: list[Ruled] = []
    for rule in rules:
        sets = [{k: v for k, v in each.items() if rule.signature.takes(k)} for each in spreads]
        for i, params in enumerate(sets):
            # A rule that does not take a spread param would be drawn several times.
            if params not in sets[:i]:
                rows.append(Ruled(rule, params, observe(rule, params)))
    if len(rows) > MOST_CURVES:
        raise RuleValueError(f"{len(rows)} curves; one picture has 1 to {MOST_CURVES}")
    names = name_curves(rows, len(rules) > 1)
    title = make_title(rows, forward)
    # Rules that multiply the gradient are drawn over the input, others over the gradient.
    if all(each.behavior.is_factor for each in rows) and (
        forward is not None or any(each.behavior.reads_tin for each in rows)
    ):
        return over_input(rows, names, title=title, forward=forward, x=x, key=key)
    if forward is not None:
        culprit = next(each.rule.name for each in rows if not each.behavior.is_factor)
        raise RuleTypeError(
            f"rule {culprit!r} does not multiply each gradient by a number, so it has no curve "
            "over the input; plot it without forward"
        )
    if all(each.behavior.is_elementwise or is_told_by_one(each) for each in rows):
        return over_gradient(rows, names, title, x, key)
    return of_vector(rows, names, title, key)


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
        steady = [f for f, each in zip(factors, ruled, strict=True) if not each.behavior.is_random]
        x = grid(max(map(choose_window, steady), default=8.0))
    curves = [] if forward is None else forward_curves(forward, x)
    for group, (each, factor, name) in enumerate(zip(ruled, factors, names, strict=True)):
        label = f"surrogate {name}" if forward is not None and name else name or each.rule.name
        curves.append(draw(each, factor, x, name=label, group=group))
    y_label = OVER_INPUT if forward is None else "value; surrogate: factor d(tin)"
    return Picture(title, INPUT, y_label, tuple(curves))


def factor_of(each: Ruled, key: int) -> Callable[[Array], Array]:
    def factor(tin: Array) -> Array:
        return apply(each.rule, np.ones_like(tin), tin, each.params, key)

    return factor


def draw(
    each: Ruled, formula: Callable[[Array], Array], x: Array, *, name: str, group: int
) -> Curve:
    is_random, refines = each.behavior.is_random, each.behavior.is_elementwise
    return make_curve(formula, x, name=name, group=group, is_random=is_random, refine=refines)


def forward_curves(forward: Any, x: Array) -> list[Curve]:
    """Return an activation and its true derivative, whatever rule is in force."""
    row = as_forward(forward)
    function = as_function(put_under(None, row))

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
    is_alone = any(not each.behavior.is_elementwise for each in ruled)
    for each, name in zip(ruled, names, strict=True):
        for tin in SIDES if each.behavior.reads_tin else (0.0,):
            side = f"tin = {tin:g}" if each.behavior.reads_tin else ""
            label = ", ".join(filter(None, (name, side))) or each.rule.name
            formula, group = passed_on(each, tin, key), len(curves) - 1
            curves.append(draw(each, formula, x, name=label, group=group))
    x_label = "grad_out, a gradient of one element" if is_alone else ARRIVING
    return Picture(title, x_label, PASSED_ON, tuple(curves), "one" if is_alone else "gradient")


def passed_on(each: Ruled, tin: float, key: int) -> Callable[[Array], Array]:
    """Return a rule as a function of gradients; if it uses all elements, each is given alone."""

    def formula(grad_out: Array) -> Array:
        if each.behavior.is_elementwise:
            return apply(each.rule, grad_out, np.full_like(grad_out, tin), each.params, key)
        parts = grad_out.reshape(-1, 1)
        return np.concatenate(
            [apply(each.rule, part, np.full_like(part, tin), each.params, key) for part in parts]
        )

    return formula


def is_told_by_one(each: Ruled) -> bool:
    """Return whether gradients of one element show what a rule does to a larger one."""
    if each.behavior.is_random or each.behavior.reads_tin:
        return False
    places = grid(points=9)
    gradient = passed_on(each, 0.0, 0)(places)
    return bool(np.any(gradient)) and not np.allclose(gradient, places)


def of_vector(ruled: Sequence[Ruled], names: Sequence[str], title: str, key: int) -> Picture:
    """Return an example gradient before and after rules that look at all of it."""
    places = np.arange(len(EXAMPLE), dtype=np.float64)
    tin = np.linspace(-2.0, 2.0, len(EXAMPLE))
    curves = [Curve("grad_out, before", "unchanged", Points(places, EXAMPLE))]
    for group, (each, name) in enumerate(zip(ruled, names, strict=True)):
        gradient = apply(each.rule, EXAMPLE, tin, each.params, key)
        label = f"grad_in, after {name or each.rule.name}"
        curves.append(Curve(label, "surrogate", Points(places, gradient), group))
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
        output, *rest = outputs
        cotangents = type(outputs)([np.ones_like(output), *(None for _ in rest)])
        return np.asarray(output), pull(cotangents)[0]

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
    parameters = [*function.parameters.parameters.values()] if function.parameters else []
    lacking = [p.name for p in parameters[1:] if p.default is p.empty and p.name not in spreads[0]]
    is_known = spreads[0].keys() <= {p.name for p in parameters}
    if lacking and is_known and all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise RuleTypeError(
            f"plot draws a function of one tensor, and {function.name} lacks {', '.join(lacking)}: "
            f"give a number, params={{{lacking[0]!r}: 1.0}} or --param {lacking[0]}=1.0, or draw a "
            "function of one tensor that calls it"
        )
    observed = [observe_function(function, params, x, key) for params in spreads]
    has_several = len(observed) > 1
    params = "" if has_several or not spreads[0] else f" ({format_params(spreads[0])})"
    title = f"{function.name}{params}"
    if any(any(each.is_random) for each in observed):
        title += say_random(mean=all(each.is_elementwise for each in observed))
    name = next(iter(function.parameters.parameters if function.parameters else ()), "x")
    if not all(each.is_elementwise for each in observed):
        curves = vector_curves(observed, name)
        return Picture(title, "element", "value; gradient", tuple(curves), "vector")
    curves = []
    for group, each in enumerate(observed):
        suffix = f", {format_params(each.params)}" if has_several else ""
        options = {"role": "forward", "group": group if has_several else None}
        for i, part in enumerate(("forward", "gradient")):
            fields = {"name": f"{part}{suffix}", "is_random": each.is_random[i], **options}
            curves.append(make_curve(each.part(i), x, **fields))
            options = {"role": "surrogate", "group": group}
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
    parts, columns, redrawn = values(x[:count]), of_columns(values, x), values(x, key=1)
    matches = [same(a[:count], b) for a, b in zip(pairs, parts, strict=True)]
    matches += map(same, pairs, columns)
    output, gradient = (not same(a, b) for a, b in zip(pairs, redrawn, strict=True))
    return FunctionCurve(values, params, all(matches), (output, gradient))


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
        suffix = f", {format_params(each.params)}" if len(applied) > 1 else ""
        columns = of_columns(each.values, EXAMPLE)
        # A softmax over the last axis of a column is constant: then the row shows more.
        values = columns if np.ptp(columns[0]) > 0 else each.values(EXAMPLE)
        for part, ys in zip(("forward", "gradient"), values, strict=True):
            group = 2 * i + (part == "gradient")
            curves.append(Curve(f"{part}{suffix}", "surrogate", Points(places, ys), group))
    return curves


# --- titles and names of curves -------------------------------------------------------------------


def format_params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={format_value(value)}" for name, value in params.items())


def format_value(value: Any) -> str:
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(value, Moving):  # the number that is drawn, after its formula
        return repr(value)
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"


def name_curves(ruled: Sequence[Ruled], several: bool) -> list[str]:
    settings = [{**each.rule.bound, **each.params} for each in ruled]
    names_varied = {
        name
        for each in settings
        for name in each
        if any(each[name] != peer.get(name) for peer in settings)
    }
    names = []
    for each, setting in zip(ruled, settings, strict=True):
        values = format_params({k: v for k, v in setting.items() if k in names_varied})
        words = (each.rule.name, f"({values})" if values else "") if several else (values,)
        names.append(" ".join(filter(None, words)))
    return names


def make_title(ruled: Sequence[Ruled], forward: Any) -> str:
    """Return a picture's title: the rules, with the params that all curves share."""
    row = ruled[0]
    names = dict.fromkeys(each.rule.name for each in ruled)
    if len(names) == 1:
        first, *others = [{**r.rule.bound, **r.rule.params, **r.params} for r in ruled]
        shared = {k: v for k, v in first.items() if all(each.get(k, v) == v for each in others)}
        values = format_params(shared)
        title = f"{row.rule.name} ({values})" if values else row.rule.name
    else:
        title = ", ".join(names) if len(names) <= 3 else f"{len(names)} rules"
    title += f" under {as_forward(forward).name}" if forward is not None else ""
    return title + (say_random() if any(each.behavior.is_random for each in ruled) else "")


def say_random(mean: bool = True) -> str:
    """Return the line of a title that says how random curves are drawn."""
    return (
        f"\none draw (dots), mean of {DRAWS} and where 90 % of them lie" if mean else "\none draw"
    )
