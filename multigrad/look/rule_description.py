"""Descriptions of rules: family, formula, params with ranges, source, effect without `tin`.

All of it is read where it is declared (module, docstring, signature) or found by trying. The docs'
tables, `multigrad rules` and the gallery use it.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import estimators
from ..core.rules.registry import get, rules
from ..core.rules.rule import Rule
from ..core.rules.rule_names import OWN
from ..core.support.records import cached_property
from ..engine.rules.advice import near_names, plain
from ..engine.rules.model.rule_graphs import likely_graph
from ..engine.rules.saving import other_numbers
from ..errors import MultigradError, NativeRuleWarning, RuleValueError, suggest
from ..estimators.declared import Estimator
from ..models.attribution.composites import call_hint

LIBRARIES = (*OWN, "multigrad.estimators.")
CLOSE = 0.76  # of difflib: "triangle" finds "triangular"


@dataclass(frozen=True, slots=True)
class Param:
    """A param: its default (`inspect.Parameter.empty`: required) and the text of its range."""

    name: str
    default: Any
    range: str = ""

    def __str__(self) -> str:
        is_required = self.default is inspect.Parameter.empty
        text = f"{self.name} (required)" if is_required else f"{self.name}={self.default!r}"
        return f"{text} ({self.range})" if self.range else text


@dataclass(frozen=True)
class Described:
    """The description of a rule, or of a Function of the library, in plain text.

    Attributes:
        family: the last name of its module; "" for a rule of yours.
        heading: the first sentence of that module's docstring.
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

    # A list of all rules does not ask for it: it runs the rule.
    @cached_property
    def without_tin(self) -> str:
        """What a rule does without its forward's input."""
        return "" if self.rule is None else without_input(self.rule)

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain data, as `multigrad rules --json` prints it."""
        params = {
            param.name: {"default": as_plain(param.default), "range": param.range or None}
            for param in self.params
        }
        is_rule = self.rule is not None
        return {
            "name": self.name,
            "kind": self.kind,
            "family": self.family,
            "formula": self.formula,
            "params": params,
            **({"without_tin": self.without_tin} if is_rule else {"gradients": self.gradients}),
            "source": self.source,
        }


def as_plain(default: Any) -> Any:
    """Return a default as JSON has it; a required param has none."""
    if default is inspect.Parameter.empty or default is None:
        return None
    return default if isinstance(default, bool | int | float | str) else repr(default)


def describe(rule: Rule) -> Described:
    formula, source = split_docstring(rule.__doc__)
    family, heading = place_in(rule.__module__, "Rules of yours")
    ranges = rule.ranges
    return Described(
        name=rule.name,
        kind="rule",
        family=family,
        heading=heading,
        formula=formula,
        params=tuple(
            Param(name, default, ranges[name].text if name in ranges else "")
            for name, default in rule.params.items()
        ),
        source=source,
        rule=rule,
    )


def describe_estimator(function: Estimator) -> Described:
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
            text = inspect.cleandoc(getattr(sys.modules.get(module), "__doc__", None) or module)
            sentence = " ".join(text.partition("\n\n")[0].split())
            return module.rpartition(".")[2], sentence.removesuffix(".")
    return "", otherwise


def describe_all() -> list[Described]:
    """Return the descriptions of all registered rules, by family in the order of the modules."""
    rows = [describe(get(name)) for name in rules()]
    return sorted(rows, key=lambda row: (place_of(row.family), row.family))


def describe_estimators() -> list[Described]:
    rows = map(describe_estimator, estimators.catalogue().values())
    return sorted(rows, key=lambda row: row.family)


# What most people look for comes first; rules under another package's name come last.
# The user's own rules have no family, and come before all.
PLACES = ("", "surrogate", "spiking", "quantization", "transforms", "peers")


def place_of(family: str) -> int:
    return PLACES.index(family) if family in PLACES else len(PLACES)


def split_docstring(text: str | None) -> tuple[str, str]:
    body, _, _ = inspect.cleandoc(text or "").partition("Examples:")
    formula, _, source = body.partition("Source:")
    return " ".join(formula.split()), " ".join(source.split())


def without_input(rule: Rule) -> str:
    """Try a rule without `tin` and return its effect in words; a user's rule may raise."""
    grad_out = np.array([[0.5, -1.5, 2.0], [1.0, -0.25, 3.0]])
    tin = np.array([[-7.0, 0.2, 1.1], [0.0, 9.0, -0.4]])
    try:
        with as_tried():
            graph, _ = likely_graph(rule.bound_rule(), True)
            key = {} if graph is None or graph.input("key") is None else {"key": 0}
            params: dict[str, Any] = {**other_numbers(rule), **key}
            without, with_input = (rule(None, grad_out, x, **params) for x in (None, tin))
    except RuleValueError:
        return "an error: it needs `tin`"
    except Exception:
        return "not known"
    if np.array_equal(without, grad_out):
        return "`grad_out`, unchanged"
    return "the same" if np.array_equal(without, with_input) else "everywhere as inside the window"


@contextmanager
def as_tried() -> Iterator[None]:
    """Suppress the warning that a rule runs as it is: nobody has used it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NativeRuleWarning)
        yield


def find_like(word: str, rows: Iterable[Described]) -> list[Described]:
    """Return rules whose name, formula or source has the words, and those with similar names.

    Raises:
        MultigradError: there are none.
    """
    rows, words = list(rows), plain_words(word)
    texts = [plain_words(f"{row.name} {row.formula} {row.gradients} {row.source}") for row in rows]
    last_names = [row.name.rpartition(".")[2] for row in rows]
    if (hint := call_hint(word)) and not any(word.lower() in name for name in last_names):
        raise MultigradError(f"no rule named {word!r}{hint}")
    near = difflib.get_close_matches(word.lower(), last_names, len(rows), CLOSE)
    matches = [
        row
        for row, text, last_name in zip(rows, texts, last_names, strict=True)
        if last_name in near
        or (words and all(any(each in text_word for text_word in text) for each in words))
    ]
    if not matches:
        names = near_names(word, {row.name: f"{row.formula} {row.source}" for row in rows})
        matches = [row for row in rows if row.name in names]
    if not matches:
        hint = suggest(word, {each for text in texts for each in text if len(each) > 3})
        raise MultigradError(
            f"no rule like {word!r} among {len(rows)}{hint}; multigrad rules lists all but the "
            "relevance rules (LRP), which are functions: xg.attribution, xg.composites"
        )
    return matches


def list_rules(family: str = "", like: str = "", estimators: bool = False) -> list[Described]:
    """Return the rules of a family, or like a word, with estimators; without either all rules.

    Args:
        estimators: list the Functions of `xg.estimators` instead.
    """
    rules = [] if estimators else describe_all()
    rows = rules if rules and not (family or like) else [*rules, *describe_estimators()]
    families = list(dict.fromkeys(row.family for row in rows if row.family))
    if family:
        package = f"{family}."
        rows = [row for row in rows if row.family == family or row.name.startswith(package)]
        if not rows:
            raise MultigradError(
                f"no family {family!r}{suggest(family, families)} (families: {', '.join(families)})"
            )
    return find_like(like, rows) if like else rows


def plain_words(text: str) -> list[str]:
    # Split at dots too: a package and a name in it are two words.
    return [word for word in map(plain, re.split(r"[\s.]+", text)) if word]
