"""Import of custom functions of jax and equinox as recipes, and calls of them in captured code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
from jax.interpreters import ad, batching

from multigrad.core.functions.recipe import Options, Recipe
from multigrad.core.ir.op import is_float
from multigrad.core.support.threads import set_within
from multigrad.core.trace.trace import Value
from multigrad.engine.capture.foreign_calls import Interception, comes_to_us
from multigrad.engine.capture.user_code.inspection import plain_function
from multigrad.engine.functions.calls.arguments import replace_at
from multigrad.engine.functions.calls.imported_gradients import (
    ImportedGradient,
    WithinOwnRules,
    recording,
)
from multigrad.engine.functions.code_recipes import NoRuleYet, import_once, recipe_of_gradient
from multigrad.engine.functions.function import Function
from multigrad.errors import RuleTypeError

from .core.compile import APART
from .core.versions import VJP_KINDS, core, primal_of
from .custom_functions import closed_over, name_of, recipe_of_jvp, recipe_of_vjp, within_own_rules
from .jaxprs import all_equations

Tensor: TypeAlias = jax.Array
Rule = Callable[..., Any]


# --- equinox's `filter_custom_vjp` ----------------------------------------------------------------
# Its rules take any tree, and ask which of its leaves are arrays.
# equinox's predicates of a leaf: whether Python numbers count too; whether only floats do.
ASKED = {
    "is_array": (False, False),
    "is_array_like": (True, False),
    "is_inexact_array": (False, True),
    "is_inexact_array_like": (True, True),
}


def rules_of(function: Any) -> tuple[Rule | None, Rule | None] | None:
    equinox = sys.modules.get("equinox")
    if equinox is None or not isinstance(function, equinox.filter_custom_vjp):
        return None
    return function.fn_fwd, function.fn_bwd


def with_pullback(forward: Rule, backward: Rule) -> Rule:
    """Return the two rules as one function that returns the outputs and a pullback."""
    is_inexact_array = sys.modules["equinox"].is_inexact_array

    def compute(vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
        # only the floats of the first argument have a gradient in equinox
        perturbed = jax.tree.map(is_inexact_array, vjp_arg)
        outputs, residuals = forward(perturbed, vjp_arg, *args, **kwargs)

        def pull(upstream: Any) -> Any:
            gradient = backward(residuals, upstream, perturbed, vjp_arg, *args, **kwargs)
            return (gradient, *(None for _ in args), *(({},) if kwargs else ()))

        return outputs, pull

    return compute


def called(function: Any, vjp_arg: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = jax.lax.stop_gradient((args, kwargs))
    return function(vjp_arg, *args, **kwargs)


def predicates() -> dict[Any, Rule]:
    """Return stand-ins for equinox's predicates, which answer for symbolic values."""
    equinox = sys.modules["equinox"]
    return {
        (predicate := getattr(equinox, name)): partial(_answer, predicate, *traits)
        for name, traits in ASKED.items()
    }


def _answer(predicate: Rule, takes_numbers: bool, of_floats: bool, element: Any) -> bool:
    if not isinstance(element, Value):
        return predicate(element)
    type_ = element.node.type
    return (type_.kind == "tensor" or takes_numbers) and (is_float(type_) or not of_floats)


