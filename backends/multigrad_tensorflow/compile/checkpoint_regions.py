"""Regions under `tf.recompute_grad`, which run forward again within backward, perhaps outside their
`use`.

A region is noted at its first forward, and runs again under the rules of that run. TensorFlow has
no hook, so the region is found on the stack. Its dictionary of keyword arguments is the same object
in both runs, and identifies it.
"""

from __future__ import annotations

import contextvars
import inspect
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from multigrad.backend import Reader
from multigrad.backend.compiler_events import enter_rules, leave_rules
from multigrad.errors import GradientError
from multigrad.graph.support.class_bases import dataclass
from multigrad.rules.activation import Activation
from multigrad.rules.context import CURRENT, ActiveRules
from multigrad.trace.moving_numbers import Moving, Noted

Tensor: TypeAlias = Any
MOST_REGIONS = 4096


@dataclass(slots=True)
class RecomputedCall:
    """One call of a recomputed function, with the active rules of its first run."""

    # Its keyword arguments; held, so that no other dictionary gets the same id.
    key: dict[str, Any]
    active: ActiveRules
    noted: Noted  # numbers and names of the first run
    tape: Any = None  # a weak reference to the current run's tape
    # The first run's tensors of changing numbers, by serial.
    following: dict[int, Tensor] = field(default_factory=dict)
    recalled: dict[Any, Any] = field(default_factory=dict)  # what layers read in the first run
    drawn: list[Any] = field(default_factory=list)  # the keys drawn in the first run
    repeated: int = 0  # the number of them used in the current run

    def run_again(self, tape: Any) -> ActiveRules:
        """Return the active rules for a run; a new tape starts the keys again."""
        if self.tape is None or self.tape() is not tape:
            self.tape, self.repeated = weakref.ref(tape), 0
        return self.active

    def draw_again(self, tape: Any, draw: Callable[[], Any]) -> Any:
        """Return the next key of the first run."""
        self.run_again(tape)
        position, self.repeated = self.repeated, self.repeated + 1
        return self.drawn[position] if position < len(self.drawn) else draw()


REGIONS: OrderedDict[int, RecomputedCall] = OrderedDict()
# The tape of the run in which the innermost `use` was entered; it takes precedence over the
# region's rules.
INSIDE: contextvars.ContextVar[Any] = contextvars.ContextVar("multigrad_tf_inside", default=None)


def find_code(code: CodeType, name: str) -> CodeType:
    """Return the code of a function defined within another, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name:
                return constant
            try:
                return find_code(constant, name)
            except LookupError:
                continue
    raise LookupError(name)


_code = inspect.unwrap(tf.recompute_grad).__code__
# by its code a frame of either run is known on the stack
FIRST, AGAIN = find_code(_code, "inner"), find_code(_code, "inner_recompute_grad")


def may_be_recomputed() -> bool:
    """Return whether a region may be around this call: its first forward stops recording."""
    return bool(REGIONS) or pywrap_tfe.TFE_Py_TapeSetIsStopped()


def rules_of_region() -> ActiveRules | None:
    """Note the regions around this call in their first run; return the rules of the one that runs
    again.

    None if no region runs again, or a `use` within it is in force.

    Raises:
        GradientError: it was not noted.
    """
    first, again, tape = find_regions()
    inside_use = again is not None and INSIDE.get() is tape
    active = None if again is None or inside_use else again.run_again(tape)
    for key in first:
        if id(key) not in REGIONS:
            noted = Noted(None if again is None else again.noted)
            note(key, CURRENT.get() if active is None else active, noted)
    return active


def find_regions() -> tuple[list[dict[str, Any]], RecomputedCall | None, Any]:
    """Return the keys of the regions in their first run, and the region that runs again with its
    tape.

    Raises:
        GradientError: that was not noted.
    """
    first: list[dict[str, Any]] = []
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is FIRST:
            first.append(caller.f_locals["kwargs"])
        elif caller.f_code is AGAIN:
            tape, region = caller.f_locals["t"], REGIONS.get(id(caller.f_locals["kwargs"]))
            if region is None and INSIDE.get() is not tape:
                raise GradientError(
                    "tf.recompute_grad runs a function again whose first forward called no "
                    f"activation, or was more than {MOST_REGIONS} regions ago: its rule is not "
                    "known"
                )
            return first, region, tape
        caller = caller.f_back
    return first, None, None


def find_again() -> RecomputedCall | None:
    return find_regions()[1] if may_be_recomputed() else None


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call; in a region that runs again, the key of its first run."""
    if not may_be_recomputed():
        return draw()
    rules_of_region()  # notes regions in their first run
    first, again, tape = find_regions()
    key = draw() if again is None else again.draw_again(tape, draw)
    for region in first:
        REGIONS[id(region)].drawn.append(key)
    return key


