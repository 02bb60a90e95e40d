"""jax's own custom gradients, unchanged, as recipes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import jax
from jax.interpreters import ad, batching

from multigrad.capture.code.dialect_detection import plain_function
from multigrad.capture.code.interception import Interception, comes_to_us
from multigrad.errors import RuleTypeError
from multigrad.functions.custom_gradient import GradientRecipe
from multigrad.functions.function import Function
from multigrad.graph.ir.types import is_float
from multigrad.trace.trace import Value

from ..versions import VJP_KINDS, core, primal_of
from ..walk import opened, within
from .custom_functions import (
    JvpRecipe,
    VjpRecipe,
    call_itself,
    closed_over,
    is_recorded,
    name_of,
    recording,
)

Tensor: TypeAlias = Any
Rule = Callable[..., Any]


# --- equinox's `filter_custom_vjp` ----------------------------------------------------------------
# Its rules take any tree, and ask of its leaves which are arrays.
# What equinox asks of a leaf: whether arrays, and Python's numbers, are meant; whether floats only.
ASKED = {
    "is_array": (False, False),
    "is_array_like": (True, False),
    "is_inexact_array": (False, True),
    "is_inexact_array_like": (True, True),
}


def rules_of(function: Any) -> tuple[Rule | None, Rule | None] | None:
    """Return the rules of such a function; None for what is none."""
    equinox = sys.modules.get("equinox")
    if equinox is None or not isinstance(function, equinox.filter_custom_vjp):
        return None
    return function.fn_fwd, function.fn_bwd


def with_pullback(forward: Rule, backward: Rule) -> Rule:
    """Return the rules as a function of outputs and a pullback: the floats of the first argument
    have a gradient.
    """
    is_inexact_array = sys.modules["equinox"].is_inexact_array

    def compute(vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
        perturbed = jax.tree.map(is_inexact_array, vjp_arg)
        outputs, residuals = forward(perturbed, vjp_arg, *args, **kwargs)

        def pull(upstream: Any) -> Any:
            found = backward(residuals, upstream, perturbed, vjp_arg, *args, **kwargs)
            return (found, *(None for _ in args), *(({},) if kwargs else ()))

        return outputs, pull

    return compute


def called(function: Any, vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
    """Call such a function, whose other arguments have zero gradients."""
    args, kwargs = jax.lax.stop_gradient((args, kwargs))
    return function(vjp_arg, *args, **kwargs)


def predicates() -> dict[Any, Rule]:
    """Return the answers to equinox's questions about symbols, by the function that asks."""
    equinox = sys.modules["equinox"]
    return {
        (asked := getattr(equinox, name)): partial(_answer, asked, *means)
        for name, means in ASKED.items()
    }


def _answer(asked: Rule, takes_numbers: bool, of_floats: bool, element: Any) -> bool:
    if not isinstance(element, Value):
        return asked(element)
    type_ = element.node.type
    return (type_.kind == "tensor" or takes_numbers) and (is_float(type_) or not of_floats)


# --- calls in code that is read by its jaxpr ------------------------------------------------------
# A call is one equation, so that its own gradient is not lost: jax writes such a call into the
# jaxpr with the rules of its own kind, which cannot be read back. What is traced here is kept apart
# from what jax keeps for others, as it holds our equation.
CALLED = core.Primitive("multigrad_custom_call")
CALLED.multiple_results = True
APART = jax.make_user_context("")
_importing: ContextVar[bool] = ContextVar("multigrad_jax_importing", default=False)
# The function whose next call is jax's.
_passing: ContextVar[Any] = ContextVar("multigrad_jax_passing", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """One call of a custom function.

    Attributes:
        function: the function.
        tree, leaves: its arguments; in `leaves`, at `places`, stand the arrays of the equation.
        avals: what jax knows of each of its results.
    """

    function: Any
    tree: Any
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    avals: tuple[Any, ...] = ()

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with these in the places of the arrays."""
        leaves = list(self.leaves)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        return jax.tree.unflatten(self.tree, leaves)

    def run(self, *arrays: Tensor) -> list[Tensor]:
        """Call the function itself, by jax's own means; what its rules call are equations again."""
        args, kwargs = self.arguments(arrays)
        reset = _passing.set(self.function)
        try:
            return jax.tree.leaves(self.function(*args, **kwargs))
        finally:
            _passing.reset(reset)

    def compute(self, *arrays: Tensor) -> list[Tensor]:
        """Compute what the function does, without its gradient."""
        args, kwargs = self.arguments(arrays)
        return jax.tree.leaves(primal_of(self.function)(*args, **kwargs))


@contextmanager
def reading() -> Iterator[None]:
    """Let calls of custom functions become equations of ours."""
    reset = _importing.set(True)
    try:
        with APART("reading"):
            yield
    finally:
        _importing.reset(reset)


def is_reading() -> bool:
    return _importing.get()


def holds_loop(jaxpr: Any) -> bool:
    """Return whether a jaxpr has a loop in it that values may end, which has no derivative."""
    return any(equation.primitive.name == "while" for equation in within(opened(jaxpr)[0]))


def note(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_derived: bool = False
) -> tuple[Any, ...] | None:
    """Return the result of a custom function's call that became an equation, in a tuple; None where
    jax takes it itself.

    Args:
        is_derived: its gradient is the derivative of what it computes, and matters where there is
            a loop in that.
    """
    if _passing.get() is function:
        _passing.set(None)
        return None
    leaves, tree = jax.tree.flatten((args, kwargs))
    if not _importing.get() or not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    arrays = [leaves[i] for i in places]
    rest = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
    bare = Called(function, tree, rest, places)

    def compute(*arrays: Tensor) -> Any:
        given, named = bare.arguments(arrays)
        return primal_of(function)(*given, **named)

    if is_derived:
        with APART("looking"):
            if not holds_loop(jax.make_jaxpr(compute)(*arrays)):
                return None
    flat, results = jax.tree.flatten(jax.eval_shape(compute, *arrays))
    avals = tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in flat)
    called = replace(bare, avals=avals)
    return (jax.tree.unflatten(results, CALLED.bind(*arrays, called=called)),)


