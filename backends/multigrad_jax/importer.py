"""jax's own custom gradients, unchanged, as recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from multigrad.errors import RuleTypeError
from multigrad.functions.custom_gradient import GradientRecipe
from multigrad.functions.function import Function

from .custom_functions import closed_over, is_recorded, name_of, recording
from .import_jvp import JvpRecipe
from .import_vjp import VjpRecipe

JITTED = type(jax.jit(len))
CUSTOM_GRADIENT = (
    "fun",
)  # what the rules close over that jax (0.10) makes of `jax.custom_gradient(fun)`


def import_function(function: Any) -> VjpRecipe | JvpRecipe | GradientRecipe:
    """Return the recipe of a `jax.custom_vjp`, `jax.custom_jvp` or `jax.custom_gradient` function.

    Raises:
        RuleTypeError: it is neither, or its rules are not defined yet.
    """
    inner = function
    while isinstance(inner, JITTED):
        inner = inner.__wrapped__
    if isinstance(inner, jax.custom_vjp):
        if inner.fwd is None or inner.bwd is None:
            raise _undefined(inner, "f.defvjp(fwd, bwd)")
        with_pullback = closed_over(inner.fwd, CUSTOM_GRADIENT)
        if with_pullback is not None:
            return GradientRecipe(with_pullback, name_of(with_pullback))
        return VjpRecipe(inner, name_of(inner))
    if isinstance(inner, jax.custom_jvp):
        if inner.jvp is None:
            raise _undefined(inner, "f.defjvp(jvp)")
        return JvpRecipe(inner, name_of(inner))
    raise RuleTypeError(
        f"expected a jax.custom_vjp or jax.custom_jvp function, got a {type(inner).__name__}: "
        f"{inner!r:.60}. Decorate a plain function that returns its outputs and a function of their "
        f"cotangents with xg.custom_gradient"
    )


def _undefined(function: Any, definition: str) -> RuleTypeError:
    kind = type(function).__name__
    return RuleTypeError(
        f"jax.{kind} function {name_of(function)!r} has no rule yet: call {definition} first"
    )


@dataclass(frozen=True, slots=True)
class WithOwnGradient:
    """Stands in for a custom function where another is captured: derivatives pass by its own rule."""

    function: Any
    captured: Function

    @property
    def name(self) -> str:
        return self.captured.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with recording(self.function):
            return self.captured(*args, **kwargs)


def with_own_gradient(function: Any) -> WithOwnGradient | None:
    """Return what stands in for a custom function; None inside of its own rules, and where it has none yet."""
    if is_recorded(function):
        return None
    try:
        return WithOwnGradient(function, Function(import_function(function)))
    except RuleTypeError:
        return None
