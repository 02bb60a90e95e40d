"""A rule under an activation, as a Function: the activation's forward, the rule as its backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from ...backend.contract import Backend
from ...backend.discovery import backend_of
from ...errors import TraceError
from ...functions.calls.arguments import Layout, Leaf, flatten, lay_out
from ...functions.calls.recipe import Recipe, Recorded, Variant
from ...functions.function import Function
from ...functions.inlining import inline
from ...functions.proof.samples import calling
from ...functions.recipes.record import NotCaptured
from ...graph.ir.graph import Graph
from ...graph.support.params import Fused, as_number
from ...graph.support.threads import build_once
from ...graph.support.trees import optree
from ...lowering.forwards import Forward
from ...lowering.function_graph import FunctionGraph
from ...lowering.input_checks import check_float, check_values
from ...lowering.lower import lower_forward
from ...trace.lookups import is_read
from ...trace.trace import NeedsConcrete, Value, dtype_name
from .forwards_of_code import MOST_RULES, ForwardOfCode
from .specialization import Specialization

Tensor = Any
ONE_OUTPUT = optree.tree_structure(0)


class RuleUnder(Recipe):
    """An activation whose backward is a rule; without a rule, its own derivative.

    The rule is captured by itself, once for all activations: there are graphs instead of code.

    Attributes:
        runtime: the names of the rule's run-time params.
    """

    gives_like_input: ClassVar[bool] = True
    native: bool | None = None
    fused: Fused = "auto"
    runtime: tuple[str, ...] = ()
    subject: str = ""
    title: str = ""

    def __init__(self, specialization: Specialization | None, forward: Forward) -> None:
        self.specialization, self.forward = specialization, forward
        if specialization is None:
            self.name = f"d({forward.name}) under {forward.name}"
            self.subject = self.title = f"activation {forward.name!r}"
        else:
            rule: Any = specialization.rule
            self.name = f"{rule.name} under {forward.name}"
            self.native, self.fused = rule.native, rule.fused
            self.runtime, self.subject = specialization.runtime, specialization.subject
            self.title = f"{self.subject} under {forward.name}"

    @property
    def signature(self) -> inspect.Signature:
        """The input, then the run-time params."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(n, kind) for n in ("tin", *self.runtime)])

    def lay_out(
        self, parameters: inspect.Signature | None, leaves: Sequence[Any], tree: Any
    ) -> Layout:
        """Return the layout of the input and the params, which are numbers even if tensors."""
        x = leaves[0]
        if isinstance(x, Value):
            dtype = x.node.type.dtype
        else:
            if self.specialization is not None:
                check_float(x, self.specialization.rule)
            dtype = dtype_name(x.dtype)
        rows = [Leaf("tensor", "tin", "tin", dtype)]
        rows += [Leaf("number", name, name) for name in self.runtime]
        return lay_out(tree, rows)

    def check(self, backend: Backend, leaves: Sequence[Any]) -> None:
        """Check the params: numbers against their ranges, tensors against the input."""
        values = tuple(leaves[1:])
        if any(type(value) is not float for value in values):
            check_values(self.subject, self.runtime, backend, leaves[0], values)
            values = tuple(map(as_number, values))
        if self.specialization is not None:
            self.specialization.check_numbers(values)

    def capture(self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]) -> Variant:
        # The specialization itself knows what its code reads besides the arguments.
        own = {fact: value for fact, value in facts.items() if not is_read(fact)}
        forward = self.forward.graph_for(own)  # outside `try`: its failure is not the rule's
        if leaves and not isinstance(leaves[0], Value):
            self.forward.prove(leaves[0])
        try:
            with self._calling(leaves):
                graphs = self.graphs(own, forward)
        except TraceError as error:
            raise NotCaptured(error) from error.__cause__
        # What the rule's code read becomes facts of this Function, too.
        if self.specialization is not None and not self.specialization.reads <= facts.keys():
            raise NeedsConcrete(*self.specialization.reads, noted=False)
        return Variant(graphs, layout, ONE_OUTPUT, {}, dict(facts))

    def graphs(self, facts: Mapping[str, Any], forward: Graph | None = None) -> FunctionGraph:
        """Return its graphs under facts about the input; the forward's may be known."""
        specialization = self.specialization
        forward = forward or self.forward.graph_for(facts)
        if specialization is None:
            return FunctionGraph(self.name, forward, self.forward.derivative(), is_rule=True)
        if not specialization.facts <= facts.keys():  # by a capture before this one
            raise NeedsConcrete(*specialization.facts, noted=False)
        backward = specialization.graph(True, facts)
        rule: Any = specialization.rule
        return FunctionGraph(
            self.name,
            forward,
            backward,
            rule.first_order,
            is_rule=True,
            residuals=rule.residuals,
        )

    def prove(self, variant: Variant, leaves: Sequence[Any], *, is_call: bool = False) -> str:
        """Compare the rule with its graph, in the dtype of a call or on its input (`is_call`)."""
        if self.specialization is None or not leaves or isinstance(leaves[0], Value):
            return ""
        own = {fact: value for fact, value in variant.facts.items() if not is_read(fact)}
        with self._calling(leaves):
            if is_call:
                self.specialization.prove_call(True, own)
                return ""
            try:
                self.specialization.prove_dtype(True, own)
            except TraceError as error:
                raise NotCaptured(error) from error
        return ""

    def _calling(self, leaves: Sequence[Any]) -> AbstractContextManager[None]:
        # A proof runs on values like those of this call.
        if self.specialization is None or not leaves or isinstance(leaves[0], Value):
            return nullcontext()
        return calling(leaves[0], self.specialization.params(tuple(leaves[1:])))

    def give_up(self, error: TraceError) -> None:
        """Let the rule run as written; it says why when it fails."""
        assert self.specialization is not None
        self.specialization.give_up(error)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        """Run the activation, and the rule as written if a gradient is asked for."""
        tin, *values = args
        backend, specialization = backend_of(tin), self.specialization
        assert specialization is not None

        def pull(grad_out: Tensor, ctx: Any = None) -> tuple[Any, ...]:
            gradient = specialization.run_as_it_is(ctx, grad_out, tin, tuple(values))
            return gradient, *[None] * len(values)

        return Recorded(forward_on(backend, self.forward)(tin), pull, takes_ctx=True)


