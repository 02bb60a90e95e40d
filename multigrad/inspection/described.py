"""What is said of a rule: its family, formula, params with their ranges, source, and what it does
without `tin`.

All of it is read from where it is declared (module, docstring, signature) or found out by trying:
the tables of the docs, `multigrad rules` and the gallery say the same.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import MultigradError
from ..registry import get, rules
from ..rulebook.likeness import near_names, plain
from ..rulebook.rule import Rule

LIBRARY = "multigrad.rules."
TRIED = 0.5  # a param's value that no rule has for its default


@dataclass(frozen=True, slots=True)
class Param:
    """A param: its default (`inspect.Parameter.empty`: required) and the text of its range."""

    name: str
    default: Any
    range: str = ""

    def __str__(self) -> str:
        required = self.default is inspect.Parameter.empty
        text = f"{self.name} (required)" if required else f"{self.name}={self.default!r}"
        return f"{text} ({self.range})" if self.range else text


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of one rule, in plain text.

    Attributes:
        family: the module that it stands in, by its last name; "" for a rule of yours.
        heading: what that module says it is.
    """

    name: str
    family: str
    heading: str
    formula: str
    params: tuple[Param, ...]
    without_tin: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain data, as `multigrad rules --json` prints it."""
        params = {
            param.name: {"default": as_plain(param.default), "range": param.range or None}
            for param in self.params
        }
        return {
            "name": self.name,
            "family": self.family,
            "formula": self.formula,
            "params": params,
            "without_tin": self.without_tin,
            "source": self.source,
        }


def as_plain(default: Any) -> Any:
    """Return a default as JSON has it; a required param has none."""
    if default is inspect.Parameter.empty or default is None:
        return None
    return default if isinstance(default, bool | int | float | str) else repr(default)


def describe(rule: Rule) -> Described:
    """Return what is said of a rule."""
    formula, source = split_docstring(rule.__doc__)
    module = rule.__module__
    is_ours = module.startswith(LIBRARY)
    return Described(
        name=rule.name,
        family=module.removeprefix(LIBRARY) if is_ours else "",
        heading=heading_of(module) if is_ours else "Rules of yours",
        formula=formula,
        params=describe_params(rule),
        without_tin=without_input(rule),
        source=source,
    )


def describe_all() -> list[Described]:
    """Return what is said of every registered rule, by families in the order of their modules."""
    found = [describe(get(name)) for name in rules()]
    return sorted(found, key=lambda row: (place_of(row.family), row.family))


# What most people look for comes first; what one package calls so comes last.
PLACES = ("surrogate", "spiking", "straight_through", "transforms", "jamming", "attribution")
PEERS = ("snntorch", "spikingjelly", "braintools", "peers")


def place_of(family: str) -> int:
    """Return the place of a family; yours come first."""
    if family in ("", *PLACES):
        return ("", *PLACES).index(family)
    return 100 + PEERS.index(family) if family in PEERS else 50


def split_docstring(text: str | None) -> tuple[str, str]:
    """Return a docstring's formula and source, each on one line."""
    formula, _, source = inspect.cleandoc(text or "").partition("Source:")
    return " ".join(formula.split()), " ".join(source.split())


def heading_of(module: str) -> str:
    """Return the first sentence of a module's docstring."""
    text = inspect.cleandoc(getattr(sys.modules.get(module), "__doc__", None) or module)
    first = " ".join(text.partition("\n\n")[0].split())
    return first.removesuffix(".")


def describe_params(rule: Rule) -> tuple[Param, ...]:
    """Return the params of a rule with their ranges."""
    ranges = rule.ranges
    return tuple(
        Param(name, default, ranges[name].text if name in ranges else "")
        for name, default in rule.params.items()
    )


def without_input(rule: Rule) -> str:
    """Return what a rule does where there is no `tin`, by trying it; one of yours may raise."""
    grad_out = np.array([[0.5, -1.5, 2.0], [1.0, -0.25, 3.0]])
    tin = np.array([[-7.0, 0.2, 1.1], [0.0, 9.0, -0.4]])
    try:
        given = {**numbers_for(rule), **keyed(rule)}
        alone, beside = (rule(None, grad_out, x, **given) for x in (None, tin))
    except (MultigradError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return "not known"
    if np.array_equal(alone, grad_out):
        return "`grad_out`, unchanged"
    return "the same" if np.array_equal(alone, beside) else "everywhere as inside the window"


def numbers_for(rule: Rule) -> dict[str, float]:
    """Return a value for each param that is a float: not its default, where its range allows."""
    found = {name: TRIED for name, value in rule.params.items() if type(value) is float}
    ranges = rule.ranges
    known = {**rule.params, **found}
    return {k: v for k, v in found.items() if k not in ranges or ranges[k].holds(v, known)}


def keyed(rule: Rule) -> dict[str, Any]:
    """Return a key for a rule that draws random numbers."""
    graph, _ = rule.bound_rule().likely_graph(True)
    return {} if graph is None or graph.input("key") is None else {"key": 0}


def find_like(word: str, rows: Iterable[Described]) -> list[Described]:
    """Return the rules in whose name, formula or source a word stands; else those that it may have
    meant.
    """
    rows, sought = list(rows), plain(word)
    found = [row for row in rows if sought in plain(f"{row.name} {row.formula} {row.source}")]
    near = near_names(word, {row.name: f"{row.formula} {row.source}" for row in rows})
    return found or [row for row in rows if row.name in near]
