"""torch.compile: the frame's mirror, what compiled code calls, and `xg.jit`.

Dynamo guards the strings that it reads from plain objects, so the frame's token is mirrored to a thread-local string
and the registry's epoch to a global one: another rule is another graph, and coming back is a cache hit. What the
traced code then calls is emitted per (activation, token) with its numbers as literals.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from multigrad.activation import Activation, by_key, plain, tracers
from multigrad.context import CURRENT, Application, Frame, key_token
from multigrad.lowering.backend import load_backend
from multigrad.lowering.emit import compile_source
from multigrad.lowering.lower import draw, find_entry, find_lowered, lower_derivative

from .random import draw_key

Tensor = Any


class Mirror(threading.local):
    """The token of the frame in force on this thread; set in `__init__`, where Dynamo guards it."""

    def __init__(self) -> None:
        self.token = ""


class Epoch:
    """The registry's epoch as text, the same on all threads."""

    def __init__(self) -> None:
        self.text = "0"


MIRROR = Mirror()
EPOCH = Epoch()
CALLS: dict[str, Callable[[Tensor], Tensor]] = {}
_serial = itertools.count()


@contextmanager
def mirror(token: str) -> Iterator[None]:
    """Show a frame's token to Dynamo."""
    MIRROR.token = token
    try:
        yield
    finally:
        # From the ContextVar, not from a saved value: asyncio tasks interleave.
        MIRROR.token = CURRENT.get().token


def refresh(epoch: int) -> None:
    """Invalidate compiled code: a name changed its meaning."""
    EPOCH.text = str(epoch)


def call_traced(activation: Activation, x: Tensor) -> Tensor:
    """What Dynamo traces in the place of `Activation.__call__`."""
    name = prepare(
        activation.key, activation.forward.name, MIRROR.token, EPOCH.text, x.ndim, x.dtype
    )
    if torch._C._are_functorch_transforms_active():
        # Dynamo (torch 2.13) would take the forward's own derivative under torch.func transforms.
        return CALLS[name + " in graph"](x)
    return CALLS[name](x)


@torch.compiler.assume_constant_result
def prepare(key: str, forward: str, token: str, epoch: str, ndim: int, dtype: torch.dtype) -> str:
    """Make the function for an activation under a frame, and return its name in CALLS."""
    act = by_key.get(key) or Activation(forward)
    application = act.in_force()
    numbered = application is not None and application.counter is not None
    # Each application under a key draws its own numbers, so it gets a function of its own.
    name = f"{key} {token} {epoch} {ndim} {dtype}" + (f" {next(_serial)}" if numbered else "")
    if name not in CALLS:
        if len(CALLS) >= 4096:
            CALLS.clear()
        hidden = BUFFERS.get(token)
        plain_call, in_graph = make_calls(act, application, ndim, dtype, hidden)
        CALLS[name] = plain_call
        CALLS[name + " in graph"] = torch._dynamo.allow_in_graph(in_graph)
    return name


def make_calls(
    act: Activation,
    application: Application | None,
    ndim: int,
    dtype: torch.dtype,
    hidden: tuple[Tensor, ...] | None,
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return two functions of the tensor alone: for plain compiled code, and under torch.func."""
    backend = load_backend("torch")
    if application is None:
        if act.forward.differentiable:
            function = plain(act.forward, backend)
            return function, function
        native = lower_derivative(act.forward, backend).native
        return emit_call(native.eager, [], {}), emit_call(native, [], {})
    spec = application.spec
    facts = {"ndim": ndim, "dtype": str(dtype).rsplit(".", 1)[-1]}
    lowered = find_lowered(spec.family, backend, act.forward, spec.values, facts)
    if lowered is None:  # it runs as it is
        entry = find_entry(spec.family, backend, act.forward)

        def as_it_is(tin: Tensor) -> Tensor:
            return entry(tin, application)

        return as_it_is, as_it_is
    words, names = [], {}
    for i, value in enumerate(spec.values if hidden is None else hidden):
        if isinstance(value, float):
            words.append(f"float({str(value)!r})" if value - value != 0 else repr(value))
        else:
            # A later call refills a hidden buffer; this call keeps the number it was made with.
            names[f"p{i}"] = value
            words.append(f"p{i}.clone()")
    if "key" in lowered.lowering.params:
        if application.counter is None:
            names["draw_key"] = draw_key
            words.append("draw_key()")
        else:
            key = draw(application, backend)
            names["key"] = key
            words.append(repr(key) if isinstance(key, tuple) else "key")
    return emit_call(lowered.native.eager, words, names), emit_call(lowered.native, words, names)


def emit_call(native: Any, words: list[str], names: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """Return `f(tin)` with the numbers as literals, because Dynamo makes inputs of floats it finds."""
    source = f"def call(tin):\n    return Native.apply({', '.join(['tin', *words])})\n"
    call = compile_source(source, native.__name__, {"Native": native, **names})["call"]
    call.__module__ = __name__  # the graph's own code names what it calls by module
    call.__qualname__ = call.__name__ = f"{native.__name__}_{next(_serial)}"
    return call


tracers.append((torch.compiler.is_compiling, call_traced))

# --- xg.jit ------------------------------------------------------------------------------------------

# The hidden run-time params by the token that stands for them: 0-d tensors, refilled before each call.
BUFFERS: dict[str, tuple[Tensor, ...]] = {}


def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn) in which numeric params of the rule in force are run-time values."""
    compiled = torch.compile(fn, **options)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = CURRENT.get()
        token = hide_params(frame)
        if token is None:
            MIRROR.token = frame.token
            return compiled(*args, **kwargs)
        MIRROR.token = token
        try:
            return compiled(*args, **kwargs)
        finally:
            MIRROR.token = frame.token

    return call


def hide_params(frame: Frame) -> str | None:
    """Fill the buffers of the rule in force and return the token that stands for any numbers."""
    application = frame.activations
    if application is None or not application.spec.values:
        return None
    values = application.spec.values
    if not all(isinstance(value, float) for value in values):
        return None
    token = f"{application.spec.family.id}(*){key_token(application)}"
    buffers = BUFFERS.get(token)
    if buffers is None:
        buffers = BUFFERS[token] = tuple(torch.zeros((), dtype=torch.float64) for _ in values)
    for buffer, value in zip(buffers, values, strict=True):
        buffer.fill_(value)
    return token
