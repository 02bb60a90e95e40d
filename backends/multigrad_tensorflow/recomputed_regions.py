"""Regions of `tf.recompute_grad`, which run forward again within backward.

The second run may happen outside the `use` of the first. So a region is noted at its first forward,
and runs again under the rules, numbers, names and keys of that run. TensorFlow has no hook, so a
region is found on the stack. Its dictionary of keyword arguments is the same object in both runs,
and identifies it.

`ENTRIES` (compile.py) are the `use` blocks around a call: one that is entered in a region that runs
again takes precedence over the region's rules.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from traceback import walk_stack
from types import CodeType
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core.rules.activation import Activation
from multigrad.core.rules.context import CURRENT, ActiveRules, in_force
from multigrad.engine.trace.moving_numbers import Noted
from multigrad.errors import GradientError

from .core.compile import ENTRIES, REGIONS, of_first_run, regions_around

Tensor: TypeAlias = tf.Tensor
MOST_REGIONS = 4096


@dataclass(slots=True)
class RecomputedCall:
    """One call of a recomputed function, and what its first run met.

    Attributes:
        key: its keyword arguments; held, so that no other dictionary gets the same id.
        active: the active rules of the first run.
        noted: the numbers and names of that run.
        tape: a weak reference to the current run's tape; None in the first run.
        recalled: what layers read in the first run, and its tensors of changing numbers.
        drawn: the keys drawn in the first run.
        repeated: how many of these the current run has used.
    """

    key: dict[str, Any]
    active: ActiveRules
    noted: Noted
    tape: Any = None
    recalled: dict[Any, Any] = field(default_factory=dict)
    drawn: list[Any] = field(default_factory=list)
    repeated: int = 0

    def run_again(self, tape: Any) -> ActiveRules:
        """Return the active rules for a run; a new tape starts the keys again."""
        if self.tape is None or self.tape() is not tape:
            self.tape, self.repeated = weakref.ref(tape), 0
        return self.active

    def draw_again(self, tape: Any, draw: Callable[[], Any]) -> Any:
        self.run_again(tape)
        position, self.repeated = self.repeated, self.repeated + 1
        return self.drawn[position] if position < len(self.drawn) else draw()


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those defined within it, at any depth."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_within(constant)


_codes = {code.co_name: code for code in codes_within(inspect.unwrap(tf.recompute_grad).__code__)}
# The code by which a frame of the first run, or of a later one, is known.
FIRST, AGAIN = _codes["inner"], _codes["inner_recompute_grad"]


def note_regions() -> tuple[Sequence[RecomputedCall], RecomputedCall | None, Any]:
    """Return the regions around this call: those in their first run, which are noted, inside out;
    the one that runs again, if any, as those around it do not matter; the tape of its run.
    """
    keys, rerun, tape = [], None, None
    for caller, _ in walk_stack(sys._getframe()):
        if caller.f_code is FIRST:
            keys.append(caller.f_locals["kwargs"])
        elif caller.f_code is AGAIN:
            tape, rerun = caller.f_locals["t"], REGIONS.get(id(caller.f_locals["kwargs"]))
            if rerun is None and not is_inside_use(tape):
                raise GradientError(
                    "tf.recompute_grad runs a function again whose first forward called no "
                    f"activation, or was more than {MOST_REGIONS} regions ago: its rule is not "
                    "known"
                )
            break
    for key in keys:
        if id(key) not in REGIONS:
            noted = Noted(None if rerun is None else rerun.noted)
            REGIONS[id(key)] = RecomputedCall(key, rules_of(rerun, tape), noted)
            # a region whose backward never runs is not reported: the oldest leaves
            if len(REGIONS) > MOST_REGIONS:
                REGIONS.popitem(last=False)
    return [REGIONS[id(key)] for key in keys], rerun, tape


def is_inside_use(tape: Any) -> bool:
    """Return whether the innermost `use` was entered in the run of this tape."""
    entries = ENTRIES.get()
    return bool(entries) and entries[-1].tape is tape


def rules_of(rerun: RecomputedCall | None, tape: Any) -> ActiveRules:
    """Return the rules for a region that runs again, unless a `use` within it is in force."""
    return CURRENT.get() if rerun is None or is_inside_use(tape) else rerun.run_again(tape)


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call; in a region that runs again, the key of its first run."""
    first_runs, rerun, tape = regions_around()
    key = draw() if rerun is None else rerun.draw_again(tape, draw)
    for region in first_runs:
        region.drawn.append(key)
    return key


def recall(key: Any, value: Any) -> Any:
    """Return a value; in a region that runs again, the value of its first run."""
    return of_first_run(key, lambda: value)


@contextmanager
def in_force_again(active: ActiveRules, noted: Noted) -> Iterator[None]:
    with noted.again(), in_force(active):
        yield


def on_call() -> AbstractContextManager[Any]:
    """Return a context with the first run's rules if a region runs again, else an empty one."""
    _, rerun, tape = regions_around()
    return nullcontext() if rerun is None else in_force_again(rules_of(rerun, tape), rerun.noted)


def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    with on_call():
        activation = activation.looked_up_again()
        if values:
            return activation.apply_as(x, activation.with_values(values))
        return activation.apply(x)
