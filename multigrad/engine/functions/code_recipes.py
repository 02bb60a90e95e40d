"""The recipes of the user's own code: of a function that returns its gradient too, and of a pair.

`recipe_of_gradient`, of `xg.custom_gradient`:

    f(*args) -> (outputs, grad)              grad(upstream) -> gradients

`recipe_of_pair`, of `xg.function`:

    forward(*args) -> outputs                backward(grad_out, *args) -> gradients
    residuals(outputs, *args) -> kept        backward(grad_out, kept) -> gradients

Each has `Recipe.run`, which calls the code as it is, and `Recipe.record`, which captures it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from ...core.functions.capture_errors import kind_name
from ...core.functions.parameters import read_parameters, signature_of
from ...core.functions.recipe import (
    DEFAULTS,
    ImportedGradient,
    Options,
    Pull,
    Recipe,
    Recorded,
    library_of,
)
from ...core.rules.signature import name_of
from ...core.trace.trace import Trace
from ...errors import GradientError
from ..capture.copies.run_or_import import run_written_in
from ..capture.user_code.inspection import contents, plain_function
from ..capture.user_code.snapshot import noting_state
from .calls.imported_gradients import asked_variables, deliver

UPSTREAM, VARIABLES = "upstream", "variables"  # arguments of gradient functions, by name


def recipe_of_gradient(
    function: Callable[..., Any],
    name: str,
    *,
    library: str,
    options: Options,
    imported: ImportedGradient | None = None,
) -> Recipe:
    """Return the recipe of a function that returns its outputs and a function of their cotangents.

    Args:
        library: what its author says that it is written in.
        imported: see `Recipe`; then `function` is what its framework has decorated.
    """

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        result = run_written_in(library, function, trace, *args, **kwargs)
        return split_result(name, result, args, kwargs, trace)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return split_result(name, function(*args, **kwargs), args, kwargs)

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        return recipe_of_gradient(
            copy(function), name, library=library, options=options, imported=imported
        )

    return Recipe(
        name,
        run,
        record,
        functions=(function,),
        written_in=library or partial(library_of, (function,), ""),
        signature=signature_of(function),
        copied=copied,
        options=options,
        imported=imported,
    )


def split_result(
    name: str,
    result: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trace: Trace | None = None,
) -> Recorded:
    """Return the checked outputs and gradient function that a decorated function returned."""
    expected = "(outputs, grad), where grad(upstream) returns the gradients of the arguments"
    outputs, grad = pair_of(name, result, expected)

    def pull(upstream: Any) -> Any:
        cells = getattr(plain_function(grad), "__closure__", None) or ()
        with noting_state(trace, (*cells, *map(contents, cells))):
            return call_gradient(grad, upstream, outputs, args, kwargs)

    return Recorded(outputs, pull)


def pair_of(name: str, result: Any, expected: str) -> tuple[Any, Callable[..., Any]]:
    """Return the outputs and the gradient function that a function returned; GradientError for
    anything else.
    """
    if not (isinstance(result, tuple | list) and len(result) == 2 and callable(result[1])):
        kind = "None" if result is None else f"a {kind_name(result)}"
        raise GradientError(f"function {name!r} returned {kind}; expected {expected}")
    return result[0], result[1]


def call_gradient(
    grad: Callable[..., Any],
    upstream: Any,
    outputs: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a gradient function in the form that its parameters ask for.

    - `grad(*cotangents, variables=...)`, TensorFlow's form, which returns a pair;
    - `grad(*args, upstream=upstream)`, where `upstream` follows other parameters;
    - `grad(a, b)`, with one parameter for each of several outputs;
    - `grad(upstream)` in all other cases.
    """
    parameters = read_parameters(grad)
    if parameters is None:
        return grad(upstream)
    params = parameters.values()
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in params)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in by_position and p.name != VARIABLES for p in params)
    has_several = isinstance(outputs, tuple | list)
    if VARIABLES in parameters:
        is_spread = has_several and (takes_any_number or count > 1)
        # The variables that the function read get gradients of their own.
        variables = asked_variables()
        returned = grad(*(upstream if is_spread else (upstream,)), variables=variables)
        is_pair = isinstance(returned, tuple | list) and len(returned) == 2
        if not (is_pair and (variables or isinstance(returned[1], list))):
            return returned
        deliver(returned[1])
        return returned[0]
    parameter = parameters.get(UPSTREAM)
    if parameter is not None and (
        parameter.kind is parameter.KEYWORD_ONLY or takes_any_number or count == len(args) + 1
    ):
        # It gets those keywords of the call that it takes.
        takes_any = any(p.kind is p.VAR_KEYWORD for p in params)
        accepted = {n: value for n, value in kwargs.items() if takes_any or n in parameters}
        return grad(*args, **{**accepted, UPSTREAM: upstream})
    is_spread = has_several and (takes_any_number or count == len(outputs) > 1)
    return grad(*upstream) if is_spread else grad(upstream)


def recipe_of_pair(
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    residuals: Callable[..., Any] | None = None,
    *,
    name: str = "",
    library: str = "",
    options: Options = DEFAULTS,
) -> Recipe:
    """Return the recipe of a forward and a backward, two plain functions; None: the derivative.

    Args:
        name: "" is that of the forward.
        library: what their author says that they are written in.
    """
    functions = (forward, backward, residuals)

    def pull_of(
        call: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Pull | None:
        # Computes what is kept. `call(function, *args, **kwargs)` runs one of the functions.
        if backward is None:
            return None
        if residuals is None:
            return lambda grad_out: call(backward, grad_out, *args, **kwargs)
        kept = call(residuals, outputs, *args, **kwargs)
        return lambda grad_out: call(backward, grad_out, kept)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        outputs = forward(*args, **kwargs)
        return Recorded(outputs, pull_of(operator.call, outputs, args, kwargs))

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        def call(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
            return run_written_in(library, function, trace, *given, **named)

        outputs = call(forward, *args, **kwargs)
        if backward is None or residuals is None:
            return Recorded(outputs, pull_of(call, outputs, args, kwargs))

        def pull_later(grad_out: Any) -> Any:
            # What is kept is computed of the outputs that backward has.
            pull = pull_of(call, outputs, args, kwargs)
            assert pull is not None  # there is a backward
            return pull(grad_out)

        return Recorded(outputs, pull_later, keeps_output=True)

    def copied(copy: Callable[[Any], Any]) -> Recipe:
        return recipe_of_pair(*map(copy, functions), name=name, library=library, options=options)

    return Recipe(
        name or name_of(forward),
        run,
        record,
        functions=tuple(each for each in functions if each is not None),
        written_in=library or partial(library_of, (forward, backward), ""),
        signature=signature_of(forward),
        is_derived=backward is None,
        copied=copied,
        options=options,
    )
