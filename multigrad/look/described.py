"""What is said of a rule: its family, formula, params with their ranges, source, and what it does
without `tin`.

All of it is read from where it is declared (module, docstring, signature) or found out by trying:
the tables of the docs, `multigrad rules` and the gallery say the same.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..errors import NativeRuleWarning, RuleValueError
from ..rules import estimators
from ..rules.estimators.declared import Estimator
from ..rules.model.likeness import near_names, plain
from ..rules.model.rule import Rule
from ..rules.registry import get, rules
from .exchanges import Exchanged, exchanged_by

LIBRARIES = ("multigrad.rules.library.", "multigrad.rules.estimators.")
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


@dataclass(frozen=True)
class Described:
    """What is said of one rule, or Function of the library, in plain text.

    Attributes:
        family: the module that it stands in, by its last name; "" for a rule of yours.
        heading: what that module says it is.
        params: those of a rule; the arguments of a Function but the first.
        gradients: those of a Function, whose forward is the formula.
        rule: the rule itself; None: it is a Function.
    """

    name: str
    kind: Literal["rule", "estimator"]
    family: str
    heading: str
    formula: str
    params: tuple[Param, ...]
    source: str
    gradients: str = ""
    rule: Rule | None = None

    # A list of all rules asks for neither: they run the rule.
    @cached_property
    def without_tin(self) -> str:
        """What a rule does without its forward's input."""
        return "" if self.rule is None else without_input(self.rule)

    @cached_property
    def exchanged(self) -> Exchanged | None:
        """What a rule exchanges over shards."""
        return None if self.rule is None else exchanged_by(self.rule)

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain data, as `multigrad rules --json` prints it."""
        params = {
            param.name: {"default": as_plain(param.default), "range": param.range or None}
            for param in self.params
        }
        own: dict[str, Any] = {"gradients": self.gradients}
        if self.exchanged is not None:
            collectives = [each.to_dict() for each in self.exchanged.collectives]
            own = {"without_tin": self.without_tin, "over_shards": self.exchanged.kind}
            own["collectives"] = collectives
        return {
            "name": self.name,
            "kind": self.kind,
            "family": self.family,
            "formula": self.formula,
            "params": params,
            **own,
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
    family, heading = place_in(rule.__module__, "Rules of yours")
    return Described(
        name=rule.name,
        kind="rule",
        family=family,
        heading=heading,
        formula=formula,
        params=describe_params(rule),
        source=source,
        rule=rule,
    )


def describe_estimator(function: Estimator) -> Described:
    """Return what is said of a Function of the library."""
    formula, gradients, source = estimators.describe(function)
    family, heading = place_in(function.__module__, "Functions of yours")
    return Described(
        name=function.name,
        kind="estimator",
        family=family,
        heading=heading,
        formula=formula,
        params=tuple(
            Param(each.name, each.default, each.range.text if each.range else "")
            for each in function.arguments[1:]
        ),
        source=source,
        gradients=gradients,
    )


def place_in(module: str, otherwise: str) -> tuple[str, str]:
    """Return a module's last name and what it says it is, where it is one of the library."""
    for prefix in LIBRARIES:
        if module.startswith(prefix):
            return module.rpartition(".")[2], heading_of(module)
    return "", otherwise


def describe_all() -> list[Described]:
    """Return what is said of every registered rule, by families in the order of their modules."""
    found = [describe(get(name)) for name in rules()]
    return sorted(found, key=lambda row: (place_of(row.family), row.family))


def describe_estimators() -> list[Described]:
    """Return what is said of every Function of the library, by families."""
    found = map(describe_estimator, estimators.catalogue().values())
    return sorted(found, key=lambda row: row.family)


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
    said, _, _ = inspect.cleandoc(text or "").partition("Examples:")
    formula, _, source = said.partition("Source:")
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
        with as_tried():
            given = {**numbers_for(rule), **keyed(rule)}
            alone, beside = (rule(None, grad_out, x, **given) for x in (None, tin))
    except RuleValueError:
        return "an error: it needs `tin`"
    except Exception:
        return "not known"
    if np.array_equal(alone, grad_out):
        return "`grad_out`, unchanged"
    return "the same" if np.array_equal(alone, beside) else "everywhere as inside the window"


@contextmanager
def as_tried() -> Iterator[None]:
    """Leave out the warning that a rule runs as it is: nobody has used it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NativeRuleWarning)
        yield


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
    """Return the rules in whose name, formula or source the words stand; else those that they may
    have meant.
    """
    rows, sought = list(rows), plain_words(word)
    texts = [plain_words(f"{row.name} {row.formula} {row.gradients} {row.source}") for row in rows]
    found = [
        row
        for row, text in zip(rows, texts, strict=True)
        if sought and all(any(each in own for own in text) for each in sought)
    ]
    near = near_names(word, {row.name: f"{row.formula} {row.source}" for row in rows})
    return found or [row for row in rows if row.name in near]


def plain_words(text: str) -> list[str]:
    """Return the words of a text, each plain; a package and its name are two."""
    return [word for word in map(plain, re.split(r"[\s.]+", text)) if word]
