"""From a lowering to `jax.custom_vjp`.

Inside the rule's forward the custom function itself is called, not its plain forward: else the second derivative
would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from . import random

if TYPE_CHECKING:
    from multigrad.lowering.emit import Body
    from multigrad.lowering.lower import Lowering

Tensor = Any


def render(lowering: Lowering) -> str:
    """Return the source of the custom function and its two rules."""
    if lowering.tangent is not None:
        return _render_forward_mode(lowering, lowering.tangent)
    f, b, name = lowering.forward, lowering.backward, lowering.identifier
    kept = _tuple([*(["tin"] if lowering.saves else []), *lowering.params])
    unpack = f"    {kept} = residuals\n" if kept != "()" else ""
    cotangents = _tuple([lowering.grad_in, *(["None"] * len(lowering.params))])
    given = f"tin{lowering.arguments}"
    return f"""\
@custom_vjp
def {name}(tin{lowering.signature}):
{f.indented(4)}    return {f.result}


def forward({given}):
    return {name}({given}), {kept}


def backward(residuals, grad_out):
{unpack}{b.indented(4)}    return {cotangents}


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


NAMESPACE = {"custom_jvp": jax.custom_jvp, "custom_vjp": jax.custom_vjp}


def finish(namespace: dict[str, Any], lowering: Lowering) -> Callable[..., Any]:
    """Return the custom function."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    return native


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the function: a key of two ints becomes an array first."""
    if "key" not in lowering.params:
        return native

    def call_with_key(tin: Tensor, *values: Any) -> Tensor:
        return native(tin, *values[:-1], random.key_words(values[-1]))

    return call_with_key


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on arrays."""

    @partial(jax.custom_vjp, nondiff_argnums=(1,))
    def native_rule(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        return forward(tin)

    def keep(tin: Tensor, values: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        return native_rule(tin, values), tin

    def pull(values: tuple[Any, ...], tin: Tensor, grad_out: Tensor) -> tuple[Tensor]:
        return (backward(None, grad_out, tin, values),)

    native_rule.defvjp(keep, pull)
    return native_rule
