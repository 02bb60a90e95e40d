"""The recipes of the user's own code: of a function that returns its gradient too, and of a pair.

`recipe_of_gradient`, of `xg.custom_gradient`:

    f(*args) -> (outputs, grad)              grad(upstream) -> gradients

`recipe_of_pair`, of `xg.function`:

    forward(*args) -> outputs                backward(grad_out, *args) -> gradients
    residuals(outputs, *args) -> kept        backward(grad_out, kept) -> gradients

Each has `Recipe.run`, which calls the code as it is, and `Recipe.record`, which captures it.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any

from ...core.backend.values import owner_of
from ...core.functions.recipe import (
    DEFAULTS,
    ArgumentRules,
    GraphSource,
    Options,
    Pull,
    Recipe,
    Recorded,
    library_of,
)
from ...core.rules.signature import name_of
from ...core.trace.trace import Trace, Value
from ...errors import GradientError, RuleTypeError
from ..capture.copies.run_or_import import run_written_in
from ..capture.foreign_calls import Interception, comes_to_us
from ..capture.user_code.inspection import contents, plain_function
from ..capture.user_code.snapshot import noting_state
from ..trace.code_trace import CodeTrace
from .calls.explained_errors import kind_name
from .calls.imported_gradients import ImportedGradient, OpaqueCalls, asked_variables, deliver
from .calls.parameters import read_parameters, signature_of
from .function import Function

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

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
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
    trace: CodeTrace | None = None,
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

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
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


# --- the interface of importers, for authors of backends ------------------------------------------
# `from multigrad.backend import importers` has it. `Imports.import_function` returns a recipe of a
# custom gradient of the framework. The test: `tests/functions/test_imported_as_they_are.py`.
#
# - What a recipe is: a `CodeRecipe` runs the user's code, on tensors or on symbols (`Value`) of a
#   `Trace`, and returns a `Recorded`, its outputs and pullback; a `Function` is made of it, once
#   (`import_once`).
# - What runs user code: `run_written_in` runs it on symbols in its own dialect; an `Interception`
#   passes calls of the framework's own functions to multigrad: where `comes_to_us` is true.
# - What reads arguments: `signature_of` a function, the backend `owner_of` a value, `is_tensor`.
__all__ = [
    "CodeRecipe",
    "Function",
    "Interception",
    "NoRuleYet",
    "Recorded",
    "Trace",
    "Value",
    "comes_to_us",
    "import_once",
    "is_tensor",
    "owner_of",
    "run_written_in",
    "signature_of",
]


class CodeRecipe:
    """The base of recipes that backends of other authors write as classes.

    Their attributes and methods are the fields of `Recipe` and of its groups, without the names of
    the groups; `functions` is a method.
    """

    name: str

    def dialect(self) -> str:
        return ""

    def functions(self) -> tuple[Any, ...]:
        return ()

    def as_recipe(self) -> Recipe:
        def named(names: Iterable[str]) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names if hasattr(self, name)}

        def group(kind: Any) -> Any:
            return kind(**named(each.name for each in fields(kind)))

        grouped = {"options", "arguments", "graphs", "imported", "opaque"}
        ungrouped = {each.name for each in fields(Recipe)} - grouped - {"functions", "written_in"}
        return Recipe(
            **named(ungrouped),
            functions=self.functions(),
            written_in=self.dialect(),
            options=group(Options),
            arguments=group(ArgumentRules),
            graphs=group(GraphSource),
            imported=group(ImportedGradient) if hasattr(self, "apply") else None,
            opaque=group(OpaqueCalls) if hasattr(self, "guest_for") else None,
        )


class NoRuleYet(RuleTypeError):
    """A function is decorated as a custom gradient, but its rule has not been defined."""


@functools.lru_cache(maxsize=1024)
def import_once(
    read: Callable[[Any], Recipe | Function[..., Any]],
    function: Any,
    kind: type[Function[..., Any]] = Function,
) -> Function[..., Any]:
    """Return the Function of a custom gradient, of which `read` returns the recipe; made once.

    Backends written for multigrad 1.0.0 return the Function itself.
    """
    made = read(function)
    return made if isinstance(made, Function) else kind(made)


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of any backend, or a symbol for one."""
    if isinstance(value, Value):
        return value.node.type.kind == "tensor"
    return owner_of(value) is not None
