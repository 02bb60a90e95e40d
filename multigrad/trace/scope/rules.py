"""The rules in force: one immutable object in a ContextVar, which `use` sets and forward reads.

It stands below the registry and the rules, because what a capture reads of it is part of what it is
remembered by.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from typing import Any

from .draws import Draws
from .moving import Moving

# A `BoundRule` and a `Specialization` of rulebook/specialization.py: what stands below rules holds
# them, and reads a token, values and what of them decides about draws.
BoundRule = Any
Specialization = Any


@dataclass(slots=True, eq=False, weakref_slot=True)
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
        has_tensors: whether a param is a tensor, which may change in place, or a number that moves.
        moves: whether one is a number that moves: `present.at_present` says what stands for it now.
        present: the rule with what stood for them last.
        alone: the active rules where it is in force for all, made once for a name.
    """

    bound_rule: BoundRule
    draws: Draws
    token: str = field(init=False)
    specialization: Specialization = field(init=False)
    values: tuple[Any, ...] = field(init=False)
    has_tensors: bool = field(init=False)
    moves: bool = field(init=False)
    present: RuleInForce | None = field(init=False, default=None)
    alone: ActiveRules | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.token = self.bound_rule.token + key_token(self.draws)
        self.specialization, self.values = self.bound_rule.specialization, self.bound_rule.values
        self.has_tensors = any(type(value) is not float for value in self.values)
        self.moves = self.has_tensors and any(isinstance(value, Moving) for value in self.values)
        if self.moves:
            for value in self.values:
                if isinstance(value, Moving):
                    value.hold(self)

    def with_numbers(self, bound_rule: BoundRule, values: tuple[Any, ...]) -> RuleInForce:
        """Return this rule in force with numbers for all that moves; quickly, as each step does."""
        other = RuleInForce.__new__(RuleInForce)
        other.bound_rule, other.values = bound_rule, values
        other.token = bound_rule.token + key_token(self.draws)
        other.draws, other.specialization = self.draws, self.specialization
        other.has_tensors = any(type(value) is not float for value in values)
        other.moves, other.present, other.alone = False, None, None
        return other

    @property
    def key(self) -> Any:
        """Two uint32, or a backend's own key object; None: draws are the framework's own."""
        return self.draws.key

    @property
    def counter(self) -> Any:
        """A Counter, where there is a key."""
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
        present: these with what stood last for their numbers that move.
    """

    activations: RuleInForce | None = None
    params: RuleInForce | None = None
    token: str = ""
    hooks_params: bool = False
    names_params: bool = False
    present: ActiveRules | None = None

    def word(self, scope: str) -> str:
        """Return what the token says about one scope, "activations" or "params"."""
        if self.activations is None is self.params:
            return self.token
        in_force = self.params if scope == "params" else self.activations
        return "" if in_force is None else in_force.token


EMPTY = ActiveRules()
CURRENT: contextvars.ContextVar[ActiveRules] = contextvars.ContextVar(
    "multigrad_active", default=EMPTY
)


def key_token(draws: Draws) -> str:
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
    # Not the address of the application: the next one may lie there, and jax keeps what it traced.
    return f"@traced {getattr(draws.counter, 'serial', id(draws))}"
