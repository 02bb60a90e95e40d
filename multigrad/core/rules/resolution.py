"""What a rule means as users give it: a name, a Rule or a plain function.

`resolve` returns the Rule; `apply_now` and `activate` what it puts in force with these params.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import RuleError, RuleTypeError, RuleValueError
from ..backend.compiler_events import ON_DEPEND
from ..support.lazy_modules import late_function
from ..trace.active_rules import THEN, ActiveRules, Moving, is_of_then
from ..trace.identity import function_key
from ..trace.lookups import READING, Lookup, check_ranges, names_in, note_lookup, reading
from .rule import Rule
from .rule_names import TEMPLATES, Epoch, explain_no_rule, get
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
    rule_or_function: Any = get(rule)
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


# --- templates: what a name with params means, whatever their numbers -----------------------------
# A training loop enters `use("triangular", {"width": w})` at each step, mostly with another `w`, so
# that a name is looked up once for all floats. What remains is a `Template`, in `TEMPLATES` by a
# key that has no numbers, and numbers, by which a template remembers what it has put in force:
#
#   params                      key                                             numbers
#   {"width": 2.0}              (epoch, "triangular", "width", float)           (2.0,)
#   {"width": schedule}         (epoch, "triangular", "width", float)           (schedule,)
#   {"bits": 4, "max": 2.0}     (epoch, "uniform", "bits", "max", int, float, 4)   (2.0,)
#
# When any name changes its meaning, a new epoch begins and `TEMPLATES` is emptied (as also when it
# is full). A look-up that began earlier may store its template later, but under the old epoch,
# where nobody finds it.
MOST_TEMPLATES = 256
MOST_NUMBERS = 256  # of one template
PLAIN = (int, bool, str)  # types of params that are part of a key by their values
FLOATS = {float}


def activate(rule: Any, params: Mapping[str, Any] | None, key: Any = None) -> ActiveRules:
    """Return the active rules where one rule is in force for all.

    Args:
        key: of the random draws; None: they are the framework's own.
    """
    if rule is None:
        raise RuleError("use needs a rule: a name, a Rule or a function, got None")
    is_name = type(rule) is str and (params is None or isinstance(params, dict))
    # A region that runs a second time uses the meanings that names had in its first run.
    if not is_name or key is not None or (THEN.get() is not None and is_of_then()):
        return _look_up(rule, params, key)[0]
    # If all params are floats, this is the key. Else no template has it, and `_split` makes one.
    # The epoch is read first: a name that changes meanwhile is looked up again.
    numbers = tuple(params.values()) if params else ()
    template_key: Any = (Epoch.number, rule, *(params or ()), *map(type, numbers))
    template = TEMPLATES.get(template_key)
    number_names: tuple[str, ...] = ()
    if params and template is None:
        key_and_numbers = _split(template_key[:2], params)
        if key_and_numbers is None:
            return _look_up(rule, params)[0]
        template_key, by_name = key_and_numbers
        number_names, numbers = tuple(by_name), tuple(by_name.values())
        template = TEMPLATES.get(template_key)
    if template is not None:
        active = template.known.get(numbers) or template.put_in_force(numbers)
        if active is not None:
            if ON_DEPEND or READING.get() is not None:  # else nothing depends on the look-up
                for lookup in template.lookups:
                    note_lookup(lookup)
            return active
    active, lookups = _look_up(rule, params)
    template = _make_template(lookups, active, number_names)
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


def _split(named: tuple[int, str], params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
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
    return (*named, *params, *kinds, *plain), numbers


@dataclass(slots=True, eq=False)
class Template:
    """What a rule's name with params of these names means, whatever their numbers are.

    Attributes:
        lookups: the names that were looked up, which compilers and captures are told.
        in_force: the rule with the first numbers.
        positions: of the numbers among its values.
        is_in_order: whether the numbers are all its values, as they come.
        known: what was put in force, by its floats. Zeros are missing, as 0.0 equals -0.0.
    """

    lookups: tuple[Lookup, ...]
    in_force: RuleInForce
    positions: tuple[int, ...]
    is_in_order: bool
    known: dict[tuple[float, ...], ActiveRules] = field(default_factory=dict)

    def put_in_force(self, numbers: tuple[Any, ...]) -> ActiveRules | None:
        """Return the active rules with new numbers; None: look up, which says what is wrong."""
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
        for position in self.positions:
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
    lookups: tuple[Lookup, ...], active: ActiveRules, number_names: tuple[str, ...]
) -> Template:
    in_force = active.activations
    assert in_force is not None
    runtime = in_force.specialization.runtime
    positions = tuple(map(runtime.index, number_names))
    is_in_order = positions == tuple(range(len(in_force.values)))
    return Template(lookups, in_force, positions, is_in_order)
