"""The equations of a jaxpr that a selector of `override` selects.

A jaxpr keeps the names of functions under `jit` and of those with a custom derivative. All others
are inlined: their primitives remain, with the frames of the call that made them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from multigrad.errors import RuleValueError
from multigrad.models.override import Meant, refuse_operation

from ..core.versions import PRIMALS
from ..jaxprs import called_jaxpr, inner_jaxprs

# --- functions that jax inlines, given back their calls -------------------------------------------
# A jaxpr holds the equations of such a function in a row, each with the frames of the call that
# made it. If they are the function's equations for one array, they become one call again. Other
# equations that have the function's frame come from a call in another form, which is refused.
Frame = tuple[str, str]  # the file of a function, and its qualified name


@dataclass(frozen=True, slots=True, eq=False)
class Inlined:
    """A function that jax inlines, with the file and name of its frame."""

    function: Callable[..., Any]
    name: str
    frame: Frame

    def forms(self, aval: Any) -> Iterator[tuple[Any, Any]]:
        """Yield a jaxpr of the function for an array, and the equation of a call of it: with the
        default options, and with each flag reversed.
        """
        flags = [
            (parameter.name, not parameter.default)
            for parameter in inspect.signature(self.function).parameters.values()
            if isinstance(parameter.default, bool)
        ]
        for options in ({}, *({name: value} for name, value in flags)):
            call = bind(self.function, self.name, options)
            example = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
            code = None
            with suppress(Exception):  # of any library
                code = jax.make_jaxpr(call)(example).jaxpr
            if code is not None and not code.constvars and len(code.outvars) == 1:
                yield code, jax.make_jaxpr(jax.jit(call))(example).jaxpr.eqns[0]


def bind(function: Callable[..., Any], name: str, options: dict[str, Any]) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        return function(x, **options)

    call.__name__ = call.__qualname__ = name
    return call


def as_inlined(function: Callable[..., Any], name: str) -> Inlined | None:
    """Return a function as jax inlines it; None if its frames cannot be known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    return Inlined(function, name, (code.co_filename, code.co_qualname))


def outline(jaxpr: Any, functions: Sequence[Inlined]) -> Any:
    """Return a jaxpr with the calls of these inlined functions restored."""
    equations = list(jaxpr.eqns)
    frames = [frames_of(equation) for equation in equations] if functions else []
    if not any(function.frame in each for function in functions for each in frames):
        return jaxpr
    for function in functions:
        is_from_function = [function.frame in frames_of(equation) for equation in equations]
        new_equations: list[Any] = []
        i = 0
        while i < len(equations):
            call_and_size = match(function, equations[i:]) if is_from_function[i] else None
            if call_and_size is None and is_from_function[i]:
                raise RuleValueError(
                    f"jax inlines {function.name!r}, and a call of it is of another form than "
                    f"{function.name}(array): give the function a call of its own, "
                    f"{function.name} = jax.jit({function.name}, static_argnames=...), and select "
                    "that one"
                )
            call, size = call_and_size or (equations[i], 1)
            new_equations.append(call)
            i += size
        equations = new_equations
    return jaxpr.replace(eqns=equations)


def frames_of(equation: Any) -> set[Frame]:
    traceback = equation.source_info.traceback
    frames = () if traceback is None else traceback.frames
    return {(frame.file_name, frame.function_name) for frame in frames}


def match(function: Inlined, equations: Sequence[Any]) -> tuple[Any, int] | None:
    """Return the call that the first equations came from, and the number of them."""
    inputs = [
        atom
        for atom in equations[0].invars
        if not isinstance(atom, core.Literal) and jax.numpy.issubdtype(atom.aval.dtype, np.floating)
    ]
    for input_atom in inputs:
        for code, call in function.forms(input_atom.aval):
            values = aligned(code, input_atom, equations)
            if values is None:
                continue
            (out,) = (values.get(atom) for atom in code.outvars)
            if out is None:
                continue
            first = equations[0]
            outlined = call.replace(
                invars=[input_atom], outvars=[out], source_info=first.source_info, ctx=first.ctx
            )
            return outlined, len(code.eqns)
    return None


def aligned(code: Any, input_atom: Any, equations: Sequence[Any]) -> dict[Any, Any] | None:
    """Map the variables of a function's jaxpr to those of equations; None if these are others."""
    if len(code.eqns) > len(equations):
        return None
    values = {code.invars[0]: input_atom}
    for ours, theirs in zip(code.eqns, equations, strict=False):
        if ours.primitive is not theirs.primitive or len(ours.invars) != len(theirs.invars):
            return None
        if not all(map(lambda a, b: same(values, a, b), ours.invars, theirs.invars)):
            return None
        # params may hold jaxprs and functions, which are equal only by their text
        if str(ours.params) != str(theirs.params):
            return None
        values.update(zip(ours.outvars, theirs.outvars, strict=True))
    return values


def same(values: dict[Any, Any], ours: Any, theirs: Any) -> bool:
    if isinstance(ours, core.Literal) or isinstance(theirs, core.Literal):
        return (
            isinstance(ours, core.Literal)
            and isinstance(theirs, core.Literal)
            and ours.aval == theirs.aval
            and bool(np.array_equal(ours.val, theirs.val, equal_nan=True))
        )
    return values.get(ours) is theirs


CALL_PRIMITIVES = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
OWN_DERIVATIVE = ("custom_jvp_call", "custom_vjp_call", "custom_lin")
MODULES = (jax.nn, jnp, jax.lax)


