"""The curves of surrogate gradients: what each multiplies a gradient by, as a function of `tin`.

Several rules share one, with edges and defaults of their own; where a curve's docstring says what
becomes of grad_out, it is that of its rules. Each is written so that no finite input overflows to
NaN or infinity in any dtype: an intermediate infinity ends as a zero.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...support.trees import Tensor
from ...trace.xp import all as xp
from ..registry import register
from ..rule import Rule

Number = Any
Curve = TypeVar("Curve", bound=Callable[..., Tensor])
# Packages whose own spelling is not that in the names of their rules.
SPELLINGS = {"snntorch": "snnTorch", "pytorch_revgrad": "pytorch-revgrad"}
FINITE, POSITIVE, NOT_NEGATIVE = "finite", "> 0 and finite", ">= 0 and finite"
LEADING = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    for name, annotation in (("ctx", "Any"), ("grad_out", "Tensor"), ("tin", "Tensor | None"))
)


def ranged(**ranges: str) -> Callable[[Curve], Curve]:
    """Say which values the params of a curve take, whatever rule it is."""

    def note(curve: Curve) -> Curve:
        curve.ranges = ranges  # type: ignore[attr-defined]
        return curve

    return note


def table(module: str) -> Callable[..., Rule]:
    """Return a function that registers the rows of a module.

    A row has a name, a curve or a rule, a source, and a note. A curve is a function of tin and
    numbers; the gradient is multiplied by it, or by 1 without tin. A source of one word, or the
    lack of one, is the name in the package; after a comma or semicolon more may follow. Any other
    source stays as it is. `slope=25.0` keeps the package's name for the number and gives it a
    default; `slope=("k", 25.0)` renames it; in the row's order. A number of a curve that is not
    listed keeps the curve's default.
    """

    def named(
        name: str,
        what: Callable[..., Tensor] | Rule,
        source: str = "",
        note: str = "",
        **params: Number | tuple[str, Number],
    ) -> Rule:
        short_name, source = _sourced(name, source)
        numbers = {inner: p if isinstance(p, tuple) else (inner, p) for inner, p in params.items()}
        words = {inner: word for inner, (word, _) in numbers.items()}
        function = (
            _renamed(what, numbers) if isinstance(what, Rule) else _multiplying(what, numbers)
        )
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own_params = [
            inspect.Parameter(word, kind, default=default, annotation=type(default).__name__)
            for word, default in numbers.values()
        ]
        _describe(
            function,
            (short_name, module),
            _described(what, words, f"{note} {source}".strip()),
            own_params,
        )
        ranges = {words[inner]: _reworded(text, words) for inner, text in _ranges_of(what, words)}
        return register(name, ranges=ranges)(function)

    return named


def rule_of_curve(name: str, **ranges: str) -> Callable[[Callable[..., Tensor]], Rule]:
    """Register a curve that one rule has, with the rule's own docstring, params and defaults.

    The gradient is multiplied by it, or by 1 without tin. Where the docstring tells no source, that
    is the name in the package.
    """

    def decorate(curve: Callable[..., Tensor]) -> Rule:
        params = list(inspect.signature(curve).parameters.values())[1:]
        function = _multiplying(curve, {each.name: (each.name, each.default) for each in params})
        text = inspect.cleandoc(curve.__doc__ or "")
        text = text if "Source:" in text else f"{text}\n\n{_sourced(name)[1]}"
        _describe(function, (curve.__name__, curve.__module__), text, params)
        return register(name, ranges=ranges)(function)

    return decorate


def _sourced(name: str, source: str = "") -> tuple[str, str]:
    package, _, short_name = name.rpartition(".")
    in_package = re.fullmatch(r"(\w*)([,;] .*)?", source)
    if in_package is not None:
        word, rest = in_package.groups(default="")
        source = f"`{word or short_name}` of {SPELLINGS.get(package, package)}{rest}"
    return short_name, f"Source: {source}."


def _describe(
    function: Any, names: tuple[str, str], text: str, params: list[inspect.Parameter]
) -> None:
    # The registry and the docs read these, as of a rule that is written by hand.
    function.__name__, function.__module__ = names
    function.__doc__ = text
    function.__signature__ = inspect.Signature([*LEADING, *params], return_annotation="Tensor")


def _multiplying(curve: Callable[..., Tensor], numbers: Mapping[str, tuple[str, Number]]) -> Any:

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None, **params: Any) -> Tensor:
        if tin is None:
            return grad_out
        return grad_out * curve(tin, **{name: params.get(*row) for name, row in numbers.items()})

    return rule


def _renamed(original: Rule, numbers: Mapping[str, tuple[str, Number]]) -> Any:
    run: Any = original.function

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None, **params: Any) -> Tensor:
        return run(ctx, grad_out, tin, **{name: params.get(*row) for name, row in numbers.items()})

    return rule


def _ranges_of(what: Any, words: Mapping[str, str]) -> list[tuple[str, str]]:
    if isinstance(what, Rule):
        ranges: Mapping[str, str] = {n: limits.text for n, limits in what.own_ranges.items()}
    else:
        ranges = getattr(what, "ranges", {})
    return [(name, ranges[name]) for name in words if name in ranges]


def _described(what: Any, words: Mapping[str, str], ending: str) -> str:
    formula = inspect.cleandoc(what.__doc__ or "").partition("\n\n")[0]
    defaults = inspect.signature(what).parameters
    # Defaults of the curve that a row does not name become numbers in the formula.
    numbers = {n: f"{p.default:g}" for n, p in defaults.items() if isinstance(p.default, float)}
    return f"{_reworded(formula, {**numbers, **words})}\n\n{ending}"


def _reworded(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: words.get(match[0], match[0]), text)


def cauchy(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height / (1 + (slope * x)^2)."""
    u = slope * x
    # u * u may be infinite: the quotient is 0 then.
    return height / (1.0 + u * u)


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


