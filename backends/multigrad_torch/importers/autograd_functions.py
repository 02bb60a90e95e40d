"""`torch.autograd.Function` classes, unchanged, as recipes for every framework.

`import_function` makes the recipe of a class. The recipe runs forward, backward and jvp with a
`ctx` of ours, on tensors or, in a capture, on symbols: `autograd_calls.py` has one such call. On
torch, a class that cannot be captured runs by its own `apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from multigrad.capture.copies.run_or_import import run_written_in
from multigrad.functions.calls.recipe import ImportedGradient, Options, Recipe, Recorded
from multigrad.functions.function import Function
from multigrad.functions.object_arguments import MayTakeObjects
from multigrad.trace.trace import Trace

from .autograd_calls import record_call
from .autograd_classes import ClassCode, FunctionClass, find_problem, signature_of_apply
from .parameter_gradients import gather, holds_parameters


def make_function(function_class: FunctionClass) -> Function:
    return MayTakeObjects(import_function(function_class))


def import_function(function_class: Any) -> Recipe:
    """Return the recipe of a class.

    Raises:
        TypeError: it is no subclass of `torch.autograd.Function`.
    """
    is_class = isinstance(function_class, type)
    if not is_class or not issubclass(function_class, torch.autograd.Function):
        owner = getattr(function_class, "__self__", None)
        hint = f"; give the class itself: {owner.__name__}" if isinstance(owner, type) else ""
        raise TypeError(
            "expected a subclass of torch.autograd.Function, got "
            f"{'class ' if is_class else ''}{function_class!r:.80}{hint}"
        )
    return recipe_of_class(function_class)


def recipe_of_class(function_class: FunctionClass, copies: bool = False) -> Recipe:
    """Return the recipe of a class, which may write into its arguments if these are copies."""
    code = ClassCode(function_class, signature_of_apply(function_class), copies)
    return Recipe(
        code.name,
        partial(run_class, code),
        partial(record_class, code),
        functions=code.functions,
        written_in="torch",
        signature=code.signature,
        origin=function_class,
        options=Options(copies=copies),
        imported=ImportedGradient(
            code.apply,
            partial(run_primal, code),
            on_copies=partial(recipe_of_class, function_class, copies=True),
            bound_to=stay_unbound,
            gives_tangents=code.gives_tangents,
            has_setup=code.has_setup,
            holds=holds_parameters,
            gather=gather,
        ),
    )


def stay_unbound(instance: Any) -> None:
    """Return None: `apply` is not bound to the object that holds the class."""


def record_class(
    code: ClassCode, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    """Run the class on the symbols of a capture."""
    problem = find_problem(code.function_class)
    if problem:
        raise trace.error(problem)
    return record_call(code, partial(call_captured, trace), trace, args, kwargs)


def run_class(code: ClassCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Run the class on tensors, as torch does."""
    return record_call(code, call_without_grad, None, args, kwargs)


def run_primal(code: ClassCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run forward on tensors, where autograd is to see what it computes."""
    return record_call(code, call_plainly, None, args, kwargs).outputs


# --- how a function of a class is called: torch runs forward and backward without autograd --------
def call_captured(trace: Trace, function: Callable[..., Any], *values: Any) -> Any:
    with torch.no_grad():
        return run_written_in("torch", function, trace, *values)


def call_without_grad(function: Callable[..., Any], *values: Any) -> Any:
    with torch.no_grad():
        return function(*values)


def call_plainly(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)
