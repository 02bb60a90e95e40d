"""Where the random keys of calls come from: a key that counts its calls, or a generator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backend.contract import Backend
from ..backend.values import key_for, key_pair
from ..errors import RuleValueError
from ..ground.threads import make_lock
from ..random import REPLAYED, key_from_int

_serials = itertools.count()
_counting = make_lock()


class Counter:
    """Counts calls that draw, at forward, from 0; safe between threads.

    `serial` tells counters apart, also from those that are gone.
    """

    __slots__ = ("count", "serial")

    def __init__(self) -> None:
        self.count: Any = 0
        self.serial = next(_serials)

    def __next__(self) -> Any:
        with _counting:
            n, self.count = self.count, self.count + 1
        return n

    def advance(self, number: int) -> None:
        """Skip calls that compiled code has made."""
        with _counting:
            self.count += number


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Where the keys of calls come from.

    Attributes:
        key: two uint32, or a backend's own key object; call n draws from `fold_in(key, n)`.
        counter: a Counter, where there is a key.
        generator: gives each call its key, where there is none; None: the framework's own.
    """

    key: Any = None
    counter: Any = None
    generator: Callable[[], Any] | None = None

    def next_key(self, backend: Backend) -> Any:
        """Return the key of one call; in a region that runs again, that of its first run."""
        if backend.compiler.on_draw is None:
            return self._draw(backend)
        return backend.compiler.on_draw(lambda: self._draw(backend))

    def _draw(self, backend: Backend) -> Any:
        if self.counter is not None:
            return backend.draws.fold_in(key_for(backend, self.key), next(self.counter))
        replayed = REPLAYED.get()  # in a proof, what was drawn for the capture
        if replayed is not None:
            return next(replayed)
        return backend.draws.draw_key() if self.generator is None else self.generator()


FREE = Draws()


def keyed(key: Any) -> Draws:
    """Return reproducible draws, the same on every framework: an int as for `jax.random.key`, a jax
    key, two uint32.
    """
    return Draws(normalize_key(key), Counter())


def normalize_key(key: Any) -> Any:
    """Return two Python ints for an int or two uint32; a backend's own key object is left to it."""
    if isinstance(key, bool):
        raise RuleValueError(f"key must be an int, a jax key or two uint32, got {key!r}")
    return key_from_int(key) if isinstance(key, int) else key_pair(key)
