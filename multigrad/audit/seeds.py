"""Runs that draw the same random numbers each time: generators are put back before each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..capture.user_code.inspection import mentioned
from ..capture.user_code.snapshot import (
    functions_of,
    generator_state,
    global_generators,
    is_generator,
    referred,
)
from .trial import Trial


class Seeds:
    """The states of all generators that code may draw from: global ones, and those it refers to."""

    def __init__(self, *code: Any) -> None:
        own = [
            value
            for function in functions_of(*code)
            for value in referred(function, {name for name, _ in mentioned(function)})
            if is_generator(value)
        ]
        self._rewinds: list[Callable[[], Any]] = []
        for generator in (*global_generators(), *own):
            read, write = generator_state(generator)
            state = read()
            self._rewinds.append(lambda write=write, state=state: write(state))

    def rewind(self) -> None:
        """Put all generators back to where they were when this was made."""
        for rewind in self._rewinds:
            rewind()


def with_seeds(trial: Trial, seeds: Seeds) -> Trial:
    """Return a trial of what draws at random with these seeds for each run; others unchanged."""
    if trial.is_repeatable:
        return trial
    seeded = replace(trial, seeds=seeds)
    return seeded if seeded.is_repeatable else trial