# --- calls in code that is read by its jaxpr ------------------------------------------------------
# A call becomes one equation of ours, so that its own gradient is not lost: jax's own equation
# holds rules that cannot be read back.
CALLED = core.Primitive("multigrad_custom_call")
CALLED.multiple_results = True
# The function whose next call goes to jax, and not to our equation.
_passing: ContextVar[Any] = ContextVar("multigrad_jax_passing", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class JaxCall:
    """One call of a custom function.

    The arrays of the equation go to the `places` in `leaves`, of its arguments; `avals` are the
    abstract values of its results.
    """

    function: Any
    tree: Any
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    avals: tuple[Any, ...] = ()

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return jax.tree.unflatten(self.tree, replace_at(self.leaves, self.places, arrays))

    def run(self, *arrays: Tensor) -> list[Tensor]:
        """Call the function through jax; calls within its rules become equations again."""
        args, kwargs = self.arguments(arrays)
        with set_within(_passing, self.function):
            return jax.tree.leaves(self.function(*args, **kwargs))

    def compute(self, *arrays: Tensor) -> Any:
        args, kwargs = self.arguments(arrays)
        return primal_of(self.function)(*args, **kwargs)


def reading() -> AbstractContextManager[Any]:
    return APART("reading")


def note(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_derived: bool = False
) -> tuple[Any, ...] | None:
    """Return the result of a custom function's call that became an equation, in a tuple; None where
    jax handles the call.

    Args:
        is_derived: its gradient is the derivative of its primal, so that the equation is needed
            only if that holds a loop.
    """
    if _passing.get() is function:
        _passing.set(None)
        return None
    leaves, tree = jax.tree.flatten((args, kwargs))
    if not APART.value or not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    arrays = [leaves[i] for i in places]
    other_leaves = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
    untyped_call = JaxCall(function, tree, other_leaves, places)
    if is_derived:
        with APART("looking"):
            equations = all_equations(jax.make_jaxpr(untyped_call.compute)(*arrays).jaxpr)
        # only a `while` loop has no reverse-mode derivative
        if all(each.primitive.name != "while" for each in equations):
            return None
    structs, structure = jax.tree.flatten(jax.eval_shape(untyped_call.compute, *arrays))
    avals = tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in structs)
    jax_call = replace(untyped_call, avals=avals)
    return (jax.tree.unflatten(structure, CALLED.bind(*arrays, called=jax_call)),)


@CALLED.def_abstract_eval
def _describe(*_: Any, called: JaxCall) -> Sequence[Any]:
    return called.avals


@CALLED.def_impl
def _compute(*arrays: Tensor, called: JaxCall) -> list[Tensor]:
    return called.run(*arrays)


def _push(primals: Sequence[Tensor], tangents: Sequence[Any], *, called: JaxCall) -> Any:
    # by the function's own rule, where jax differentiates while it traces
    return jax.jvp(called.run, list(primals), [ad.instantiate_zeros(t) for t in tangents])


def _batch(arrays: Sequence[Tensor], axes: Sequence[Any], *, called: JaxCall) -> Any:
    # a call of a function whose gradient is this one's, mapped
    results = jax.tree.leaves(mapped(called, tuple(axes))(*arrays))
    return results, [0] * len(results)


def mapped(called: JaxCall, axes: tuple[Any, ...]) -> Any:
    def run(*arrays: Tensor) -> list[Tensor]:
        return jax.vmap(called.run, in_axes=axes)(*arrays)

    def forward(*arrays: Tensor) -> Any:
        return compute(*arrays), arrays

    def backward(arrays: tuple[Tensor, ...], cotangents: Any) -> tuple[Tensor, ...]:
        with recording(called.function):  # its rules may call the function itself
            gradients = jax.vjp(run, *arrays)[1](cotangents)
        return tuple(None if each.dtype == jax.dtypes.float0 else each for each in gradients)

    def compute(*arrays: Tensor) -> list[Tensor]:
        return jax.tree.leaves(jax.vmap(called.compute, in_axes=axes)(*arrays))

    compute.__name__ = getattr(called.function, "__name__", compute.__name__)
    function = jax.custom_vjp(compute)
    function.defvjp(forward, backward)
    return function


ad.primitive_jvps[CALLED] = _push
batching.primitive_batchers[CALLED] = _batch


JITTED = type(jax.jit(len))
# The closure of the rules that jax (0.10) makes of `jax.custom_gradient(fun)`.
CUSTOM_GRADIENT = ("fun",)


def recipe_of_pullback(function: Rule, name: str, original: Any, copies: bool = False) -> Recipe:
    return recipe_of_gradient(
        function,
        name,
        library="jax",
        options=Options(copies=copies),
        imported=ImportedGradient(
            original,
            on_copies=partial(recipe_of_pullback, function, name, original, copies=True),
            makes_arrays_of_numbers=True,
        ),
    )


