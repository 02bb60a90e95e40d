"""The rules in force: one immutable object in a ContextVar, which `use` sets and forward reads.

It is below the registry and the rules, because a capture depends on it and is cached by it.
"""

from __future__ import annotations

import contextvars
from typing import Any

from ...graph.support.class_bases import dataclass
from .draws import KeySource
from .schedule_values import Moving

# A `BoundRule` and a `Specialization` of rules/model/specialization.py. Rooms below `rules` hold
# them, and read their token and values, and whether they draw.
BoundRule = Any
Specialization = Any


class RuleInForce:
    """A rule in force: it with its params, and where its random draws come from; never changed.

    Examples:
        >>> from multigrad.context import apply_now
        >>> isinstance(apply_now("triangular", None), xg.context.RuleInForce)
        True

    Attributes:
        token: equal for equal meaning.
        specialization: the rule with its static params.
        values: the run-time params, in the order of `specialization.runtime`.
        has_tensors: whether a param is a tensor, which may change in place, or a schedule.
        moves: whether one is a schedule: `lookups.at_present` returns its current value.
        present: the rule with what stood for them last.
    """

    __slots__ = (
        "__weakref__", "_bound_rule", "draws", "has_tensors", "moves", "present", "specialization",
        "token", "values",
    )  # fmt: skip

    def __init__(self, bound_rule: BoundRule, draws: KeySource) -> None:
        self._bound_rule, self.draws = bound_rule, draws
        self.specialization: Specialization = bound_rule.specialization
        self.values: tuple[Any, ...] = bound_rule.values
        own = bound_rule.token
        self.token: str = own if draws.key is None else own + key_token(draws)
        self.has_tensors = self.moves = False
        self.present: RuleInForce | None = None
        for value in self.values:
            if type(value) is not float:
                self.has_tensors = True
                if isinstance(value, Moving):
                    self.moves = True
                    value.hold(self)

    def with_values(self, values: tuple[Any, ...], token: str) -> RuleInForce:
        return RuleInForce(self.specialization.bind(values, token), self.draws)

    def with_numbers(self, values: tuple[float, ...], token: str) -> RuleInForce:
        """Return this rule, in force without a key, with other floats, which have been checked.

        Each new number of `use` comes here, so `__init__` is bypassed.
        """
        new = RuleInForce.__new__(RuleInForce)
        new.specialization, new.draws = self.specialization, self.draws
        new.values, new.token = values, token
        new.has_tensors = new.moves = False
        new.present = new._bound_rule = None
        return new

    @property
    def bound_rule(self) -> BoundRule:
        """The rule with its params, made on demand: a number that is met once needs none."""
        found = self._bound_rule
        if found is None:
            found = self._bound_rule = self.specialization.bind(self.values, self.token)
        return found

    @property
    def key(self) -> Any:
        """Two uint32, or a backend's own key object; None: draws are the framework's own."""
        return self.draws.key

    @property
    def counter(self) -> Any:
        """A Counter if there is a key."""
        return self.draws.counter


@dataclass(slots=True, eq=False)
class ActiveRules:
    """The rules now in force, by scope; not frozen, which would cost each `use` a microsecond, but
    never changed.

    Examples:
        >>> from multigrad.context import CURRENT, EMPTY
        >>> CURRENT.get() is EMPTY
        True
        >>> with xg.use("clip_norm", scope="params"):
        ...     CURRENT.get().activations is None
        True

    Attributes:
        token: equal for equal meaning.
        hooks_params: whether a `use` named the scope "params", so that hooks on parameters attach
            by themselves.
        names_params: whether the rule for parameters is that of such a `use`.
        present: these with what stood last for their numbers that change.
    """

    activations: RuleInForce | None = None
    params: RuleInForce | None = None
    token: str = ""
    hooks_params: bool = False
    names_params: bool = False
    present: ActiveRules | None = None

    def word(self, scope: str) -> str:
        """Return the part of the token for one scope, "activations" or "params"."""
        if self.activations is None is self.params:
            return self.token
        in_force = self.params if scope == "params" else self.activations
        return "" if in_force is None else in_force.token


EMPTY = ActiveRules()
# Set by `use`, reset when it is left; each thread and task has its own.
CURRENT: contextvars.ContextVar[ActiveRules] = contextvars.ContextVar(
    "multigrad_active", default=EMPTY
)


def key_token(draws: KeySource) -> str:
    """Return text that is equal for equal keys.

    Examples:
        >>> from multigrad.context import apply_now, key_token
        >>> key_token(apply_now("noise", None, key=7).draws)
        '@0.7'
    """
    key = draws.key
    if key is None:
        return ""
    if isinstance(key, tuple) and all(isinstance(word, int) for word in key):
        return f"@{key[0]:x}.{key[1]:x}"
    # Not the address of the rule in force: it may be reused, and jax keeps traces by this text.
    return f"@traced {getattr(draws.counter, 'serial', id(draws))}"
