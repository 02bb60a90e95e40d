"""A function of one tensor as the forward of a rule: what `as_forward` makes of a function of the
user's, a Function, or an object that is called.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import types
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ....core import xp as xp_dialect
from ....core.functions.arguments import Layout, flatten
from ....core.functions.recipe import NotCaptured, Variant
from ....core.ir.graph import Graph
from ....core.ir.op import FLOATS, INPUT, INPUT_SHAPE, T
from ....core.lowering.derivatives import pullback
from ....core.lowering.forwards import Forward
from ....core.passes.facts import LIBRARY
from ....core.passes.simplify import simplify
from ....core.rules.activation_function import BY_KEY, as_forward
from ....core.rules.rule_captures import RuleCaptures
from ....core.rules.signature import called_method, name_of
from ....core.support.pickles import pickled
from ....core.support.threads import SERIALS, build_once
from ....core.support.trees import Tensor
from ....core.trace.identity import function_key, items_key
from ....core.trace.lookups import is_read, look_up_all
from ....core.trace.source import TENSORS, Reading
from ....core.trace.trace import NeedsConcrete, Value, known_shape
from ....errors import DisprovedError, GradientError, RuleTypeError, TraceError
from ...capture.user_code.libraries import OWN
from ...capture.user_code.object_state import read_state
from ...capture.values.tracer import Attributed
from ...functions.chain import list_tensors
from ...functions.custom_gradient import as_plain_function
from ...functions.custom_gradient import function as make_function
from ...functions.decision import SHOWN, decide_call
from ...functions.function import Function
from ...functions.object_function import (
    ObjectFunction,
    holds_state,
    owner_of_method,
    recipe_of_object,
)
from ...lowering.calls import drop_calls
from ...passes.shapes import needed_shapes
from ...trace.code_trace import CodeTrace

MOST_GRAPHS = 256  # of one forward, by facts

# Forwards of functions, which are taken to be fixed; each lives as long as someone holds it.
_of_function: weakref.WeakValueDictionary[Any, ForwardOfCode] = weakref.WeakValueDictionary()


def forward_of_code(forward: Any) -> ForwardOfCode:
    forward = getattr(forward, "_activation", forward)  # of a module or layer of ours
    forward = forward.original if isinstance(forward, ObjectFunction) else forward
    # An object with state may change, so each call makes a forward of its own.
    is_fixed = isinstance(forward, Function | types.FunctionType)
    if is_fixed or owner_of_method(forward) is None:
        key = function_key(forward)
        return _of_function.get(key) or _of_function.setdefault(key, _make_forward(forward))
    return _make_forward(forward)


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
    BY_KEY[forward_of_code.key] = forward_of_code
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


class CapturesUnderCode(RuleCaptures):
    """What a rule was captured as under a function, whose graph may depend on the input.

    Attributes:
        asked: the facts about the input that the function's code has asked for.
        made: the forms, which go with the function, not with the rule.
    """

    forward: ForwardOfCode

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: frozenset[str] = frozenset()
        self.made: dict[Any, Variant] = {}

    @property
    def facts(self) -> frozenset[str]:
        return self.findings.facts | self.asked | self.forward.reads

    def for_facts(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        forward = self.forward
        if not self.asked <= facts.keys():
            raise NeedsConcrete(*self.facts, noted=False)
        of_forward = {fact: facts[fact] for fact in self.asked}
        try:
            graph = forward.graph_for(of_forward)
        except NeedsConcrete as need:
            self.asked |= frozenset(need.facts)
            raise
        if leaves and not isinstance(leaves[0], Value):
            forward.prove(leaves[0])
        alone = (self.asked | forward.reads) - self.findings.facts
        variant = self.known(layout, {k: v for k, v in facts.items() if k not in alone}, leaves)
        form = self.alone(variant)
        key = (id(graph), form.layout.key, items_key(form.facts))  # the form keeps the graph
        build = partial(self.join, form, graph, {**of_forward, **look_up_all(forward.reads)})
        return build_once(self.made, key, build, MOST_GRAPHS).laid_out(variant.layout)


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOfCode(Forward):
    """A function of one tensor as a forward.

    Attributes:
        given: what the user gave.
        serial: tells it from other functions of the same name.
        graphs: `tin -> output`, by facts about the input.
    """

    captures: ClassVar[Any] = CapturesUnderCode
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
        trace = CodeTrace(self.name, facts, Attributed, "function", xp_dialect)
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

    def _check_output(self, trace: CodeTrace, output: Any) -> Value:
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
            decide_call(entries, SHOWN, layout, leaves)
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
