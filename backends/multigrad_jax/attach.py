"""From a lowering to `jax.custom_vjp`.

Inside the rule's forward the custom function itself is called, not its plain forward: else the second derivative
would be lost.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from . import random

if TYPE_CHECKING:
    from multigrad.lowering.code import Lowering
    from multigrad.lowering.emit import Body

Tensor = Any


def render(lowering: Lowering) -> str:
    """Return the source of the custom function and its two rules."""
    if lowering.tangent is not None:
        return _render_forward_mode(lowering, lowering.tangent)
    f, b, name = lowering.forward, lowering.backward, lowering.identifier
    inputs = ", ".join(lowering.inputs)
    shapes = [f"shape_of_{each}" for each in lowering.shapes]
    kept = [*lowering.kept, *lowering.read_params]
    kept += [f"StaticShape({each}.shape)" for each in lowering.shapes]
    names = _tuple([*lowering.residuals, *lowering.read_params, *shapes])
    unpack = f"    {names} = residuals\n" if names != "()" else ""
    gradients = _tuple([*lowering.gradients(b), *(["None"] * len(lowering.params))])
    given = f"{inputs}{lowering.arguments}"
    outputs, results = _tuple(list(lowering.outputs)), _tuple(list(f.results))
    if lowering.single:
        outputs, results = lowering.outputs[0], f.result
    return f"""\
@custom_vjp
def {name}({inputs}{lowering.signature}):
{f.indented(4)}    return {results}


def forward({given}):
    {outputs} = {name}({given})
{lowering.keep.indented(4)}    return {outputs}, {_tuple(kept)}


def backward(residuals, {_cotangents(lowering)}):
{unpack}{_receive(lowering)}{b.indented(4)}    return {gradients}


{name}.defvjp(forward, backward)
"""


def _cotangents(lowering: Lowering) -> str:
    """Return the name of backward's argument: the cotangent, or a tuple of them."""
    return lowering.cotangents[0] if lowering.single else "cotangents"


def _receive(lowering: Lowering) -> str:
    """Return the lines by which backward gets at its cotangents."""
    lines = [] if lowering.single else [f"{_tuple(list(lowering.cotangents))} = cotangents"]
    if "key" in lowering.params:
        # An eager pullback may be given NumPy's array, which has no device to draw on.
        carrying = zip(lowering.cotangents, lowering.carries, strict=True)
        lines += [f"{name} = asarray({name})" for name, carries in carrying if carries]
    return "".join(f"    {line}\n" for line in lines)


def _render_forward_mode(lowering: Lowering, tangent: Body) -> str:
    """Return the source of a `custom_jvp` function; jax transposes its tangent map for reverse mode."""
    f, name, given = lowering.forward, lowering.identifier, f"tin{lowering.arguments}"
    return f"""\
@custom_jvp
def {name}(tin{lowering.signature}):
{f.indented(4)}    return {f.result}


@{name}.defjvp
def tangent_rule(primals, tangents):
    {_tuple(given.split(", "))} = primals
    tangent = tangents[0]
{tangent.indented(4)}    return {name}({given}), {tangent.result}
"""


def _tuple(words: list[str]) -> str:
    """Return the source of a tuple."""
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


@jax.tree_util.register_static
class StaticShape(tuple[Any, ...]):
    """A shape among the residuals, where jax takes arrays and what it is told to leave alone."""


NAMESPACE = {
    "StaticShape": StaticShape,
    "asarray": jax.numpy.asarray,
    "custom_jvp": jax.custom_jvp,
    "custom_vjp": jax.custom_vjp,
}


def finish(namespace: dict[str, Any], lowering: Lowering) -> Callable[..., Any]:
    """Return the custom function."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    return _keyed(native) if lowering.draws else native


def _keyed(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for people to call: a key may be two ints, and a missing one is refused."""
    signature = inspect.signature(native)

    @functools.wraps(native)
    def call_with_key(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments["key"]
        key = random.draw_key() if given is None else random.key_words(given)
        return native(**{**bound.arguments, "key": key})

    return call_with_key


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the function: arrays only, and a key of two ints becomes one first."""
    keyed = "key" in lowering.params
    count = len(lowering.inputs)

    def call_with_arrays(tin: Tensor, *values: Any) -> Tensor:
        if tin.weak_type:  # jax.grad(act)(0.5): custom_vjp (jax 0.10) would hand a Python number on
            tin = jax.lax.convert_element_type(tin, tin.dtype)
        if keyed:
            return native(tin, *values[:-1], random.key_words(values[-1]))
        return native(tin, *values)

    def call_with_several(*values: Any) -> Any:
        inputs = map(make_strong, values[:count])
        if keyed:
            return native(*inputs, *values[count:-1], random.key_words(values[-1]))
        return native(*inputs, *values[count:])

    return call_with_arrays if count == 1 else call_with_several


def make_strong(x: Tensor) -> Tensor:
    """Return an array that is not weakly typed: custom_vjp (jax 0.10) would hand a Python number on."""
    return jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on arrays."""

    # Python numbers stay what they are, for the user's code to look at; arrays may be traced.
    @partial(jax.custom_vjp, nondiff_argnums=(2,))
    def native_rule(tin: Tensor, arrays: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> Tensor:
        return forward(tin)

    def keep(tin: Tensor, arrays: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> tuple[Any, Any]:
        return native_rule(tin, arrays, numbers), (tin, arrays)

    def pull(numbers: tuple[Any, ...], residuals: Any, grad_out: Tensor) -> tuple[Tensor, None]:
        tin, arrays = residuals
        rest = iter(arrays)
        values = tuple(next(rest) if number is None else number for number in numbers)
        return backward(None, grad_out, tin, values), None

    native_rule.defvjp(keep, pull)

    def call_split(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        numbers = tuple(v if isinstance(v, float | int) else None for v in values)
        arrays = tuple(v for v in values if not isinstance(v, float | int))
        return native_rule(jax.lax.convert_element_type(tin, tin.dtype), arrays, numbers)

    return call_split