# The named activations as plain functions, by backend and name.
_forwards: dict[tuple[str, str], Callable[..., Any]] = {}


def forward_on(backend: Backend, forward: Forward) -> Callable[[Tensor], Tensor]:
    if isinstance(forward, ForwardOfCode):
        build = partial(lower_code, forward, backend)
        return build_once(forward.lowered, backend.name, build)
    key = (backend.name, forward.name)
    function = _forwards.get(key)
    return function or _forwards.setdefault(key, lower_forward(forward, backend))


def lower_code(forward: ForwardOfCode, backend: Backend) -> Callable[[Tensor], Tensor]:
    """Return a function lowered to a backend; itself, if its graph depends on the input."""
    try:
        return lower_forward(forward, backend)
    except TraceError:
        return forward.function


# The Functions of activations without a rule, by the activation's name.
_derived: dict[str, Function] = {}


def put_under(specialization: Specialization | None, forward: Forward) -> Function:
    """Return a rule under an activation as a Function of the input and the run-time params.

    There is one for each pair. Without a rule, it is the activation with its true derivative, or
    with the gradient of its own.
    """
    if isinstance(forward, ForwardOfCode):
        if specialization is None:
            return forward.function
        build = partial(Function, RuleUnder(specialization, forward))
        return build_once(forward.under, specialization, build, MOST_RULES)
    known = _derived if specialization is None else specialization.under
    function = known.get(forward.name)
    if function is None:
        function = Function(RuleUnder(specialization, forward))
        if specialization is not None:
            # The graphs are the code's, and outlive this Function.
            captures = function.captures
            captures.variants = specialization.variants.setdefault(forward.name, captures.variants)
        function = known.setdefault(forward.name, function)
    return function


def record_under(specialization: Specialization | None, forward: Forward, *inputs: Any) -> Value:
    """Record a rule under an activation, of the input and the run-time params, in a capture."""
    function = put_under(specialization, forward)
    return inline(function.entries, function.draws, *flatten(inputs, {}))
