"""A rule as a row: a name, the curve or the rule that it is, where it comes from, its defaults.

Signature, ranges and docstring are those of what it is, with the row's names of the params.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from ..model.rule import Rule
from ..registry import register

Tensor = Any
Number = float | int
Curve = TypeVar("Curve", bound=Callable[..., Tensor])
FINITE, POSITIVE, NOT_NEGATIVE = "finite", "> 0 and finite", ">= 0 and finite"
LEADING = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    for name, annotation in (("ctx", "Any"), ("grad_out", "Tensor"), ("tin", "Tensor | None"))
)
_ranges: dict[Any, Mapping[str, str]] = {}


class Named(Protocol):
    """Registers a row; see `table`."""

    def __call__(
        self,
        name: str,
        what: Callable[..., Tensor] | Rule,
        source: str,
        note: str = "",
        **params: Number | tuple[str, Number],
    ) -> Rule: ...


def ranged(**ranges: str) -> Callable[[Curve], Curve]:
    """Say which values the params of a curve take, whatever rule it is."""

    def note(curve: Curve) -> Curve:
        _ranges[curve] = ranges
        return curve

    return note


def table(module: str) -> Named:
    """Return what registers the rows of a module.

    A row is a name, a curve (a function of tin and numbers, by which the gradient is multiplied; 1
    without tin) or a rule, the source, and what else is to be said. `slope=25.0` keeps the name
    that the number has there and gives it a default, `slope=("k", 25.0)` renames it; in the row's
    order. A number of a curve that is not named keeps the curve's default.
    """

    def named(
        name: str,
        what: Callable[..., Tensor] | Rule,
        source: str,
        note: str = "",
        **params: Number | tuple[str, Number],
    ) -> Rule:
        own = {old: p if isinstance(p, tuple) else (old, p) for old, p in params.items()}
        words = {old: word for old, (word, _) in own.items()}
        function = _renamed(what, own) if isinstance(what, Rule) else _multiplying(what, own)
        function.__name__ = name.rpartition(".")[2]
        function.__module__ = module
        function.__doc__ = _described(what, words, f"{note} Source: {source}.".strip())
        function.__signature__ = _signature(dict(own.values()))
        ranges = {words[old]: _reworded(text, words) for old, text in _ranges_of(what, words)}
        return register(name, ranges=ranges)(function)

    return named


def _multiplying(curve: Callable[..., Tensor], own: Mapping[str, tuple[str, Number]]) -> Any:
    """Return the rule that multiplies by a curve."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None, **given: Any) -> Tensor:
        if tin is None:
            return grad_out
        return grad_out * curve(tin, **{old: given.get(*new) for old, new in own.items()})

    return rule


def _renamed(same: Rule, own: Mapping[str, tuple[str, Number]]) -> Any:
    """Return the function of a rule that exists, with other names of its params."""
    run: Any = same.function

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None, **given: Any) -> Tensor:
        return run(ctx, grad_out, tin, **{old: given.get(*new) for old, new in own.items()})

    return rule


def _signature(defaults: Mapping[str, Number]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    params = [
        inspect.Parameter(name, kind, default=default, annotation=type(default).__name__)
        for name, default in defaults.items()
    ]
    return inspect.Signature([*LEADING, *params], return_annotation="Tensor")


def _ranges_of(what: Any, words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the ranges of the params that a row names, as texts."""
    if isinstance(what, Rule):
        found: Mapping[str, str] = {n: allowed.text for n, allowed in what.own_ranges.items()}
    else:
        found = _ranges.get(what, {})
    return [(name, found[name]) for name in words if name in found]


def _described(what: Any, words: Mapping[str, str], ending: str) -> str:
    """Return a docstring: the formula in the row's words, and the source."""
    formula = inspect.cleandoc(what.__doc__ or "").partition("\n\n")[0]
    defaults = inspect.signature(what).parameters
    fixed = {n: f"{p.default:g}" for n, p in defaults.items() if isinstance(p.default, float)}
    return f"{_reworded(formula, {**fixed, **words})}\n\n{ending}"


def _reworded(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: words.get(found[0], found[0]), text)
