"""A call of one of jax's custom functions: its arguments as jax sees them, and how its rules are
run.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.calls.arguments import positional_names, signature_of
from multigrad.capture.callables import plain_function
from multigrad.capture.capture import run_written_in
from multigrad.capture.dialect import contents, mentioned
from multigrad.errors import GradientError
from multigrad.ground.trees import optree
from multigrad.ir.types import is_float
from multigrad.recipes.record import CodeRecipe
from multigrad.tracing.trace import Trace, Value

Call: TypeAlias = Callable[..., Any]  # runs one of the user's functions: (function, *args)
# Functions whose rules this thread is recording: there, such a function is what it computes.
_recorded = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class CustomRecipe(CodeRecipe):
    """One of jax's custom functions; a subclass says how its rules are run."""

    makes_arrays_of_numbers: ClassVar[bool] = True
    function: Any
    name: str
    native: bool | None = None
    original: Any = None  # the same, perhaps inside of `jax.jit`

    @property
    def signature(self) -> inspect.Signature | None:
        """The function's own signature."""
        return signature_of(self.function.fun)

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """The names of the arguments that take no tensors."""
        names = positional_names(self.signature)
        return tuple(
            names[i] for i in self.function.nondiff_argnums if -len(names) <= i < len(names)
        )

    def dialect(self) -> str:
        """Return the library that it is written in."""
        return jax.__name__

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, where it runs as it is on its own framework."""
        return (self.original or self.function)(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call as jax sees them: all of them positional.

    Attributes:
        values: one for each parameter up to the last given, defaults filled in.
        static: the positions in `nondiff_argnums`.
        spread: how many were given positionally.
        named: the position of each one given by keyword.
    """

    values: tuple[Any, ...]
    static: tuple[int, ...]
    spread: int
    named: Mapping[str, int]

    @property
    def fixed(self) -> tuple[Any, ...]:
        """The arguments without a derivative, which come first in the rules."""
        return tuple(self.values[i] for i in self.static)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the others."""
        return tuple(i for i in range(len(self.values)) if i not in self.static)

    @property
    def primals(self) -> tuple[Any, ...]:
        """The others."""
        return tuple(self.values[i] for i in self.positions)

    def merge(self, primals: Sequence[Any]) -> tuple[Any, ...]:
        """Return all arguments with other primals."""
        values = list(self.values)
        for i, primal in zip(self.positions, primals, strict=True):
            values[i] = primal
        return tuple(values)

    def arrange(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Return gradients of the primals nested like (*args, kwargs)."""
        whole: list[Any] = [None] * len(self.values)
        for i, gradient in zip(self.positions, gradients, strict=True):
            whole[i] = gradient
        given = tuple(whole[: self.spread])
        named = {name: whole[i] for name, i in self.named.items()}
        return (*given, named) if named else given


def resolve(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return a call's arguments, resolved to positions as jax does.

    Raises:
        TypeError: they do not fit the function's parameters, or one of them has no position.
    """
    signature = inspect.signature(function.fun)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    odd = [name for name in bound.kwargs if name in kwargs]
    if odd:
        raise TypeError(
            f"{name_of(function)}() got keyword-only arguments, which have no "
            f"position: {', '.join(odd)}"
        )
    names = positional_names(signature)
    count = len(bound.args)
    static = tuple(sorted(i % count for i in function.nondiff_argnums if -count <= i < count))
    return Arguments(bound.args, static, len(args), {name: names.index(name) for name in kwargs})


def call_plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def call_in(trace: Trace, own: Any) -> Call:
    """Return what runs the rules of a function in a capture."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        with recording(own):
            return run_written_in("jax", function, trace, *args)

    return call


@contextmanager
def recording(function: Any) -> Iterator[None]:
    """Say that the rules of a function are being recorded."""
    before = getattr(_recorded, "functions", ())
    _recorded.functions = (*before, function)
    try:
        yield
    finally:
        _recorded.functions = before


def is_recorded(function: Any) -> bool:
    """Return whether the rules of a function are being recorded."""
    return any(function is each for each in getattr(_recorded, "functions", ()))


def uses(rule: Any, function: Any) -> bool:
    """Return whether a rule refers to the function that it is a rule of."""
    plain = plain_function(rule)
    if plain is None:
        return False
    referred = [value for _, value in mentioned(plain)]
    referred += [contents(cell) for cell in plain.__closure__ or ()]
    return any(value is function for value in referred)


def flatten(tree: Any) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


def split_pair(name: str, what: str, result: Any) -> tuple[Any, Any]:
    """Return a rule's result where it is a pair.

    Raises:
        GradientError: it is not.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise GradientError(
            f"function {name!r}: its rule returned a {type(result).__name__}; expected a pair of "
            f"{what}"
        )
    return result[0], result[1]


def name_of(function: Any) -> str:
    plain = plain_function(function)
    return getattr(function, "__name__", None) or (
        plain.__name__ if plain else type(function).__name__
    )


def closed_over(rule: Any, names: tuple[str, ...]) -> Any:
    """Return what a rule of jax's own making closes over under the first of these names; None: it
    is the user's.
    """
    plain = plain_function(rule)
    if plain is None or plain.__module__ != jax.custom_vjp.__module__:
        return None
    cells = plain.__closure__
    return contents(cells[0]) if cells and plain.__code__.co_freevars == names else None


def has_tangent(value: Any) -> bool:
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jnp.inexact))
