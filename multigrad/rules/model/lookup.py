"""Look-up: `resolve` returns the Rule that a name or a function stands for now; `apply_now` also
takes values for its params, and returns the rule in force.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from numbers import Real
from typing import Any

from ...backend.compiler_events import ON_DEPEND
from ...capture.user_code.signature import Signature, called_method, name_of
from ...errors import RuleError, RuleTypeError, RuleValueError, closest
from ...graph.support.class_bases import dataclass
from ...graph.support.params import Fused, read_fused, read_shards
from ...lowering.function_graph import read_way
from ...trace.active_rules import FREE, ActiveRules, keyed
from ...trace.identity import function_key
from ...trace.lookups import READING, Lookup, check_ranges, names_in, note_lookup, reading
from ...trace.moving_numbers import THEN, Moving, is_of_then
from . import rule_names
from .rule import Rule
from .rule_in_force import RuleInForce, bind, token_of
from .rule_names import TEMPLATES, Epoch

MOST_TEMPLATES = 256
MOST_NUMBERS = 256  # of one rule with params of the same names
PLAIN = (int, bool, str)
FLOATS = {float}
NOT_NAMED = ("self",)
SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# A rule lives as long as someone holds it; what was made of it, as long as the functions it is made
# of (`code_of`).
_wrapped: weakref.WeakValueDictionary[Any, Rule] = weakref.WeakValueDictionary()


def resolve(rule: str | Rule | Callable[..., Any]) -> Rule:
    """Return the Rule for which a name, a Rule or a plain function currently stands.

    Examples:
        >>> from multigrad.registry import resolve
        >>> resolve(lambda ctx, grad_out, tin: grad_out).params  # a function is a rule
        {}
    """
    known: Any = rule_names.get(rule)
    if isinstance(known, Rule):
        return known
    name, function = name_of(known), called_method(known)
    key = function_key(function)
    return _wrapped.get(key) or _wrapped.setdefault(key, Rule(name=name, function=function))


# --- the rule that a name with params means now ---------------------------------------------------
def apply_now(rule: Any, params: Mapping[str, Any] | None, key: Any = None) -> RuleInForce:
    """Return a rule as today's registry resolves it, ready to be applied.

    The same name gives the same object while it means the same rule.

    Examples:
        >>> from multigrad.context import apply_now
        >>> apply_now("triangular", {"width": 2.0}).values
        (2.0,)
    """
    in_force = activate(rule, params, key).activations
    assert in_force is not None
    return in_force


def activate(rule: Any, params: Mapping[str, Any] | None, key: Any = None) -> ActiveRules:
    """Return the active rules where one rule is in force for all."""
    # Each `use` asks, with another number each time, so that names with floats are looked up once:
    # a `_Template` takes the new numbers.
    if rule is None:
        raise RuleError("use needs a rule: a name, a Rule or a function, got None")
    words: Any = None
    numbers: dict[str, Any] = {}
    values: tuple[Any, ...] = ()
    template: _Template | None = None
    # Read first: a name that changes meanwhile is looked up again. In a region that runs again
    # after names have changed, it equals no epoch.
    now: Any = object() if THEN.get() is not None and is_of_then() else Epoch.number
    if key is None and type(rule) is str and (params is None or isinstance(params, dict)):
        values = tuple(params.values()) if params else ()
        words = (rule, *(params or ()), *map(type, values))
        template = TEMPLATES.get(words)
        if params and (template is None or template.epoch != now):  # else all are floats
            words, numbers = _words_of(rule, params)
            values = tuple(numbers.values())
            template = TEMPLATES.get(words)
    if template is not None and template.epoch == now:
        active = None if 0.0 in values else template.known.get(values)  # 0.0 equals -0.0
        active = active or template.with_numbers(values, not numbers)
        if active is not None:
            if ON_DEPEND or READING.get() is not None:  # else nothing depends on the look-up
                for lookup in template.lookups:
                    note_lookup(lookup)
            return active
    with reading() as meanings:
        in_force = bind(resolve(rule), params, FREE if key is None else keyed(key))
    active = ActiveRules(in_force, in_force, in_force.token)
    lookups = names_in(meanings)
    if words is not None:
        if len(TEMPLATES) >= MOST_TEMPLATES:
            TEMPLATES.clear()
        runtime = in_force.specialization.runtime
        found_all = all(name in runtime for name in numbers)
        places = tuple(map(runtime.index, numbers)) if found_all else None
        template = TEMPLATES[words] = _Template(now, lookups, in_force, places)
        if not in_force.has_tensors:
            template.keep(values, active)
    for lookup in lookups:
        note_lookup(lookup)
    return active


def _words_of(rule: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    # The key: the names and kinds of params, and plain values; floats and schedules are numbers
    # apart from it. None: such params are looked up each time.
    kinds: list[Any] = []
    plain: list[Any] = []
    numbers: dict[str, Any] = {}
    for name, value in params.items():
        kind = type(value)
        if (kind is float or isinstance(value, Moving)) and "." not in name:  # else a part's
            kinds.append(float)
            numbers[name] = value
            continue
        # It may change, or have no hash; and 0.0 equals -0.0.
        if kind not in PLAIN and not (kind is float and value):
            return None, {}
        kinds.append(kind)
        plain.append(value)
    return (rule, *params, *kinds, *plain), numbers


@dataclass(slots=True, eq=False)
class _Template:
    """What a rule's name with params of these names means, whatever their numbers are.

    Attributes:
        epoch: in which it was looked up.
        lookups: the names that were.
        in_force: the rule with the first numbers.
        places: the positions of the numbers among its values; None: others are looked up anew.
        known: the active rules by numbers; None for numbers that were met once.
        is_in_order: whether the numbers are the values, as they come.
    """

    epoch: int
    lookups: tuple[Lookup, ...]
    in_force: RuleInForce
    places: tuple[int, ...] | None
    known: dict[tuple[float, ...], ActiveRules | None] = field(default_factory=dict)
    is_in_order: bool = False

    def __post_init__(self) -> None:
        self.is_in_order = self.places == tuple(range(len(self.in_force.values)))

    def with_numbers(self, numbers: tuple[Any, ...], are_floats: bool) -> ActiveRules | None:
        """Return the rule with these numbers; None: resolve it anew, which says what is wrong.

        `are_floats` says that all of them are known to be floats.
        """
        if self.places is None:
            return None
        first, ordered = self.in_force, numbers
        specialization = first.specialization
        moves = not are_floats and not FLOATS.issuperset(map(type, numbers))
        if moves or not self.is_in_order:
            values = list(first.values)
            for place, number in zip(self.places, numbers, strict=True):
                values[place] = number
                if type(number) is not float:
                    name = specialization.runtime[place]
                    number.take(f"param {name!r} of {specialization.subject}")
            ordered = tuple(values)
        try:
            if moves:
                check_ranges(first, ordered)
            else:
                specialization.check_numbers(ordered)
        except RuleValueError:
            return None
        token = token_of(specialization, ordered)
        renew = first.with_values if first.has_tensors or moves else first.with_numbers
        in_force = renew(ordered, token)
        active = ActiveRules(in_force, in_force, token)
        if not moves:
            # Kept from the second time on: a schedule's numbers come once.
            self.keep(numbers, active if numbers in self.known else None)
        return active

    def keep(self, numbers: tuple[float, ...], active: ActiveRules | None) -> None:
        """Remember the rule with numbers, which do not move; None: that they were met once."""
        if len(self.known) >= MOST_NUMBERS:
            self.known.clear()
        self.known[numbers] = active


def tokens_of(acts: RuleInForce | None, pars: RuleInForce | None) -> str:
    """Return a token that is equal for equal rules, of activations and of parameters."""
    first = "-" if acts is None else acts.token
    second = "-" if pars is None else pars.token
    return first if first == second else f"{first} | {second}"


# --- a rule with a choice that was made -----------------------------------------------------------
def with_choices(
    rule: Any,
    over: Any = None,
    axis_name: Any = None,
    residuals: str | None = None,
    fused: Fused = "auto",
) -> Any:
    """Return a rule as given, or over shards, with a choice of residuals, or of being fused."""
    shards = read_shards(over, axis_name)
    choices: dict[str, Any] = {}
    if residuals is not None:
        choices["residuals"] = read_way(residuals, "a rule")
    if shards is not None:
        choices["shards"] = shards
    if read_fused(fused) != "auto":
        choices["fused"] = fused
    if not choices:
        return rule
    if rule is None:
        name, value = next(iter(choices.items()))
        words = str(value) if name == "shards" else f"{name}={value!r}"
        raise RuleError(f"{words} needs a rule: name the rule here too")
    # A name is still looked up when it is used.
    if isinstance(rule, str):
        return _named(rule, **choices)
    choices.pop("shards", None)
    rule = resolve(rule).copy(**choices) if choices else resolve(rule)
    return rule if shards is None else rule._over_shards(shards)


@functools.lru_cache(768)
def _named(name: str, **choice: Any) -> Rule:
    # A composition of one part, so that the name is looked up at each use; cached, as it owns code.
    return Rule(name=name, parts=(name,), **choice)


# --- a keyword that a call does not take: a rule's param belongs into `params` --------------------
def refuse_misplaced(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    misplaced: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    Args:
        function: whose own keywords are suggested.
        name: what people call it.
        rule: the rule whose params they may be.
    """
    word, value = next(iter(misplaced.items()))
    known = _signature_of(rule)
    if known is not None and all(map(known.takes, misplaced)):
        written = ", ".join(f'"{key}": {each!r}' for key, each in misplaced.items())
        return RuleTypeError(
            f"{name} takes no {word!r}, which is a param of {_rule(rule)}: write "
            f"params={{{written}}}"
        )
    parameters = inspect.signature(function).parameters.values()
    keywords = [p.name for p in parameters if p.kind not in SPREAD and p.name not in NOT_NAMED]
    params = [] if known is None else sorted(known.params)
    close = closest(word, [*params, *keywords])
    if close is None and len(params) == 1 and isinstance(value, Real):
        close = params[0]
    if close in params:
        hint = f'; did you mean params={{"{close}": {value!r}}}, of {_rule(rule)}?'
    elif close is not None:
        hint = f"; did you mean {close!r}?"
    elif known is None:
        hint = f"; a rule's params are given as params={{{word!r}: {value!r}}}, beside the rule"
    else:
        taken = ", ".join(params) or "no params"
        hint = f", and {_rule(rule)} has no such param (it takes {taken}, given as params={{...}})"
    return RuleTypeError(f"{name} takes no {word!r}{hint}")


def _rule(rule: Any) -> str:
    return f"rule {resolve(rule).name!r}"


def _signature_of(rule: str | Rule | Callable[..., Any] | None) -> Signature | None:
    # A name that has no rule is reported by its own look-up, not here.
    try:
        return None if rule is None else resolve(rule).signature
    except RuleError:
        return None
