"""What is in force where code runs: the active rules, one immutable object in a ContextVar, which
`use` sets and forward reads; the source of the random keys of calls; and numbers that move.

It is below the registry and the rules, because a capture depends on it and is cached by it.
`lookups.py` notes what code has read of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..backend.contract import Backend
from ..backend.values import key_for, key_pair
from ..errors import RuleValueError
from ..graph.random import REPLAYED, key_from_int
from ..graph.support.threads import SERIALS, make_lock, set_within

# --- where random draws come from: a key with a counter of calls, or a generator ----------------


# Held while a counter is read and advanced, so that no two threads get the same number.
_counting = make_lock()


class Counter:
    """Counts calls that draw, at forward; safe between threads.

    Examples:
        >>> from multigrad.context import Counter
        >>> Counter().count
        0

    Attributes:
        start: the number of the first call: 0, or a tensor where it is known at run time only.
        number: calls so far, besides those in branches that have not been joined.
        serial: tells counters apart, also from those that are gone.
        home: the branch in which it was made, and so counts by itself.
    """

    __slots__ = ("home", "number", "serial", "start")

    def __init__(self, start: Any = 0) -> None:
        self.start = start
        self.number = 0
        self.serial = next(SERIALS)
        self.home = BRANCH.get()

    @property
    def count(self) -> Any:
        """The number of the next call."""
        return self.start + self.number_in(BRANCH.get())

    def number_in(self, branch: Branch | None) -> int:
        """Return the number of calls so far, as a branch sees it."""
        if branch is None or branch is self.home:
            return self.number
        # A branch begins to count from where its outer branch stands.
        start = branch.began.get(self)
        if start is None:
            start = branch.began[self] = self.number_in(branch.outer)
        return start + branch.numbers.get(self, 0)

    def __next__(self) -> Any:
        with _counting:
            n = self.count
            self.advance(1)
        return n

    def advance(self, number: int) -> None:
        """Skip calls that compiled code, or all branches, have made."""
        branch = BRANCH.get()
        with _counting:
            if branch is None or branch is self.home:
                self.number += number
            else:
                branch.numbers[self] = branch.numbers.get(self, 0) + number


@dataclass(slots=True, eq=False)
class Branch:
    """One of several branches that run the same code; each counts on from where they parted.

    Attributes:
        outer: the branch that they parted in.
        began: the number at which they parted, by counter; one mapping for all of them.
        numbers: the calls in this branch, by counter.
    """

    outer: Branch | None
    began: dict[Counter, int]
    numbers: dict[Counter, int] = field(default_factory=dict)


# Set for each replica that TensorFlow runs on a thread of its own; None elsewhere.
BRANCH: ContextVar[Branch | None] = ContextVar("multigrad_branch", default=None)


def part(number: int) -> list[Branch]:
    """Return new branches of the code that runs here."""
    starts: dict[Counter, int] = {}
    return [Branch(BRANCH.get(), starts) for _ in range(number)]


def join(branches: Sequence[Branch]) -> dict[Counter, int]:
    """Count on from the branch that has counted most; return the steps by counter."""
    counters = {counter for branch in branches for counter in branch.numbers}
    highest = {
        counter: max(branch.numbers.get(counter, 0) for branch in branches) for counter in counters
    }
    # Whichever branch ran, the next key must be one that none of them has used.
    for counter, number in highest.items():
        counter.advance(number)
    return highest


@dataclass(frozen=True, slots=True, eq=False)
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
        if backend.compiler.on_draw is None or REPLAYED.get() is not None:  # a proof's own
            return self._draw(backend)
        return backend.compiler.on_draw(lambda: self._draw(backend))

    def _draw(self, backend: Backend) -> Any:
        if self.counter is not None:
            return backend.draws.fold_in(key_for(backend, self.key), next(self.counter))
        keys = REPLAYED.get()  # in a proof, the keys that were drawn for the capture
        if keys is not None:
            return next(keys)
        return backend.draws.draw_key() if self.generator is None else self.generator()


FREE = KeySource()


def keyed(key: Any) -> KeySource:
    """Return reproducible draws for an int as for `jax.random.key`, a jax key or two uint32."""
    return KeySource(normalize_key(key), Counter())


def normalize_key(key: Any) -> Any:
    """Return two Python ints for an int or two uint32; a backend's own key object is left to it.

    Examples:
        >>> from multigrad.context import normalize_key
        >>> normalize_key(7)
        (0, 7)
    """
    if isinstance(key, bool):
        raise RuleValueError(f"key must be an int, a jax key or two uint32, got {key!r}")
    return key_from_int(key) if isinstance(key, int) else key_pair(key)


# --- rules ---------------------------------------------------------------------------------------


# Of rules/model/rule_in_force.py: a rule with its params and draws, which rooms below `rules` hold.
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


def key_token(draws: KeySource) -> str:
    """Return text that is equal for equal keys.

    Its public name is deprecated since 1.0 and will be removed in 2.0: compare `token` of a rule in
    force, which contains the key.

    Examples:
        >>> from multigrad.context import apply_now
        >>> apply_now("noise", None, key=7).token.endswith("@0.7")
        True
    """
    key = draws.key
    if key is None:
        return ""
    if isinstance(key, tuple) and all(isinstance(word, int) for word in key):
        return f"@{key[0]:x}.{key[1]:x}"
    # Not the address of the rule in force: it may be reused, and jax keeps traces by this text.
    return f"@traced {getattr(draws.counter, 'serial', id(draws))}"


# --- moving numbers: values of params that are read anew at each application, as of a schedule ----
class Moving:
    """A number that moves from step to step; a schedule is one.

    Attributes:
        serial: tells it from all others, also from those that are gone.
        state: the count and its value: one tuple, so that other threads see both or neither.
    """

    state: tuple[int, float]

    def __init__(self) -> None:
        self.serial = next(SERIALS)
        # Lists of weak references that remove themselves: a step reads them faster than a WeakSet.
        self._holders: list[weakref.ref[Any]] = []
        self._followers: list[weakref.ref[Any]] = []

    def hold(self, in_force: Any) -> None:
        """Note a rule in force, or that of a layer, that has this number for a param."""
        self._holders.append(weakref.ref(in_force, self._holders.remove))

    def all_holding(self) -> list[Any]:
        return alive(self._holders)

    def follow(self, follower: Any) -> None:
        """Call `follower.on_move(moving)` after each move and `before_step(moving)` before a step.

        The latter is needed because a checkpoint may have restored the follower's value.
        """
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def unfollow(self, follower: Any) -> None:
        self._followers[:] = [each for each in self._followers if each() is not follower]

    def all_following(self) -> list[Any]:
        return alive(self._followers)

    @property
    def value(self) -> float:
        raise NotImplementedError

    def take(self, taker: str) -> None:
        """Note whose param it is, for messages."""

    def where(self) -> str:
        """Return its position for messages, such as "at step 3 of linear(...)"."""
        raise NotImplementedError


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [each for each in [reference() for reference in references] if each is not None]


class NumberRead:
    """The value of a moving number for which code was traced; keeps the moving number alive.

    Two are equal if they are of the same number and value.
    """

    __slots__ = ("moving", "number")

    def __init__(self, moving: Moving, number: float) -> None:
        self.moving = moving
        self.number = number

    @property
    def superseded(self) -> bool:
        return self.moving.value != self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberRead) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, float]:
        return self.moving.serial, self.number

    def __repr__(self) -> str:
        return f"{self.number!r}, {self.moving.where()}"


def settle(value: Any) -> Any:
    """Return the current value of a moving number; any other value unchanged."""
    return value.value if isinstance(value, Moving) else value


# --- earlier values in code that runs again in backward, as a checkpoint's region does ------------
# A second run must compute what the first one did, whatever has changed since. So each change notes
# the old value in the regions that still wait for their second run.
class Noted:
    """The values, since changed, that a region read in its first run.

    Attributes:
        numbers: of moving numbers, by serial.
        names: the rule of each name, None for none, with the number of its registration.
    """

    __slots__ = ("__weakref__", "names", "numbers")

    def __init__(self, around: Noted | None = None) -> None:
        around = THEN.get() if around is None else around  # a first run inside a second one
        self.numbers: dict[int, float] = {} if around is None else dict(around.numbers)
        self.names: dict[str, tuple[Any, int | None]] = {} if around is None else dict(around.names)
        WAITING.add(self)

    def again(self) -> AbstractContextManager[Noted]:
        """Run within as in the first run: with the values of then."""
        return set_within(THEN, self)


# The regions whose second run may still come; they leave by being collected.
WAITING: weakref.WeakSet[Noted] = weakref.WeakSet()
THEN: ContextVar[Noted | None] = ContextVar("multigrad_then", default=None)


def note_moved(moving: Moving, before: float) -> None:
    """Note the old value of a number that is about to move, in all waiting regions."""
    for region in tuple(WAITING):
        region.numbers.setdefault(moving.serial, before)


def note_renamed(name: str, rule: Any, number: int | None) -> None:
    """Note the rule of a name that is about to mean another one, in all waiting regions."""
    for region in tuple(WAITING):
        region.names.setdefault(name, (rule, number))


def standing(moving: Moving) -> float:
    """Return the current value of a moving number; in a second run, that of the first run."""
    then = THEN.get()
    number = None if then is None else then.numbers.get(moving.serial)
    return moving.value if number is None else number


def meant(name: str, known: tuple[Any, int | None]) -> tuple[Any, int | None]:
    """Return a name's rule and registration number: `known`, or those of the first run."""
    then = THEN.get()
    return known if then is None else then.names.get(name, known)


def is_of_then() -> bool:
    """Return whether names have their earlier meanings here, as in a second run."""
    then = THEN.get()
    return then is not None and bool(then.names)
