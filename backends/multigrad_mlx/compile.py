"""`mx.compile` with a guard, `xg.jit`, and code that transformations keep or run again.

MLX calls no Python when it finds a trace. So a function that is compiled once this backend is
loaded first asks whether everything that its trace depends on is still valid, and is compiled anew
if not. It may not read the rule in force: `xg.jit` makes a trace for each rule.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from multigrad.backend import StaleTraceError, compilers

Tensor = Any


# --- traces that keep the code that runs now -----------------------------------------------------
# `mx.compile` keeps a trace by a function's arguments alone and has no guards. So each
# transformation that this backend can intercept is a frame, which records what is read within it. A
# function that was compiled before this backend was loaded has no frame. It shows in an array that
# depends on its arguments, which MLX refuses to evaluate, before it computes anything.
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


def find_leaked() -> Tensor:
    """Return a placeholder of a finished trace, which tells whether another one is running."""
    placeholders: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        placeholders.append(x)
        return x + 1

    mx.eval(mx.compile(keep)(mx.array(0.0)))
    return placeholders[0]


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
PENDING: contextvars.ContextVar[str] = contextvars.ContextVar("multigrad_mlx_pending", default="")
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
        return lambda: None
    frame = Frame(FrameKind.ENTERED, compilers.CURRENT.get(), None, open=1)
    reset = FRAME.set(frame)
    return lambda: FRAME.reset(reset)


def leave(frame: Frame) -> None:
    frame.open -= 1


def on_read(x: Tensor, activation: Any = None, scope: str = "activations") -> None:
    """Raise an error if a trace would keep the rule in force for other rules."""
    for frame in frames():
        if frame.kind in (FrameKind.KEYED, FrameKind.AT_ONCE) or frame.puts_in_force(scope):
            return
        if frame.kind is FrameKind.COMPILED:
            raise StaleTraceError(READ)
    if x is None:
        note_pending(READ)
    elif is_traced(x):
        raise StaleTraceError(READ)


def on_depend(held: Any) -> None:
    for frame in frames():
        frame.held.add(held)
    if not is_known():
        note_pending(LOOKED_UP)


def is_known() -> bool:
    return any(frame.kind is not FrameKind.ENTERED for frame in frames())


def refuse_kept_draw() -> None:
    """Raise an error if a compiled function draws from a state that is not one of its arguments."""
    is_kept = any(frame.kind in (FrameKind.COMPILED, FrameKind.KEYED) for frame in frames())
    if is_kept and is_tracing() and not is_traced(mx.random.state[0]):
        raise StaleTraceError(
            "a random rule without key= is compiled, and would draw the same at each call: pass "
            "inputs=mx.random.state, outputs=mx.random.state, or a key to `use`"
        )


def note_pending(message: str) -> None:
    if is_tracing():
        PENDING.set(message)


def check_pending(values: Iterable[Any]) -> None:
    """Raise an error if a transformation without a frame keeps what it has read."""
    message = PENDING.get()
    if not message:
        return
    PENDING.set("")
    if not is_known() and find_traced(values) is not None:
        raise StaleTraceError(message)


# --- transformations that ask what their traces depend on ----------------------------------------
Function = Callable[..., Any]
# MLX's own functions, which are replaced below.
make_compiled, make_mapped = mx.compile, mx.vmap
export, make_exporter = mx.export_function, mx.exporter


class CompiledFunction:
    def __init__(self, fun: Function, options: dict[str, Any]) -> None:
        self.fun, self.options = fun, options
        self.now = self.make()  # one tuple, so that threads see a function with its own set

    def make(self) -> tuple[Function, set[Any]]:
        """Return the function without a trace: MLX finds traces by the function's identity."""

        def traced(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return self.fun(*args, **kwargs)
            # Under mx.disable_compile the function runs eagerly, and is no trace.
            frame = FRAME.get()
            reset = FRAME.set(None if frame is None else frame.outer)
            try:
                return self.fun(*args, **kwargs)
            finally:
                FRAME.reset(reset)

        return make_compiled(traced, **self.options), set()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the present trace, if everything that it depends on is still valid."""
        run, held = self.now
        if is_tracing() and is_inlined((args, kwargs, self.options.get("inputs"))):
            return run(*args, **kwargs)
        if any(each.superseded for each in tuple(held)):
            self.now = run, held = self.make()
        with within(FrameKind.COMPILED, held):
            result = run(*args, **kwargs)
        # If the trace existed already, outer traces were not told what it depends on.
        for frame in frames():
            frame.held.update(held)
        return result


class Ran(threading.local):
    number: int = 0


RAN = Ran()


def run_probe(x: Tensor) -> Tensor:
    RAN.number += 1
    return x


# `belongs` calls the probe: MLX runs its Python again only for an array of a transformation.
PROBE, KNOWN = make_compiled(run_probe), mx.zeros((0,), mx.bool_)


def is_inlined(arguments: Any) -> bool:
    # An argument of the transformation around makes a compiled function part of that.
    return any(isinstance(leaf, mx.array) and belongs(leaf) for leaf in leaves_of(arguments))


def belongs(x: Tensor) -> bool:
    """Return whether an array belongs to a transformation, for which MLX runs a function again."""
    PROBE(KNOWN)  # makes a trace for this thread and stream, so that the next run counts
    before = RAN.number
    PROBE(mx.flatten(x)[:0].astype(mx.bool_))
    return before != RAN.number


def compile(
    fun: Function, inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Function:
    """Return mx.compile(fun), compiled anew when a name or number that it has read has changed."""
    compiled = CompiledFunction(fun, {"inputs": inputs, "outputs": outputs, "shapeless": shapeless})
    return TransformedFunction(fun, compiled.call)


def vmap(fun: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """Return mx.vmap(fun), known to keep nothing if no trace is around its call."""
    mapped = make_mapped(fun, in_axes, out_axes)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_known() or (is_tracing() and find_traced(leaves_of((args, kwargs))) is not None):
            return mapped(*args, **kwargs)
        return at_once(mapped)(*args, **kwargs)

    return TransformedFunction(fun, call)


def leaves_of(arguments: Any) -> list[Any]:
    pairs: Any = tree_flatten(arguments)
    return [leaf for _, leaf in pairs]


def at_once(fun: Function) -> Function:
    """Return a function in which the rules in force may be read; a file's trace keeps them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with within(FrameKind.AT_ONCE):
            return fun(*args, **kwargs)

    return call


def export_function(file: Any, fun: Function, *args: Any, **kwargs: Any) -> None:
    export(file, at_once(fun), *args, **kwargs)


def exporter(file: str, fun: Function, **options: Any) -> Any:
    """Return mx.exporter of a function, with the rules in force where it is called."""
    return make_exporter(file, at_once(fun), **options)


# Replaces MLX's own, for functions that are made from now on.
mx.compile = compile
mx.vmap = vmap
mx.export_function = export_function
mx.exporter = exporter


def jit(fn: Function, options: dict[str, Any]) -> Function:
    """Return mx.compile(fn), keyed by the rule in force, with its numbers as run-time arguments."""

    def make(run: Function) -> Function:
        def keyed(*args: Any) -> Any:
            with within(FrameKind.KEYED):
                return run(*args)

        return make_compiled(keyed, **options)

    keyed = compilers.key_by_rules(fn, "mlx", make, as_number, as_key)

    @functools.wraps(keyed)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            if is_inlined((args, kwargs, options.get("inputs"))):
                return fn(*args, **kwargs)
            for scope in ("activations", "params"):
                # For a trace around, numbers that are arguments here are constants.
                on_read(None, None, scope)
        return keyed(*args, **kwargs)

    return call


def as_number(value: Any) -> Tensor:
    """Return a number as an array, which takes the dtype of what it meets."""
    return value if isinstance(value, mx.array) else mx.array(value)


def as_key(key: Any) -> Tensor:
    return key if isinstance(key, mx.array) else mx.array(list(key), mx.uint32)


# --- code that runs a second time within backward, by `mx.checkpoint` or `xg.vjp` ----------------
# The second run would use the rule in force where backward runs. MLX has no hook for this, so the
# second run is made in the context of the first one, with the keys that were drawn there.
make_checkpointed = mx.checkpoint  # MLX's own, which is replaced below


@dataclass(slots=True)
class RecomputedRegion:
    """Code that runs again, with what its first run read besides its arguments.

    Attributes:
        outer: the region around it, which provides its keys.
        repeated: how many of the keys the current run has used; -1 in the first run.
    """

    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    keys: list[Any] = field(default_factory=list)
    repeated: int = -1
    outer: RecomputedRegion | None = field(default_factory=lambda: REGION.get())

    def first(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function, note the keys that it draws, and return its result."""
        reset = REGION.set(self)
        try:
            return run(*args, **kwargs)
        finally:
            REGION.reset(reset)

    def again(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A copy, as a context cannot be entered twice, and a region may run again within itself.
        return self.context.copy().run(self._repeat, run, args, kwargs)

    def _repeat(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        REGION.set(RecomputedRegion(self.context, self.keys, 0, None))
        return run(*args, **kwargs)

    def key(self, draw: Callable[[], Any]) -> Any:
        # The first run draws, from the region around it if there is one, and notes each key.
        if self.repeated < 0:
            self.keys.append(draw() if self.outer is None else self.outer.key(draw))
            return self.keys[-1]
        self.repeated += 1
        return self.keys[self.repeated - 1] if self.repeated <= len(self.keys) else draw()


REGION: contextvars.ContextVar[RecomputedRegion | None] = contextvars.ContextVar(
    "multigrad_mlx_region", default=None
)


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call; in a second run of a region, the key of its first run."""
    region = REGION.get()
    return draw() if region is None else region.key(draw)


def seeded(run: Callable[..., Any], words: list[int], *args: Any) -> Any:
    """Run a function from a given state of MLX's own generator, which is restored afterwards."""
    now = mx.random.state[0].tolist()
    try:
        mx.random.seed(words[0] << 32 | words[1])
        return run(*args)
    finally:
        mx.random.seed(now[0] << 32 | now[1])


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return mx.checkpoint(fun), each call of which is one region."""

    def call(*args: Any, **kwargs: Any) -> Any:
        region, runs = RecomputedRegion(), 0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            runs += 1
            turn = region.first if runs == 1 else region.again
            return turn(fun, *args, **kwargs)

        return make_checkpointed(run)(*args, **kwargs)

    return TransformedFunction(fun, call)


mx.checkpoint = checkpoint
