"""A rule put on what a framework finds: in a function's calls, in a model's layers.

A framework finds them and puts something in their place. Which are meant, what acts for a rule's
name now, and what is said of a selector that nothing was met for stands here, once for all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from ..errors import RuleTypeError, RuleValueError
from .attribution.composites import Composite
from .attribution.kinds import is_layer_rule
from .handle import Row, named
from .over import over
from .selectors import Choice, Function, Layer, OperationChoice, shown

A = TypeVar("A")
MOST_NAMES = 24


# --- operations that a function calls -------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Meant:
    """What a selector of operations means.

    Attributes:
        selector: as it was given.
        name: an operation's, as its framework knows it.
    """

    selector: Any
    name: str

    @property
    def said(self) -> str:
        """What messages call it."""
        return self.selector if isinstance(self.selector, str) else self.name


def parts_of(rules: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return each selector with its rule, the parts of a tuple one by one."""
    return [
        (part, rule)
        for selector, rule in rules.items()
        for part in (selector if isinstance(selector, tuple) else (selector,))
    ]


class Following(Generic[A]):
    """What acts for some rules; made anew where a name means another rule than before.

    Args:
        rules: names, Rules, functions, or those that read layers.
        make: what acts, of what puts each of the rules over a forward (`over`).
    """

    def __init__(self, rules: Iterable[Any], make: Callable[[Sequence[Any]], A]) -> None:
        self._rules = tuple(rules)
        self._make = make
        self._known: tuple[tuple[Any, ...], A] | None = None

    def now(self) -> A:
        """Return what acts for what the rules' names mean now."""
        meant = tuple(rule if is_layer_rule(rule) else over(rule) for rule in self._rules)
        known = self._known
        if known is None or known[0] != meant:
            known = self._known = meant, self._make(meant)
        return known[1]


def no_operation(selector: Any) -> RuleTypeError:
    """Return the error for a selector that no function could call."""
    return RuleTypeError(f"{selector!r:.60} selects nothing: expected a name or a function")


def one_input(name: str, fitting: Sequence[int], shape: Any, wish: str) -> int:
    """Return the position of the operand that a rule acts on: the one of the result's shape.

    Raises:
        RuleValueError: there are several.
    """
    if len(fitting) > 1:
        raise RuleValueError(
            f"operation {name!r} has {len(fitting)} inputs of shape {shape}; a rule acts on one: "
            f"select {wish}"
        )
    return fitting[0]


def unmet(function: str, said: str, near: str, called: Iterable[str]) -> str:
    """Return that a function calls nothing that a selector means, and what it calls."""
    names = sorted(set(called))
    listed = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    return f"{function} calls no operation {said}{near} (it calls: {listed or 'none'})"


def close(name: str, names: Iterable[str]) -> str:
    """Return the names that are like one, as words for a message."""
    found = difflib.get_close_matches(name, sorted(set(names)), 3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


# --- layers of a model ----------------------------------------------------------------------------
def list_rows(choices: Sequence[Choice], operations: Sequence[OperationChoice]) -> list[Row]:
    """Return the table of what is changed."""
    rows: list[tuple[str, str, Choice | OperationChoice]] = []
    for each in choices:
        held = each.layer.layer
        kind = "function" if isinstance(held, Function) else type(held).__name__
        rows.append((each.layer.names[0] or "(model)", kind, each))
    rows += [(each.operation, "operation", each) for each in operations]
    return [Row(name, kind, named(each.rule), shown(each.selector)) for name, kind, each in rows]


@dataclass(frozen=True, slots=True)
class Given:
    """What a composite gives a layer.

    Attributes:
        layer: the layer.
        kind: its kind; None: it is of none that has a name.
        rule: the rule; None: it keeps its own gradient.
        is_named: whether the composite says so of the layer's name.
    """

    layer: Layer
    kind: str | None
    rule: Any
    is_named: bool

    def row(self, words: str = "") -> Row:
        """Return its row of the table; `words` say more of the rule than its name."""
        layer = self.layer
        said = words or named(self.rule)
        return Row(layer.names[0], type(layer.layer).__name__, said, self.kind or "by name")


def give(
    composite: Composite, layers: Sequence[Layer], kind_of: Callable[[Any], str | None]
) -> list[Given]:
    """Return what a composite gives each layer of a model.

    Raises:
        RuleValueError: it names one that the model does not have.
    """
    kinds = [kind_of(each.layer) for each in layers]
    names = [each.names[0] for each in layers]
    chosen = composite.choose(zip(names, kinds, strict=True))
    return [
        Given(layer, kind, rule, any(fnmatchcase(name, pattern) for pattern in composite.names))
        for layer, kind, rule, name in zip(layers, kinds, chosen, names, strict=True)
    ]
