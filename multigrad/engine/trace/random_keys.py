"""Where random draws come from: a key with a counter of calls, or a generator."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import backend_of
from ...core.support.threads import SERIALS, make_lock
from ...core.trace.active_rules import KeySource
from ...errors import BackendNotFound, RuleError, RuleValueError
from .. import random
from ..random import REPLAYED, key_from_int

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


def draw_next(draws: KeySource, backend: Backend) -> Any:
    """Return the key of one call; in a region that runs again, the key of its first run."""
    if backend.compiler.on_draw is None or REPLAYED.get() is not None:  # a proof's own
        return _draw(draws, backend)
    return backend.compiler.on_draw(lambda: _draw(draws, backend))


def _draw(draws: KeySource, backend: Backend) -> Any:
    if draws.counter is not None:
        return backend.draws.fold_in(key_for(backend, draws.key), next(draws.counter))
    keys = REPLAYED.get()  # in a proof, the keys that were drawn for the capture
    if keys is not None:
        return next(keys)
    return backend.draws.draw_key() if draws.generator is None else draws.generator()


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


# --- keys as users write them, and as a framework takes them --------------------------------------
def key_pair(key: Any) -> Any:
    """Return the two uint32 words in a user's key object, or a traced form of them."""
    if isinstance(key, np.integer):
        return random.key_pair(key)
    if isinstance(key, tuple | list):
        if len(key) == 2 and all(isinstance(word, int) and 0 <= word < 2**32 for word in key):
            return (int(key[0]), int(key[1]))
        raise RuleValueError(f"a key of two words needs two uint32, got {key!r}")
    try:
        backend = backend_of(key)
    except BackendNotFound:
        raise RuleValueError(
            f"key must be an int, a jax key or two uint32, got {type(key).__name__} {key!r}"
        ) from None
    return read_key(backend, key)


def read_key(backend: Backend, key: Any) -> Any:
    if backend.draws.key_pair is not None:
        return backend.draws.key_pair(key)
    return random.key_pair(backend.tensors.to_numpy(key))


def concrete_key(key: Any) -> tuple[int, int] | None:
    """Return the two words of a key, or None where they are known at run time only."""
    if isinstance(key, tuple):
        return key
    tensors = backend_of(key).tensors
    if tensors.is_traced(key):
        return None
    first, second = tensors.to_numpy(key).tolist()
    return first, second


def key_for(backend: Backend, key: Any) -> Any:
    """Return a key that a backend can fold in: another framework's as two ints."""
    if isinstance(key, tuple):
        return key
    owner = backend_of(key)
    if owner is backend:
        return key
    words = concrete_key(key)
    if words is None:
        raise RuleError(
            f"the key belongs to a trace of {owner.name} and {backend.name} draws: give a key "
            f"that is known, an int or two uint32"
        )
    return words