@ranged(alpha=POSITIVE)
def arctan(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero."""
    return cauchy(x, 0.5 * alpha, 0.5 * math.pi * alpha)


@ranged(slope=NOT_NEGATIVE)
def fast_sigmoid(x: Tensor, slope: Number) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2: 1 at zero."""
    u = 1.0 / (1.0 + slope * abs(x))
    return u * u


@ranged(slope=NOT_NEGATIVE, threshold=FINITE)
def sparse_fast_sigmoid(x: Tensor, slope: Number, threshold: Number) -> Tensor:
    """grad_out / (1 + slope * |tin|)^2 where tin > threshold, else 0 (0 at threshold)."""
    return fast_sigmoid(x, slope) * (x > threshold)


@ranged(alpha=POSITIVE)
def soft_sign(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (alpha / 2) / (1 + alpha * |tin|)^2: alpha / 2 at zero."""
    u = 1.0 / (1.0 + alpha * abs(x))
    return 0.5 * alpha * u * u  # in this order u * u does not underflow


@ranged(alpha=POSITIVE)
def sigmoid(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha * s(alpha tin) * (1 - s(alpha tin)), s the logistic sigmoid: alpha / 4 at
    zero.
    """
    u = alpha * x
    return alpha * (xp.sigmoid(u) * xp.sigmoid(-u))  # neither overflows nor cancels


@ranged(slope=NOT_NEGATIVE)
def tanh_slope(x: Tensor, slope: Number) -> Tensor:
    """grad_out * (1 - tanh(slope * tin)^2): 1 at zero."""
    return sigmoid(x * slope, 2.0) * 2.0  # 4 s(2u) s(-2u) does not cancel


@ranged(alpha=POSITIVE)
def piecewise_quadratic(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha * max(0, 1 - alpha * |tin|): 0 from |tin| = 1 / alpha on."""
    return triangle(x, alpha, alpha)


@ranged(alpha=POSITIVE)
def erf(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha / sqrt(pi) * exp(-(alpha * tin)^2): alpha / sqrt(pi) at zero."""
    return bell(x, alpha * math.pi**-0.5, alpha)


@ranged(mean=FINITE, sigma=POSITIVE, scale=FINITE)
def gaussian(x: Tensor, scale: Number, sigma: Number, mean: Number = 0.0) -> Tensor:
    """grad_out * scale * N(tin; mean, sigma), N the density of the normal distribution."""
    return scale * normal(x, mean, sigma)


@ranged(mean=FINITE, sigma=POSITIVE, h=FINITE, s=POSITIVE, scale=FINITE)
def multi_gaussian(
    x: Tensor, scale: Number, sigma: Number, h: Number, s: Number, mean: Number = 0.0
) -> Tensor:
    """grad_out * scale * ((1 + h) N(tin; mean, sigma) - h N(tin; sigma, s sigma)
    - h N(tin; -sigma, s sigma)), N the density of the normal distribution.
    """
    sides = normal(x, sigma, s * sigma) + normal(x, -sigma, s * sigma)
    return scale * ((1.0 + h) * normal(x, mean, sigma) - h * sides)


@ranged(alpha=NOT_NEGATIVE, scale=FINITE)
def exponential(x: Tensor, alpha: Number, scale: Number) -> Tensor:
    """grad_out * scale * exp(-alpha * |tin|): scale at zero."""
    return scale * xp.exp(-(alpha * abs(x)))


@ranged(alpha=NOT_NEGATIVE)
def slayer(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * exp(-alpha * |tin|): 1 at zero."""
    return exponential(x, alpha, 1.0)


@ranged(alpha=POSITIVE)
def piecewise_exp(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (alpha / 2) * exp(-alpha * |tin|): alpha / 2 at zero."""
    return exponential(x, alpha, 0.5 * alpha)


@ranged(beta=NOT_NEGATIVE, slope=FINITE)
def spike_rate_escape(x: Tensor, beta: Number, slope: Number) -> Tensor:
    """grad_out * slope * exp(-beta * |tin - 1|): slope at tin = 1."""
    return exponential(x - 1.0, beta, slope)


@ranged(width=POSITIVE, threshold=POSITIVE, scale=FINITE)
def periodic_exponential(x: Tensor, width: Number, threshold: Number, scale: Number) -> Tensor:
    """grad_out * scale * exp(-|u| / width): u = tin below zero; from zero on a sawtooth between
    -threshold and threshold that is zero at each multiple of the threshold, where a neuron spikes
    once more. NaN at infinity, where the sawtooth has no value.
    """
    phase = xp.remainder(x, threshold)
    teeth = 2.0 * xp.minimum(phase, threshold - phase)
    return scale * xp.exp(-(xp.where(x < 0.0, -x, teeth) / width))


@ranged(alpha=POSITIVE)
def circle(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha^3 / (alpha^2 + tin^2)^(3/2): 1 at zero."""
    u = x / alpha
    return (1.0 + u * u) ** -1.5


@ranged(alpha=POSITIVE)
def nonzero_sign_log(x: Tensor, alpha: Number) -> Tensor:
    """grad_out / (1 / alpha + |tin|): alpha at zero."""
    return 1.0 / (1.0 / alpha + abs(x))


@ranged(n=">= 1", period=POSITIVE)
def squarewave_fourier(x: Tensor, n: int, period: Number) -> Tensor:
    """grad_out * (4 / period) * sum of cos((2i - 1) 2 pi tin / period) for i = 1..n: the derivative
    of a square wave's first n Fourier terms. NaN at infinity.
    """
    # The angle of a large x overflows in 16 bits; its turn does not.
    angle = (2.0 * math.pi) * (xp.remainder(x, period) / period)
    waves = x * 0.0
    for i in range(1, n + 1):
        waves = waves + xp.cos((2.0 * i - 1.0) * angle)
    return (4.0 / period) * waves


@ranged(alpha=POSITIVE, beta=FINITE)
def s2nn(x: Tensor, alpha: Number, beta: Number) -> Tensor:
    """grad_out * alpha s(alpha tin) (1 - s(alpha tin)) where tin < 0, s the logistic sigmoid; else
    grad_out * beta / (tin + 1): beta at zero.
    """
    right_side = beta / (xp.maximum(x, 0.0) + 1.0)
    return xp.where(x < 0.0, sigmoid(x, alpha), right_side)


@ranged(alpha="> 1 and finite")
def q_pseudo_spike(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha - 1))^-alpha, for alpha > 1: 1 at zero."""
    return pseudo_spike(x, alpha, alpha - 1.0)


@ranged(alpha=FINITE)
def log_tailed_relu(x: Tensor, alpha: Number) -> Tensor:
    """grad_out / tin where tin > 1, grad_out where 0 < tin <= 1, else alpha * grad_out (alpha at
    zero).
    """
    return xp.where(x > 0.0, 1.0 / xp.maximum(x, 1.0), alpha)


@ranged(alpha=NOT_NEGATIVE)
def numerical(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * min(1 / |tin|, alpha): alpha at both zeros."""
    is_near = abs(x) * alpha <= 1.0
    return xp.where(is_near, alpha, 1.0 / xp.where(is_near, 1.0, abs(x)))


@ranged(alpha=POSITIVE)
def unit_rectangular(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * alpha where |tin| < 1 / (2 alpha), else 0; the edges do not belong to it."""
    return alpha * (abs(x) < 0.5 / alpha)


@ranged(w=POSITIVE, c=FINITE)
def piecewise_leaky_relu(x: Tensor, w: Number, c: Number) -> Tensor:
    """grad_out / (2 w) where |tin| < w, else c * grad_out (c at both edges)."""
    return xp.where(abs(x) < w, 0.5 / w, c)


@ranged(leak=FINITE, k=FINITE)
def leaky_k_relu(x: Tensor, leak: Number, k: Number) -> Tensor:
    """grad_out * k where tin >= 0, else grad_out * leak (k at zero)."""
    return xp.where(x >= 0.0, k, leak)


@ranged(slope=FINITE)
def leaky_spike(x: Tensor, slope: Number) -> Tensor:
    """grad_out where tin > 0, else grad_out * slope (slope at zero)."""
    return xp.where(x > 0.0, 1.0, slope)


@ranged(mean=FINITE, variance=NOT_NEGATIVE)
def stochastic_spike(x: Tensor, mean: Number, variance: Number) -> Tensor:
    """grad_out where tin > 0, else grad_out * (U - 1/2 + mean) * variance, with U uniform on [0, 1)
    for each element (zero counts as below).
    """
    return xp.where(x > 0.0, 1.0, (xp.rand_like(x) - 0.5 + mean) * variance)
