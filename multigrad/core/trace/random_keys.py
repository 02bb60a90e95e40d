"""Where random draws come from: a key with a counter of calls, or a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ...errors import RuleValueError
from ..backend.contract import Backend
from ..backend.values import key_for, key_pair
from ..random import REPLAYED, key_from_int
from ..support.records import record
from ..support.threads import SERIALS, make_lock

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
