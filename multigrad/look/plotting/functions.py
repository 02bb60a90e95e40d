"""Pictures of Functions: the forward, and the gradient for the first argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import MultigradError, RuleValueError
from ...functions.function import Function
from ...rules.in_force.vjp import vjp
from .behavior import by_size, same
from .picture import Curve, Picture, make_curve
from .sampling import Points, grid
from .words import format_params, say_random

Array = Any
# A vector, for Functions and rules that look at all of it.
EXAMPLE = np.array([0.9, -0.4, 1.6, 0.2, -1.2, 0.7, 2.2, -0.1, -0.8, 0.5, 1.1, -1.9])


@dataclass(frozen=True, slots=True)
class Applied:
    """A Function with values for its other arguments, and what it does.

    Attributes:
        is_elementwise: the other elements change nothing.
        is_random: another key gives another output, another gradient.
    """

    function: Function
    params: Mapping[str, Any]
    key: int
    is_elementwise: bool = True
    is_random: tuple[bool, bool] = (False, False)

    def values(self, x: Array, key: int = 0) -> tuple[Array, Array]:
        """Return the output, and the gradient for x where each element's is 1."""
        keyed = self.function.keyed(self.key + key)
        outputs, pull = vjp(keyed.bind(self.params) if self.params else keyed, x)
        if not isinstance(outputs, tuple | list):
            return np.asarray(outputs), pull(np.ones_like(outputs))[0]
        first, *others = outputs
        nested = type(outputs)([np.ones_like(first), *(None for _ in others)])
        return np.asarray(first), pull(nested)[0]

    def formula(self, which: int) -> Callable[[Array], Array]:
        """Return the output (0) or the gradient (1) as a formula of x."""

        def formula(x: Array) -> Array:
            return self.values(x)[which]

        return formula


def of_function(
    function: Function, spreads: Sequence[Mapping[str, Any]], x: Array | None, key: int
) -> Picture:
    """Return a Function's forward and its gradient for the first argument.

    Raises:
        RuleValueError: it does not give one number for each.
    """
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
            curves.append(make_curve(each.formula(i), x, **told))
            more = {"role": "surrogate", "group": group}
    y_label = f"value; gradient for {name} where the output's is 1"
    return Picture(title, f"input {name}", y_label, tuple(curves))


def observe_function(function: Function, params: Mapping[str, Any], x: Array, key: int) -> Applied:
    """Return a Function with its params, and what it does.

    Raises:
        RuleValueError: it does not give one number for each.
    """
    applied = Applied(function, params, key)
    try:
        output, _ = applied.values(x)
    except MultigradError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise RuleValueError(
            f"{function.name} cannot be drawn: on a row of numbers it fails: {error}; give its "
            "other arguments as params={...}"
        ) from error
    if np.shape(output) != x.shape:
        raise RuleValueError(
            f"{function.name} has no curve: of {len(x)} numbers it makes shape {np.shape(output)}"
        )
    x, count = by_size(x), max(len(x) // 3, 1)
    output, gradient = applied.values(x)
    other, few = applied.values(x, key=1), applied.values(x[:count])
    columns = of_columns(applied, x)
    return Applied(
        function,
        params,
        key,
        is_elementwise=same(output[:count], few[0])
        and same(gradient[:count], few[1])
        and same(output, columns[0])
        and same(gradient, columns[1]),
        is_random=(not same(output, other[0]), not same(gradient, other[1])),
    )


def of_columns(applied: Applied, x: Array) -> tuple[Array, Array]:
    """Return output and gradient of a column, where the Function takes one: some look along an
    axis.
    """
    try:
        output, gradient = applied.values(x.reshape(-1, 1))
    except Exception:  # a user's code may raise anything
        return applied.values(x)
    return output.reshape(-1), gradient.reshape(-1)


def vector_curves(applied: Sequence[Applied], name: str) -> list[Curve]:
    """Return an example vector, and what Functions that look at all of it make of it."""
    places = np.arange(len(EXAMPLE), dtype=np.float64)
    curves = [Curve(f"input {name}", "unchanged", Points(places, EXAMPLE))]
    for i, each in enumerate(applied):
        of = f", {format_params(each.params)}" if len(applied) > 1 else ""
        columns = of_columns(each, EXAMPLE)
        values = columns if np.ptp(columns[0]) > 0 else each.values(EXAMPLE)
        for part, ys in zip(("forward", "gradient"), values, strict=True):
            group = 2 * i + (part == "gradient")
            curves.append(Curve(f"{part}{of}", "surrogate", Points(places, ys), group))
    return curves
