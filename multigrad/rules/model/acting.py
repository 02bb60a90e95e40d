"""A rule as it acts now: what its name means by today's registry, with values for its params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import RuleError, RuleValueError
from ...trace.scope.draws import FREE, keyed
from ...trace.scope.moving import Moving
from ...trace.scope.present import check_ranges
from ...trace.scope.reads import Lookup, names_in, note_lookup, reading
from ...trace.scope.rules import ActiveRules, RuleInForce
from .binding import token_of
from .names import IN_FORCE, epoch_here
from .rule import resolve

MOST_IN_FORCE = 256
MOST_NUMBERS = 256  # of one rule with params of the same names
PLAIN = (int, bool, str)


def apply_now(rule: Any, params: Mapping[str, Any] | None, key: Any = None) -> RuleInForce:
    """Resolve a rule by today's registry and return it ready to be applied; the same object for the
    same name.

    Examples:
        >>> from multigrad.context import apply_now
        >>> apply_now("triangular", {"width": 2.0}).bound_rule.values
        (2.0,)
    """
    if rule is None:
        raise RuleError("use needs a rule: a name, a Rule or a function, got None")
    numbers: dict[str, Any] = {}
    words = _words_of(rule, params, numbers) if key is None else None
    now = epoch_here()  # first: a name that changes meanwhile is looked up again
    form: _Form | None = None if words is None else IN_FORCE.get(words)
    if form is not None and form.epoch == now:
        given = tuple(numbers.values())
        known = None if 0.0 in given else form.known.get(given)  # 0.0 equals -0.0
        known = known or form.with_numbers(given)
        if known is not None:
            for lookup in form.lookups:
                note_lookup(lookup)
            return known
    with reading() as found:
        bound_rule = resolve(rule).bound_rule(params)
    in_force = RuleInForce(bound_rule, FREE if key is None else keyed(key))
    lookups = names_in(found)
    if words is not None:
        if len(IN_FORCE) >= MOST_IN_FORCE:
            IN_FORCE.clear()
        runtime = bound_rule.specialization.runtime
        found_all = all(name in runtime for name in numbers)
        places = tuple(map(runtime.index, numbers)) if found_all else None
        form = IN_FORCE[words] = _Form(now, lookups, in_force, places)
        form.keep(tuple(numbers.values()), in_force)
    for lookup in lookups:
        note_lookup(lookup)
    return in_force


def _words_of(rule: Any, params: Mapping[str, Any] | None, numbers: dict[str, Any]) -> Any:
    """Return a name with plain params as a key, without its numbers, which are added to a dict;
    None: it is looked up each time.
    """
    if type(rule) is not str or not (params is None or isinstance(params, dict)):
        return None
    if not params:
        return rule
    words: list[Any] = [rule]
    for name, value in params.items():
        kind = type(value)
        if kind is float or isinstance(value, Moving):
            if "." not in name:  # else it is bound to a part
                words += name, float
                numbers[name] = value
                continue
            if not value or kind is not float:  # 0.0 equals -0.0
                return None
        elif kind not in PLAIN:  # it may change, or have no hash
            return None
        words += name, kind, value
    return tuple(words)


@dataclass(slots=True, eq=False)
class _Form:
    """What a rule's name with params of these names means, whatever their numbers are.

    Attributes:
        epoch: in which it was looked up.
        lookups: the names that were.
        in_force: the rule with the first numbers.
        places: where the numbers stand among its values; None: others are looked up anew.
        known: the rule with numbers that were met, by these.
    """

    epoch: int
    lookups: tuple[Lookup, ...]
    in_force: RuleInForce
    places: tuple[int, ...] | None
    known: dict[tuple[Any, ...], RuleInForce] = field(default_factory=dict)

    def with_numbers(self, numbers: tuple[Any, ...]) -> RuleInForce | None:
        """Return the rule with these numbers; None: it says itself what is wrong with them."""
        if self.places is None:
            return None
        specialization = self.in_force.specialization
        values = list(self.in_force.values)
        for place, number in zip(self.places, numbers, strict=True):
            values[place] = number
            if type(number) is not float:
                number.take(f"param {specialization.runtime[place]!r} of {specialization.subject}")
        ordered = tuple(values)
        try:
            if self.in_force.moves:
                check_ranges(self.in_force, ordered)
            else:
                specialization.check_numbers(ordered)
        except RuleValueError:
            return None
        in_force = self.in_force.with_values(ordered, token_of(specialization, ordered))
        self.keep(numbers, in_force)
        return in_force

    def keep(self, numbers: tuple[Any, ...], in_force: RuleInForce) -> None:
        """Remember the rule with numbers, which do not move."""
        if in_force.has_tensors:
            return
        if len(self.known) >= MOST_NUMBERS:
            self.known.clear()
        # A cycle: for a name alone, as what users give is let go of at once.
        in_force.alone = ActiveRules(in_force, in_force, tokens_of(in_force, in_force))
        self.known[numbers] = in_force


def tokens_of(acts: RuleInForce | None, pars: RuleInForce | None) -> str:
    """Return what is equal for equal rules, of activations and of parameters."""
    first = "-" if acts is None else acts.token
    second = first if pars is acts else "-" if pars is None else pars.token
    return f"{first} | {second}"
