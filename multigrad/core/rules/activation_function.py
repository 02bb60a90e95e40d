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
from ..functions.arguments import Layout, Leaf, lay_out
from ..functions.capture_errors import NotCaptured
from ..functions.function import Function
from ..functions.recipe import (
    ArgumentRules,
    GraphSource,
    Options,
    Recipe,
    Recorded,
    Variant,
    never_run,
)
from ..lowering.checks import check_float, check_values
from ..lowering.forwards import Forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import lower_forward
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.params import as_number
from ..support.threads import build_once
from ..support.trees import Tensor, optree
from ..trace.lookups import is_read
from ..trace.source import BRANCHES
from ..trace.trace import NeedsConcrete, Value, dtype_name
from .rule_names import find_forward
from .signature import call_of_class
from .specialization import Specialization, asked_of_input, run_as_written

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
            Function, or an object that holds no tensors, which is copied: what is changed of it
            later does not act.
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
            f"{word} is of a named activation; a function says itself what it gives: leave "
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


def put_under(specialization: Specialization | None, forward: Forward) -> Function:
    """Return a rule under an activation as a Function of the input and the run-time params.

    There is one for each pair. Without a rule, it is the activation with its true derivative, or
    with the gradient of its own.
    """
    if specialization is None:
        if forward.function is not None:
            return forward.function
        make = partial(Function, recipe_of_derivative(forward))
        return build_once(forward.functions_under, None, make)
    make = partial(function_under, specialization, forward)
    if forward.function is not None:
        return build_once(forward.functions_under, specialization, make, MOST_RULES)
    # A named activation may live forever: the Function goes with the rule.
    return build_once(specialization.functions_under, forward.name, make, MOST_RULES)


def function_under(specialization: Specialization, forward: Forward) -> Function:
    """Return a new Function of a rule under an activation."""
    rule, under = specialization.rule, RuleUnder(specialization, forward)
    recipe = Recipe(
        f"{rule.name} under {forward.name}",
        under.run,
        signature=_signature("tin", *specialization.runtime),
        subject=specialization.subject,
        title=f"{specialization.subject} under {forward.name}",
        written_in=specialization.recipe.dialect,
        origin=specialization,
        options=Options(native=rule.native, fused=rule.fused),
        arguments=ArgumentRules(under.lay_out, under.check),
        graphs=GraphSource(
            under.capture, under.prove, note_native=specialization.give_up, gives_like_input=True
        ),
    )
    function = Function(recipe)
    function.is_surrogate = True
    if forward.function is None:
        # The graphs are the code's, and outlive this Function.
        forms = specialization.code.forms_under
        function.captures.forms = forms.setdefault(forward.name, function.captures.forms)
    return function


def graphs_under(
    specialization: Specialization | None, forward: Forward, facts: Mapping[str, Any]
) -> FunctionGraph:
    if specialization is None:
        name, graph = f"d({forward.name}) under {forward.name}", forward.graph_for(facts)
        return FunctionGraph(name, graph, forward.derivative, is_rule=True)
    form = specialization.form(True, facts)
    return RuleUnder(specialization, forward).graphs(facts, form.graphs)


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
        arguments=ArgumentRules(_lay_out_around),
        graphs=GraphSource(capture, prove, gives_like_input=True),
    )


def _signature(*names: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(each, kind) for each in names])


def _lay_out_around(
    parameters: inspect.Signature | None,
    leaves: Sequence[Any],
    tree: Any,
    params: Sequence[Leaf] = (),
) -> Layout:
    ((given, *_), _), x = optree.tree_unflatten(tree, leaves), leaves[0]
    if given is not x or not (isinstance(x, Value) or hasattr(x, "dtype")):
        backend_of(given)  # which refuses what is no tensor, such as a list of some
    dtype = x.node.type.dtype if isinstance(x, Value) else dtype_name(x.dtype)
    return lay_out(tree, [Leaf("tensor", "tin", "tin", dtype), *params])


