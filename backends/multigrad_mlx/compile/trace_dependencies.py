"""Traces that keep the code that runs now, and what each depends on.

`mx.compile` keeps a trace by a function's arguments alone and has no guards. So each transformation
that this backend can intercept (compile.py) is a frame, which records what is read within it. A
function that was compiled before this backend was loaded has no frame. It shows in an array that
depends on its arguments, which MLX refuses to evaluate, before it computes anything.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import mlx.core as mx

from multigrad.backend import StaleTraceError, compilers

Tensor = Any


class FrameKind(Enum):
    """The kind of a frame."""

    COMPILED = auto()  # a function of mx.compile, whose trace is kept
    KEYED = auto()  # one of `xg.jit`: each rule has a trace of its own
    AT_ONCE = auto()  # the outermost transformation, which keeps nothing
    ENTERED = auto()  # a `use` within a transformation of unknown kind


@dataclass(slots=True, eq=False)
class Frame:
    """A transformation around the code that runs now.

    Attributes:
        active: the rules in force where it began.
        held: what its trace depends on.
        open: how many `use` are entered within it and not left.
    """

    kind: FrameKind
    active: Any
    outer: Frame | None
    held: set[Any] = field(default_factory=set)
    open: int = 0

    def puts_in_force(self, scope: str) -> bool:
        """Return whether a `use` within it decides which rule of a scope is in force."""
        now = compilers.CURRENT.get()
        if now is self.active:
            # A `use` of the same rule again: active rules of one name are one object.
            return self.open > 0
        return getattr(now, scope) is not getattr(self.active, scope)


# The innermost frame; a context variable, as threads and tasks trace independently.
FRAME: contextvars.ContextVar[Frame | None] = contextvars.ContextVar(
    "multigrad_mlx_frame", default=None
)


def frames() -> Iterator[Frame]:
    """Yield the frames around the code that runs now, innermost first."""
    frame = FRAME.get()
    while frame is not None:
        yield frame
        frame = frame.outer


@contextmanager
def within(kind: FrameKind, held: set[Any] | None = None) -> Iterator[None]:
    frame = Frame(kind, compilers.CURRENT.get(), FRAME.get(), set() if held is None else held)
    reset = FRAME.set(frame)
    try:
        yield
    finally:
        FRAME.reset(reset)


class TransformedFunction:
    """The callable that a transformation returns; like MLX's own, it does not bind to an object."""

    def __init__(self, fun: Callable[..., Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


# --- whether anything is traced ------------------------------------------------------------------
def find_leaked() -> Tensor:
    """Return a placeholder of a finished trace, which tells whether another one is running."""
    found: list[Tensor] = []
    mx.eval(mx.compile(keep_in(found))(mx.array(0.0)))
    return found[0]


def keep_in(found: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def kept(x: Tensor) -> Tensor:
        found.append(x)
        return x + 1

    return kept


LEAKED = find_leaked()


def is_tracing() -> bool:
    """Return whether an MLX transformation, also an eager gradient, runs on this thread."""
    try:
        # A ValueError says that a trace runs, a RuntimeError that the array has no values.
        mx.eval(LEAKED)
    except ValueError:
        return True
    except RuntimeError:
        return False
    return False


def is_traced(x: Any) -> bool:
    """Return whether an array's values are known only at run time."""
    if not isinstance(x, mx.array) or not is_tracing():
        return False
    try:
        mx.eval(x)
    except ValueError:
        return True
    return False


def find_traced(leaves: Iterable[Any]) -> Tensor | None:
    return next((leaf for leaf in leaves if is_traced(leaf)), None)


# What a transformation without a frame has read, until an array shows whether it keeps that.
TOLD: contextvars.ContextVar[str] = contextvars.ContextVar("multigrad_mlx_told", default="")
READ = (
    "the rule in force is read inside mx.compile or mx.vmap, which would keep it for other "
    "rules: compile with xg.jit(fn, 'mlx'), enter the `use` inside fn, or give the activation "
    "its own rule"
)
LOOKED_UP = (
    "a name of a rule, or a number that moves, is read inside a function that was made by "
    "mx.compile or mx.vmap before multigrad's MLX backend was loaded, and is not followed there: "
    "make the function after the activation, or with xg.jit(fn, 'mlx')"
)


def on_enter(token: str) -> Callable[[], None]:
    """Note a `use` that is entered within a transformation; return a function that leaves it."""
    frame = FRAME.get()
    if frame is not None:
        frame.open += 1
        return functools.partial(leave, frame)
    if not is_tracing():
        return do_nothing
    frame = Frame(FrameKind.ENTERED, compilers.CURRENT.get(), None, open=1)
    reset = FRAME.set(frame)
    return lambda: FRAME.reset(reset)


def leave(frame: Frame) -> None:
    frame.open -= 1


def do_nothing() -> None:
    """Leave a `use` outside transformations."""


def on_read(x: Tensor, activation: Any = None, scope: str = "activations") -> None:
    """Raise an error if a trace would keep the rule in force for other rules.

    Raises:
        StaleTraceError: `mx.compile` or `mx.vmap` would keep it.
    """
    for frame in frames():
        if frame.kind in (FrameKind.KEYED, FrameKind.AT_ONCE) or frame.puts_in_force(scope):
            return
        if frame.kind is FrameKind.COMPILED:
            raise StaleTraceError(READ)
    if x is None:
        tell(READ)
    elif is_traced(x):
        raise StaleTraceError(READ)


def on_depend(held: Any) -> None:
    """Note in all traces around that they depend on a name, or on a moving number."""
    for frame in frames():
        frame.held.add(held)
    if not is_known():
        tell(LOOKED_UP)


def is_known() -> bool:
    """Return whether a frame around tells what is kept."""
    return any(frame.kind is not FrameKind.ENTERED for frame in frames())


def refuse_kept_draw() -> None:
    """Raise an error if a compiled function draws from a state that is not one of its arguments.

    Raises:
        StaleTraceError: it would draw the same numbers at each call.
    """
    is_kept = any(frame.kind in (FrameKind.COMPILED, FrameKind.KEYED) for frame in frames())
    if is_kept and is_tracing() and not is_traced(mx.random.state[0]):
        raise StaleTraceError(
            "a random rule without key= is compiled, and would draw the same at each call: pass "
            "inputs=mx.random.state, outputs=mx.random.state, or a key to `use`"
        )


def tell(message: str) -> None:
    if is_tracing():
        TOLD.set(message)


def check_told(values: Iterable[Any]) -> None:
    """Raise an error if a transformation without a frame keeps what it has read.

    Raises:
        StaleTraceError: it does.
    """
    message = TOLD.get()
    if not message:
        return
    TOLD.set("")
    if not is_known() and find_traced(values) is not None:
        raise StaleTraceError(message)
