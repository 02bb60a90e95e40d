"""jax's own custom gradients, unchanged, as recipes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from multigrad.capture.code.interception import Interception, comes_to_us
from multigrad.capture.code.readings import plain_function
from multigrad.errors import RuleTypeError
from multigrad.functions.custom_gradient import GradientRecipe
from multigrad.functions.function import Function

from ..versions import VJP_KINDS, primal_of
from . import equinox
from .custom import is_reading, note
from .custom_functions import call_itself, closed_over, is_recorded, name_of, recording
from .jvp import JvpRecipe
from .vjp import VjpRecipe

JITTED = type(jax.jit(len))
# What the rules close over that jax (0.10) makes of `jax.custom_gradient(fun)`.
CUSTOM_GRADIENT = ("fun",)


@dataclass(frozen=True, slots=True, eq=False)
class PullbackRecipe(GradientRecipe):
    """What `jax.custom_gradient` decorates."""

    makes_arrays_of_numbers: ClassVar[bool] = True
    original: Any = None

    def dialect(self) -> str:
        """Return the library that it is written in."""
        return jax.__name__

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function, where it runs as it is on its own framework."""
        return self.original(*args, **kwargs)


def import_function(function: Any) -> VjpRecipe | JvpRecipe | PullbackRecipe:
    """Return the recipe of a `jax.custom_vjp`, `jax.custom_jvp` or `jax.custom_gradient` function,
    or of equinox's `filter_custom_vjp`.

    Raises:
        RuleTypeError: it is neither, or its rules are not defined yet.
    """
    inner = function
    while isinstance(inner, JITTED):
        inner = inner.__wrapped__
    if isinstance(inner, VJP_KINDS):
        if inner.fwd is None or inner.bwd is None:
            raise _undefined(inner, "f.defvjp(fwd, bwd)")
        with_pullback = closed_over(inner.fwd, CUSTOM_GRADIENT)
        if with_pullback is not None:
            return PullbackRecipe(
                with_pullback, name_of(with_pullback), library="jax", original=function
            )
        return VjpRecipe(inner, name_of(inner), original=function)
    rules = equinox.rules_of(inner)
    if rules is not None:
        forward, backward = rules
        if forward is None or backward is None:
            raise _undefined(inner.fn, "f.def_fwd(fwd) and f.def_bwd(bwd)")
        original = functools.partial(equinox.called, function)
        pair = equinox.with_pullback(forward, backward)
        return PullbackRecipe(pair, name_of(inner.fn), library="jax", original=original)
    if isinstance(inner, jax.custom_jvp):
        if inner.jvp is None:
            raise _undefined(inner, "f.defjvp(jvp)")
        return JvpRecipe(inner, name_of(inner), original=function)
    raise RuleTypeError(
        f"expected a jax.custom_vjp or jax.custom_jvp function, got a {type(inner).__name__}: "
        f"{inner!r:.60}. Decorate a plain function that returns its outputs and a function of "
        "their cotangents with xg.custom_gradient"
    )


def _undefined(function: Any, definition: str) -> RuleTypeError:
    return RuleTypeError(
        f"custom function {name_of(function)!r} has no rule yet: call {definition} first"
    )


@dataclass(frozen=True, slots=True)
class WithOwnGradient:
    """Stands in for a custom function where another is captured: derivatives use its own rule."""

    function: Any
    captured: Function

    @property
    def name(self) -> str:
        return self.captured.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with recording(self.function):
            return self.captured(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class OfItself:
    """Stands in for a custom function inside of its own rules."""

    function: Any

    def around(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs there, which computes what the function does."""
        return functools.partial(call_itself, self.function, compute)


def with_own_gradient(function: Any) -> WithOwnGradient | OfItself | None:
    """Return what stands in for a custom function; None where its gradient is that of what it
    computes, as for jax's own functions.
    """
    if is_recorded(function):
        return OfItself(function)
    return None if is_jaxs_own(function) else own_gradient(function)


def own_gradient(function: Any) -> WithOwnGradient | None:
    """Return what stands in for a custom function, jax's own too; None where it has no rule."""
    try:
        return WithOwnGradient(function, find_imported(function))
    except RuleTypeError:
        return None


@functools.lru_cache(maxsize=256)
def find_imported(function: Any) -> Function:
    """Return the Function of a custom function, made once."""
    return Function(import_function(function))


def is_jaxs_own(function: Any) -> bool:
    """Return whether a custom function is one of jax's, whose gradient is its derivative; not what
    its decorators make.
    """
    plain = plain_function(primal_of(function))
    root = (getattr(plain, "__module__", None) or "").partition(".")[0]
    return (
        root == jax.__name__
        and closed_over(getattr(function, "fwd", None), CUSTOM_GRADIENT) is None
    )


# --- calls from anywhere --------------------------------------------------------------------------
def intercept(kind: type) -> Interception:
    """Return what makes calls of a kind of custom functions with symbolic values come to us."""
    original = vars(kind)["__call__"]

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        reversed_ = getattr(self, "in_reverse_mode", None)
        if reversed_ is not None and is_reading():  # with rules that are read
            return reversed_(*args, **kwargs)
        if not comes_to_us(args, kwargs, "jax", "numpy"):
            noted = None
            if not is_recorded(self):
                noted = note(self, args, kwargs, is_derived=is_jaxs_own(self))
            return original(self, *args, **kwargs) if noted is None else noted[0]
        own = with_own_gradient(self)
        if isinstance(own, OfItself):
            return own.around(primal_of(self))(*args, **kwargs)
        return primal_of(self)(*args, **kwargs) if own is None else own(*args, **kwargs)

    return Interception(kind, "__call__", call)


INTERCEPTIONS = tuple(map(intercept, (*VJP_KINDS, jax.custom_jvp)))
