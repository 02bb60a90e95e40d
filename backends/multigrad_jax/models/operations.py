"""Which equations of a jaxpr a selector means.

A jaxpr keeps the names of functions under `jit` and of those with a derivative of their own. Others
are gone: what is left of them are primitives, under the frames of the call that made them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from multigrad.errors import RuleValueError
from multigrad.models.interpose import Meant, close, no_operation, unmet

from ..versions import PRIMALS
from ..walk import called, jaxprs_of
from .inlined import Inlined, inlined, named

NAMED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
OWN_DERIVATIVE = ("custom_jvp_call", "custom_vjp_call", "custom_lin")
MODULES = (jax.nn, jnp, jax.lax)


@dataclass(frozen=True, slots=True)
class Called(Meant):
    """What one selector means: a function or a primitive, by its name.

    Attributes:
        code: (file, line) of the function, where it was given as an object.
        is_primitive: whether only a primitive is meant.
        own: for a name, what jax's own function of that name is, where that is something else.
        inlined: the function, where jax inlines it.
    """

    code: tuple[str, int] | None = None
    is_primitive: bool = False
    own: Called | None = None
    inlined: Inlined | None = None

    def fits(self, equation: Any) -> bool:
        """Return whether an equation is such a call."""
        return self._is_named(equation) or (self.own is not None and self.own.fits(equation))

    def _is_named(self, equation: Any) -> bool:
        if self.is_primitive:
            return equation.primitive.name == self.name
        name = name_of(equation)
        if name is None:
            return self.code is None and equation.primitive.name == self.name
        if name != self.name:
            return False
        return self.code is None or self.code == code_of(inner_of(equation))


def inner_of(equation: Any) -> Any:
    """Return the jaxpr that an equation calls."""
    found = called(equation)
    assert found is not None  # of NAMED
    return found[0]


def name_of(equation: Any) -> str | None:
    """Return the name of the function that an equation calls; None: it calls none."""
    if equation.primitive.name not in NAMED:
        return None
    return equation.params.get("name") or inner_of(equation).debug_info.func_name


def code_of(jaxpr: Any) -> tuple[str, int] | None:
    """Return where the function of a jaxpr was written; None: that is not known."""
    info = jaxpr.debug_info
    return (info.func_filename, info.func_lineno) if info.func_filename else None


def source_of(function: Any) -> tuple[str, int] | None:
    """Return where a function was written; None: it has no code."""
    plain = inspect.unwrap(getattr(function, "fun", function))
    plain = inspect.unwrap(getattr(plain, "fun", plain))
    code = getattr(plain, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None


def is_operation(selector: Any) -> bool:
    """Return whether a selector is a function or a primitive of jax, or made by it."""
    if isinstance(selector, (core.Primitive, *PRIMALS, jnp.ufunc)):
        return True
    module = getattr(selector, "__module__", None) or ""
    if module.partition(".")[0] in ("jax", "jaxlib", "flax", "haiku", "equinox", "optax"):
        return callable(selector)
    return hasattr(selector, "lower") and hasattr(selector, "trace")  # of jax.jit


def find(selector: Any) -> Called:
    """Return what a selector means.

    Raises:
        RuleTypeError: it is no operation.
        RuleValueError: nothing in a jaxpr would say that it was called.
    """
    if isinstance(selector, str):
        is_primitive = hasattr(core.primitives, f"{selector}_p")
        own = next((getattr(m, selector) for m in MODULES if hasattr(m, selector)), None)
        if is_primitive or own is None or not callable(own) or trace(own) is None:
            return Called(selector, selector)
        meant = find(own)
        return Called(selector, selector, own=meant, inlined=meant.inlined)
    if isinstance(selector, core.Primitive):
        return Called(selector, selector.name, is_primitive=True)
    if not callable(selector):
        raise no_operation(selector)
    name = getattr(selector, "__name__", None) or type(selector).__name__
    traced = trace(selector)
    if traced is None:
        return Called(selector, name, source_of(selector))
    if len(traced.eqns) == 1:
        function = name_of(traced.eqns[0])
        if function is None:
            return Called(selector, traced.eqns[0].primitive.name, is_primitive=True)
        return Called(selector, function, code_of(inner_of(traced.eqns[0])))
    # A call of it, once it has one again, has no code: it is the one that was made for it.
    found = inlined(selector, name)
    if found is None:
        parts = ", ".join(sorted({name_of(each) or each.primitive.name for each in traced.eqns}))
        raise RuleValueError(
            f"jax inlines {name!r} into its parts ({parts}), so that no call of it can be found: "
            f"select one of these by name, or give the function a call of its own: "
            f"{name} = jax.jit({name})"
        )
    return Called(selector, name, code_of_outlined(), inlined=found)


def code_of_outlined() -> tuple[str, int]:
    """Return where the calls are written that inlined functions are given."""
    code = named.__code__
    inner = next(each for each in code.co_consts if hasattr(each, "co_firstlineno"))
    return inner.co_filename, inner.co_firstlineno


def trace(function: Callable[..., Any]) -> Any:
    """Return the jaxpr of a function of one array, or of two; None: it is neither."""
    x = jnp.ones((2, 3), jnp.float32)
    for arguments in ((x,), (x, x)):
        with suppress(Exception):  # of any library
            return jax.make_jaxpr(function)(*arguments).jaxpr
    return None


def names_in(jaxpr: Any) -> Iterator[str]:
    """Yield the names of the operations in a jaxpr and in those inside of it."""
    for equation in jaxpr.eqns:
        yield name_of(equation) or equation.primitive.name
        if equation.primitive.name not in OWN_DERIVATIVE:
            for inner in jaxprs_of(equation):
                yield from names_in(inner)


def hidden_in(jaxpr: Any, meant: Called, holder: str | None = None) -> str | None:
    """Return the function with a derivative of its own inside of which an operation is called."""
    for equation in jaxpr.eqns:
        if holder is not None and meant.fits(equation):
            return holder
        own = equation.primitive.name in OWN_DERIVATIVE
        inside = name_of(equation) if own and holder is None else holder
        for inner in jaxprs_of(equation):
            found = hidden_in(inner, meant, inside)
            if found is not None:
                return found
    return None


def refuse_unmet(name: str, jaxpr: Any, missing: Sequence[Called]) -> None:
    """Say which selector the code of a function does not call.

    Raises:
        RuleValueError: always.
    """
    meant = missing[0]
    said = meant.said
    holder = hidden_in(jaxpr, meant)
    if holder is not None:
        raise RuleValueError(
            f"{name} calls {said!r} only inside of {holder!r}, which has a derivative of its own: "
            f"select {holder!r}"
        )
    names = set(names_in(jaxpr))
    raise RuleValueError(unmet(name, repr(said), close(said, names), names))
