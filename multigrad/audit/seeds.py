"""Random numbers that are the same in each run: generators are put back before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.backend.contract import Backend
from ..engine.capture.user_code.inspection import referred
from ..engine.capture.user_code.snapshot import (
    functions_of,
    generator_state,
    global_generators,
    is_generator,
)

SEED = 20  # where a framework's generator has no state to go back to


class Seeds:
    """The states of all generators that code may draw from: global ones, and those it refers to."""

    def __init__(self, backend: Backend | None = None, *code: Any) -> None:
        self._seed = None if backend is None else backend.modes.seed
        generators = [
            value
            for function in functions_of(*code)
            for value in referred(function)
            if is_generator(value)
        ]
        self._accesses = [*map(generator_state, (*global_generators(), *generators))]
        self._first = self._states()

    def _states(self) -> list[Any]:
        return [read() for read, _ in self._accesses]

    def _set(self, states: list[Any]) -> None:
        for (_, write), state in zip(self._accesses, states, strict=True):
            write(state)

    def rewind(self) -> None:
        """Put all generators back to where they were when this was made."""
        self._set(self._first)
        if self._seed is not None:
            self._seed(SEED)

    def mark(self) -> Callable[[], None]:
        """Return a function that puts the generators back to where they are now."""
        return partial(self._set, self._states())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leave the generators afterwards as they were before."""
        previous_state = None if self._seed is None else self._seed(SEED)
        try:
            yield
        finally:
            self.rewind()
            if self._seed is not None:
                self._seed(previous_state)
