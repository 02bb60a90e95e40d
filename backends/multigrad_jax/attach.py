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
    kept = _tuple([*lowering.kept, *lowering.read_params])
    names = _tuple([*lowering.residuals, *lowering.read_params])
    unpack = f"    {names} = residuals\n" if names != "()" else ""
    cotangents = _tuple([lowering.grad_in, *(["None"] * len(lowering.params))])
    given = f"tin{lowering.arguments}"
    # An eager pullback may be given NumPy's array, which has no device to draw on.
    place = "    grad_out = asarray(grad_out)\n" if "key" in lowering.params else ""
    return f"""\
@custom_vjp
def {name}(tin{lowering.signature}):
{f.indented(4)}    return {f.result}


def forward({given}):
    output = {name}({given})
{lowering.keep.indented(4)}    return output, {kept}


def backward(residuals, grad_out):
{unpack}{place}{b.indented(4)}    return {cotangents}


{name}.defvjp(forward, backward)
"""


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


NAMESPACE = {
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

    def call_with_arrays(tin: Tensor, *values: Any) -> Tensor:
        if tin.weak_type:  # jax.grad(act)(0.5): custom_vjp (jax 0.10) would hand a Python number on
            tin = jax.lax.convert_element_type(tin, tin.dtype)
        if keyed:
            return native(tin, *values[:-1], random.key_words(values[-1]))
        return native(tin, *values)

    return call_with_arrays


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