@dataclass(frozen=True, slots=True)
class CalledOperation(Meant):
    """What one selector selects: a function or a primitive, by its name.

    Attributes:
        code: (file, line) of the function, where it was given as an object.
        is_primitive: whether only a primitive is meant.
        own: of a selector that is a name, jax's public function of that name, if there is one.
        inlined: the function, where jax inlines it.
    """

    code: tuple[str, int] | None = None
    is_primitive: bool = False
    own: CalledOperation | None = None
    inlined: Inlined | None = None

    def fits(self, equation: Any) -> bool:
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


def is_float(atom: Any) -> bool:
    return hasattr(atom.aval, "dtype") and bool(jnp.issubdtype(atom.aval.dtype, jnp.floating))


def inner_of(equation: Any) -> Any:
    inner = called_jaxpr(equation)
    assert inner is not None  # as for all CALL_PRIMITIVES
    return inner[0]


def name_of(equation: Any) -> str | None:
    """Return the name of the function that an equation calls; None if it calls none."""
    if equation.primitive.name not in CALL_PRIMITIVES:
        return None
    return equation.params.get("name") or inner_of(equation).debug_info.func_name


def code_of(jaxpr: Any) -> tuple[str, int] | None:
    """Return where the function of a jaxpr was written, if known."""
    info = jaxpr.debug_info
    return (info.func_filename, info.func_lineno) if info.func_filename else None


def source_of(function: Any) -> tuple[str, int] | None:
    plain = inspect.unwrap(getattr(function, "fun", function))
    plain = inspect.unwrap(getattr(plain, "fun", plain))
    code = getattr(plain, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None


def is_operation(selector: Any) -> bool:
    """Return whether a selector is a function or primitive of jax, or a function made by jax."""
    if isinstance(selector, (core.Primitive, *PRIMALS, jnp.ufunc)):
        return True
    module = getattr(selector, "__module__", None) or ""
    if module.partition(".")[0] in ("jax", "jaxlib", "flax", "haiku", "equinox", "optax"):
        return callable(selector)
    return hasattr(selector, "lower") and hasattr(selector, "trace")  # of jax.jit


def find(selector: Any) -> CalledOperation:
    """Return the operation that a selector selects.

    Raises:
        RuleTypeError: it is not an operation.
        RuleValueError: jax inlines it, so that no call of it is in a jaxpr.
    """
    if isinstance(selector, str):
        is_primitive = hasattr(core.primitives, f"{selector}_p")
        public = next((getattr(m, selector) for m in MODULES if hasattr(m, selector)), None)
        if is_primitive or public is None or not callable(public) or trace(public) is None:
            return CalledOperation(selector, selector)
        operation = find(public)
        return CalledOperation(selector, selector, own=operation, inlined=operation.inlined)
    if isinstance(selector, core.Primitive):
        return CalledOperation(selector, selector.name, is_primitive=True)
    if not callable(selector):
        refuse_operation(selector, "jax", ())
    name = getattr(selector, "__name__", None) or type(selector).__name__
    jaxpr = trace(selector)
    if jaxpr is None:
        return CalledOperation(selector, name, source_of(selector))
    if len(jaxpr.eqns) == 1:
        function = name_of(jaxpr.eqns[0])
        if function is None:
            return CalledOperation(selector, jaxpr.eqns[0].primitive.name, is_primitive=True)
        return CalledOperation(selector, function, code_of(inner_of(jaxpr.eqns[0])))
    body = as_inlined(selector, name)
    if body is None:
        parts = ", ".join(sorted({name_of(each) or each.primitive.name for each in jaxpr.eqns}))
        raise RuleValueError(
            f"jax inlines {name!r} into its parts ({parts}), so that no call of it can be found: "
            f"select one of these by name, or give the function a call of its own: "
            f"{name} = jax.jit({name})"
        )
    # A restored call has the source of the wrapper that `forms` calls, not of the function.
    source = source_of(bind(selector, name, {}))
    return CalledOperation(selector, name, source, inlined=body)


def trace(function: Callable[..., Any]) -> Any:
    """Return the jaxpr of a function of one array, or of two; None if it takes neither."""
    x = jnp.ones((2, 3), jnp.float32)
    for arguments in ((x,), (x, x)):
        with suppress(Exception):  # of any library
            return jax.make_jaxpr(function)(*arguments).jaxpr
    return None


def names_in(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield name_of(equation) or equation.primitive.name
        if equation.primitive.name not in OWN_DERIVATIVE:
            for inner in inner_jaxprs(equation):
                yield from names_in(inner)


def hidden_in(jaxpr: Any, meant: CalledOperation, holder: str | None = None) -> str | None:
    """Return the function with a custom derivative within which an operation is called."""
    for equation in jaxpr.eqns:
        if holder is not None and meant.fits(equation):
            return holder
        has_own_derivative = equation.primitive.name in OWN_DERIVATIVE
        inner_holder = name_of(equation) if has_own_derivative and holder is None else holder
        for inner in inner_jaxprs(equation):
            hidden_holder = hidden_in(inner, meant, inner_holder)
            if hidden_holder is not None:
                return hidden_holder
    return None


def refuse_hidden(name: str, jaxpr: Any, meant: CalledOperation) -> None:
    holder = hidden_in(jaxpr, meant)
    if holder is not None:
        raise RuleValueError(
            f"function {name!r} calls {meant.said!r} only inside {holder!r}, which has a "
            f"derivative of its own: select {holder!r}"
        )
