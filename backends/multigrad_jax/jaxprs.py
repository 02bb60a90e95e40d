"""Jaxprs, jax's traced functions: what is in them, and walks over them equation by equation.

A jaxpr is a list of equations `outvars = primitive[params](invars)`, whose operands are variables
or literals. Some params hold jaxprs again: those of called functions (INLINED), of the branches of
`cond`, of the bodies of loops. A closed jaxpr also has the values of its constants.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import jax

from .core.versions import core

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
        last: the variables to forget after each equation, by its position; see `last_uses`.
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


def last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Return the variables that no later equation reads, by the position of the equation."""
    last: dict[Any, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        for atom in (*equation.invars, *equation.outvars):
            if not isinstance(atom, core.Literal):
                last[atom] = i
    for atom in jaxpr.outvars:
        if not isinstance(atom, core.Literal):
            last.pop(atom, None)
    by_equation: dict[int, list[Any]] = {}
    for variable, i in last.items():
        by_equation.setdefault(i, []).append(variable)
    return by_equation


def bind_unchanged(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation, computed by jax unchanged."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


class TracedResults:
    """The results of a traced call: only its arrays can leave `make_jaxpr`, the rest is kept here.

    Within the trace `split` is called, after it `join`.
    """

    def __init__(self, array_types: tuple[type, ...]) -> None:
        self.array_types = array_types
        self._tree: Any = None
        self._leaves: list[tuple[bool, Any]] = []  # whether each is an array; if not, itself

    def split(self, results: Any) -> list[Any]:
        leaves, self._tree = jax.tree.flatten(results, is_leaf=lambda leaf: leaf is None)
        arrays = [leaf for leaf in leaves if isinstance(leaf, self.array_types)]
        self._leaves = [
            (True, None) if isinstance(leaf, self.array_types) else (False, leaf) for leaf in leaves
        ]
        return arrays

    def join(self, arrays: Iterable[Any]) -> Any:
        array_iterator = iter(arrays)
        leaves = [next(array_iterator) if is_array else leaf for is_array, leaf in self._leaves]
        return jax.tree.unflatten(self._tree, leaves)


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return the jaxpr within a closed one, and its constants; of an open one, no constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, ())


def called_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """Return the jaxpr of the function that an equation calls, and its constants; None: no call."""
    name, params = equation.primitive.name, equation.params
    return open_jaxpr(params[INLINED[name]]) if name in INLINED else None


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    for param in equation.params.values():
        for each in param if isinstance(param, tuple | list) else (param,):
            if isinstance(each, core.ClosedJaxpr | core.Jaxpr):
                yield open_jaxpr(each)[0]


def all_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from all_equations(inner)


def scan_parts(params: Any, values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Split what belongs to the operands of a `scan`: constants, initial carry, arrays of rows."""
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    return values[:first], values[first:second], values[second:]


def while_parts(params: Any, values: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Split the operands of a `while`: constants of the condition, of the body, the carry."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return values[:first], values[first:second], values[second:]


def einsum_subscripts(dimension_numbers: Any, left_rank: int, right_rank: int) -> str:
    """Return the subscripts of an `einsum` that means a `dot_general`."""
    # Pairs of axes, by position: those that are summed over, those that both have as a batch.
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers
    letters = string.ascii_letters[: left_rank + right_rank]
    left, right = list(letters[:left_rank]), list(letters[left_rank:])
    for i, j in (
        *zip(left_batch, right_batch, strict=True),
        *zip(left_sum, right_sum, strict=True),
    ):
        right[j] = left[i]
    free = [each for i, each in enumerate(left) if i not in (*left_batch, *left_sum)]
    free += [each for j, each in enumerate(right) if j not in (*right_batch, *right_sum)]
    return f"{''.join(left)},{''.join(right)}->{''.join((*(left[i] for i in left_batch), *free))}"
