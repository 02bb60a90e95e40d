"""torch.compile: the frame's mirror, what compiled code calls, and `xg.jit`.

Dynamo guards the strings that it reads from plain objects, so the frame's token is mirrored to a thread-local string
and the registry's epoch to a global one: another rule is another graph, and coming back is a cache hit. What the
traced code then calls is emitted per (activation, token), with its numbers as literals or, under `xg.jit`, as inputs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from multigrad.activation import Activation, by_key, plain, tracers
from multigrad.context import CURRENT, Application, Frame
from multigrad.errors import MultigradError, StaleTraceError
from multigrad.lowering.backend import load_backend
from multigrad.lowering.emit import compile_source
from multigrad.lowering.entries import draw, find_entry, find_lowered
from multigrad.lowering.lower import lower_derivative

from . import random
from .hooks import note_regions
from .numbering import number_application, serial

Tensor: TypeAlias = Any
JIT = "xg.jit "  # how the mirrored token begins under xg.jit,
HIDDEN = "xg.jit(*) "  # and where the rule's numbers are inputs of the graph, not literals
DRAWS = "draws"  # how the name of a call begins that counts as an application under a hidden key
REFUSED = "!"  # how the answer of `prepare` begins where compiled code cannot do it


class Mirror(threading.local):
    """What traced code reads on this thread; set in `__init__`, where Dynamo guards it."""

    def __init__(self) -> None:
        self.token = ""  # of the frame in force; under xg.jit, without the numbers
        self.exact = ""  # under xg.jit, with the numbers
        self.hidden: tuple[Tensor, ...] = ()  # under xg.jit: what the token leaves out
        self.applied = Applied()


class Applied:
    """How many applications under a hidden key have been made in the current call."""

    def __init__(self) -> None:
        self.number = 0


class Epoch:
    """The registry's epoch as text, the same on all threads."""

    def __init__(self) -> None:
        self.text = "0"


class Calls:
    """What compiled code calls, as attributes: of a dict Dynamo would know only the keys it saw first."""


MIRROR = Mirror()
EPOCH = Epoch()
CALLS = Calls()
NAMES: dict[str, str] = {}  # of the calls, by what they depend on


@contextmanager
def mirror(token: str) -> Iterator[None]:
    """Show a frame's token to Dynamo."""
    note_regions()
    before, MIRROR.token = MIRROR.token, token
    try:
        yield
    finally:
        # Outside of xg.jit from the ContextVar, not from a saved value: asyncio tasks interleave.
        MIRROR.token = before if MIRROR.hidden else CURRENT.get().token


def refresh(epoch: int) -> None:
    """Invalidate compiled code: a name changed its meaning."""
    EPOCH.text = str(epoch)


def is_exporting() -> bool:
    """Return whether torch.export traces, or the older exporter of ONNX, which runs the code eagerly."""
    if torch.jit.is_tracing():
        return torch.onnx.is_in_onnx_export()
    return torch.compiler.is_exporting()


# --- what compiled code calls ------------------------------------------------------------------------


def call_traced(activation: Activation, x: Tensor, values: tuple[Tensor, ...] = ()) -> Tensor:
    """What Dynamo traces in the place of `Activation.__call__`, or of `call_with`, where there are values."""
    key, forward, count = activation.key, activation.forward.name, len(values)
    name = prepare(key, forward, MIRROR.token, EPOCH.text, x.ndim, x.dtype, count)
    if name == "":
        name = prepare(key, forward, MIRROR.exact, EPOCH.text, x.ndim, x.dtype, count)
    if name.startswith(REFUSED):
        torch._dynamo.graph_break(msg=name)
        return apply_eagerly(activation, x, values)
    hidden, n = MIRROR.hidden, 0
    if hidden and name.startswith(DRAWS):
        n = MIRROR.applied.number
        MIRROR.applied.number = n + 1
    if hidden and x.ndim == 0:  # as one example of vmap may be: float64 numbers would promote it
        hidden = (hidden[0].to(x.dtype), *hidden[1:])
    for value in values:
        hidden = (*hidden, value.to(x.dtype) if x.ndim == 0 else value)
    if torch._C._are_functorch_transforms_active():
        # Dynamo (torch 2.13) would take the forward's own derivative under torch.func transforms.
        return getattr(CALLS, name + "_in_graph")(x, n, *hidden)
    return getattr(CALLS, name)(x, n, *hidden)


@torch._dynamo.disable
def apply_eagerly(activation: Activation, x: Tensor, values: tuple[Tensor, ...]) -> Tensor:
    """Apply outside of compiled code, after a graph break."""
    return activation.call_with(x, values) if values else activation.apply(x)


