"""Import of `tf.custom_gradient` functions, unchanged, as recipes for every framework.

TensorFlow gives the gradient function one cotangent for each tensor of the outputs, and takes a
flat list of gradients. A function that reads a `tf.Variable` runs unchanged on TensorFlow: its
gradient function gets `variables`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import optree
import tensorflow as tf
from tensorflow.python.eager.record import VariableWatcher

from multigrad.core.functions.recipe import Recipe, Recorded
from multigrad.core.rules.signature import name_of
from multigrad.core.trace.trace import Value
from multigrad.engine.capture.copies.run_or_import import run_written_in
from multigrad.engine.capture.foreign_calls import Interception, comes_to_us
from multigrad.engine.functions.calls.imported_gradients import (
    RECORDED,
    ImportedGradient,
    WithinOwnRules,
    asked_variables,
    deliver,
    recording,
)
from multigrad.engine.functions.calls.parameters import read_parameters, signature_of
from multigrad.engine.functions.code_recipes import import_once, pair_of
from multigrad.engine.functions.function import Function
from multigrad.engine.trace.code_trace import CodeTrace

from .recomputed_regions import FIRST

Tensor: TypeAlias = tf.Tensor


def make_nothing() -> Any:
    """Do nothing; decorated once to get the class that the decorator returns."""


PAIR = "(outputs, grad_fn), as tf.custom_gradient does"
DECORATED = type(tf.custom_gradient(make_nothing))
PASS_THROUGH = tf.grad_pass_through(make_nothing)._f.__code__


def recipe_of_decorated(function: Callable[..., Any], name: str, original: Any) -> Recipe:
    """Return the recipe of a function that `tf.custom_gradient` decorates, making `original`."""

    def bound_to(instance: Any) -> Recipe:
        return import_function(original.__get__(instance, type(instance)))

    return Recipe(
        name,
        partial(run_decorated, function, name),
        partial(record_decorated, function, name),
        functions=(function,),
        written_in="tensorflow",
        signature=signature_of(function),
        imported=ImportedGradient(original, bound_to=bound_to, makes_arrays_of_numbers=True),
    )


def record_decorated(
    function: Callable[..., Any],
    name: str,
    trace: CodeTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    leaves: Any = optree.tree_leaves(args)  # pyright: ignore[reportArgumentType]
    if kwargs and not any(isinstance(leaf, Value) for leaf in leaves):
        raise trace.error(
            "gets tensors by keyword, with respect to which tf.custom_gradient has the true "
            "derivative. Pass them by position"
        )
    with recording(function, (args, kwargs)):
        result = run_written_in("tensorflow", function, trace, *args, **kwargs)
    outputs, grad = pair_of(name, result, PAIR)

    def pull(upstream: Any) -> Any:  # the gradient function may call the function again
        with recording(function, (args, kwargs)):
            return grad(*spread(outputs, upstream))

    return Recorded(outputs, pull)


def run_decorated(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    with VariableWatcher() as watcher:
        outputs, grad = pair_of(name, function(*args, **kwargs), PAIR)
    rows = read_parameters(grad)
    takes_variables = (
        rows is None
        or "variables" in rows
        or any(row.kind is row.VAR_KEYWORD for row in rows.values())
    )
    if watcher.watched_variables() and not takes_variables:
        names = ", ".join(repr(variable.name) for variable in watcher.watched_variables())
        raise TypeError(
            f"function {name!r} reads a tf.Variable ({names}), so its gradient function "
            "must take the keyword argument 'variables' and return (gradients, gradients of "
            "the variables)"
        )

    def pull(upstream: Any) -> Any:
        variables, cotangents = asked_variables(), spread(outputs, upstream)
        if not variables:
            return grad(*cotangents)
        gradients, variable_gradients = grad(*cotangents, variables=variables)
        deliver(variable_gradients)
        return gradients

    return Recorded(outputs, pull)


def import_function(f: Any) -> Recipe:
    """Return the recipe of a decorated function, or of a decorated bound method."""
    if not isinstance(f, DECORATED):
        description = f"{name_of(f)!r}, a {type(f).__name__}" if callable(f) else f"{f!r:.60}"
        advice = ""
        if hasattr(f, "python_function"):
            advice = "; give the function inside tf.function"
        elif callable(f):
            advice = (
                "; a function that returns (outputs, grad) without the decorator is for "
                "xg.custom_gradient"
            )
        raise TypeError(
            f"expected a function decorated with tf.custom_gradient, got {description}{advice}"
        )
    function = f._f
    if getattr(function, "__code__", None) is FIRST:
        raise TypeError(
            f"{name_of(f)!r} is made by tf.recompute_grad, which has the true derivative and only "
            "saves memory; give the function inside it, f.__wrapped__, to xg.function"
        )
    if getattr(function, "__code__", None) is PASS_THROUGH:
        function = pass_through(f.__wrapped__)
    return recipe_of_decorated(function, name_of(f), f)


def with_own_gradient(f: Any) -> Function | WithinOwnRules | None:
    """Return the stand-in for a decorated function during another's capture, if it needs one."""
    for function, arguments in reversed(RECORDED.get()):
        if is_same(f._f, function):
            return WithinOwnRules(name_of(f), lambda *call, first=arguments: (call, first))
    try:
        return import_once(import_function, f)
    except TypeError:  # tf.recompute_grad, whose gradient is the derivative
        return None


def is_same(a: Any, b: Any, depth: int = 4) -> bool:
    """Return whether two values are one, or functions of equal code and closures."""
    a, b = getattr(a, "__func__", a), getattr(b, "__func__", b)
    if a is b or type(a) is not type(b) or not depth:
        return a is b
    # a decorator within a function makes a new one at every call
    if isinstance(a, FunctionType):
        cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (a, b)]
        return a.__code__ is b.__code__ and is_same(cells[0], cells[1], depth - 1)
    if isinstance(a, list | tuple):
        pairs = zip(a, b, strict=False)
        return len(a) == len(b) and all(is_same(x, y, depth - 1) for x, y in pairs)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k], depth - 1) for k in a)
    return isinstance(a, bool | int | float | str) and a == b


def call_decorated(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not comes_to_us(args, kwargs, "tensorflow", "numpy"):
        return CALL(self, *args, **kwargs)
    stand_in = with_own_gradient(self)
    if isinstance(stand_in, WithinOwnRules):
        stand_in = stand_in.around(lambda *args, **kwargs: self._f(*args, **kwargs)[0])
    return self._f(*args, **kwargs)[0] if stand_in is None else stand_in(*args, **kwargs)


CALL: Any = vars(DECORATED)["__call__"]
INTERCEPTIONS = (Interception(DECORATED, "__call__", call_decorated),)


def pass_through(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `tf.grad_pass_through` decorates, with an identity's gradient."""

    def function(*args: Any, **kwargs: Any) -> Any:
        def grad(*cotangents: Any, variables: Any = ()) -> Any:
            return (cotangents, [None] * len(variables)) if variables else cotangents

        return forward(*args, **kwargs), grad

    return function


def spread(outputs: Any, upstream: Any) -> list[Any]:
    """Return one cotangent per leaf of the outputs, zero for one that is no tensor."""
    pairs = zip(
        optree.tree_leaves(outputs, none_is_leaf=True),
        optree.tree_leaves(upstream, none_is_leaf=True),
        strict=True,
    )
    return [
        0.0 if cotangent is None and output is not None else cotangent
        for output, cotangent in pairs
    ]
