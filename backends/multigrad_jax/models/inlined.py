"""Functions that jax inlines, given back their calls.

Of such a function a jaxpr holds the equations, one after another, and the frames of the call that
made each. Where they are what the function gives for one array, they become one call again; where
an equation has the frame and is no part of that, the call had another form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

from multigrad.errors import RuleValueError

Frames = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Inlined:
    """A function that jax inlines.

    Attributes:
        function: it.
        name: its name.
        frame: the file and the name of its frame.
    """

    function: Callable[..., Any]
    name: str
    frame: Frames

    def forms(self, aval: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the function's code for an array, and a call of it: as it is by default, and with
        each of its flags turned.
        """
        flags = [
            (row.name, not row.default)
            for row in inspect.signature(self.function).parameters.values()
            if isinstance(row.default, bool)
        ]
        for options in ({}, *({name: value} for name, value in flags)):
            call = named(self.function, self.name, options)
            given = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
            code = None
            with suppress(Exception):  # of any library
                code = jax.make_jaxpr(call)(given).jaxpr
            if code is not None and not code.constvars and len(code.outvars) == 1:
                yield code, jax.make_jaxpr(jax.jit(call))(given).jaxpr.eqns[0]


def named(function: Callable[..., Any], name: str, options: dict[str, Any]) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        return function(x, **options)

    call.__name__ = call.__qualname__ = name
    return call


def inlined(function: Callable[..., Any], name: str) -> Inlined | None:
    """Return a function as jax inlines it; None: its frames cannot be known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    return Inlined(function, name, (code.co_filename, getattr(code, "co_qualname", code.co_name)))


def outline(jaxpr: Any, functions: Sequence[Inlined]) -> Any:
    """Return a jaxpr that calls these functions.

    Raises:
        RuleValueError: a call of one of them was of another form than `function(array)`.
    """
    equations = list(jaxpr.eqns)
    frames = [frames_of(equation) for equation in equations] if functions else []
    if not any(function.frame in each for function in functions for each in frames):
        return jaxpr
    for function in functions:
        made = [function.frame in frames_of(equation) for equation in equations]
        kept: list[Any] = []
        i = 0
        while i < len(equations):
            found = match(function, equations[i:]) if made[i] else None
            if found is None and made[i]:
                raise RuleValueError(
                    f"jax inlines {function.name!r}, and a call of it is of another form than "
                    f"{function.name}(array): give the function a call of its own, "
                    f"{function.name} = jax.jit({function.name}, static_argnames=...), and select "
                    "that one"
                )
            call, size = found or (equations[i], 1)
            kept.append(call)
            i += size
        equations = kept
    return jaxpr.replace(eqns=equations)


def frames_of(equation: Any) -> set[Frames]:
    """Return the frames of the calls that made an equation."""
    traceback = equation.source_info.traceback
    frames = () if traceback is None else traceback.frames
    return {(frame.file_name, frame.function_name) for frame in frames}


def match(function: Inlined, equations: Sequence[Any]) -> tuple[Any, int] | None:
    """Return the call that the first of some equations were, and how many they are."""
    inputs = [
        atom
        for atom in equations[0].invars
        if not isinstance(atom, core.Literal) and jax.numpy.issubdtype(atom.aval.dtype, np.floating)
    ]
    for tin in inputs:
        for code, call in function.forms(tin.aval):
            values = aligned(code, tin, equations)
            if values is None:
                continue
            (out,) = (values.get(atom) for atom in code.outvars)
            if out is None:
                continue
            first = equations[0]
            outlined = call.replace(
                invars=[tin], outvars=[out], source_info=first.source_info, ctx=first.ctx
            )
            return outlined, len(code.eqns)
    return None


def aligned(code: Any, tin: Any, equations: Sequence[Any]) -> dict[Any, Any] | None:
    """Return what stands for each variable of some code among equations; None: they differ."""
    if len(code.eqns) > len(equations):
        return None
    values = {code.invars[0]: tin}
    for ours, theirs in zip(code.eqns, equations, strict=False):
        if ours.primitive is not theirs.primitive or len(ours.invars) != len(theirs.invars):
            return None
        if not all(map(lambda a, b: same(values, a, b), ours.invars, theirs.invars)):
            return None
        if str(ours.params) != str(theirs.params):
            return None
        values.update(zip(ours.outvars, theirs.outvars, strict=True))
    return values


def same(values: dict[Any, Any], ours: Any, theirs: Any) -> bool:
    """Return whether two operands are the same."""
    if isinstance(ours, core.Literal) or isinstance(theirs, core.Literal):
        return (
            isinstance(ours, core.Literal)
            and isinstance(theirs, core.Literal)
            and ours.aval == theirs.aval
            and bool(np.array_equal(ours.val, theirs.val, equal_nan=True))
        )
    return values.get(ours) is theirs
