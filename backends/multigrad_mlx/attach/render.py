"""Source text of the `mx.custom_function` that a lowering becomes.

MLX keeps a function's arguments and outputs for its backward, whatever that reads, so residuals are
computed from them there. MLX derives from the forward whatever it has no rule for, so `batch` sets
how the pair is mapped, and its forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from multigrad.backend import Emitted, GradientError, UnsupportedOp

from ..compile import trace_dependencies
from ..kernels import random

Tensor = Any
Function = Callable[..., Any]


def render(emitted: Emitted) -> str:
    """Return the source of the custom function, its backward, and the function that users call."""
    f, b, k = emitted.forward, emitted.backward, emitted.keep
    names = [*emitted.names.inputs, *emitted.names.params]
    given = ", ".join(names)
    results = f.result if emitted.single else tuple_of(f.results)
    kept = zip(emitted.residuals.computed, k.results, strict=True)
    keep = k.indented(4) + "".join(f"    {name} = {result}\n" for name, result in kept)
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
    draw = "".join(f"    {line}\n" for line in emitted.refuse_gradients)
    # Drawn outside the custom function, of which the key is an argument: backward gets the same
    # one.
    draw += "    key = draw_key() if key is None else key\n" if emitted.draws else ""
    return f"""\
def forward({given}):
{f.indented(4)}    return {results}


def backward(primals, {cotangents}, outputs):
    {unpack} = primals
{take}{take_outputs(emitted)}{keep}{b.indented(4)}    return {tuple_of(given_back)}

{render_tangent(emitted)}
native = custom_function(forward)
native.vjp(backward)
batch(native, forward, backward, {tangent})


def {emitted.names.identifier}({", ".join(emitted.names.inputs)}{emitted.signature}):
{draw}    return native({given})
"""


def take_outputs(emitted: Emitted) -> str:
    """Return the line that names the outputs, if backward or its residuals read one."""
    reads = {*emitted.keep.reads, *emitted.backward.reads, *emitted.residuals.names}
    if reads.isdisjoint(emitted.names.outputs):
        return ""
    names = emitted.names.outputs[0] if emitted.single else tuple_of(emitted.names.outputs)
    return f"    {names} = outputs\n"


def render_tangent(emitted: Emitted) -> str:
    """Return the source of the tangent map, if there is one."""
    tangent = emitted.derivative.tangent
    if tangent is None:
        return ""
    names = [*emitted.names.inputs, *emitted.names.params]
    # MLX (0.32) passes it no outputs: if it reads one, the function is called once more.
    results = emitted.pushed("")
    read = not tangent.reads.isdisjoint(emitted.names.outputs) or "" in results
    outputs = emitted.names.outputs[0] if emitted.single else tuple_of(emitted.names.outputs)
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
    return {words[0] if emitted.single else tuple_of(words)}

"""


def tuple_of(words: Any) -> str:
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def finish(namespace: dict[str, Any], emitted: Emitted) -> Function:
    """Return the function that users call, with its native object."""
    function = namespace[emitted.names.identifier]
    function.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    native = function.native = namespace["native"]
    function.push = namespace.get("tangent_rule")
    if emitted.derivative.dual is not None:
        batch(native, namespace["forward"], namespace["backward"], pushing(emitted.derivative.dual))
    return function


def pushing(dual: Callable[[], Any]) -> Function:
    """Return the forward mode of a custom function, which is emitted at its first use."""

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
        trace_dependencies.check_told(values)
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

    def whole(given: Any) -> Any:
        values = list(flat)
        for i, value in zip(arrays, given, strict=True):
            values[i] = value
        return rebuild(values)

    def forward_of(*given: Tensor) -> Any:
        outputs = forward(*whole(given))
        single[:] = [isinstance(outputs, mx.array)]
        return (outputs,) if single[0] else tuple(outputs)

    def mapped(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(mx.vmap(forward_of, in_axes=tuple(own_axes), out_axes=0)(*given))

    def backward_of(*given: Tensor) -> Any:
        primals, rest = whole(given[: len(arrays)]), given[len(arrays) :]
        count = len(rest) // 2
        cotangents, outputs = rest[:count], rest[count:]
        if single[0]:
            cotangents, outputs = cotangents[0], outputs[0]
        found = backward(primals if len(primals) > 1 else primals[0], cotangents, outputs)
        return tuple(value for value in flatten(found)[0] if isinstance(value, mx.array))

    def mapped_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        given = primals if isinstance(primals, tuple) else (primals,)
        values = (*given, *cotangents, *outputs)
        in_axes = (*own_axes, *(0 for _ in (*cotangents, *outputs)))
        found = mx.vmap(backward_of, in_axes=in_axes, out_axes=0)(*values)
        return tuple(
            # An argument that is not mapped gets the sum of its gradients.
            mx.sum(value, axis=0) if axis is None else mx.moveaxis(value, 0, axis)
            for value, axis in zip(found, own_axes, strict=True)
        )

    def mapped_tangent(primals: Any, tangents: Any) -> tuple[Tensor, ...]:
        alone = isinstance(primals, mx.array)
        given, moves = ((primals,), (tangents,)) if alone else (primals, tangents)
        filled = tuple(map(tangent_of, moves, given))

        def push(*values: Tensor) -> tuple[Tensor, ...]:
            own, moved = whole(values[: len(arrays)]), whole(values[len(arrays) :])
            found = tangent(own, moved) if len(own) > 1 else tangent(own[0], moved[0])
            return (found,) if isinstance(found, mx.array) else tuple(found)

        return tuple(mx.vmap(push, in_axes=(*own_axes, *own_axes), out_axes=0)(*given, *filled))

    native = mx.custom_function(mapped)
    native.vjp(mapped_back)
    batch(native, mapped, mapped_back, tangent if isinstance(tangent, str) else mapped_tangent)
    outputs = native(*(flat[i] for i in arrays))
    return (outputs[0], 0) if single[0] else (tuple(outputs), (0,) * len(outputs))


def flatten(tree: Any, like: Any = None) -> tuple[list[Any], Function]:
    """Return the leaves of nested tuples, in the structure of `like`, and their rebuilder."""
    like = tree if like is None else like
    if not isinstance(like, tuple | list):
        return [tree], take_first
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


def take_first(values: Any) -> Any:
    return values[0]


def tangent_of(given: Tensor | None, tin: Tensor) -> Tensor:
    """Return an input's tangent, zeros if it has none."""
    return mx.zeros_like(tin) if given is None else given


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
    trace_dependencies.check_told(tensors)
    # Eagerly backward calls the pullback of the forward before it; mapped it runs the function
    # again.
    pulls: list[Function] = []

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        outputs, pull, _ = run(*given)
        pulls[:] = [pull]
        return tuple(outputs)

    def pull_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        given = primals if isinstance(primals, tuple) else (primals,)
        return fill(pulls[0](*cotangents), given)

    def pull_anew(primals: Any, cotangents: Any, outputs: Any) -> tuple[Tensor, ...]:
        given = primals if isinstance(primals, tuple) else (primals,)
        return fill(run(*given)[1](*cotangents), given)

    native = mx.custom_function(forward)
    native.vjp(pull_back)
    batch(native, forward, pull_anew, name)
    return tuple(native(*tensors))


def fill(gradients: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(
        mx.zeros_like(x) if gradient is None else gradient
        for gradient, x in zip(gradients, given, strict=True)
    )
