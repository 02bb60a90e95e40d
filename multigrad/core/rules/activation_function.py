"""A rule under an activation, as a Function: the activation's forward, the rule as its backward.

    as_forward("Heaviside")  ─► Forward         ┐
    as_forward(my_function)  ─► ForwardOfCode   ┴─ put_under(specialization, forward) ─► Function

From the top: `as_forward`; then `put_under`, and the recipe of its Function, which has graphs
instead of code: the forward's, and the one of the rule that serves all its activations.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import RuleTypeError, TraceError
from ..backend.contract import Backend
from ..backend.discovery import backend_of
from ..functions.arguments import Layout, Leaf, lay_out_flat
from ..functions.captures import Captures
from ..functions.function import Entries, FunctionBase
from ..functions.recipe import (
    ArgumentRules,
    GraphSource,
    NotCaptured,
    Options,
    Recipe,
    Recorded,
    Variant,
    never_run,
)
from ..lowering.checks import check_float, check_values
from ..lowering.forwards import Forward, find_forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import lower_forward
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.params import as_number
from ..support.threads import build_once
from ..support.trees import Tensor, optree
from ..trace.trace import Value, dtype_name
from .rule_captures import RuleCaptures, made_up
from .signature import call_of_class
from .specialization import Specialization, run_as_written

MOST_RULES = 256  # under which one forward of code is kept
ONE_OUTPUT = optree.tree_structure(0)


# --- the forward: a named activation, or a function of one tensor ---------------------------------
# Forwards of functions, for compilers whose traces hold nothing but constants; weak.
BY_KEY: weakref.WeakValueDictionary[str, Forward] = weakref.WeakValueDictionary()


def as_forward(
    forward: Any, at_zero: float | None = None, threshold: float | None = None
) -> Forward:
    """Return a named activation, or a function of one tensor as a forward.

    Args:
        forward: a name, as `find_forward` takes it; a function written with any library, a
            Function, or an object that holds no tensors, which is copied: later changes to it
            have no effect.
        at_zero, threshold: as `find_forward` takes them.

    Raises:
        RuleValueError: there is no activation of that name.
        RuleTypeError: it is a class, holds tensors, or is nothing to be called; or a function is
            given a value of a named activation.
    """
    if isinstance(forward, str):
        return find_forward(forward, at_zero, threshold)
    if at_zero is not None or threshold is not None:
        word = "at_zero" if at_zero is not None else "threshold"
        raise RuleTypeError(
            f"{word} belongs to a named activation; a function gives its own values: leave "
            f"{word}= out"
        )
    if isinstance(forward, Forward):
        return forward
    if isinstance(forward, type):
        raise RuleTypeError(
            f"a forward is a name or a function of one tensor, got the class "
            f"{forward.__name__!r}: give {call_of_class(forward)}"
        )
    if not callable(forward):
        raise RuleTypeError(
            f"a forward is a name (xg.activations() lists them) or a function of one tensor, got "
            f"{type(forward).__name__} {forward!r:.40}"
        )
    return forward_of_code(forward)


@provided
def forward_of_code(forward: Any) -> Forward:
    """Return a forward that is a function of one tensor, a Function, or an object to be called."""
    raise RuleTypeError(
        f"a forward that is a function, {forward!r:.40}, {NEEDS_ENGINE}, or give a name "
        "(xg.activations() lists them)"
    )


def forward_by_key(key: str) -> Forward:
    return BY_KEY.get(key) or find_forward(key)


def put_under(specialization: Specialization | None, forward: Forward) -> FunctionBase:
    """Return a rule under an activation as a Function of the input and the run-time params.

    There is one for each pair. Without a rule, it is the activation with its true derivative, or
    its own gradient.
    """
    if specialization is None:
        if forward.function is not None:
            return forward.function
        captures = Captures(recipe_of_derivative(forward), True, __name__)
        make = partial(as_base, captures)
        return build_once(forward.functions_under, None, make)
    make = partial(function_under, specialization, forward)
    if forward.function is not None:
        return build_once(forward.functions_under, specialization, make, MOST_RULES)
    # A named activation may live forever: the Function goes with the rule.
    return build_once(specialization.functions_under, forward.name, make, MOST_RULES)


def as_base(captures: Captures) -> FunctionBase:
    return FunctionBase(captures.recipe, Entries(captures))


def function_under(specialization: Specialization, forward: Forward) -> FunctionBase:
    """Return a new Function of a rule under an activation."""
    rule, alone = specialization.rule, specialization.captures[True]

    def lay_out(parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any) -> Layout:
        check_tensor(leaves, tree)
        if not isinstance(leaves[0], Value):
            check_float(leaves[0], rule)
        return alone.lay_out(leaves[0])

    def check(backend: Backend, leaves: Sequence[Any]) -> None:
        # The params: numbers against their ranges, tensors against the input.
        values = tuple(leaves[1:])
        if any(type(value) is not float for value in values):
            check_values(specialization.subject, specialization.runtime, backend, leaves[0], values)
            values = tuple(map(as_number, values))
        specialization.check_numbers(values)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        # The activation, and the rule as written if a gradient is asked for.
        tin, *values = args

        def pull(grad_out: Tensor, ctx: Any = None) -> tuple[Any, ...]:
            gradient = run_as_written(specialization, ctx, grad_out, tin, tuple(values))
            return gradient, *[None] * len(values)

        return Recorded(forward_on(backend_of(tin), forward)(tin), pull, takes_ctx=True)

    recipe = Recipe(
        f"{rule.name} under {forward.name}",
        run,
        signature=_signature("tin", *specialization.runtime),
        subject=specialization.subject,
        title=f"{specialization.subject} under {forward.name}",
        written_in=alone.source.dialect,
        origin=specialization,
        options=Options(native=rule.native, fused=rule.fused),
        arguments=ArgumentRules(lay_out, check),
        graphs=GraphSource(note_native=specialization.give_up, gives_like_input=True),
    )
    make = forward.captures or RuleCaptures
    function = as_base(make(specialization, True, recipe, forward))
    function.is_surrogate = True
    return function


def graphs_under(
    specialization: Specialization | None, forward: Forward, facts: Mapping[str, Any]
) -> FunctionGraph:
    if specialization is None:
        name, graph = f"d({forward.name}) under {forward.name}", forward.graph()
        return FunctionGraph(name, graph, forward.derivative, is_rule=True)
    layout = specialization.captures[True].lay_out(made_up(facts))
    try:
        return put_under(specialization, forward).captures.for_known(layout, facts).graphs
    except NotCaptured as error:
        raise error.error from error.__cause__


# --- an activation without a rule -----------------------------------------------------------------
def recipe_of_derivative(forward: Forward) -> Recipe:
    """Return the recipe of a named activation with its true derivative."""

    def capture(recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Any) -> Variant:
        return Variant(graphs_under(None, forward, {}), layout, ONE_OUTPUT, {}, dict(facts))

    def prove(recipe: Recipe, variant: Variant, leaves: Any, *, is_call: bool) -> str:
        return ""  # the graph is what was written

    return Recipe(
        f"d({forward.name}) under {forward.name}",
        never_run,
        signature=_signature("tin"),
        subject=f"activation {forward.name!r}",
        arguments=ArgumentRules(_lay_out),
        graphs=GraphSource(capture, prove, gives_like_input=True),
    )


def _signature(*names: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(each, kind) for each in names])


def _lay_out(parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any) -> Layout:
    check_tensor(leaves, tree)
    x = leaves[0]
    dtype = x.node.type.dtype if isinstance(x, Value) else dtype_name(x.dtype)
    return lay_out_flat([Leaf("tensor", "tin", "tin", dtype)])


def check_tensor(leaves: Sequence[Any], tree: Any) -> None:
    """Raise if the first argument is no tensor, such as a list of some; `tree` None: it is one."""
    if tree is None:
        return
    (given, *_), _ = optree.tree_unflatten(tree, leaves)
    if given is not leaves[0] or not (isinstance(given, Value) or hasattr(given, "dtype")):
        backend_of(given)


def forward_on(backend: Backend, forward: Forward) -> Callable[[Tensor], Tensor]:
    return build_once(forward.lowered, backend.name, partial(_lower, forward, backend))


def _lower(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    try:
        return lower_forward(forward, backend)
    except TraceError:
        if forward.function is None:
            raise
        return forward.function  # its graph depends on the input