@CALLED.def_abstract_eval
def _describe(*_: Any, called: Called) -> Sequence[Any]:
    return called.avals


@CALLED.def_impl
def _compute(*arrays: Tensor, called: Called) -> list[Tensor]:
    return called.run(*arrays)


def _push(primals: Sequence[Tensor], tangents: Sequence[Any], *, called: Called) -> Any:
    """Differentiate by the function's own rule, where jax asks while it traces."""
    return jax.jvp(called.run, list(primals), [ad.instantiate_zeros(t) for t in tangents])


def _batch(arrays: Sequence[Tensor], axes: Sequence[Any], *, called: Called) -> Any:
    """Map over an axis: a call of a function whose gradient is that of the other one, mapped."""
    results = jax.tree.leaves(mapped(called, tuple(axes))(*arrays))
    return results, [0] * len(results)


def mapped(called: Called, axes: tuple[Any, ...]) -> Any:
    """Return a custom function of the arrays of a call, each with one more axis or None."""

    def run(*arrays: Tensor) -> list[Tensor]:
        return jax.vmap(called.run, in_axes=axes)(*arrays)

    def forward(*arrays: Tensor) -> Any:
        return compute(*arrays), arrays

    def backward(arrays: tuple[Tensor, ...], cotangents: Any) -> tuple[Tensor, ...]:
        with recording(called.function):  # its rules may call it
            found = jax.vjp(run, *arrays)[1](cotangents)
        return tuple(None if each.dtype == jax.dtypes.float0 else each for each in found)

    def compute(*arrays: Tensor) -> list[Tensor]:
        return jax.vmap(called.compute, in_axes=axes)(*arrays)

    compute.__name__ = getattr(called.function, "__name__", compute.__name__)
    function = jax.custom_vjp(compute)
    function.defvjp(forward, backward)
    return function


ad.primitive_jvps[CALLED] = _push
batching.primitive_batchers[CALLED] = _batch


JITTED = type(jax.jit(len))
# What the rules close over that jax (0.10) makes of `jax.custom_gradient(fun)`.
CUSTOM_GRADIENT = ("fun",)


@dataclass(frozen=True, slots=True, eq=False)
class PullbackRecipe(GradientRecipe):
    """What `jax.custom_gradient` decorates."""

    makes_arrays_of_numbers: ClassVar[bool] = True
    original: Any = None

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
        decorated = closed_over(inner.fwd, CUSTOM_GRADIENT)
        if decorated is not None:
            return PullbackRecipe(decorated, name_of(decorated), library="jax", original=function)
        return VjpRecipe(inner, name_of(inner), original=function)
    rules = rules_of(inner)
    if rules is not None:
        forward, backward = rules
        if forward is None or backward is None:
            raise _undefined(inner.fn, "f.def_fwd(fwd) and f.def_bwd(bwd)")
        original = partial(called, function)
        pair = with_pullback(forward, backward)
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
        """Return the function to run in its place, given one that computes the primal."""
        return partial(call_itself, self.function, compute)


def with_own_gradient(function: Any) -> WithOwnGradient | OfItself | None:
    """Return the stand-in for a custom function; None if its gradient is the derivative of its
    primal, as for jax's own functions.
    """
    if is_recorded(function):
        return OfItself(function)
    return None if is_jaxs_own(function) else own_gradient(function)


def own_gradient(function: Any) -> WithOwnGradient | None:
    """Return the stand-in for a custom function, even one of jax; None if it has no rule."""
    try:
        return WithOwnGradient(function, find_imported(function))
    except RuleTypeError:
        return None


@functools.lru_cache(maxsize=256)
def find_imported(function: Any) -> Function:
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
    """Intercept calls of this kind of custom functions with symbolic values."""
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
