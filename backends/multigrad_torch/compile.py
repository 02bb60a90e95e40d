"""torch.compile: the frame's mirror, and what compiled code calls.

Dynamo guards the strings that it reads from plain objects, so the frame's token is mirrored to a thread-local string
and the registry's epoch to a global one: another rule is another graph, and coming back is a cache hit. What the
traced code then calls is emitted per (activation, token), with its numbers as literals or, under `xg.jit`, as inputs.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from multigrad.activation import Activation, Tracer, by_key, plain, tracers
from multigrad.context import CURRENT, Application, Frame
from multigrad.errors import MultigradError, StaleTraceError
from multigrad.lowering.backend import load_backend
from multigrad.lowering.emit import compile_source
from multigrad.lowering.entries import draw, find_entry, find_lowered
from multigrad.lowering.input_checks import check_values
from multigrad.lowering.lower import lower_derivative, lower_forward
from multigrad.rule import Spec

from . import random
from .hooks import note_regions
from .numbering import number_application, serial

Tensor: TypeAlias = Any
JIT = "xg.jit "  # how the mirrored token begins under xg.jit,
HIDDEN = "xg.jit(*) "  # and where the rule's numbers are inputs of the graph, not literals
# In the name of a call: it counts as an application under a hidden key; it takes tensors that are params of the
# activation's own rule, or of the rule in force.
DRAWS, OWN, FRAMED = "draws", "own", "framed"
REFUSED = "!"  # how the answer of `prepare` begins where compiled code cannot do it


class Mirror(threading.local):
    """What traced code reads on this thread; set in `__init__`, where Dynamo guards it."""

    def __init__(self) -> None:
        self.token = ""  # of the frame in force; under xg.jit, without the numbers
        self.exact = ""  # under xg.jit, with the numbers
        self.hidden: tuple[Tensor, ...] = ()  # under xg.jit: what the token leaves out
        self.tensors: tuple[Tensor, ...] = ()  # those among the params of the rule in force
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
TENSORS = (
    Calls()
)  # of OWN, by the name of the call: inputs of the graph, so that changes in place are followed
MOST_NAMES = 4096
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
        show(CURRENT.get())


def show(frame: Frame) -> None:
    """Show the tensors among the params of the rule in force to Dynamo."""
    MIRROR.tensors = tensors_in(frame.activations)


def tensors_in(application: Application | None) -> tuple[Tensor, ...]:
    """Return the params that may change in place, as tensors."""
    values = () if application is None else application.spec.values
    return tuple(value for value in values if isinstance(value, torch.Tensor))


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
    hidden, n, kind = MIRROR.hidden, 0, name.partition("_")[0]
    if hidden and DRAWS in kind:
        n = MIRROR.applied.number
        MIRROR.applied.number = n + 1
    if hidden and x.ndim == 0:  # as one example of vmap may be: float64 numbers would promote it
        hidden = (hidden[0].to(x.dtype), *hidden[1:])
    if OWN in kind:
        values = getattr(TENSORS, name)
    elif FRAMED in kind:
        values = MIRROR.tensors
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
    if not jitted:
        check_mirror(token)
    depends = f"{key} {token} {rest} {torch.compiler.is_exporting()}"
    if not jitted and application is not None and application.counter is not None:
        # Each application draws its own numbers, so it gets a function of its own.
        depends += f" {number_application(application.counter)}"
    if depends not in NAMES:
        if application is not None and not jitted:
            warn_of_graphs(application)
        call = make_call(act, application, ndim, dtype, token, given)
        if call is None:
            return ""
        if len(NAMES) >= MOST_NAMES:
            NAMES.clear()
            vars(CALLS).clear()
            vars(TENSORS).clear()
        NAMES[depends] = name = f"{call.kind}_{next(serial)}"
        if OWN in call.kind:
            setattr(TENSORS, name, tensors_in(application))
        setattr(CALLS, name, call.plain)
        setattr(CALLS, f"{name}_in_graph", torch._dynamo.allow_in_graph(call.in_graph))
    return NAMES[depends]


def warn_of_graphs(application: Application) -> None:
    """Warn at the last graph that Dynamo keeps of one code, where a rule with numbers or a key may be why."""
    context = torch._guards.CompileContext.try_get()
    made = getattr(getattr(context, "compile_id", None), "frame_compile_id", None)
    limit = getattr(torch._dynamo.config, "recompile_limit", 0)
    if made == limit - 1 and (application.spec.values or application.counter is not None):
        warnings.warn(
            f"torch.compile has made {limit} graphs of one function, perhaps for as many numbers or keys of rule "
            f"{application.spec.family.rule.name!r}, and at the next one it runs eagerly or, with "
            f"fullgraph=True, raises FailOnRecompileLimitHit. xg.jit makes one graph for all",
            UserWarning,
            stacklevel=2,
        )


def check_mirror(token: str) -> None:
    """Check that what Dynamo sees is the rule in force.

    Raises:
        StaleTraceError: it is not.
    """
    if token != CURRENT.get().token:
        raise StaleTraceError(
            f"torch.compile would keep for {token!r} what it traces under {CURRENT.get().token!r}: "
            f"the rule was put in force before torch was imported, or in another asyncio task. "
            f"Import torch first, or compile with xg.jit"
        )


@dataclass(frozen=True, slots=True)
class Call:
    """Two functions `f(tin, n, *hidden)`: for plain compiled code, and under torch.func."""

    plain: Callable[..., Tensor]
    in_graph: Callable[..., Tensor]
    kind: str = "call"  # the words among DRAWS, OWN and FRAMED that hold


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
        return as_call(without_gradient(lower_forward(act.forward, backend)))
    spec = application.spec
    if any(not isinstance(value, float | torch.Tensor) for value in spec.values):
        check_values(spec.family, backend, None, spec.values)
    facts = {"ndim": ndim, "dtype": str(dtype).rsplit(".", 1)[-1]}
    lowered = find_lowered(spec.family, backend, act.forward, spec.values, facts, fast=False)
    hides = token.startswith(HIDDEN) and act.rule is None
    if hides and has_static_numbers(application):
        return None
    first = 3 if token.startswith((JIT, HIDDEN)) else 0  # what xg.jit hides comes before
    tensors = tensors_in(application)
    kind = "call"
    if tensors and not given and not hides:
        kind = FRAMED if act.rule is None else OWN
    if lowered is None:  # it runs as it is
        return call_native(act, application, slice(first, first + (given or len(tensors))), kind)
    if given:
        act.check_values(application)
        words = [f"hidden[{first + i}]" for i in range(given)]
    elif hides:
        words = [f"hidden[0][{i}]" for i in range(len(spec.values))]
    else:
        words = list(write_values(application, first))
    if lowered.lowering is None or "key" not in lowered.lowering.params:
        return emit_call(lowered.native, words, {}, kind)
    if application.counter is None:
        names = {"draw_key": random.draw_key}
        return emit_call(lowered.native, [*words, "draw_key()"], names, kind)
    if token.startswith((JIT, HIDDEN)):
        words.append("fold_in_from(hidden[1], hidden[2], n)")
        names = {"fold_in_from": fold_in_from}
        return emit_call(lowered.native, words, names, f"{DRAWS}-{kind}")
    key = draw(application, backend)
    words.append(repr(key) if isinstance(key, tuple) else "key")
    return emit_call(lowered.native, words, {"key": key}, kind)


def has_static_numbers(application: Application) -> bool:
    """Return whether the rule's Python code looks at its numbers, so that they are part of a graph."""
    family = application.spec.family
    if family.rule.native is True or family.uncapturable is not None:
        return True
    return any(fact.startswith("param:") for fact in family.facts)


