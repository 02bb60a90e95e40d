"""A rule under an activation, as a Function: the activation's forward, the rule as its backward.

    as_forward("Heaviside")  ─► Forward         ┐
    as_forward(my_function)  ─► ForwardOfCode   ┴─ put_under(specialization, forward) ─► Function

From the top: `as_forward`, and the forward that it makes of any function of one tensor; then
`put_under`, and the recipe of its Function, which has graphs instead of code: the forward's, and
the one of the rule that serves all its activations.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.discovery import backend_of
from ...capture.dialects import xp as xp_dialect
from ...capture.user_code.libraries import OWN
from ...capture.user_code.moving_reads import numbers_moving
from ...capture.user_code.object_state import read_state
from ...capture.user_code.signature import called_method, name_of
from ...capture.values.tracer import Attributed
from ...errors import DisprovedError, GradientError, RuleTypeError, TraceError
from ...functions.calls.arguments import Layout, Leaf, flatten, lay_out
from ...functions.calls.capture_errors import NotCaptured
from ...functions.calls.decision import SHOWN
from ...functions.calls.recipe import (
    ArgumentRules,
    GraphSource,
    Options,
    Recipe,
    Recorded,
    Variant,
    never_run,
)
from ...functions.captures import inline
from ...functions.chain import list_tensors
from ...functions.custom_gradient import as_plain_function, call_of_class
from ...functions.custom_gradient import function as make_function
from ...functions.function import Function
from ...functions.object_function import (
    ObjectFunction,
    holds_state,
    owner_of_method,
    recipe_of_object,
)
from ...graph.ir.graph import Graph
from ...graph.ir.types import FLOATS, INPUT, INPUT_SHAPE, T
from ...graph.passes.facts import LIBRARY, needed_shapes
from ...graph.passes.simplify import simplify
from ...graph.support.params import as_number
from ...graph.support.pickles import pickled
from ...graph.support.tensors import Tensor
from ...graph.support.threads import SERIALS, build_once
from ...graph.support.trees import optree
from ...lowering.checks import check_float, check_values
from ...lowering.forwards import Forward
from ...lowering.function_graph import FunctionGraph
from ...lowering.source import lower_forward
from ...trace.axes import known_shape
from ...trace.derived.custom_calls import drop_calls
from ...trace.derived.derivatives import pullback
from ...trace.identity import function_key, items_key
from ...trace.limits import BRANCHES
from ...trace.lookups import is_read, look_up_all
from ...trace.source import TENSORS, Reading
from ...trace.trace import NeedsConcrete, Trace, Value, dtype_name
from .rule_names import find_forward
from .specialization import Specialization, asked_of_input

MOST_GRAPHS = 256  # of one forward, by facts
MOST_RULES = 256  # under which one forward of code is kept
ONE_OUTPUT = optree.tree_structure(0)


# --- the forward: a named activation, or a function of one tensor ---------------------------------
# Forwards of functions, which are taken to be fixed; each lives as long as someone holds it.
_of_function: weakref.WeakValueDictionary[Any, ForwardOfCode] = weakref.WeakValueDictionary()
# For compilers whose traces hold nothing but constants.
_by_key: weakref.WeakValueDictionary[str, ForwardOfCode] = weakref.WeakValueDictionary()


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
    forward = getattr(forward, "_activation", forward)  # of a module or layer of ours
    forward = forward.original if isinstance(forward, ObjectFunction) else forward
    # An object with state may change, so each call makes a forward of its own.
    is_fixed = isinstance(forward, Function | types.FunctionType)
    if is_fixed or owner_of_method(forward) is None:
        key = function_key(forward)
        return _of_function.get(key) or _of_function.setdefault(key, _make_forward(forward))
    return _make_forward(forward)


def forward_by_key(key: str) -> Forward:
    return _by_key.get(key) or find_forward(key)


def _make_forward(forward: Any) -> ForwardOfCode:
    function = _function_of(forward)
    required_names = [p.name for p in _parameters_after_first(function) if p.default is p.empty]
    if required_names:
        is_function = isinstance(forward, Function)
        advice = f"f.bind({{{required_names[0]!r}: ...}})" if is_function else "functools.partial"
        raise RuleTypeError(
            f"forward {function.name!r} is to be a function of one tensor, and it needs "
            f"{', '.join(required_names)}: give it values by {advice}"
        )
    serial = f"#{next(SERIALS)}"
    forward_of_code = ForwardOfCode(
        function.name, None, differentiable=False, given=forward, function=function, serial=serial
    )
    _by_key[forward_of_code.key] = forward_of_code
    return forward_of_code


def _function_of(forward: Any) -> Function:
    name = name_of(forward)
    # A Function, a Function with values for some arguments, or an activation.
    if isinstance(forward, Function) or type(forward).__module__.startswith(OWN):
        tensors = list_tensors(forward)
        if tensors:
            raise RuleTypeError(
                f"forward {name!r} is bound to a tensor, {tensors[0]}, which would be a constant "
                "in it: no gradient reaches it. Bind numbers, or call the Function itself"
            )
        if not isinstance(forward, Function):
            return make_function(forward)
        has_defaults = any(p.default is not p.empty for p in _parameters_after_first(forward))
        if has_defaults or forward.completion.is_needed(()):
            # With its defaults: a forward is called with one tensor.
            return make_function(as_plain_function(forward))
        return forward
    if not holds_state(forward):
        return make_function(forward)
    tensors = list(read_state(owner_of_method(forward)).tensors)
    if tensors:
        raise RuleTypeError(
            f"forward {name!r} holds tensors ({', '.join(map(str, tensors[:3]))}), which get no "
            "gradient under a rule. Put the rule on the model that it is part of, "
            "xg.attach(model, {...}), or write xg.function(forward, backward) of all tensors"
        )
    if isinstance(forward, types.FunctionType):
        return make_function(forward)
    # A copy of the object, so that its later changes do not act.
    snapshot = copy.deepcopy(forward)
    return Function(recipe_of_object(snapshot, name), called_method(snapshot))


def _parameters_after_first(function: Function) -> list[inspect.Parameter]:
    parameters = function.parameters.parameters.values() if function.parameters else ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in list(parameters)[1:] if p.kind not in variadic]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOfCode(Forward):
    """A function of one tensor as a forward.

    Attributes:
        given: what the user gave.
        serial: tells it from other functions of the same name.
        graphs: `tin -> output`, by facts about the input.
    """

    given: Any = None
    serial: str = ""
    graphs: dict[Any, Graph] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A text that the same function alone has."""
        return self.name + self.serial  # Dynamo formats no numbers that differ

    @property
    def words(self) -> str:
        """The name as code writes it, without quotes."""
        return self.name

    def graph(self) -> Graph:
        try:
            with suppress(NeedsConcrete):
                return self.graph_for({})
            return self.graph_for({LIBRARY: ""})  # without a call, its tensors are nobody's
        except NeedsConcrete as need:
            raise TraceError(
                f"forward {self.name!r} has one graph per {', '.join(need.facts)} of its input; "
                "it is captured when xg.activation(...) is called"
            ) from need

    def graph_for(self, facts: Mapping[str, Any]) -> Graph:
        """Return `tin -> output` under facts about the input, captured once."""
        build = partial(self._capture, dict(facts))
        key = items_key({**facts, **look_up_all(self.reads)})
        return build_once(self.graphs, key, build, MOST_GRAPHS)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(filter(is_read, self.function.captures.facts))

    @property
    def derivative(self) -> Graph:  # type: ignore[override]
        """The true derivative, which a Function's own backward may differ from."""
        return simplify(pullback(self.graph()))

    def _capture(self, facts: dict[str, Any]) -> Graph:
        trace = Trace(self.name, facts, Attributed, "function", xp_dialect)
        trace.reading = Reading((), TENSORS)
        tin = trace.input("tin", INPUT)
        try:
            output = self.function(tin)
        except NotCaptured as error:
            raise self._explain(error.error) from error.__cause__
        except TraceError as error:
            raise self._explain(error) from error.__cause__
        output = self._check_output(trace, output)
        graph = Graph(self.name, (tin.node,), (output.node,), trace.source.locations)
        return simplify(drop_calls(graph))

    def _check_output(self, trace: Trace, output: Any) -> Value:
        if not isinstance(output, Value) or output.node.type.kind != "tensor":
            raise self._misfit(f"a {type(output).__name__}")
        if trace.key is not None:
            raise trace.error(
                "draws random numbers, which a forward under a rule does not: the rule's draws "
                "would be the same. Give it a backward of its own, xg.function(forward, backward)"
            )
        type_ = output.node.type
        # Where the shape is not surely the input's, it becomes a fact.
        if type_.shape != INPUT_SHAPE:
            shape = known_shape(output)
            if shape is None:
                raise NeedsConcrete(*needed_shapes(output.node))
            if "shape" not in trace.facts:
                raise NeedsConcrete("shape")
            expected = trace.facts["shape"]
            if shape != expected:
                raise self._misfit(f"the shape {shape} for an input of {expected}")
        if type_.dtype == T:
            return output
        if type_.dtype in FLOATS:
            if "dtype" not in trace.facts:
                raise NeedsConcrete("dtype")
            if trace.facts["dtype"] == type_.dtype:
                return output
        raise self._misfit(f"the dtype {type_.dtype}")

    def _explain(self, error: TraceError) -> TraceError:
        if isinstance(error, DisprovedError):
            return error
        text = f"{error}. Under a rule the forward {self.name!r} has to be captured"
        return TraceError(text, error.place)

    def _misfit(self, result: str) -> GradientError:
        return GradientError(
            f"forward {self.name!r} gives {result}; under a rule a forward gives one tensor of the "
            "input's shape and dtype, as the rule's gradient is that of its input. Leave the rest "
            "outside the activation, or write xg.function(forward, backward)"
        )

    def prove(self, x: Tensor) -> None:
        """Prove the captured function for tensors like x, unless that was done."""
        entries = self.function.entries
        layout, leaves = entries.lay_out(*flatten((x,), {}))
        try:
            entries.decide(SHOWN, layout, leaves)
        except NotCaptured as error:
            raise self._explain(error.error) from error.__cause__

    def saved(self) -> Function:
        """Return the Function, captured for at least one tensor, so that it can be saved."""
        if not self.function.captures.variants:
            self.prove(np.zeros((2, 3), np.float32))
        return self.function

    def __copy__(self) -> ForwardOfCode:
        return self

    def __deepcopy__(self, memo: Any) -> ForwardOfCode:
        return self

    def __reduce__(self) -> Any:
        # A function of a module by its import name, what holds something by what it holds, any
        # other by its graphs.
        try:
            pickle.dumps(self.given)
        except Exception:  # noqa: BLE001 (whatever an object of the user's raises)
            return pickled(as_forward, self.saved())
        return pickled(as_forward, self.given)


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
    make = RuleUnder(specialization, forward).function
    if forward.function is not None:
        return build_once(forward.functions_under, specialization, make, MOST_RULES)
    # A named activation may live forever: the Function goes with the rule.
    return build_once(specialization.functions_under, forward.name, make, MOST_RULES)