def follow_in_region(moving: Moving, make: Callable[[], Tensor]) -> Tensor:
    """Return a tensor of a changing number; in a region that runs again, that of its first run."""
    if not may_be_recomputed():
        return make()
    rules_of_region()  # notes regions in their first run
    first, again, _ = find_regions()
    tensor = None if again is None else again.following.get(moving.serial)
    tensor = make() if tensor is None else tensor
    for region in first:
        REGIONS[id(region)].following[moving.serial] = tensor
    return tensor


def recall(key: Any, value: Any) -> Any:
    """Return a value; in a region that runs again, the value of its first run."""
    if not may_be_recomputed():
        return value
    rules_of_region()
    first, again, _ = find_regions()
    if again is not None:
        value = again.recalled.get(key, value)
    for region in first:
        REGIONS[id(region)].recalled[key] = value
    return value


def number_in_region(moving: Moving) -> float:
    """Return a number's current value; in a region that runs again, that of its first run."""
    if not may_be_recomputed():
        return moving.value
    rules_of_region()
    again = find_regions()[1]
    return moving.value if again is None else again.noted.numbers.get(moving.serial, moving.value)


def note(key: dict[str, Any], active: ActiveRules, noted: Noted) -> None:
    """Note a region in its first run, with its rules, numbers and names."""
    REGIONS[id(key)] = RecomputedCall(key, active, noted)
    # a region whose backward never runs is not reported: the oldest leaves
    if len(REGIONS) > MOST_REGIONS:
        REGIONS.popitem(last=False)


def enter_use() -> Callable[[], None]:
    """Note the regions around a `use`, and the tape of one that runs again; return how to leave."""
    if not may_be_recomputed():
        return lambda: None
    rules_of_region()
    caller: Any = sys._getframe()
    while caller is not None and caller.f_code is not AGAIN:
        caller = caller.f_back
    return partial(INSIDE.reset, INSIDE.set(None if caller is None else caller.f_locals["t"]))


@contextmanager
def in_force(active: ActiveRules) -> Iterator[None]:
    """Put a region's rules in force, with the numbers and names of its first run."""
    again = find_regions()[1]
    with ExitStack() as stack:
        if again is not None:
            stack.enter_context(again.noted.again())
        stack.callback(leave_rules, enter_rules(active.token))
        stack.callback(CURRENT.reset, CURRENT.set(active))
        yield


def on_call() -> AbstractContextManager[Any]:
    """Return a context with the first run's rules if a region runs again, else an empty one."""
    if not may_be_recomputed():
        return nullcontext()
    active = rules_of_region()
    if active is None and find_regions()[1] is not None:  # a `use` within it is in force
        active = CURRENT.get()
    return nullcontext() if active is None else in_force(active)


def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation where a region may be around it."""
    with on_call():
        activation = activation.of_then()
        if values:
            return activation.apply_as(x, activation.with_values(values))
        return activation.apply(x)


READER = Reader(may_be_recomputed, call_noted)