def write_values(application: Application, first: int) -> Iterator[str]:
    """Yield the source of a rule's params: numbers as they are, tensors among the hidden ones from `first` on."""
    tensors = itertools.count(first)
    for value in application.spec.values:
        if isinstance(value, torch.Tensor):
            yield f"hidden[{next(tensors)}]"
        else:
            number = float(value)
            yield f"float({str(number)!r})" if number - number != 0 else repr(number)


def call_native(act: Activation, application: Application, given: slice, kind: str) -> Call:
    """Return calls of a rule that runs as it is, with the tensors among its params as they are then."""
    spec = application.spec
    entry = find_entry(spec.family, load_backend("torch"), act.forward)
    every = given.stop - given.start == len(spec.values)

    def call(tin: Tensor, n: int, *hidden: Tensor) -> Tensor:
        tensors = iter(hidden[given])
        values = tuple(
            next(tensors) if every or isinstance(value, torch.Tensor) else value
            for value in spec.values
        )
        then = Spec(spec.family, values, spec.token)
        return entry(tin, Application(then, application.key, application.counter))

    return Call(call, call, kind)  # Dynamo reads plain functions and tensors only


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


def emit_call(native: Any, words: list[str], names: dict[str, Any], kind: str = "call") -> Call:
    """Return calls with the numbers as literals, because Dynamo makes inputs of floats it finds."""
    source = f"def call(tin, n, *hidden):\n    return Native.apply({', '.join(['tin', *words])})\n"
    calls = []
    for function in (getattr(native, "eager", native), native):
        call = compile_source(source, native.__name__, {"Native": function, **names})["call"]
        call.__module__ = __name__  # the graph's own code names what it calls by module
        call.__qualname__ = call.__name__ = f"{native.__name__}_{next(serial)}"
        calls.append(call)
    return Call(calls[0], calls[1], kind)


@torch.library.custom_op("multigrad::fold_in_from", mutates_args=())
def fold_in_from(key: torch.Tensor, start: torch.Tensor, n: int) -> torch.Tensor:
    """Derive the key number `start + n`."""
    return random.fold_in_words(key, int(start) + n)


@fold_in_from.register_fake
def describe_folded_key(key: Tensor, start: Tensor, n: int) -> Tensor:
    return torch.empty_like(key)


tracers.insert(0, Tracer(torch.Tensor, torch.compiler.is_compiling, call_traced))
