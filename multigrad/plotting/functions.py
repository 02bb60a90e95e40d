"""Pictures of Functions: the forward, and the gradient for the first argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import MultigradError, RuleValueError
from ..functions.function import Function
from ..in_force.vjp import vjp
from .picture import Curve, Picture
from .sampling import grid, sample
from .words import format_params

Array = Any


def of_function(
    function: Function, spreads: Sequence[Mapping[str, Any]], x: Array | None
) -> Picture:
    """Return a Function's forward and its gradient for the first argument.

    Raises:
        RuleValueError: it does not give one number for each.
    """
    x = grid() if x is None else x
    several, curves = len(spreads) > 1, []
    for group, params in enumerate(spreads):
        bound = function.bind(params) if params else function
        check_is_curve(function, bound, x)

        def forward(tin: Array, bound: Any = bound) -> Array:
            return first_of(vjp(bound, tin)[0])

        def gradient(tin: Array, bound: Any = bound) -> Array:
            outputs, pull = vjp(bound, tin)
            ones = np.ones_like(first_of(outputs))
            nested = [ones, *nothing(outputs)] if isinstance(outputs, list) else ones
            return pull((ones, *nothing(outputs)) if isinstance(outputs, tuple) else nested)[0]

        of = f", {format_params(params)}" if several else ""
        curves.append(
            Curve(f"forward{of}", "forward", sample(forward, x), group if several else None)
        )
        curves.append(Curve(f"gradient{of}", "surrogate", sample(gradient, x), group))
    name = next(iter(function.parameters.parameters if function.parameters else ()), "x")
    params = "" if several or not spreads[0] else f" ({format_params(spreads[0])})"
    y_label = f"value; gradient for {name} where the output's is 1"
    return Picture(f"{function.name}{params}", f"input {name}", y_label, tuple(curves))


def first_of(outputs: Any) -> Array:
    return outputs[0] if isinstance(outputs, tuple | list) else outputs


def nothing(outputs: Sequence[Any]) -> list[Any]:
    """Return cotangents of zero for all outputs but the first."""
    return [None] * (len(outputs) - 1)


def check_is_curve(function: Function, bound: Any, x: Array) -> None:
    try:
        outputs = first_of(vjp(bound, x)[0])
    except MultigradError:
        raise
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise RuleValueError(
            f"{function.name} cannot be drawn: on a row of numbers it fails: {error}; give its "
            "other arguments as params={...}"
        ) from error
    if np.shape(outputs) != x.shape:
        raise RuleValueError(
            f"{function.name} has no curve: of {len(x)} numbers it makes shape {np.shape(outputs)}"
        )
