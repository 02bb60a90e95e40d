"""A call of one of jax's custom functions: its arguments as jax sees them, and how its rules are
run.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.capture.code.readings import plain_function
from multigrad.capture.code.table import contents
from multigrad.capture.copies.capture import run_written_in
from multigrad.errors import GradientError, TraceError
from multigrad.functions.calls.arguments import positional_names, signature_of
from multigrad.functions.calls.recipe import kind_name
from multigrad.functions.recipes.recapture import are_close
from multigrad.functions.recipes.record import CodeRecipe
from multigrad.functions.recipes.tangents import outputs_of
from multigrad.graph import ops
from multigrad.graph.ir import questions
from multigrad.graph.ir.types import is_float
from multigrad.graph.passes.residuals import unmarked
from multigrad.graph.support.data import dataclass
from multigrad.graph.support.trees import optree
from multigrad.trace.assertions import UNDIFFERENTIATED
from multigrad.trace.trace import Trace, Value

from ..versions import primal_of, static_of

Call: TypeAlias = Callable[..., Any]  # runs one of the user's functions: (function, *args)
# Functions whose rules this thread is recording: there, such a function is what it computes.
_recorded = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class CustomRecipe(CodeRecipe):
    """One of jax's custom functions; a subclass says how its rules are run."""

    makes_arrays_of_numbers: ClassVar[bool] = True
    is_checked: ClassVar[bool] = True
    function: Any
    name: str
    native: bool | None = None
    original: Any = None  # the same, perhaps inside of `jax.jit`

    @property
    def signature(self) -> inspect.Signature | None:
        """The function's own signature."""
        return signature_of(primal_of(self.function))

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """The names of the arguments that take no tensors."""
        names = positional_names(self.signature)
        return tuple(names[i] for i in static_of(self.function) if -len(names) <= i < len(names))

    def dialect(self) -> str:
        """Return the library that it is written in."""
        return jax.__name__

    def run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return primal_of(self.function)(*args, **kwargs)

    def apply_within(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if given_to(self.function) is None:
            return None
        compute = functools.partial(run_written_in, "jax", primal_of(self.function), trace)
        return (call_itself(self.function, compute, *args, **kwargs),)

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
    signature = inspect.signature(primal_of(function))
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
    static = tuple(sorted(i % count for i in static_of(function) if -count <= i < count))
    return Arguments(bound.args, static, len(args), {name: names.index(name) for name in kwargs})


def call_plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def call_in(trace: Trace, own: Any, given: Arguments) -> Call:
    """Return what runs the rules of a function in a capture for these arguments."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        with recording(own, given.values):
            return run_written_in("jax", function, trace, *args)

    return call


@contextmanager
def recording(function: Any, given: tuple[Any, ...] | None = None) -> Iterator[None]:
    """Say that the rules of a function are being recorded, for which arguments by position."""
    before = getattr(_recorded, "functions", ())
    _recorded.functions = (*before, (function, given))
    try:
        yield
    finally:
        _recorded.functions = before


def is_recorded(function: Any) -> bool:
    """Return whether the rules of a function are being recorded."""
    return any(function is each for each, _ in getattr(_recorded, "functions", ()))


def call_itself(function: Any, compute: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return what a function's own rule gets of it."""
    found = compute(*args, **kwargs)
    asked = resolve(function, args, kwargs).values
    return outputs_of(name_of(function), found, asked, given_to(function))


def given_to(function: Any) -> tuple[Any, ...] | None:
    """Return the arguments for which the rules of a function are being recorded; None: they are
    not, or nobody knows them.
    """
    recorded: tuple[tuple[Any, Any], ...] = getattr(_recorded, "functions", ())
    return next((each for own, each in reversed(recorded) if own is function), None)


def check_forward(call: Call, function: Any, arguments: Arguments, outputs: Any) -> None:
    """Compare what a rule computes with what the function computes where nobody differentiates it.

    Raises:
        TraceError: it is something else, so that no one graph does both.
    """
    own = [each for each in flatten(outputs) if isinstance(each, Value)]
    if not own or all(each.node.op is ops.OUTPUT for each in own):  # the rule calls the function
        return
    trace = own[0].trace
    drawn, trace.draws, asked = trace.draws, 0, questions.count()
    try:
        plain = [
            each
            for each in flatten(call(primal_of(function), *arguments.values))
            if isinstance(each, Value)
        ]
    except TraceError:  # jax itself computes that, and the proof compares it
        questions.forget(asked)
        trace.omit(UNDIFFERENTIATED)
        return
    finally:
        trace.draws = max(drawn, trace.draws)
    same = len(plain) == len(own)
    for a, b in zip(own, plain, strict=False):
        a_node, b_node = unmarked(a.node), unmarked(b.node)
        alike = a_node is b_node or are_close(trace, a_node, b_node)
        if alike is None:
            trace.omit(UNDIFFERENTIATED)
        same = same and alike is not False
    if not same:
        raise trace.error(
            "computes something else where it is differentiated than where it is not, which no "
            f"graph does{trace.words.advise('let its rule call it for its outputs')}"
        )


def flatten(tree: Any) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


def split_pair(name: str, what: str, result: Any) -> tuple[Any, Any]:
    """Return a rule's result where it is a pair.

    Raises:
        GradientError: it is not.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise GradientError(
            f"function {name!r}: its rule returned a {kind_name(result)}; expected a pair of {what}"
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