def import_function(function: Any) -> Recipe:
    """Return the recipe of a `jax.custom_vjp`, `jax.custom_jvp` or `jax.custom_gradient` function,
    or of equinox's `filter_custom_vjp`.
    """
    inner = function
    while isinstance(inner, JITTED):
        inner = inner.__wrapped__
    if isinstance(inner, VJP_KINDS):
        if inner.fwd is None or inner.bwd is None:
            raise _undefined(inner, "f.defvjp(fwd, bwd)")
        # jax makes a custom_vjp of it, whose rules hold the traced pullback: the original is read
        decorated_function = closed_over(inner.fwd, CUSTOM_GRADIENT)
        if decorated_function is not None:
            return recipe_of_pullback(decorated_function, name_of(decorated_function), function)
        return recipe_of_vjp(inner, function)
    rules = rules_of(inner)
    if rules is not None:
        forward, backward = rules
        if forward is None or backward is None:
            raise _undefined(inner.fn, "f.def_fwd(fwd) and f.def_bwd(bwd)")
        original = partial(called, function)
        pair = with_pullback(forward, backward)
        return recipe_of_pullback(pair, name_of(inner.fn), original)
    if isinstance(inner, jax.custom_jvp):
        if inner.jvp is None:
            raise _undefined(inner, "f.defjvp(jvp)")
        return recipe_of_jvp(inner, function)
    raise RuleTypeError(
        f"expected a jax.custom_vjp or jax.custom_jvp function, got a {type(inner).__name__}: "
        f"{inner!r:.60}. Decorate a plain function that returns its outputs and a function of "
        "their cotangents with xg.custom_gradient"
    )


def _undefined(function: Any, definition: str) -> NoRuleYet:
    return NoRuleYet(
        f"custom function {name_of(function)!r} has no rule yet: call {definition} first"
    )


@dataclass(frozen=True, slots=True)
class WithOwnGradient:
    function: Any
    captured: Function

    @property
    def name(self) -> str:
        return self.captured.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with recording(self.function):
            return self.captured(*args, **kwargs)


def with_own_gradient(function: Any) -> WithOwnGradient | WithinOwnRules | None:
    """Return the stand-in for a custom function; None if its gradient is its derivative anyway."""
    stand_in = within_own_rules(function)
    if stand_in is not None:
        return stand_in
    return None if is_jaxs_own(function) else own_gradient(function)


def own_gradient(function: Any) -> WithOwnGradient:
    """Return the stand-in for a custom function, even one of jax's."""
    return WithOwnGradient(function, import_once(import_function, function))


def is_jaxs_own(function: Any) -> bool:
    """Return whether a custom function is jax's own: its gradient is its primal's derivative."""
    plain = plain_function(primal_of(function))
    root = (getattr(plain, "__module__", None) or "").partition(".")[0]
    return (
        # functions that jax's decorators make are in its modules too
        root == jax.__name__
        and closed_over(getattr(function, "fwd", None), CUSTOM_GRADIENT) is None
    )


def intercept(kind: type) -> Interception:
    original = vars(kind)["__call__"]

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        reverse_form = getattr(self, "in_reverse_mode", None)
        if reverse_form is not None and APART.value:  # a capture reads the custom_vjp form
            return reverse_form(*args, **kwargs)
        # no symbolic value among the arguments, though jax may be tracing for a capture
        if not comes_to_us(args, kwargs, "jax", "numpy"):
            result = None
            if within_own_rules(self) is None:
                result = note(self, args, kwargs, is_derived=is_jaxs_own(self))
            return original(self, *args, **kwargs) if result is None else result[0]
        stand_in = with_own_gradient(self)
        if isinstance(stand_in, WithinOwnRules):
            return stand_in.around(primal_of(self))(*args, **kwargs)
        return primal_of(self)(*args, **kwargs) if stand_in is None else stand_in(*args, **kwargs)

    return Interception(kind, "__call__", call)


INTERCEPTIONS = tuple(map(intercept, (*VJP_KINDS, jax.custom_jvp)))
