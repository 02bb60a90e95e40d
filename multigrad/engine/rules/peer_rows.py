"""How the rules of other packages are written: rows that name a curve, or a rule of ours, with the
package's words for it.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...core.rules.library import curves
from ...core.rules.library.curves import NOT_NEGATIVE, POSITIVE, Number, describe, multiplying
from ...core.rules.library.curves import rule_of_curve as rule_of_our_curve
from ...core.rules.registry import register
from ...core.rules.rule import Rule
from ...core.support.trees import Tensor

Curve = TypeVar("Curve", bound=Callable[..., Tensor])
# Packages whose own spelling is not that in the names of their rules.
SPELLINGS = {"snntorch": "snnTorch", "pytorch_revgrad": "pytorch-revgrad"}


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
        function = _renamed(what, numbers) if isinstance(what, Rule) else multiplying(what, numbers)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own_params = [
            inspect.Parameter(word, kind, default=default, annotation=type(default).__name__)
            for word, default in numbers.values()
        ]
        describe(
            function,
            (short_name, module),
            _described(what, words, f"{note} {source}".strip()),
            own_params,
        )
        ranges = {words[inner]: _reworded(text, words) for inner, text in _ranges_of(what, words)}
        return register(name, ranges=ranges)(function)

    return named


def rule_of_curve(name: str, **ranges: str) -> Callable[[Callable[..., Tensor]], Rule]:
    """Register a curve that one rule has; where its docstring tells no source, that is the name in
    the package.
    """

    def decorate(curve: Callable[..., Tensor]) -> Rule:
        text = inspect.cleandoc(curve.__doc__ or "")
        curve.__doc__ = text if "Source:" in text else f"{text}\n\n{_sourced(name)[1]}"
        return rule_of_our_curve(name, **ranges)(curve)

    return decorate


def _sourced(name: str, source: str = "") -> tuple[str, str]:
    package, _, short_name = name.rpartition(".")
    in_package = re.fullmatch(r"(\w*)([,;] .*)?", source)
    if in_package is not None:
        word, rest = in_package.groups(default="")
        source = f"`{word or short_name}` of {SPELLINGS.get(package, package)}{rest}"
    return short_name, f"Source: {source}."


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


# --- curves that several packages have ------------------------------------------------------------
fast_sigmoid = ranged(slope=NOT_NEGATIVE)(curves.fast_sigmoid)
sigmoid = ranged(alpha=POSITIVE)(curves.sigmoid)


def cauchy(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height / (1 + (slope * x)^2)."""
    u = slope * x
    # u * u may be infinite: the quotient is 0 then.
    return height / (1.0 + u * u)


@ranged(alpha=POSITIVE)
def arctan(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (alpha / 2) / (1 + (pi/2 * alpha * tin)^2): alpha / 2 at zero."""
    return cauchy(x, 0.5 * alpha, 0.5 * math.pi * alpha)


@ranged(alpha=NOT_NEGATIVE)
def slayer(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * exp(-alpha * |tin|): 1 at zero."""
    return curves.exponential(x, alpha, 1.0)


@ranged(alpha=POSITIVE)
def piecewise_exp(x: Tensor, alpha: Number) -> Tensor:
    """grad_out * (alpha / 2) * exp(-alpha * |tin|): alpha / 2 at zero."""
    return curves.exponential(x, alpha, 0.5 * alpha)
