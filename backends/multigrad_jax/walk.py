"""An interpreter of jaxprs, in numbers of jax or NumPy or in nodes of a graph.

The caller says what a literal is and what each equation computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from .versions import core

# The primitives that are calls, with the param that holds their jaxpr.
INLINED = {
    **dict.fromkeys(("jit", "pjit", "remat", "remat2", "checkpoint", "custom_lin"), "jaxpr"),
    **dict.fromkeys(
        ("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"
    ),
}


def walk(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    compute: Callable[[Any, list[Any]], Sequence[Any]],
    literal: Callable[[Any], Any] = attrgetter("val"),
    *,
    last: Mapping[int, Sequence[Any]] | None = None,
    values: dict[Any, Any] | None = None,
) -> list[Any]:
    """Evaluate a jaxpr and return its outputs.

    Args:
        compute: returns the results of an equation, given the values of its operands.
        literal: returns the value of a literal.
        last: the variables to forget after each equation, by its position.
        values: filled with the variables' values, for a `compute` that reads others' too.
    """
    values = {} if values is None else values

    def read(atom: Any) -> Any:
        return literal(atom) if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for i, equation in enumerate(jaxpr.eqns):
        results = compute(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
        for variable in last.get(i, ()) if last else ():
            values.pop(variable, None)
    return [read(atom) for atom in jaxpr.outvars]


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation, computed by jax unchanged."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def opened(held: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr, closed or not, and its constants."""
    return (held.jaxpr, held.consts) if isinstance(held, core.ClosedJaxpr) else (held, ())


def called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    name, params = equation.primitive.name, equation.params
    # None: the equation calls no function
    return opened(params[INLINED[name]]) if name in INLINED else None


def jaxprs_of(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs among an equation's params."""
    for given in equation.params.values():
        for each in given if isinstance(given, tuple | list) else (given,):
            if isinstance(each, core.ClosedJaxpr | core.Jaxpr):
                yield opened(each)[0]


def within(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, nested ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_of(equation):
            yield from within(inner)