# --- a rule under an activation -------------------------------------------------------------------
class RuleUnder:
    """A rule under an activation: what the recipe of its Function calls.

    The rule is captured by itself, once for all activations. Where another capture records the
    Function, its leaves are symbols, or unknown: nothing is proven.
    """

    def __init__(self, specialization: Specialization, forward: Forward) -> None:
        self.specialization, self.forward = specialization, forward

    def lay_out(
        self, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
    ) -> Layout:
        # The params are numbers even if they are given as tensors.
        params = [Leaf("number", name, name) for name in self.specialization.runtime]
        layout = _lay_out_around(parameters, leaves, tree, params)
        if not isinstance(leaves[0], Value):
            check_float(leaves[0], self.specialization.rule)
        return layout

    def check(self, backend: Backend, leaves: Sequence[Any]) -> None:
        """Check the params: numbers against their ranges, tensors against the input."""
        specialization, values = self.specialization, tuple(leaves[1:])
        if any(type(value) is not float for value in values):
            check_values(specialization.subject, specialization.runtime, backend, leaves[0], values)
            values = tuple(map(as_number, values))
        specialization.check_numbers(values)

    def graphs(self, facts: Mapping[str, Any], form: FunctionGraph) -> FunctionGraph:
        """Return the graphs for these facts, under which the rule has a form."""
        rule = self.specialization.rule
        return FunctionGraph(
            f"{rule.name} under {self.forward.name}",
            self.forward.graph_for(facts),
            form.backward,
            rule.first_order,
            second_order=form.second_order,
            is_rule=True,
            residuals=rule.residuals,
        )

    def capture(
        self, recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]
    ) -> Variant:
        given = () if not leaves or isinstance(leaves[0], Value) else leaves
        own_facts = _without_reads(facts)
        self.forward.graph_for(own_facts)  # outside `try`: its failure is not the rule's
        if given:
            self.forward.prove(given[0])
        needed = asked_of_input(self.specialization.code.forms[True].facts)
        if not needed <= facts.keys():  # by a capture before this one
            raise NeedsConcrete(*needed, noted=False)
        try:
            form = self.specialization.form(True, own_facts, given)
        except TraceError as error:
            raise NotCaptured(error) from error.__cause__
        if not self.forward.reads <= facts.keys():
            raise NeedsConcrete(*self.forward.reads, noted=False)
        # What the rule's code read becomes facts of this Function, too.
        reads = {fact: meaning for fact, meaning in form.facts.items() if is_read(fact)}
        dtype = layout.dtype or ""
        return Variant(
            self.graphs(own_facts, form.graphs),
            layout,
            ONE_OUTPUT,
            facts={**facts, **reads},
            proofs={dtype: ""} if given and dtype in form.proofs else {},
            # Code that branches runs as written where its gradient may be differentiated.
            omissions={kind: words for kind, words in form.omissions.items() if kind == BRANCHES},
            numbers=form.numbers,
        )

    def prove(
        self, recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool
    ) -> str:
        """Compare the rule with its graph, in the dtype of a call or on its input (`is_call`)."""
        if leaves and not isinstance(leaves[0], Value):
            try:
                own_facts = _without_reads(variant.facts)
                self.specialization.proven(True, own_facts, leaves, is_call=is_call)
            except TraceError as error:
                if is_call:
                    raise
                raise NotCaptured(error) from error
        return ""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        """Run the activation, and the rule as written if a gradient is asked for."""
        tin, *values = args

        def pull(grad_out: Tensor, ctx: Any = None) -> tuple[Any, ...]:
            gradient = run_as_written(self.specialization, ctx, grad_out, tin, tuple(values))
            return gradient, *[None] * len(values)

        return Recorded(forward_on(backend_of(tin), self.forward)(tin), pull, takes_ctx=True)


def _without_reads(facts: Mapping[str, Any]) -> dict[str, Any]:
    # The specialization itself knows what its code reads besides the arguments.
    return {fact: value for fact, value in facts.items() if not is_read(fact)}


def forward_on(backend: Backend, forward: Forward) -> Callable[[Tensor], Tensor]:
    return build_once(forward.lowered, backend.name, partial(_lower, forward, backend))


def _lower(forward: Forward, backend: Backend) -> Callable[[Tensor], Tensor]:
    try:
        return lower_forward(forward, backend)
    except TraceError:
        if forward.function is None:
            raise
        return forward.function  # its graph depends on the input
