"""Regions under `tf.recompute_grad`: they run forward again within backward, perhaps outside of their `use`.

A region is noted at its first forward, and then runs again under the frame of that. TensorFlow gives no hook, so the
region is found on the stack; its keyword arguments are a dictionary of its own, by which both runs know each other.
"""

from __future__ import annotations

import contextvars
import inspect
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from multigrad.activation import Activation, Tracer, tracers
from multigrad.context import CURRENT, Application, Counter, Frame
from multigrad.errors import GradientError
from multigrad.lowering.backend import mirror_frame

Tensor: TypeAlias = Any
MOST_REGIONS = 4096


@dataclass(slots=True)
class Region:
    """One call of a recomputed function: the frame of its first forward, and of the run that goes on."""

    key: dict[
        str, Any
    ]  # its keyword arguments; held, so that no other dictionary takes their place
    frame: Frame
    count: Any  # of the applications before it, under a key
    tape: Any = None  # a weak reference to the tape of the run that goes on
    running: Frame | None = None
    drawn: list[Any] = field(default_factory=list)  # the keys of Functions, in the first run
    repeated: int = 0  # of these, in the run that goes on

    def run_again(self, tape: Any) -> Frame:
        """Return the frame for a run; draws count as they did in the first."""
        if self.tape is None or self.tape() is not tape:
            self.tape, self.running, self.repeated = weakref.ref(tape), self.frame, 0
            application = self.frame.activations
            if application is not None and self.count is not None:
                counter = Counter()
                counter.advance(self.count)
                keyed = Application(application.spec, application.key, counter)
                self.running = replace(self.frame, activations=keyed)
        assert self.running is not None
        return self.running

    def draw_again(self, tape: Any, draw: Callable[[], Any]) -> Any:
        """Return the next key of the first run."""
        self.run_again(tape)
        position, self.repeated = self.repeated, self.repeated + 1
        return self.drawn[position] if position < len(self.drawn) else draw()


REGIONS: OrderedDict[int, Region] = OrderedDict()
# The tape of the run in which the innermost `use` was entered: that `use` wins over the region's frame.
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
FIRST, AGAIN = find_code(_code, "inner"), find_code(_code, "inner_recompute_grad")


def may_be_recomputed() -> bool:
    """Return whether a region may be around this call: recording is stopped in its first forward."""
    return bool(REGIONS) or pywrap_tfe.TFE_Py_TapeSetIsStopped()


def frame_of_region() -> Frame | None:
    """Note the regions around this call that run first; return the frame of the one that runs again.

    None: no region runs again, or a `use` within it is in force.

    Raises:
        GradientError: it was not noted.
    """
    first, again, tape = find_regions()
    inside_use = again is not None and INSIDE.get() is tape
    frame = None if again is None or inside_use else again.run_again(tape)
    for key in first:
        if id(key) not in REGIONS:
            note(key, CURRENT.get() if frame is None else frame)
    return frame


def find_regions() -> tuple[list[dict[str, Any]], Region | None, Any]:
    """Return the keys of the regions around this call that run first, and the one that runs again, with its tape.

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
                    f"tf.recompute_grad runs a function again whose first forward called no activation, "
                    f"or was more than {MOST_REGIONS} regions ago: its rule is not known"
                )
            return first, region, tape
        caller = caller.f_back
    return first, None, None


def repeat_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a Function's call: where a region runs again, that of its first run."""
    if not may_be_recomputed():
        return draw()
    frame_of_region()  # notes those that run first
    first, again, tape = find_regions()
    key = draw() if again is None else again.draw_again(tape, draw)
    for region in first:
        REGIONS[id(region)].drawn.append(key)
    return key


def note(key: dict[str, Any], frame: Frame) -> None:
    """Tie a region to the frame of its first forward."""
    application = frame.activations
    count = getattr(application.counter, "count", None) if application is not None else None
    REGIONS[id(key)] = Region(key, frame, count)
    if len(REGIONS) > MOST_REGIONS:
        REGIONS.popitem(last=False)


@contextmanager
def entering_use() -> Iterator[None]:
    """Note the regions around a `use`, and that it is inside of the one that runs again."""
    if not may_be_recomputed():
        yield
        return
    frame_of_region()
    caller: Any = sys._getframe()
    while caller is not None and caller.f_code is not AGAIN:
        caller = caller.f_back
    reset = INSIDE.set(None if caller is None else caller.f_locals["t"])
    try:
        yield
    finally:
        INSIDE.reset(reset)


@contextmanager
def in_force(frame: Frame) -> Iterator[None]:
    """Put a noted frame in force."""
    with ExitStack() as stack:
        mirror_frame(stack, frame.token)
        stack.callback(CURRENT.reset, CURRENT.set(frame))
        yield


def region() -> AbstractContextManager[Any]:
    """Return what puts the frame of the first run in force where a region around this call runs again."""
    frame = frame_of_region() if may_be_recomputed() else None
    return nullcontext() if frame is None else in_force(frame)


def call_noted(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in what may be a recomputed region."""
    with region():
        if values:
            return activation.apply_as(x, activation.with_values(values))
        return activation.apply(x)


tracers.append(Tracer((tf.Tensor, tf.Variable), may_be_recomputed, call_noted))