@torch.compiler.assume_constant_result
def prepare(
    key: str, forward: str, token: str, epoch: str, ndim: int, dtype: torch.dtype, given: int
) -> str:
    """Make the function for an activation under a frame, and return its name among CALLS.

    "" where the rule's Python code looks at its numbers, but they are hidden. `given` is how many values come as inputs.
    """
    try:
        return find_call(key, forward, token, f"{epoch} {ndim} {dtype} {given}", ndim, dtype, given)
    except MultigradError as error:  # Dynamo would wrap it; after the break it is raised as it is
        return f"{REFUSED}{type(error).__name__}: {error}"


def find_call(
    key: str, forward: str, token: str, rest: str, ndim: int, dtype: torch.dtype, given: int
) -> str:
    """Return the name among CALLS, as `prepare`."""
    act = by_key.get(key) or Activation(forward)
    application = act.in_force()
    jitted = token.startswith((JIT, HIDDEN))
    if not jitted and token != CURRENT.get().token:
        raise StaleTraceError(
            f"torch.compile would keep for {token!r} what it traces under {CURRENT.get().token!r}: "
            f"the rule was put in force before torch was imported, or in another asyncio task. "
            f"Import torch first, or compile with xg.jit"
        )
    depends = f"{key} {token} {rest} {torch.compiler.is_exporting()}"
    if not jitted and application is not None and application.counter is not None:
        # Each application draws its own numbers, so it gets a function of its own.
        depends += f" {number_application(application.counter)}"
    if depends not in NAMES:
        call = make_call(act, application, ndim, dtype, token, given)
        if call is None:
            return ""
        if len(NAMES) >= 4096:
            NAMES.clear()
            vars(CALLS).clear()
        NAMES[depends] = name = f"{DRAWS if call.draws else 'call'}_{next(serial)}"
        setattr(CALLS, name, call.plain)
        setattr(CALLS, f"{name}_in_graph", torch._dynamo.allow_in_graph(call.in_graph))
    return NAMES[depends]


@dataclass(frozen=True, slots=True)
class Call:
    """Two functions `f(tin, n, *hidden)`: for plain compiled code, and under torch.func."""

    plain: Callable[..., Tensor]
    in_graph: Callable[..., Tensor]
    draws: bool = False  # from a hidden key


def make_call(
    act: Activation,
    application: Application | None,
    ndim: int,
    dtype: torch.dtype,
    token: str,
    given: int = 0,
) -> Call | None:
    """Return what compiled code calls; None: see `prepare`."""
    backend = load_backend("torch")
    if application is None:
        if act.forward.differentiable:
            return as_call(plain(act.forward, backend))
        return emit_call(lower_derivative(act.forward, backend, fast=False).native, [], {})
    if torch.compiler.is_exporting():
        # What is exported is ATen ops: rather no gradient than the forward's own in silence.
        return as_call(without_gradient(plain(act.forward, backend)))
    spec = application.spec
    facts = {"ndim": ndim, "dtype": str(dtype).rsplit(".", 1)[-1]}
    lowered = find_lowered(spec.family, backend, act.forward, spec.values, facts, fast=False)
    hides = token.startswith(HIDDEN) and act.rule is None
    if hides and has_static_numbers(application):
        return None
    if lowered is None:  # it runs as it is
        entry = find_entry(spec.family, backend, act.forward)
        call = as_call(functools.partial(entry, application=application))
        return Call(call.in_graph, call.in_graph)  # Dynamo reads plain functions and tensors only
    words, names = [], {}
    first = 3 if token.startswith((JIT, HIDDEN)) else 0  # what xg.jit hides comes before
    if given:
        act.check_values(application)
        words = [f"hidden[{first + i}]" for i in range(given)]
    for i, value in enumerate(() if given else spec.values):
        number = value if isinstance(value, float) else read_number(value)
        if hides:
            words.append(f"hidden[0][{i}]")
        elif number is None:
            words.append(f"p{i}")
            names[f"p{i}"] = value
        else:
            words.append(f"float({str(number)!r})" if number - number != 0 else repr(number))
    if lowered.lowering is None or "key" not in lowered.lowering.params:
        return emit_call(lowered.native, words, names)
    if application.counter is None:
        return emit_call(
            lowered.native, [*words, "draw_key()"], {**names, "draw_key": random.draw_key}
        )
    if token.startswith((JIT, HIDDEN)):
        words.append("fold_in_from(hidden[1], hidden[2], n)")
        return emit_call(lowered.native, words, {**names, "fold_in_from": fold_in_from}, draws=True)
    key = draw(application, backend)
    words.append(repr(key) if isinstance(key, tuple) else "key")
    return emit_call(lowered.native, words, {**names, "key": key})


def read_number(value: Tensor) -> float | None:
    """Return a tensor's number, by which its token is keyed; None under a torch.func transform."""
    if isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        return None
    return float(value)


