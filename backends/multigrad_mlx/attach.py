"""Lowered code as MLX functions with gradients of their own, and how these run.

MLX keeps a function's arguments and outputs for its backward, whatever that reads, so residuals are
computed from them there. MLX derives from the forward whatever it has no rule for, so `batch` sets
how the pair is mapped, and its forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

import mlx.core as mx
import numpy as np

from multigrad.backend import (
    Emitted,
    GradientError,
    Guest,
    Pull,
    SharedBuffer,
    UnsupportedOp,
    as_numpy_dtype,
    dtype_name,
    tuple_of,
)

from . import compile
from .compile import REGION, FrameKind, RecomputedRegion, seeded, within
from .kernels import random
from .kernels.elementwise import is_floating
from .kernels.random import GENERATOR

Tensor = Any

# --- arrays of NumPy and other frameworks --------------------------------------------------------
NO_FLOAT8 = "mlx 0.32 has no such dtype"
HALF = as_numpy_dtype("bfloat16")


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array; bfloat16 stays bfloat16 (ml_dtypes)."""
    if x.dtype == mx.bfloat16:
        return np.asarray(x.view(mx.uint16)).view(HALF)
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> mx.array:
    """Return a NumPy array as MLX's, of the same dtype."""
    # ascontiguousarray gives a 0-d array an axis.
    x = np.ascontiguousarray(x).reshape(np.shape(x))
    if x.dtype == HALF:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    if x.dtype.kind == "c":
        return mx.array(x)
    # Without a dtype MLX makes float32 of float64.
    return mx.array(x, dtype(x.dtype.name))


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that computes in a dtype: only the CPU has float64."""
    return mx.stream(mx.cpu) if dtype == "float64" else nullcontext()


def dtype(name: str) -> Any:
    """Return MLX's dtype of an IR name."""
    if name.startswith("float8"):
        raise UnsupportedOp(f"a cast to {name} is not available on mlx: {NO_FLOAT8}")
    return getattr(mx, "bool_" if name == "bool" else name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the array that it meets."""
    return value if isinstance(value, bool | int | float) else value.astype(dtype)


def lend(x: mx.array) -> SharedBuffer:
    """Return a buffer on an array for other frameworks; its memory is the CPU's, too."""
    x = mx.contiguous(x)
    # The array is lazy: it has no memory before it is computed.
    mx.eval(x)
    return SharedBuffer(dtype_name(x.dtype), x.shape, partial(to_numpy, x))


def borrow(lent: SharedBuffer, own: bool = False) -> mx.array:
    """Return a copy of a buffer that another framework lent: MLX cannot use its memory."""
    return from_numpy(lent.array())


# --- source of the `mx.custom_function` that a lowering becomes ----------------------------------
Function = Callable[..., Any]


def render(emitted: Emitted) -> str:
    f, b, k = emitted.forward, emitted.backward, emitted.keep
    names = [*emitted.names.inputs, *emitted.names.params]
    arguments = ", ".join(names)
    results = emitted.returned(f.results)
    residuals = zip(emitted.residuals.computed, k.results, strict=True)
    keep = k.indented(4) + "".join(f"    {name} = {result}\n" for name, result in residuals)
    keep += "".join(f"    shape_of_{name} = {name}.shape\n" for name in emitted.residuals.shapes)
    unpack = names[0] if len(names) == 1 else tuple_of(names)
    given_back = [
        f"nothing({name})" if gradient == "None" else gradient
        for name, gradient in zip(emitted.names.inputs, emitted.gradients(b), strict=True)
    ]
    # MLX expects a gradient for each argument, so params get zeros.
    given_back += [f"nothing({name})" for name in emitted.names.params]
    cotangents = emitted.names.cotangents[0] if emitted.single else "cotangents"
    take = "" if emitted.single else f"    {tuple_of(emitted.names.cotangents)} = cotangents\n"
    tangent = "tangent_rule" if emitted.derivative.tangent else repr(emitted.origin.name)
    draw = "".join(f"    {line}\n" for line in emitted.check_arguments)
    # Drawn outside the custom function, of which the key is an argument: backward gets the same
    # one.
    draw += "    key = draw_key() if key is None else key\n" if emitted.draws else ""
    return f"""\
def forward({arguments}):
{f.indented(4)}    return {results}


def backward(primals, {cotangents}, outputs):
    {unpack} = primals
{take}{take_outputs(emitted)}{keep}{b.indented(4)}    return {tuple_of(given_back)}

{render_tangent(emitted)}
native = custom_function(forward)
native.vjp(backward)
batch(native, forward, backward, {tangent})


def {emitted.names.identifier}({", ".join(emitted.names.inputs)}{emitted.signature}):
{draw}    return native({arguments})
"""


def take_outputs(emitted: Emitted) -> str:
    reads = {*emitted.keep.reads, *emitted.backward.reads, *emitted.residuals.names}
    if reads.isdisjoint(emitted.names.outputs):
        return ""
    names = emitted.returned(emitted.names.outputs)
    return f"    {names} = outputs\n"


def render_tangent(emitted: Emitted) -> str:
    tangent = emitted.derivative.tangent
    if tangent is None:
        return ""
    names = [*emitted.names.inputs, *emitted.names.params]
    # MLX (0.32) passes it no outputs: if it reads one, the function is called once more.
    results = emitted.pushed("")
    read = not tangent.reads.isdisjoint(emitted.names.outputs) or "" in results
    outputs = emitted.returned(emitted.names.outputs)
    run = f"    {outputs} = native({', '.join(names)})\n" if read else ""
    pairs = zip(emitted.names.outputs, results, strict=True)
    words = [word or f"nothing({output})" for output, word in pairs]
    if len(names) == 1:
        unpack = f"    {names[0]} = primals\n    tangents = (tangents,)\n"
    else:
        unpack = f"    {tuple_of(names)} = primals\n"
    moves = "".join(
        f"    {move} = tangent_of(tangents[{i}], {name})\n"
        for i, (move, name) in enumerate(
            zip(emitted.names.tangents, emitted.names.inputs, strict=True)
        )
    )
    return f"""
def tangent_rule(primals, tangents):
{unpack}{moves}{run}{tangent.indented(4)}\
    return {emitted.returned(words)}

"""


def finish(namespace: dict[str, Any], emitted: Emitted) -> Function:
    function = namespace[emitted.names.identifier]
    function.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    native = function.native = namespace["native"]
    function.push = namespace.get("tangent_rule")
    if emitted.derivative.dual is not None:
        batch(native, namespace["forward"], namespace["backward"], pushing(emitted.derivative.dual))
    return function


def pushing(dual: Callable[[], Any]) -> Function:
    def push(primals: Any, tangents: Any) -> Any:
        try:
            rule = dual().native.push
        except UnsupportedOp as error:
            raise GradientError(f"mx.jvp: {error}") from error
        return rule(primals, tangents)

    return push


def call(native: Any, emitted: Emitted) -> Function:
    """Return how the hot path calls the function, with all values given."""
    apply = native.native

    def checked(*values: Any) -> Any:
        compile.check_pending(values)
        return apply(*values)

    return checked


def nothing(value: Any) -> Any:
    """Return the gradient of an argument without one: zeros, as MLX expects one for each array."""
    if isinstance(value, tuple | list):
        return tuple(map(nothing, value))
    return mx.zeros_like(value) if isinstance(value, mx.array) else None


# --- other transformations ------------------------------------------------------------------------
def batch(native: Any, forward: Function, backward: Function, tangent: str | Function) -> None:
    """Set how a custom function is mapped, and its forward mode."""
    native.vmap(functools.partial(apply_mapped, forward, backward, tangent))
    native.jvp(refuse(tangent) if isinstance(tangent, str) else tangent)


def refuse(name: str) -> Function:
    def refused(primals: Any, tangents: Any) -> Any:
        raise GradientError(
            f"mx.jvp meets {name!r}, which runs as written, so it has no forward mode: take mx.vjp "
            "or mx.grad"
        )

    return refused


def apply_mapped(
    forward: Function, backward: Function, tangent: Any, args: Any, axes: Any
) -> tuple[Any, Any]:
    """Apply a pair of functions over an axis: both are mapped, not the forward's derivative."""
    args, axes = (args, axes) if isinstance(args, tuple) else ((args,), (axes,))
    flat, rebuild = flatten(args)
    flat_axes = flatten(axes, args)[0]
    # mx.vmap maps arrays only; other values keep their place in the arguments.
    arrays = [i for i, value in enumerate(flat) if isinstance(value, mx.array)]
    own_axes = [flat_axes[i] for i in arrays]
    # Set by the forward, which runs first: whether it returns one array without a tuple.
    single: list[bool] = []

    def whole(values: Any) -> Any:
        return rebuild(replaced(flat, arrays, values))

    def forward_of(*values: Tensor) -> Any:
        outputs = forward(*whole(values))
        single[:] = [isinstance(outputs, mx.array)]
        return (outputs,) if single[0] else tuple(outputs)

    def mapped(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(mx.vmap(forward_of, in_axes=tuple(own_axes), out_axes=0)(*values))

    def backward_of(*values: Tensor) -> Any:
        primals, rest = whole(values[: len(arrays)]), values[len(arrays) :]
        count = len(rest) // 2
        cotangents, outputs = rest[:count], rest[count:]
        if single[0]:
            cotangents, outputs = cotangents[0], outputs[0]
        gradients = backward(primals if len(primals) > 1 else primals[0], cotangents, outputs)
        return tuple(value for value in flatten(gradients)[0] if isinstance(value, mx.array))

    def mapped_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        inputs = primals if isinstance(primals, tuple) else (primals,)
        values = (*inputs, *cotangents, *outputs)
        in_axes = (*own_axes, *(0 for _ in (*cotangents, *outputs)))
        gradients = mx.vmap(backward_of, in_axes=in_axes, out_axes=0)(*values)
        return tuple(
            # An argument that is not mapped gets the sum of its gradients.
            mx.sum(value, axis=0) if axis is None else mx.moveaxis(value, 0, axis)
            for value, axis in zip(gradients, own_axes, strict=True)
        )

    def mapped_tangent(primals: Any, tangents: Any) -> tuple[Tensor, ...]:
        alone = isinstance(primals, mx.array)
        inputs, moves = ((primals,), (tangents,)) if alone else (primals, tangents)
        filled = tuple(map(tangent_of, moves, inputs))

        def push(*values: Tensor) -> tuple[Tensor, ...]:
            own, moved = whole(values[: len(arrays)]), whole(values[len(arrays) :])
            pushed = tangent(own, moved) if len(own) > 1 else tangent(own[0], moved[0])
            return (pushed,) if isinstance(pushed, mx.array) else tuple(pushed)

        return tuple(mx.vmap(push, in_axes=(*own_axes, *own_axes), out_axes=0)(*inputs, *filled))

    native = mx.custom_function(mapped)
    native.vjp(mapped_back)
    batch(native, mapped, mapped_back, tangent if isinstance(tangent, str) else mapped_tangent)
    outputs = native(*(flat[i] for i in arrays))
    return (outputs[0], 0) if single[0] else (tuple(outputs), (0,) * len(outputs))


def flatten(tree: Any, like: Any = None) -> tuple[list[Any], Function]:
    """Return the leaves of nested tuples, in the structure of `like`, and their rebuilder."""
    like = tree if like is None else like
    if not isinstance(like, tuple | list):
        return [tree], itemgetter(0)
    parts = tree if isinstance(tree, tuple | list) else [tree] * len(like)
    inner = [flatten(part, each) for part, each in zip(parts, like, strict=True)]
    counts = [len(leaves) for leaves, _ in inner]

    def rebuild(values: Any) -> Any:
        rest = iter(values)
        return tuple(
            make([next(rest) for _ in range(count)])
            for count, (_, make) in zip(counts, inner, strict=True)
        )

    return [leaf for leaves, _ in inner for leaf in leaves], rebuild


def replaced(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    return list({**dict(enumerate(values)), **dict(zip(places, others, strict=True))}.values())


def tangent_of(tangent: Tensor | None, tin: Tensor) -> Tensor:
    """Return an input's tangent, zeros if it has none."""
    return mx.zeros_like(tin) if tangent is None else tangent


NAMESPACE = {
    "batch": batch,
    "custom_function": mx.custom_function,
    "draw_key": random.draw_key,
    "nothing": nothing,
    "tangent_of": tangent_of,
}


# --- functions that run as they are ---------------------------------------------------------------
def attach(run: Function, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a whole function to arrays; its own gradient flows back to them."""
    compile.check_pending(tensors)
    # Eagerly backward calls the pullback of the forward before it; mapped it runs the function
    # again.
    pulls: list[Function] = []

    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        outputs, pull, _ = run(*values)
        pulls[:] = [pull]
        return tuple(outputs)

    def pull_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        inputs = primals if isinstance(primals, tuple) else (primals,)
        return fill(pulls[0](*cotangents), inputs)

    def pull_anew(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        inputs = primals if isinstance(primals, tuple) else (primals,)
        return fill(run(*inputs)[1](*cotangents), inputs)

    native = mx.custom_function(forward)
    native.vjp(pull_back)
    batch(native, forward, pull_anew, name)
    return tuple(native(*tensors))


def fill(gradients: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        mx.zeros_like(x) if gradient is None else gradient
        for gradient, x in zip(gradients, inputs, strict=True)
    )


# --- xg.vjp, xg.jvp ------------------------------------------------------------------------------
# `mx.vjp` needs the cotangents before it runs a function, so a pullback runs the function again: in
# the context of its first run, with its keys and random state (`RecomputedRegion`).
Run = Callable[[Sequence[Tensor]], list[Any]]


def vjp(
    run: Run, inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of arrays, and the map of cotangents to gradients."""
    region, words = RecomputedRegion(), mx.random.state[0].tolist()
    outputs = region.first(run, inputs)
    places = places_of_floats(inputs)

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        carrying = places_of_floats(outputs)

        def carried(*values: Tensor) -> list[Tensor]:
            results = seeded(region.again, words, run, replaced(inputs, places, values))
            # mx.vjp takes no cotangent for an output that was stopped; adding 0 makes each output a
            # node.
            return [results[i] + 0 for i in carrying]

        if not carrying or not places:
            return [None] * len(inputs)
        heads = [as_cotangent(cotangents[i], outputs[i]) for i in carrying]
        _, gradients = mx.vjp(carried, [inputs[i] for i in places], heads)
        return replaced([None] * len(inputs), places, gradients)

    return outputs, pullback


def places_of_floats(values: Sequence[Any]) -> list[int]:
    return [i for i, x in enumerate(values) if isinstance(x, mx.array) and is_floating(x)]


def as_cotangent(cotangent: Any, output: Tensor) -> Tensor:
    if cotangent is None:
        return mx.zeros_like(output)
    array = cotangent if isinstance(cotangent, mx.array) else mx.array(cotangent, output.dtype)
    return array.astype(output.dtype)


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity as a function whose derivative raises an error."""
    once = make_once(lambda: GradientError(message))
    return lambda x: once(1, x)[0]


def make_once(make_error: Callable[[], Exception]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of a number and arrays, which returns so many of these; it has no
    derivative.
    """

    @mx.custom_function
    def once(number: int, *arrays: Tensor) -> tuple[Tensor, ...]:
        return arrays[:number]

    def refused(*values: Any) -> Any:
        raise make_error()

    once.vjp(refused)
    once.jvp(refused)
    return once


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on numbers, which raises an error if an array's derivative is taken."""
    once = forbid_derivative(message)

    def refuse(number: Any) -> Any:
        return once(number) if isinstance(number, mx.array) else number

    return refuse


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return the result of a function that runs hidden from every trace and region."""
    # The run may draw, and must not shift the program's own draws.
    state, reset = GENERATOR.get_state(), REGION.set(None)
    try:
        with within(FrameKind.AT_ONCE):
            return run()
    finally:
        REGION.reset(reset)
        GENERATOR.set_state(state)


# Why MLX lacks the other probes.
LACKS = {
    "autocast": "MLX has no autocast",
    "kept": "MLX keeps a custom function's arguments and outputs, whatever its backward reads",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a function of arrays, and their tangents, None except for floats."""
    places = places_of_floats(inputs)
    outputs: list[Any] = []

    def carried(*values: Tensor) -> list[Tensor]:
        outputs[:] = run(replaced(inputs, places, values))
        # mx.jvp returns no tangent of an output that was stopped; adding 0 makes each output a
        # node.
        return [outputs[i] + 0 for i in places_of_floats(outputs)]

    moves = [mx.zeros_like(inputs[i]) if tangents[i] is None else tangents[i] for i in places]
    primals, pushed = mx.jvp(carried, [inputs[i] for i in places], moves)
    carrying = places_of_floats(outputs)
    changes = replaced([None] * len(outputs), carrying, pushed)
    return replaced(outputs, carrying, primals), changes


# --- functions of other frameworks ---------------------------------------------------------------
# The guest runs at once, so arrays are evaluated there, and keeps its residuals. Code that is
# compiled or mapped over an axis has no values to pass and cannot call back, so it is refused
# there, and so is a second derivative.


def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Call a guest; its gradient flows back through MLX's autodiff."""
    if compile.find_traced(tensors) is not None:
        raise guest.unsupported(
            "mx.compile and mx.vmap", "call it outside them, or run it in mlx (backend=None)"
        )
    if not compile.is_tracing():
        return tuple(map(borrow, guest.run(list(map(lend, tensors)))))
    # Outside differentiation no pullback is recorded. Within it, forward runs before backward.
    pulls: list[Pull] = []

    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        lent, pull = guest.record(list(map(lend, values)))
        pulls[:] = [pull]
        return tuple(map(borrow, lent))

    def pull_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        inputs = primals if isinstance(primals, tuple) else (primals,)
        lent = pulls[0](
            [
                lend(c) if guest.carries(i, dtype_name(c.dtype)) else None
                for i, c in enumerate(cotangents)
            ]
        )
        gradients = [None if g is None else borrow(g, guest.owns) for g in lent]
        # The identity on gradients, whose own derivative would need the guest's.
        once = make_once(guest.refusal)
        return once(len(inputs), *fill(gradients, inputs), *inputs, *cotangents)

    native = mx.custom_function(forward)
    native.vjp(pull_back)
    native.jvp(refuse("a function of another framework"))
    return tuple(native(*tensors))
