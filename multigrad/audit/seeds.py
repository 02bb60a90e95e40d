"""Random numbers that are the same in each run: generators are put back before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..backend.contract import Backend
from ..capture.user_code.inspection import mentioned
from ..capture.user_code.snapshot import (
    functions_of,
    generator_state,
    global_generators,
    is_generator,
    referred,
)

SEED = 20  # where a framework's generator has no state to go back to


class Seeds:
    """The states of all generators that code may draw from: global ones, and those it refers to."""

    def __init__(self, backend: Backend, *code: Any) -> None:
        self._seed = backend.modes.seed
        own = [
            value
            for function in functions_of(*code)
            for value in referred(function, {name for name, _ in mentioned(function)})
            if is_generator(value)
        ]
        self._rewinds: list[Callable[[], Any]] = []
        for generator in (*global_generators(), *own):
            read, write = generator_state(generator)
            self._rewinds.append(partial(write, read()))

    def rewind(self) -> None:
        """Put all generators back to where they were when this was made."""
        for rewind in self._rewinds:
            rewind()
        if self._seed is not None:
            self._seed(SEED)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leave the generators afterwards as they were before."""
        before = None if self._seed is None else self._seed(SEED)
        try:
            yield
        finally:
            self.rewind()
            if self._seed is not None:
                self._seed(before)
