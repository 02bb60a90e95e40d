"""`mx.compile` with a guard, `xg.jit`, and transformations that keep nothing.

MLX calls no Python when it finds a trace. So a function that is compiled once this backend is
loaded first asks whether everything that its trace depends on is still valid, and is compiled anew
if not. It may not read the rule in force: `xg.jit` makes a trace for each rule.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from multigrad.backend import compilers

from .trace_dependencies import (
    FRAME,
    FrameKind,
    TransformedFunction,
    find_traced,
    frames,
    is_known,
    is_tracing,
    on_read,
    within,
)

Tensor = Any
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
    leaves: Any = tree_flatten(arguments)
    return any(isinstance(leaf, mx.array) and belongs(leaf) for _, leaf in leaves)


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
        with within(FrameKind.AT_ONCE):
            return mapped(*args, **kwargs)

    return TransformedFunction(fun, call)


def leaves_of(arguments: Any) -> list[Any]:
    found: Any = tree_flatten(arguments)
    return [leaf for _, leaf in found]


def at_once(fun: Function) -> Function:
    """Return a function whose one trace, for a file, keeps the rules in force then."""

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
