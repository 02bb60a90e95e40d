"""What is in force where code runs: the active rules, one immutable object in a ContextVar, which
`use` sets and forward reads; and numbers that move.

It is below the registry and the rules, because a capture depends on it and is cached by it.
`lookups.py` notes what code has read of it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..backend.contract import Backend
from ..support.lazy_modules import of_engine, provided
from ..support.records import record

# --- rules ---------------------------------------------------------------------------------------


# Of rules/rule_in_force.py: a rule with its params and draws, which rooms below `rules` hold.
RuleInForce = Any


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
CURRENT: ContextVar[ActiveRules] = ContextVar("multigrad_active", default=EMPTY)


# --- random draws: where the keys of calls come from ----------------------------------------------
@record()
class KeySource:
    """The source of the keys of calls.

    Attributes:
        key: two uint32, or a backend's own key object; call n draws from `fold_in(key, n)`.
        counter: a Counter if there is a key.
        generator: returns the key of each call if there is none; None: the framework's own.
    """

    key: Any = None
    counter: Any = None
    generator: Callable[[], Any] | None = None

    def next_key(self, backend: Backend) -> Any:
        """Return the key of one call; in a region that runs again, the key of its first run."""
        return draw_next(self, backend)


FREE = KeySource()


draw_next = of_engine(__name__, "draw_next", "a random draw")


@provided
def key_token(draws: KeySource) -> str:
    """Return text that is equal for equal keys."""
    return ""


keyed = of_engine(__name__, "keyed", "a key of random draws")


# --- the ranks of a program, whose rules MULTIGRAD_CHECK_RANKS compares (`engine/trace/ranks.py`) -
CHECKED = os.environ.get("MULTIGRAD_CHECK_RANKS", "") not in ("", "0")  # once, at import


@provided
def note_for_ranks(what: str, *rules: Any) -> None:
    """Note what this rank puts in force or applies: the core compares no ranks."""


@provided
def compare(what: str) -> None:
    """Compare what has been noted with the other ranks' once `what` has ended on all."""


@provided
def name_rank(error: BaseException, doing: str = "") -> None:
    """Note on an error the rank that it is on, and under the check tell the other ranks."""


# --- moving numbers: values of params that are read anew at each application, as of a schedule ----
class Moving:
    """A number that moves from step to step, as a schedule does (`engine/trace/moving_numbers.py`).

    Attributes:
        serial: tells it from all others, also from those that are gone.
        state: the count and its value: one tuple, so that other threads see both or neither.
    """

    serial: int
    state: tuple[int, float]

    @property
    def value(self) -> float:
        raise NotImplementedError

    def hold(self, in_force: Any) -> None:
        """Note a rule in force, or that of a layer, that has this number for a param."""

    def take(self, taker: str) -> None:
        """Note whose param it is, for messages."""

    def where(self) -> str:
        """Return its position for messages, such as "at step 3 of linear(...)"."""
        raise NotImplementedError


@record(eq=True)
class NumberRead:
    """The value of a moving number for which code was traced; keeps the moving number alive."""

    moving: Moving
    number: float

    @property
    def superseded(self) -> bool:
        return self.moving.value != self.number

    def __repr__(self) -> str:
        return f"{self.number!r}, {self.moving.where()}"


def settle(value: Any) -> Any:
    """Return the current value of a moving number; any other value unchanged."""
    return value.value if isinstance(value, Moving) else value


# --- earlier values in code that runs again in backward, as a checkpoint's region does ------------
# A second run must compute what the first one did, whatever has changed since. So each change notes
# the old value in the regions that still wait for their second run, each a `Noted` of the engine.
# The regions whose second run may still come; they leave by being collected.
WAITING: weakref.WeakSet[Any] = weakref.WeakSet()
THEN: ContextVar[Any] = ContextVar("multigrad_then", default=None)


def note_renamed(name: str, rule: Any, number: int | None) -> None:
    """Note the rule of a name that is about to mean another one, in all waiting regions."""
    for region in tuple(WAITING):
        region.names.setdefault(name, (rule, number))


def meant(name: str, known: tuple[Any, int | None]) -> tuple[Any, int | None]:
    """Return a name's rule and registration number: `known`, or those of the first run."""
    then = THEN.get()
    return known if then is None else then.names.get(name, known)


def is_of_then() -> bool:
    """Return whether names have their earlier meanings here, as in a second run."""
    then = THEN.get()
    return then is not None and bool(then.names)
