"""`RuleCaptures`: how a rule becomes graphs, alone or under a forward.

A rule is the backward of a function that returns its input (`RuleAsBackward`): it is captured,
proven and kept as one, and its graph is the backward's, which serves under every activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import GradientError, RuleError, TraceError
from ..backend.contract import Backend
from ..functions.arguments import Layout, Leaf, lay_out_flat
from ..functions.captures import Captures
from ..functions.plain import call_plainly
from ..functions.recipe import (
    KEY,
    GraphSource,
    NotCaptured,
    Options,
    Recipe,
    Recorded,
    Variant,
    library_of,
)
from ..ir.graph import Graph
from ..ir.op import dtype_name, is_number
from ..ir.questions import crossing, note
from ..lowering.derivatives import draw_in, replay
from ..lowering.forwards import Forward
from ..lowering.function_graph import FunctionGraph
from ..lowering.lower import emit_rule_once
from ..passes.facts import GIVEN, LIBRARY
from ..passes.simplify import without_memory
from ..support.lazy_modules import of_engine, provided
from ..support.threads import build_once
from ..trace.lookups import is_read, look_up_all, now
from ..trace.source import BRANCHES, TENSORS, Reading
from ..trace.trace import NeedsConcrete, Trace, Value, setting

if TYPE_CHECKING:
    from .specialization import Specialization

Tensor = Any
Rule = Any  # of rule.py, which imports this module
SHAPES = ((), (5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2))  # by rank, no two axes alike


# --- what it was captured as ----------------------------------------------------------------------
class RuleCaptures(Captures):
    """What a rule was captured as: alone, or under a forward.

    In three steps, each kept: `known` captures and proves the rule as the backward of the identity;
    `alone` reduces that to the rule's own inputs; `join` puts it under a forward. Without a call,
    as where another capture records the rule, the proof takes a `MadeUp` tensor.

    Attributes:
        has_tin: whether the rule gets its input.
        forward: that under which it is; None: it is alone.
    """

    def __init__(
        self,
        specialization: Specialization,
        has_tin: bool = True,
        recipe: Recipe | None = None,
        forward: Forward | None = None,
    ) -> None:
        rule, findings = specialization.rule, specialization.code.findings[has_tin]
        if recipe is None:
            source = RuleAsBackward(specialization, has_tin).recipe()
        else:
            source = specialization.captures[has_tin].source
        super().__init__(recipe or source, rule.prove, rule.__module__, findings, source)
        self.specialization, self.has_tin, self.forward = specialization, has_tin, forward

    def anew(self) -> RuleCaptures:
        return self  # which are those of all equal rules

    def lay_out(self, x: Tensor) -> Layout:
        """Return the layout of a call with a tensor like this; its params are numbers even if they
        are given as tensors.
        """
        dtype = x.node.type.dtype if isinstance(x, Value) else dtype_name(x.dtype)
        rows = [Leaf("tensor", "tin" if self.has_tin else "grad_out", "tin", dtype)]
        rows += [Leaf("number", name, name) for name in self.specialization.runtime]
        return lay_out_flat(rows)

    def for_facts(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return what runs for a layout under these facts, captured and proven once."""
        variant = self.known(layout, facts, leaves)
        runs = self.alone(variant)
        if self.forward is not None:
            build = partial(self.join, runs, self.forward.graph(), {})
            runs = build_once(runs.lowered, self.forward.key, build)
        return runs.laid_out(variant.layout)

    def known(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return the variant as it was captured, proven."""
        sample = self._sample(facts, *leaves)
        if not isinstance(sample[0], MadeUp):
            return self.proven(super().for_facts(layout, facts, sample), layout, sample, facts)
        symbols = leaves if any(isinstance(leaf, Value) for leaf in leaves) else ()
        variant = super().for_facts(layout, facts, symbols)
        if variant.proofs:  # a call's says more than one on a tensor that is made up
            return variant
        return self.proven(variant, self.lay_out(sample[0]), sample, facts)

    def compare(self, variant: Variant, leaves: Sequence[Any], *, is_call: bool = True) -> None:
        own = {fact: variant.facts[fact] for fact in variant.facts if fact in self.findings.facts}
        facts = {**own, **look_up_all(own)}
        known, sample = self.known(variant.layout, facts, leaves), self._sample(facts, *leaves)
        super().compare(known, sample, is_call=is_call)

    def _sample(self, facts: Mapping[str, Any], x: Tensor = None, *values: Any) -> tuple[Any, ...]:
        # Numbers of the capture come first, then those of the call, then the defaults.
        rule, numbers = self.specialization.rule, []
        for name, value in zip_longest(self.specialization.runtime, values):
            number = facts.get(f"param:{name}", value)
            if not isinstance(number, int | float):
                param = rule.signature.params.get(name)
                number = None if param is None else param.default
            # 0.75 is no edge of a common formula, as 0 and 1 are.
            numbers.append(float(number) if isinstance(number, int | float) else 0.75)
        return made_up(facts) if x is None or isinstance(x, Value) else x, *numbers

    def alone(self, variant: Variant) -> Variant:
        """Return the variant of the rule alone, whose graph takes only the rule's own inputs.

        Raises:
            NeedsConcrete: other facts are needed, as shards need of the whole array.
            NotCaptured: the graph leaves out what the rule's code does.
        """
        try:
            return build_once(variant.lowered, "alone", partial(self._alone, variant))
        except NeedsConcrete as need:
            self.require(need.facts)
            raise

    def _alone(self, variant: Variant) -> Variant:
        rule, code = self.specialization.rule, self.specialization.code
        if not variant.is_whole and (problem := find_omission(self.source, variant)):
            raise NotCaptured(TraceError(f"{self.recipe.subject}: {problem}"))
        graph, origin = bare_graph(variant.graphs, self.has_tin), variant.graphs.forward.origin
        code.draws |= graph.input("key") is not None
        code.libraries |= {variant.facts[LIBRARY]} if variant.facts.get(LIBRARY) else set()
        if rule.shards is not None:
            graph = over_shards(graph, rule.shards, variant.facts)
        # A new graph says the same about the proof.
        graphs = replace(variant.graphs, backward=replace(graph, origin=origin))
        return replace(variant, graphs=graphs, lowered={})

    def join(self, alone: Variant, graph: Graph, facts: Mapping[str, Any]) -> Variant:
        """Return the variant of a rule alone with a forward, whose graph is under further facts."""
        rule = self.specialization.rule
        graphs = FunctionGraph(
            self.recipe.name,
            graph,
            alone.graphs.backward,
            rule.first_order,
            second_order=alone.graphs.second_order,
            is_rule=True,
            residuals=rule.residuals,
        )
        # Code that branches runs as written where its gradient may be differentiated.
        omissions = {kind: words for kind, words in alone.omissions.items() if kind == BRANCHES}
        facts = {**alone.facts, **facts}
        return replace(alone, graphs=graphs, omissions=omissions, facts=facts, lowered={})


# --- a rule as the backward of a function ---------------------------------------------------------
class RuleAsBackward:
    """A function that returns its input, whose backward is a rule: what its recipe calls.

    Its arguments are the tensor and the run-time params. A composed rule is made of the graphs of
    its parts, each of which is proven alone.

    Attributes:
        has_tin: whether the rule gets the tensor as `tin`.
        functions: the rule's function; none of a composed rule.
    """

    def __init__(self, specialization: Specialization, has_tin: bool) -> None:
        self.specialization, self.rule, self.has_tin = specialization, specialization.rule, has_tin
        self.functions = () if self.rule.function is None else (self.rule.function,)

    def recipe(self) -> Recipe:
        rule, prove = self.rule, None if self.functions else self.prove_parts
        return Recipe(
            rule.name,
            self.run,
            self.record,
            functions=() if hasattr(rule.function, "record") else self.functions,  # of a document
            written_in=rule.library or partial(library_of, tuple(functions_of(rule))[:1], ""),
            subject=f"rule {rule.name!r}",
            noun="rule",
            options=Options(native=rule.native),
            graphs=GraphSource(prove=prove, lower=self.lower),
        )

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return Recorded(args[0], partial(self._pull, args), takes_ctx=True)

    def _pull(self, args: tuple[Any, ...], grad_out: Tensor, ctx: Any = None) -> tuple[Any, ...]:
        rule, tin, params = self._inputs(args)
        return self._gradients(rule._run_native(ctx, grad_out, tin, params), args)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        trace.source.numbers.update(filter(is_number, self.specialization.static.values()))
        pull = partial(self._record_backward, trace, args)
        return Recorded(args[0], pull, first_order=self.rule.first_order)

    def _record_backward(
        self, trace: Trace, args: tuple[Any, ...], grad_out: Value
    ) -> tuple[Any, ...]:
        rule, tin, params = self._inputs(args)
        # The methods of a composed rule's parts may be those of the call's tensors.
        reading = trace.reading if self.functions else Reading((), TENSORS)
        with setting(trace, reading=reading):
            returned = record_code(rule, trace, grad_out, tin, params)
        return self._gradients(returned, args)

    def _inputs(self, args: tuple[Any, ...]) -> tuple[Rule, Any, dict[str, Any]]:
        # The rule, and what it gets besides the gradient.
        tin, *values = args
        specialization = self.specialization
        rule, params = specialization.fill_bound(specialization.name_values(values))
        return rule, tin if self.has_tin else None, params

    def _gradients(self, returned: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (gradient_of(self.rule.name, returned), *[None] * (len(args) - 1))

    def lower(
        self, graphs: FunctionGraph, backend: Backend
    ) -> Callable[[Tensor, Sequence[Any]], Tensor]:
        graph = bare_graph(graphs, self.has_tin)
        function = emit_rule_once(graph, backend, self.specialization.code.entries)
        key, first = (KEY,) if graphs.is_random else (), 0 if self.has_tin else 1

        # It is kept longer than the rule, to which it must not refer.
        def pull(grad_out: Tensor, leaves: Sequence[Any]) -> Tensor:
            return function(grad_out, *leaves[first:], *key)

        return pull

    def prove_parts(
        self, recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool
    ) -> str:
        x, *values = leaves
        filled = self.specialization.fill_bound(self.specialization.name_values(values))
        for part, given in parts_of(*filled):
            bound = part.copy(ranges={}, bound={}).bound_rule(given)
            captures = bound.specialization.captures[self.has_tin]
            part_leaves = (x, *bound.values)
            numbers = {f"param:{name}": value for name, value in bound.numbers.items()}
            known = {**variant.facts, **numbers}
            facts = {fact: known[fact] for fact in asked_of_input(captures.facts) & known.keys()}
            captured = bound.specialization.variant(self.has_tin, facts, part_leaves)
            if is_call:
                captures.compare(captured, part_leaves)
        return ""


def record_code(
    rule: Rule, trace: Trace, grad_out: Value, tin: Value | None, params: Mapping[str, Any]
) -> Any:
    """Record what a rule's code does, or what its parts do, in a capture."""
    if rule.function is None:
        for part, given in parts_of(rule, params):
            if part.shards is not None:
                raise RuleError(
                    f"rule {part.name!r} is used {part.shards} within {rule.name!r}: say it of "
                    "the composed rule, whose parts act on one array"
                )
            grad_out = record_rule(part, grad_out, tin, given)
        return grad_out
    # Schedules among the values are read now.
    values = {name: now(value) for name, value in {**params, **rule.bound}.items()}
    if rule.native is True:
        raise TraceError(f"rule {rule.name!r} runs as written (native=True)")
    if hasattr(rule.function, "record"):  # of a document: no source to prepare
        return rule.function.record(trace, grad_out, tin, values)
    if trace.source.is_plain:
        return call_plainly(rule.function, trace, None, grad_out, tin, **values)
    return run_rule(rule.library, rule.function, trace, None, grad_out, tin, **values)


def record_rule(rule: Rule, grad_out: Value, tin: Value | None, params: Mapping[str, Any]) -> Any:
    """Record a rule in the capture to which its tensors belong; params may be values there."""
    symbols = {name: value for name, value in params.items() if isinstance(value, Value)}
    examples = dict.fromkeys(symbols, 1.0)  # any value will do: they are inputs of the graph
    bound_rule = rule.copy(ranges={}, bound={}).bound_rule({**params, **rule.bound, **examples})
    values = {**bound_rule.numbers, **symbols}
    ordered = [now(values[name]) for name in bound_rule.specialization.runtime]
    trace, captures = grad_out.trace, bound_rule.specialization.captures[tin is not None]
    leaves = (grad_out if tin is None else tin, *ordered)
    try:
        with crossing(NeedsConcrete):
            variant = captures.for_symbols(trace, captures.lay_out(leaves[0]), leaves)
    except NotCaptured as error:
        raise note(error.error) from error.__cause__
    (graph,), keys = draw_in(trace, variant.graphs.backward)
    numbers = dict(zip(bound_rule.specialization.runtime, ordered, strict=True))
    return replay(trace, graph, {"grad_out": grad_out, "tin": tin, **numbers, **keys})[0]


@provided
def find_omission(recipe: Recipe, variant: Variant) -> str:
    """Return what a rule's graph leaves out that its code does; "": nothing that shows."""
    return ""


@provided
def run_rule(
    library: str, function: Callable[..., Any], trace: Trace, /, *args: Any, **params: Any
) -> Any:
    """Call a rule's function in a trace; the core calls it as it is."""
    return call_plainly(function, trace, *args, **params)


over_shards = of_engine(__name__, "over_shards", "a rule over shards", RuleError)


def bare_graph(graphs: FunctionGraph, has_tin: bool) -> Graph:
    """Return the graph of a rule alone: `grad_out, [tin], *params, [key] -> the gradient`."""
    backward = without_memory(graphs.backward)
    inputs = (each for each in backward.inputs if has_tin or each.attr("name") != "tin")
    return replace(backward, inputs=tuple(inputs))


def parts_of(rule: Rule, params: Mapping[str, Any]) -> Iterator[tuple[Rule, dict[str, Any]]]:
    """Yield the rules with code of which a rule is composed, in order, with values for params."""
    values = {**params, **rule.bound}
    if rule.function is not None:
        yield rule, rule.signature_of_function.select(values)
        return
    for part in rule._resolved_parts():
        yield from parts_of(part, part.signature.select(values))


def gradient_of(rule: str, returned: Any) -> Any:
    """Return the one gradient that a rule has returned, which may be in a tuple."""
    if isinstance(returned, tuple | list) and len(returned) == 1:
        returned = returned[0]
    if returned is None or isinstance(returned, tuple | list):
        words = "None" if returned is None else f"a {type(returned).__name__}"
        raise GradientError(
            f"rule {rule!r} returned {words}; expected the gradient, a tensor like tin. For zero "
            "write xp.zeros_like(grad_out)"
        )
    return returned


class MadeUp(NamedTuple):
    """Stands for a tensor where there is no call."""

    shape: tuple[int, ...]
    dtype: str


def made_up(facts: Mapping[str, Any]) -> MadeUp:
    rank = facts.get("ndim", 2)
    shape = facts.get("shape") or (SHAPES[rank] if rank < len(SHAPES) else (2,) * rank)
    return MadeUp(tuple(shape), facts.get("dtype", "float32"))


def functions_of(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield rule.function
    for part in rule._resolved_parts():
        yield from functions_of(part)


def asked_of_input(facts: Iterable[str]) -> frozenset[str]:
    """Return the facts that a call tells, of all that captures have asked for."""
    return frozenset(fact for fact in facts if not is_read(fact) and fact not in GIVEN)
