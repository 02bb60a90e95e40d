"""The curves of surrogate gradients that several rules share: what each multiplies a gradient by,
as a function of `tin`. A docstring that names grad_out is also that of rules of packages.

Each is written so that no finite input overflows to NaN or infinity in any dtype: an intermediate
infinity ends as a zero.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from ...support.trees import Tensor
from ...trace.xp import all as xp
from ..registry import register
from ..rule import Rule

Number = Any
FINITE, POSITIVE, NOT_NEGATIVE = "finite", "> 0 and finite", ">= 0 and finite"
LEADING = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    for name, annotation in (("ctx", "Any"), ("grad_out", "Tensor"), ("tin", "Tensor | None"))
)


def rule_of_curve(name: str, **ranges: str) -> Callable[[Callable[..., Tensor]], Rule]:
    """Register a curve that one rule has, with the rule's own docstring, params and defaults.

    The gradient is multiplied by it, or by 1 without tin.
    """

    def decorate(curve: Callable[..., Tensor]) -> Rule:
        params = list(inspect.signature(curve).parameters.values())[1:]
        function = multiplying(curve, {each.name: (each.name, each.default) for each in params})
        text = inspect.cleandoc(curve.__doc__ or "")
        describe(function, (curve.__name__, curve.__module__), text, params)
        return register(name, ranges=ranges)(function)

    return decorate


def describe(
    function: Any, names: tuple[str, str], text: str, params: list[inspect.Parameter]
) -> None:
    """Give a function what the registry and the docs read of a rule that is written by hand."""
    function.__name__, function.__module__ = names
    function.__doc__ = text
    function.__signature__ = inspect.Signature([*LEADING, *params], return_annotation="Tensor")


def multiplying(curve: Callable[..., Tensor], numbers: Mapping[str, tuple[str, Number]]) -> Any:
    """Return a rule that multiplies by a curve: of each number the rule's name, and its default."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None, **params: Any) -> Tensor:
        if tin is None:
            return grad_out
        return grad_out * curve(tin, **{name: params.get(*row) for name, row in numbers.items()})

    return rule


# --- the curves -----------------------------------------------------------------------------------
def triangle(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height * max(0, 1 - slope * |x|)."""
    return height * xp.maximum(1.0 - slope * abs(x), 0.0)


def bell(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height * exp(-(slope * x)^2)."""
    u = slope * x
    return height * xp.exp(-(u * u))


def normal(x: Tensor, mean: Number, sigma: Number) -> Tensor:
    """The density of a normal distribution."""
    u = (x - mean) / sigma
    return xp.exp(-0.5 * (u * u)) / (sigma * math.sqrt(2.0 * math.pi))


def pseudo_spike(x: Tensor, alpha: Number, width: Number) -> Tensor:
    """(1 + 2 |x| / width)^-alpha.

    The power raises the rounding of its sum to the alpha; what the sum has lost is given back.
    """
    u = (2.0 / width) * abs(x)
    total = 1.0 + u
    # The rounding error of the sum, exact by Fast2Sum (Dekker, 1971).
    error = xp.where(u > 1.0, 1.0 - (total - u), u - (total - 1.0))
    relative_error = xp.where(total < math.inf, error / total, 0.0)
    return total**-alpha * xp.exp(-(alpha * relative_error))


def fast_sigmoid(x: Tensor, slope: Number) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2: 1 at zero."""
    u = 1.0 / (1.0 + slope * abs(x))
    return u * u


def sigmoid(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha * s(alpha tin) * (1 - s(alpha tin)), s the logistic sigmoid: alpha / 4 at
    zero.
    """
    u = alpha * x
    return alpha * (xp.sigmoid(u) * xp.sigmoid(-u))  # neither overflows nor cancels


def tanh_slope(x: Tensor, slope: Number) -> Tensor:
    """grad_out * (1 - tanh(slope * tin)^2): 1 at zero."""
    return sigmoid(x * slope, 2.0) * 2.0  # 4 s(2u) s(-2u) does not cancel


def exponential(x: Tensor, alpha: Number, scale: Number) -> Tensor:
    """grad_out * scale * exp(-alpha * |tin|): scale at zero."""
    return scale * xp.exp(-(alpha * abs(x)))


def squarewave_fourier(x: Tensor, n: int, period: Number) -> Tensor:
    """(4 / period) * sum of cos((2i - 1) 2 pi x / period) for i = 1..n."""
    # The angle of a large x overflows in 16 bits; its turn does not.
    angle = (2.0 * math.pi) * (xp.remainder(x, period) / period)
    waves = x * 0.0
    for i in range(1, n + 1):
        waves = waves + xp.cos((2.0 * i - 1.0) * angle)
    return (4.0 / period) * waves
