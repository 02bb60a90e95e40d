"""`RuleInForce`: a rule with values for its params; and how it is made of a rule and params.

From the top: the class; `bind`, which makes one, such as of `triangular` and `{"width": 2.0}`; and
a composed rule in words. `bind` sorts the params into static ones, which belong to the
`Specialization`, and numbers, which are the values:

    bind ─► Specialization: the rule with its static params, one for all numbers ─► RuleInForce
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import RuleTypeError
from ..backend.values import concrete_number
from ..ir.graph import Graph
from ..support.lazy_modules import of_engine
from ..support.params import is_address, read_params
from ..support.threads import SERIALS
from ..trace.active_rules import FREE, KeySource, Moving, key_token, keyed
from ..trace.identity import function_key, items_key, owners_of
from .signature import REQUIRED, STATIC_TYPES, Signature, check_value
from .specialization import Slot, Specialization, code_of

Rule = Any  # of rule.py, which imports this module
MOST_SPECIALIZATIONS = 256  # of one rule: by params that are part of its code


class RuleInForce:
    """A rule with values for its params, and where its random draws come from; never changed.

    Examples:
        >>> from multigrad.context import apply_now
        >>> isinstance(apply_now("triangular", None), xg.context.RuleInForce)
        True

    Attributes:
        specialization: the rule with its static params.
        values: the run-time params, in the order of `specialization.runtime`.
        token: equal for equal meaning; `own_token` is the same without the key of the draws.
        has_tensors: whether a param is a tensor, which may change in place, or a schedule.
        moves: whether one is a schedule: `lookups.at_present` returns its current value.
        present: this rule with the schedules' values at the last call.
    """

    __slots__ = (
        "__weakref__", "draws", "has_tensors", "moves", "own_token", "present", "specialization",
        "token", "values",
    )  # fmt: skip

    def __init__(
        self,
        specialization: Specialization,
        values: tuple[Any, ...],
        token: str,
        draws: KeySource = FREE,
    ) -> None:
        self.specialization, self.values, self.draws = specialization, values, draws
        self.own_token = token
        self.token = token if draws.key is None else token + key_token(draws)
        self.has_tensors = self.moves = False
        self.present: RuleInForce | None = None
        for value in values:
            if type(value) is not float:
                self.has_tensors = True
                if isinstance(value, Moving):
                    self.moves = True
                    value.hold(self)

    def with_values(self, values: tuple[Any, ...], token: str = "") -> RuleInForce:
        token = token or token_of(self.specialization, values)
        return RuleInForce(self.specialization, values, token, self.draws)

    def with_draws(self, draws: KeySource) -> RuleInForce:
        return RuleInForce(self.specialization, self.values, self.own_token, draws)

    def with_numbers(self, values: tuple[float, ...]) -> RuleInForce:
        """Return this rule, in force without a key, with other floats, which have been checked.

        Each new number of `use` comes here, so `__init__` is bypassed.
        """
        result = RuleInForce.__new__(RuleInForce)
        result.specialization, result.draws = self.specialization, self.draws
        result.values = values
        result.token = result.own_token = token_of(self.specialization, values)
        result.has_tensors = result.moves = False
        result.present = None
        return result

    @property
    def numbers(self) -> dict[str, Any]:
        return dict(zip(self.specialization.runtime, self.values, strict=True))

    @property
    def key(self) -> Any:
        """Two uint32, or a backend's own key object; None: draws are the framework's own."""
        return self.draws.key

    @property
    def counter(self) -> Any:
        return self.draws.counter

    @property
    def params(self) -> dict[str, Any]:
        return self.specialization.params(self.values)

    @property
    def rule(self) -> Rule:
        return self.specialization.fill_bound(self.specialization.name_values(self.values))[0]

    def graph(self) -> Graph:
        """Return the rule's graph with the params' own values where the rule branches on them."""
        return graph_of(self)


graph_of = of_engine(__name__, "graph_of", "a rule's graph without a call")


def bind(rule: Rule, params: Mapping[str, Any] | None = None, key: Any = None) -> RuleInForce:
    """Return a rule with values for its params, checked against its signature and ranges.

    Args:
        key: of the random draws; None: they are the framework's own.
    """
    param_values = read_params(params)
    if any(map(is_address, param_values)) and rule.parts:
        rule, param_values = bind_addressed(rule, param_values)
    signature = rule.signature
    rule._check_names(param_values, signature)
    values = {**_with_defaults(rule, signature, param_values), **rule.bound}
    if rule.bound:
        # Bound values run as params do, so that the code of a rule is shared by all its bindings.
        rule = rule.copy(bound={})
        signature = rule.signature
    runtime: dict[str, Any] = {}
    static: dict[str, Any] = {}
    for name, value in values.items():
        is_runtime, value = check_value(rule.name, signature.param(name), value)
        (runtime if is_runtime else static)[name] = value
    if rule.own_ranges or rule.parts:  # each `use` with a new number asks
        rule._check_ranges({**runtime, **static}, with_defaults=bool(rule.parts))
    # Taken before `_frozen`, whose copies have none: the rule that people hold keeps them.
    specializations = rule._specializations
    rule, hidden = _hide_bound(rule._frozen(), {*signature.params, *values})
    runtime.update(hidden)
    names = tuple(sorted(runtime))
    specialization = _specialize(rule, names, static, frozenset(hidden), specializations)
    ordered = tuple(runtime[name] for name in names)
    draws = FREE if key is None else keyed(key)
    return RuleInForce(specialization, ordered, token_of(specialization, ordered), draws)


def token_of(specialization: Specialization, values: tuple[Any, ...]) -> str:
    """Return text that is equal for rules that do the same with equal values."""
    if len(values) == 1 and type(values[0]) is float:  # each new number comes here
        return f"{specialization.id}({values[0]!r})"
    words = [repr(v) if type(v) is float else value_token(v) for v in values]
    return f"{specialization.id}({','.join(words)})"


def tokens_of(for_activations: RuleInForce | None, for_params: RuleInForce | None) -> str:
    """Return a token that is equal for equal rules, of activations and of parameters."""
    first = "-" if for_activations is None else for_activations.token
    second = "-" if for_params is None else for_params.token
    return first if first == second else f"{first} | {second}"


def _with_defaults(rule: Rule, signature: Signature, params: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(params)
    is_single = _is_single(rule)
    for param in signature.params.values():
        if param.name in params:
            continue
        if param.default is REQUIRED:
            raise RuleTypeError(
                f"rule {rule.name!r} needs a value for param {param.name!r}: "
                f"params={{{param.name!r}: ...}}"
            )
        if is_single:
            # The parts of a composed rule may have different defaults: they keep their own.
            values[param.name] = param.default
    return values


def _is_single(rule: Rule) -> bool:
    if rule.function is not None:
        return True
    if len(rule.parts) != 1:
        return False
    # One name with choices, as `engine/support/shards.py` makes it, counts as that rule.
    (part,) = rule._resolved_parts()
    return part.name == rule.name and _is_single(part)


def _hide_bound(rule: Rule, names: set[str], path: str = "") -> tuple[Rule, dict[str, Any]]:
    # The rule with a slot for each run-time value that a part has bound, and these by their slots.
    hidden: dict[str, Any] = {}
    bound = dict(rule.bound)
    for name, value in rule.bound.items():
        # All values share the code: a slot is filled at each call.
        if not isinstance(value, STATIC_TYPES):
            slot = f"{name}_of_part{path}"
            while slot in names:
                slot += "_"
            hidden[slot], bound[name] = value, Slot(slot)
    parts = []
    for i, part in enumerate(rule.parts, 1):
        part, inner = _hide_bound(part, names, f"{path}_{i}")
        parts.append(part)
        hidden.update(inner)
    return (rule.copy(bound=bound, parts=tuple(parts)), hidden) if hidden else (rule, hidden)


def _specialize(
    rule: Rule,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    hidden: frozenset[str],
    known: dict[Any, dict[Any, Specialization]],
) -> Specialization:
    # `known`: by what the rule does now, then by its params; it belongs to the rule.
    identity = _identity(rule)
    specializations = known.get(identity)
    if specializations is None:
        # A part's name may mean another rule now: what was made for the old one goes.
        if rule.parts or len(known) >= MOST_SPECIALIZATIONS:
            known.clear()
        specializations = known.setdefault(identity, {})
    key = (runtime, items_key(static))
    specialization = specializations.get(key)
    if specialization is None:
        code = code_of(rule.name, (identity, *key), _owners(rule))
        if len(specializations) >= MOST_SPECIALIZATIONS:
            specializations.clear()
        specialization = Specialization(rule, runtime, static, hidden, code)
        specialization = specializations.setdefault(key, specialization)
    return specialization


def _identity(rule: Rule) -> Any:
    # A key that is equal for rules that may share their code.
    code_key = (
        function_key(rule.function)
        if rule.function is not None
        else tuple(map(_identity, rule.parts))
    )
    capture = (rule.name, rule.native, rule.first_order, rule.library, rule.prove)
    choices = (rule.shards, rule.fused, rule.residuals)
    return capture, choices, code_key, items_key(rule.bound)


def _owners(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield from owners_of(rule.function)
    for part in rule.parts:
        yield from _owners(part)


def value_token(value: Any) -> str:
    """Return text that is equal for equal values; a traced value equals nothing else."""
    if isinstance(value, float | int):
        return repr(value)
    if isinstance(value, Moving):
        return f"moving {value.serial}"
    number = concrete_number(value)
    # Not a number's text: what is compiled for a number holds it, and a tensor may change in place.
    return f"<traced {next(SERIALS)}>" if number is None else f"tensor {number!r}"


# --- the parts of a composed rule -----------------------------------------------------------------
bind_addressed = of_engine(__name__, "bind_addressed", "a param of one part alone", RuleTypeError)


def words_of(rule: Rule, with_params: bool = False) -> str:
    """Return a rule's display name: its own name or its parts, with the bound values, and
    `with_params` the others with their defaults.
    """
    suffix = "" if rule.shards is None else f", {rule.shards}"
    suffix += "" if rule.residuals == "auto" else f", residuals={rule.residuals!r}"
    if rule.parts:
        prefix = "" if rule.name.startswith("compose(") else f"{rule.name}: "
        return f"{prefix}{chain_of(rule)}{suffix}"
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    words = [
        name if value is REQUIRED else f"{name}={value!r}" for name, value in rule.params.items()
    ]
    params = f"({', '.join(words)})" if with_params and words else ""
    return f"{rule.name}{params}{f' with {bound}' if bound else ''}{suffix}"


def chain_of(rule: Rule) -> str:
    """Return a rule in words: its parts in the order in which they act, with what is bound."""
    bound = ", ".join(f"{name}={value!r}" for name, value in rule.bound.items())
    if not rule.parts:
        return f"{rule.name}({bound})" if bound else rule.name
    rows = zip(rule.parts, rule._resolved_parts(), strict=True)
    words = [part if isinstance(part, str) else _within(part_rule) for part, part_rule in rows]
    chain = " → ".join(words)
    return f"({chain})({bound})" if bound else chain


def _within(part: Rule) -> str:
    words = chain_of(part)
    return f"({words})" if part.parts and not part.bound else words
