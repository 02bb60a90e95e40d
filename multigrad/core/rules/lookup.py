"""Rules by what users name them with: a registered name, a Rule or a plain function.

`resolve` returns the Rule that is meant now, and `activate` what `use(rule, params)` puts in force.
`with_choices` attaches `over=`, `residuals=` and `fused=` to a rule that need not be resolved yet.
`unknown_keyword_error` is for calls that take a rule, and were given one of its params as a keyword
of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import RuleError, RuleTypeError, RuleValueError, UnsupportedOp
from ..backend.compiler_events import ON_DEPEND
from ..support.lazy_modules import NEEDS_ENGINE, late_function, provided
from ..trace.active_rules import THEN, ActiveRules, Moving, is_of_then
from ..trace.identity import function_key
from ..trace.lookups import READING, Lookup, check_ranges, names_in, note_lookup, reading
from . import rule_names
from .rule import Rule
from .rule_names import TEMPLATES, Epoch
from .signature import called_method, name_of

if TYPE_CHECKING:
    from .rule_in_force import RuleInForce

bind = late_function("multigrad.core.rules.rule_in_force:bind")

# The Rules of plain functions, by the identity of the function. Weak: a rule goes with the last who
# holds it; its graphs and code (`specialization.code_of`) stay as long as the function.
_of_functions: weakref.WeakValueDictionary[Any, Rule] = weakref.WeakValueDictionary()


def resolve(rule: str | Rule | Callable[..., Any]) -> Rule:
    """Return the Rule for which a name, a Rule or a plain function currently stands.

    Examples:
        >>> from multigrad.registry import resolve
        >>> resolve(lambda ctx, grad_out, tin: grad_out).params  # a function is a rule
        {}
    """
    rule_or_function: Any = rule_names.get(rule)
    if isinstance(rule_or_function, Rule):
        return rule_or_function
    name, function = name_of(rule_or_function), called_method(rule_or_function)
    key = function_key(function)
    known = _of_functions.get(key)
    if known is not None:
        return known
    try:
        return _of_functions.setdefault(key, Rule(name=name, function=function))
    except RuleTypeError as error:
        explained = explain_no_rule(rule_or_function, error)
        if explained is error:
            raise
        raise explained from error


@provided
def explain_no_rule(given: Any, error: RuleTypeError) -> RuleTypeError:
    """Return an error that says more for what is no rule; the given one if there is none."""
    return error


# A training loop enters `use("triangular", {"width": w})` at each step, mostly with another `w`, so
# that a name is looked up once for all floats. What remains is a `Template`, in `TEMPLATES` by a
# key that has no numbers, and numbers, by which a template remembers what it has put in force:
#
#   params                      key                                                  numbers
#   {"width": 2.0}              ("triangular", "width", float)                       (2.0,)
#   {"width": schedule}         ("triangular", "width", float)                       (schedule,)
#   {"bits": 4, "max": 2.0}     ("uniform", "bits", "max", int, float, 4)            (2.0,)
#
# `TEMPLATES` is emptied as soon as any name means another rule (`rule_names.renaming`) or it is
# full. A look-up that began before such a change may store its template after it, so each template
# holds the epoch in which its look-up began, and counts in that epoch alone.
MOST_TEMPLATES = 256
MOST_NUMBERS = 256  # of one template
PLAIN = (int, bool, str)  # types of params that are part of a key by their values
FLOATS = {float}


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
    """Return the active rules where one rule is in force for all.

    Args:
        key: of the random draws; None: they are the framework's own.
    """
    if rule is None:
        raise RuleError("use needs a rule: a name, a Rule or a function, got None")
    is_name = type(rule) is str and (params is None or isinstance(params, dict))
    # A region that runs again after names have changed has their meanings of then.
    if not is_name or key is not None or (THEN.get() is not None and is_of_then()):
        return _look_up(rule, params, key)[0]
    epoch = Epoch.number  # read first: a name that changes meanwhile is looked up again
    # Most params are floats, and then this is the key; else there is no template of it.
    numbers = tuple(params.values()) if params else ()
    template_key: Any = (rule, *(params or ()), *map(type, numbers))
    template = TEMPLATES.get(template_key)
    number_names: tuple[str, ...] = ()
    if params and (template is None or template.epoch != epoch):
        key_and_numbers = _split(rule, params)
        if key_and_numbers is None:
            return _look_up(rule, params)[0]
        template_key, by_name = key_and_numbers
        number_names, numbers = tuple(by_name), tuple(by_name.values())
        template = TEMPLATES.get(template_key)
    if template is not None and template.epoch == epoch:
        active = template.known.get(numbers) or template.put_in_force(numbers)
        if active is not None:
            if ON_DEPEND or READING.get() is not None:  # else nothing depends on the look-up
                for lookup in template.lookups:
                    note_lookup(lookup)
            return active
    active, lookups = _look_up(rule, params)
    template = _make_template(epoch, lookups, active, number_names)
    if len(TEMPLATES) >= MOST_TEMPLATES:
        TEMPLATES.clear()
    TEMPLATES[template_key] = template
    if not template.in_force.has_tensors:
        template.remember(numbers, active)
    return active


def _look_up(
    rule: Any, params: Mapping[str, Any] | None, key: Any = None
) -> tuple[ActiveRules, tuple[Lookup, ...]]:
    # The active rules, and the names by which they were found: a composed rule's parts have some.
    with reading() as meanings:
        in_force = bind(resolve(rule), params, key)
    lookups = names_in(meanings)
    for lookup in lookups:
        note_lookup(lookup)
    return ActiveRules(in_force, in_force, in_force.token), lookups


def _split(rule: str, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    # The key and the numbers by name; None: such params are looked up each time.
    kinds: list[Any] = []
    plain: list[Any] = []
    numbers: dict[str, Any] = {}
    for name, value in params.items():
        kind = type(value)
        # The param of a part ("noise.sigma") is no value of the rule that could be replaced.
        if (kind is float or isinstance(value, Moving)) and "." not in name:
            kinds.append(float)
            numbers[name] = value
            continue
        # Others may change, or have no hash; and 0.0 equals -0.0.
        if kind not in PLAIN and not (kind is float and value):
            return None
        kinds.append(kind)
        plain.append(value)
    return (rule, *params, *kinds, *plain), numbers


@dataclass(slots=True, eq=False)
class Template:
    """What a rule's name with params of these names means, whatever their numbers are.

    Attributes:
        epoch: in which its look-up began.
        lookups: the names that were looked up, which compilers and captures are told.
        in_force: the rule with the first numbers.
        positions: of the numbers among its values; None: only the first numbers can be had of it.
        is_in_order: whether the numbers are all its values, as they come.
        known: what was put in force, by its floats. Zeros are missing, as 0.0 equals -0.0.
    """

    epoch: int
    lookups: tuple[Lookup, ...]
    in_force: RuleInForce
    positions: tuple[int, ...] | None
    is_in_order: bool
    known: dict[tuple[float, ...], ActiveRules] = field(default_factory=dict)

    def put_in_force(self, numbers: tuple[Any, ...]) -> ActiveRules | None:
        """Return the active rules with new numbers; None: look up, which says what is wrong."""
        if self.positions is None:
            return None
        prototype, values = self.in_force, numbers
        if not self.is_in_order:
            ordered = list(prototype.values)
            for position, number in zip(self.positions, numbers, strict=True):
                ordered[position] = number
            values = tuple(ordered)
        are_floats = FLOATS.issuperset(map(type, numbers))
        try:
            if are_floats:
                prototype.specialization.check_numbers(values)
            else:
                self._take_schedules(values)
                check_ranges(prototype, values)
        except RuleValueError:
            return None
        is_plain = are_floats and not prototype.has_tensors
        renew = prototype.with_numbers if is_plain else prototype.with_values
        in_force = renew(values)
        active = ActiveRules(in_force, in_force, in_force.token)
        if are_floats:
            self.remember(numbers, active)
        return active

    def _take_schedules(self, values: tuple[Any, ...]) -> None:
        specialization = self.in_force.specialization
        for position in self.positions or ():
            number = values[position]
            if type(number) is not float:
                name = specialization.runtime[position]
                number.take(f"param {name!r} of {specialization.subject}")

    def remember(self, floats: tuple[float, ...], active: ActiveRules) -> None:
        if 0.0 not in floats:
            if len(self.known) >= MOST_NUMBERS:
                self.known.clear()
            self.known[floats] = active


def _make_template(
    epoch: int, lookups: tuple[Lookup, ...], active: ActiveRules, number_names: tuple[str, ...]
) -> Template:
    in_force = active.activations
    assert in_force is not None
    runtime = in_force.specialization.runtime
    # A composed rule's parts may have such a param under names of their own.
    has_all_names = all(name in runtime for name in number_names)
    positions = tuple(map(runtime.index, number_names)) if has_all_names else None
    is_in_order = positions == tuple(range(len(in_force.values)))
    return Template(epoch, lookups, in_force, positions, is_in_order)


@provided
def with_choices(rule: Any, over: Any, axis_name: Any, residuals: Any, fused: Any) -> Any:
    """Return a rule with choices of `over`, `axis_name`, `residuals` and `fused`."""
    raise UnsupportedOp(f"a choice made beside a rule's name, as residuals=, {NEEDS_ENGINE}")


@provided
def unknown_keyword_error(
    function: Callable[..., Any],
    name: str,
    rule: str | Rule | Callable[..., Any] | None,
    unknown: Mapping[str, Any],
) -> RuleTypeError:
    """Return the error for keywords that a function does not take.

    Args:
        function: whose own keywords are suggested.
        name: what people call it.
        rule: the rule whose params the keywords may be.
        unknown: the keywords with their values.
    """
    return RuleTypeError(
        f"{name} takes no {next(iter(unknown))!r}; params are given as params={{}}"
    )