def record_under(specialization: Specialization | None, forward: Forward, *inputs: Any) -> Value:
    """Record a rule under an activation, of the input and the run-time params, in a capture."""
    function = put_under(specialization, forward)
    captures, flat_inputs = function.captures, flatten(inputs, {})
    return inline(captures, function.completion, function.draws, *flat_inputs)


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
@dataclass(frozen=True, slots=True, eq=False)
class RuleUnder:
    """A rule under an activation: what the recipe of its Function calls.

    The rule is captured by itself, once for all activations. Where another capture records the
    Function, its leaves are symbols, or unknown: nothing is proven.
    """

    specialization: Specialization
    forward: Forward

    def function(self) -> Function:
        specialization, forward, rule = self.specialization, self.forward, self.specialization.rule
        recipe = Recipe(
            f"{rule.name} under {forward.name}",
            self.run,
            signature=_signature("tin", *specialization.runtime),
            subject=specialization.subject,
            title=f"{specialization.subject} under {forward.name}",
            written_in=specialization.recipe.dialect,
            origin=specialization,
            options=Options(native=rule.native, fused=rule.fused),
            arguments=ArgumentRules(self.lay_out, self.check),
            graphs=GraphSource(
                self.capture, self.prove, note_native=specialization.give_up, gives_like_input=True
            ),
        )
        function = Function(recipe)
        function.is_surrogate = True
        if forward.function is None:
            # The graphs are the code's, and outlive this Function.
            forms = specialization.code.forms_under
            function.captures.forms = forms.setdefault(forward.name, function.captures.forms)
        return function

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
            numbers=tuple(find for _, find in numbers_moving()),
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
            gradient = self.specialization.run_as_it_is(ctx, grad_out, tin, tuple(values))
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