def without_gradient(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a forward that no gradient passes."""

    def call(tin: Tensor) -> Tensor:
        return forward(tin.detach())

    return call


def as_call(function: Callable[[Tensor], Tensor]) -> Call:
    """Return a function of the tensor as what compiled code calls."""

    def call(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        return function(tin)

    def call_in_graph(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        return function(tin)

    return Call(call, call_in_graph)


def emit_call(native: Any, words: list[str], names: dict[str, Any], draws: bool = False) -> Call:
    """Return calls with the numbers as literals, because Dynamo makes inputs of floats it finds."""
    source = f"def call(tin, n, *hidden):\n    return Native.apply({', '.join(['tin', *words])})\n"
    calls = []
    for function in (getattr(native, "eager", native), native):
        call = compile_source(source, native.__name__, {"Native": function, **names})["call"]
        call.__module__ = __name__  # the graph's own code names what it calls by module
        call.__qualname__ = call.__name__ = f"{native.__name__}_{next(serial)}"
        calls.append(call)
    return Call(calls[0], calls[1], draws)


@torch.library.custom_op("multigrad::fold_in_from", mutates_args=())
def fold_in_from(key: torch.Tensor, start: torch.Tensor, n: int) -> torch.Tensor:
    """Derive the key number `start + n`."""
    return random.fold_in_words(key, int(start) + n)


@fold_in_from.register_fake
def describe_folded_key(key: Tensor, start: Tensor, n: int) -> Tensor:
    return torch.empty_like(key)


tracers.insert(0, (torch.Tensor, torch.compiler.is_compiling, call_traced))

# --- xg.jit ------------------------------------------------------------------------------------------


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn) in which numbers and keys of the rule in force are run-time values."""
    compiled: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        frame = CURRENT.get()
        hidden = hide(frame.activations)
        structure = f"{hidden.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with in_force(frame, hidden):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn behind code of its own: Dynamo keeps at most `recompile_limit` graphs for one code."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(frozen=True, slots=True)
class Hidden:
    """A rule in force as compiled code sees it: two tokens, and what they leave out."""

    token: str
    exact: str
    tensors: tuple[
        Tensor, Tensor, Tensor
    ]  # the numbers, the key's words, the next application's number


def hide(application: Application | None) -> Hidden:
    """Return the rule in force with its numbers and its key as tensors."""
    numbers: tuple[Any, ...] = ()
    words, start, keyed = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = f"{JIT}-"
    if application is not None:
        if application.counter is not None:
            words, start, keyed = random.key_words(application.key), application.counter.count, "@"
        token = exact = f"{JIT}{application.spec.token}{keyed}"
        if not has_static_numbers(application):
            numbers = application.spec.values
            token = f"{HIDDEN}{application.spec.family.id}{keyed}"
    # All in one tensor: of 0-d float64 inputs Dynamo (torch 2.13) makes scalars, at a second trace.
    packed = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return Hidden(token, exact, (packed, words, torch.tensor(start, device="cpu")))


def has_static_numbers(application: Application) -> bool:
    """Return whether the rule's Python code looks at its numbers, so that they are part of a graph."""
    family = application.spec.family
    if family.rule.native is True or family.uncapturable is not None:
        return True
    return any(fact.startswith("param:") for fact in family.facts)


@contextmanager
def in_force(frame: Frame, hidden: Hidden) -> Iterator[None]:
    """Mirror a rule whose numbers are hidden; afterwards its counter stands where it would eagerly."""
    application, applied = frame.activations, Applied()
    before = MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied
    with ExitStack() as stack:
        if application is not None and application.counter is not None:
            # What a graph break leaves to eager code goes on counting where compiled code is.
            counter = SharedCounter(application.counter.count, applied)
            inner = Application(application.spec, application.key, counter)
            stack.callback(CURRENT.reset, CURRENT.set(replace(frame, activations=inner)))
        MIRROR.token, MIRROR.exact = hidden.token, hidden.exact
        MIRROR.hidden, MIRROR.applied = hidden.tensors, applied
        try:
            yield
        finally:
            MIRROR.token, MIRROR.exact, MIRROR.hidden, MIRROR.applied = before
            if application is not None and application.counter is not None:
                application.counter.advance(applied.number)


class SharedCounter:
    """Counts applications together with compiled code."""

    def __init__(self, start: int, applied: Applied) -> None:
        self.start = start
        self.applied = applied

    @property
    def count(self) -> int:
        """The number of the next application."""
        return self.start + self.applied.number

    def __next__(self) -> int:
        n = self.count
        self.applied.number += 1
        return n

    def advance(self, number: int) -> None:
        """Skip applications that compiled code has made."""
        self.applied.number += number
