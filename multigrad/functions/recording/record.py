"""The capture of a Function: its recipe, run on symbols, becomes a pair of graphs.

A `Recipe` says how to run a function: on symbolic values it returns the outputs, and a map from
their cotangents to gradients. Forward and backward are recorded in one trace, so that what they
share is one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from ...backend.discovery import in_use
from ...capture.copies.capture import Witness, has_number_from_elsewhere
from ...capture.dialect import find_dialect, load_dialects
from ...capture.dialects import xp as xp_dialect
from ...capture.foreign_calls import describe_routes, intercepting
from ...capture.meanings.places import Extremes
from ...capture.meanings.rolled import roll
from ...capture.taken_gradients import passing, prepare
from ...capture.user_code.libraries import written_in
from ...capture.values.indexing import Picked
from ...capture.values.library_types import LibraryTypes
from ...capture.values.oracle import ModeOf, keeping_modes
from ...capture.values.tracer import Attributed, V
from ...errors import GradientError, MultigradError, TraceError
from ...graph import ops
from ...graph.ir import questions
from ...graph.ir.graph import Graph, Node, every_node
from ...graph.ir.types import FLOAT8, FLOAT_SCALAR, INT64, INT_SCALAR, is_float
from ...graph.passes.residuals import drop_marks, given_by_forward, marks
from ...graph.passes.simplify import simplify, without_stops
from ...graph.support.class_bases import dataclass
from ...graph.support.trees import optree
from ...lowering.function_graph import FunctionGraph, numbered
from ...trace.assertions import ENTRANCES, ORDERS
from ...trace.axes import known_shape
from ...trace.derived.derivatives import accumulate_all
from ...trace.lookups import NAME, names_in, reading
from ...trace.python_protocols import Pair
from ...trace.source import lend
from ...trace.trace import NeedsConcrete, Trace, Value, constant
from ...trace.xp import all as xp
from ..calls.arguments import Layout, Leaf, flatten_outputs, type_of
from ..calls.binding import is_told
from ..calls.capture_errors import NotCaptured, defined_at, explain, is_users_own
from ..calls.effects import (
    COPIES,
    Update,
    changes_containers,
    describe_updates,
    find_aliases,
    find_notes,
    find_updates,
    has_containers,
    hide_updates,
)
from ..calls.facts import facts_of_inputs, gather_facts
from ..calls.gradients import check_gradient, match_gradients, modes_of
from ..calls.imported_gradients import tangent_graph
from ..calls.recipe import Recipe, Recorded, Variant
from ..proof.verdicts import ProofSubject, leave_open
from .branch_paths import BranchPath, record_paths
from .recapture import check_draws, check_memory, check_tensors, compare_missing, refusing_read

Tensor = Any
OWN = __name__.partition(".")[0]
# What is being captured, from the outside in: a capture that needs itself would never end.
_in_progress: ContextVar[tuple[Any, ...]] = ContextVar("multigrad_in_progress", default=())


def capture_function(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Run a recipe on symbolic values and return its simplified graphs.

    They may have more facts than these: code asked for some that a call's leaves tell.

    Raises:
        NeedsConcrete: Python needed something concrete that is not among the facts.
        NotCaptured: it reaches beyond what is captured.
        GradientError: its gradients do not fit its arguments.
        Exception: what the user's own code raised.
    """
    in_use()  # a framework imported by now has its dialect registered
    load_dialects()
    now = (recipe, layout.key, tuple(facts.items()))
    if any(now == other for other in _in_progress.get()):
        message = f"function {recipe.name!r} applies itself to arguments like its own"
        raise AppliesItself(TraceError(message))
    reset = _in_progress.set((*_in_progress.get(), now))
    try:
        with (
            keeping_modes(),
            intercepting(),
            passing() as watched,
            reading() as reads,
            refusing_read(recipe.name, watched),
        ):
            variant = record_paths(partial(_capture, recipe, layout, facts, leaves))
    finally:
        _in_progress.reset(reset)
    # What the code read besides its arguments must be among the facts.
    new = {fact for fact, meaning in reads.items() if facts.get(fact, reads) != meaning}
    if not new:
        return variant
    names = {NAME + each.name for each in names_in(reads) if not each.superseded}
    if not all(fact in names or isinstance(fact, ModeOf) for fact in new):
        raise NeedsConcrete(*reads, noted=False)
    # What libraries are set to was the same all along, and what names of rules mean: that holds
    # for what was captured.
    return replace(variant, facts={**variant.facts, **{fact: reads[fact] for fact in new}})


def _capture(
    recipe: Recipe,
    layout: Layout,
    facts: Mapping[str, Any],
    leaves: Sequence[Any],
    path: BranchPath,
) -> tuple[Trace, Variant]:
    recording = _Recording(recipe, layout, facts, path)
    if leaves and not any(isinstance(leaf, Value) for leaf in leaves):

        def find(needed: Sequence[str]) -> dict[str, Any]:
            gathered = gather_facts(recipe.subject, frozenset(needed), layout, leaves)
            return {fact: gathered[fact] for fact in needed}

        recording.trace.facts.find = find
    variant = recording.run_asking()
    trace = recording.trace
    # Code that looks at memory is recorded for tensors that are not contiguous, too.
    if trace.memory.is_asked:
        check_memory(variant, _Recording(recipe, layout, trace.facts, BranchPath(path.decisions)))
    statics = {leaf.name: leaf.value for leaf in layout.leaves if leaf.kind == "static"}
    is_suspect = has_number_from_elsewhere(recording.graphs, trace, statics)
    # Something may have come from outside the arguments: a second recording must be the same.
    if trace.source.witness.is_suspect or trace.memory.lifted or is_suspect:
        again = _Recording(recipe, layout, trace.facts, BranchPath(path.decisions), recording)
        with trace.source.witness.outside.dropping_added():
            other = again.run_asking()
        check_tensors(trace, again.trace)
        drew = trace.source.witness.outside.moved and again.trace.source.witness.outside.moved
        check_draws(trace, variant, other, drew=drew)
    graphs = variant.graphs.without_needless_marks()
    return trace, variant if graphs is variant.graphs else replace(variant, graphs=graphs)


class AppliesItself(NotCaptured):
    """A function applies itself to arguments like those for which it is being captured."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A forward that has run on symbols.

    Attributes:
        leaves: the symbols of the arguments, and the values of the static ones; `named` by name.
        rebuilt: the arguments and keywords made of them.
        flat: the outputs that the recipe returned, of the nesting `outputs`.
        updates: what it wrote into the arguments.
        dirty: the arguments that the author says are written into.
    """

    leaves: list[Any]
    rebuilt: tuple[tuple[Any, ...], dict[str, Any]]
    named: dict[str, Any]
    recorded: Recorded
    flat: list[Any]
    outputs: Any
    updates: tuple[Update, ...]
    dirty: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """The outputs of a run: `fixed` by position, the symbols of the others, and their tensors."""

    fixed: dict[int, Any]
    symbols: list[Value]
    values: list[Value]
    undifferentiable: tuple[int, ...]


class _Recording:
    """One run of a recipe on symbolic values; `first` is an earlier run of the same."""

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout,
        facts: Mapping[str, Any],
        path: BranchPath,
        first: _Recording | None = None,
    ) -> None:
        self.recipe = recipe
        self.first = first
        self.derived: tuple[Any, ...] = ()  # of which nodes, and what `derivative` gave
        self.layout = layout
        self.is_imported = recipe.imported is not None
        kind = "imported function" if self.is_imported else "function"
        self.trace = prepare(Trace(recipe.name, facts, Attributed, kind, xp_dialect))
        self.trace.source.defined = defined_at(recipe.functions)
        self.trace.types = LibraryTypes(self.trace)
        self.trace.limits.branch_path = path
        self.inputs: dict[str, Node] = {}
        self.graphs: tuple[Graph, ...] = ()
        self.facts = dict(facts)

    def run_asking(self) -> Variant:
        """Run the recipe; raise what symbols could not answer, even if user code caught it."""
        statics = [leaf.value for leaf in self.layout.leaves if leaf.kind == "static"]
        witness = self.trace.source.witness = Witness(self.trace, self.recipe.functions, statics)
        try:
            with witness, questions.asking():
                variant = self.run()
            witness.refuse_escaped_symbols()
        except TraceError as error:
            raise NotCaptured(error, self.trace.limits.omissions) from error.__cause__
        return variant

    def run(self) -> Variant:
        run = self.run_forward()
        notes = self.attempt(lambda: find_notes(self.trace, run.named, run.flat))
        results = self.find_results(run)
        cotangents = numbered("grad_out", len(results.values))
        gradients, wrt = self.gradients(run, results, cotangents)
        if has_containers(*run.rebuilt) and changes_containers(
            self.layout.rebuild(run.leaves), run.rebuilt
        ):
            problem = "changes a list or dict that it is given, which a graph does not"
            raise NotCaptured(self.trace.error(problem))
        graphs = self.pair(run, results, cotangents, gradients, wrt)
        trace = self.trace
        facts = dict(sorted({**self.facts, **trace.facts.told}.items()))  # as they are gathered
        weak, assumed = trace.types.weak, trace.limits.assumed
        return Variant(
            graphs,
            self.layout,
            run.outputs,
            results.fixed,
            facts,
            omissions=dict(trace.limits.omissions),
            weak=tuple(i for i, each in enumerate(results.values) if each.node in weak),
            assumed=tuple(each for each in assumed if is_told(each.node, self.layout)),
            notes=notes,
            updates=run.updates,
            combines=trace.backward.combines,
            reach=None if "dtype" in facts else trace.types.reach,
        )

    def run_forward(self) -> _Run:
        """Run the recipe on symbols of its arguments, and check what it writes into them."""
        trace, layout = self.trace, self.layout
        leaves = [self.symbol(leaf) for leaf in layout.leaves]
        trace.facts.is_fresh = True
        before = [leaf.node if isinstance(leaf, Value) else None for leaf in leaves]
        rebuilt = layout.rebuild(leaves)
        record = self.recipe.record
        assert record is not None  # `capture` has the graphs of others
        recorded = self.attempt(lambda: record(trace, *rebuilt))
        returned = recorded.outputs
        flat, outputs = flatten_outputs(
            tuple(returned) if isinstance(returned, Extremes) else returned
        )
        updates = find_updates(layout.leaves, leaves, before, flat, recorded.dirty)
        named = {leaf.name: symbol for leaf, symbol in zip(layout.leaves, leaves, strict=True)}
        dirty = recorded.dirty
        if self.recipe.options.copies:  # each copy is what the code has made of it
            dirty = tuple(named[update.leaf.name] for update in updates)
        elif self.is_imported:  # by somebody else, who may not be told to copy
            hide_updates(updates, named, self.inputs)
        else:
            self.check_updates(updates)
        self.check_dtypes(flat)
        outcome = {"outputs": outputs, "updates": updates, "dirty": dirty}
        return _Run(leaves, rebuilt, named, recorded, flat, **outcome)

    def find_results(self, run: _Run) -> _Results:
        """Split the outputs into tensors, and values that are the same at every call."""
        fixed = {i: each for i, each in enumerate(run.flat) if not isinstance(each, Value)}
        for i, each in fixed.items():
            fixed[i] = self.check_output(each)
        # Objects tell the outputs apart: equal values are one node.
        symbols = [each for each in run.flat if isinstance(each, Value)]
        values = [
            self.trace.value(each.node) if each.node.type.kind == "tensor" else self.number(each)
            for each in symbols
        ]
        if run.recorded.rolls and not self.trace.backward.combines:
            values = roll(self.trace, values)
        if not values:
            raise NotCaptured(self.trace.error("returns nothing that it computed from its tensors"))
        constant = run.recorded.undifferentiable
        undifferentiable = tuple(
            i
            for i, each in enumerate(symbols)
            if is_float(each.node.type) and any(each is own for own in constant)
        )
        return _Results(fixed, symbols, values, undifferentiable)

    def pair(
        self,
        run: _Run,
        results: _Results,
        cotangents: tuple[str, ...],
        gradients: tuple[Node, ...],
        wrt: tuple[str, ...],
    ) -> FunctionGraph:
        trace, layout, recorded = self.trace, self.layout, run.recorded
        viewed, copied = find_aliases(results.symbols, run.leaves)
        pushed, is_pushed_first = self.pushed(run, results)
        inputs = self.all_inputs()
        nodes, locations = tuple(each.node for each in results.values), trace.source.locations
        forward = drop_marks(Graph(trace.name, inputs, nodes, locations))
        backward = Graph(trace.name, (*self.heads(cotangents), *inputs), gradients, locations)
        has_second = recorded.second_order
        second_order = has_second if isinstance(has_second, bool) else has_second()
        # What is never differentiated needs no stops.
        if trace.backward.is_once or not second_order:
            backward = without_stops(backward)
        self.graphs = forward, backward
        lend(trace)
        if calls := ", ".join(trace.types.unconfirmed):
            note_open(self.recipe, f"no library says what dtype these give: {calls}")
        is_once = trace.backward.lost_gradient or trace.backward.is_once
        graphs = FunctionGraph(
            trace.name,
            replace(simplify(forward), origin=describe_routes(trace)),
            simplify(backward),
            first_order=recorded.first_order,
            inputs=tuple(leaf.name for leaf in layout.tensors),
            cotangents=cotangents,
            wrt=wrt,
            keeps_output=recorded.keeps_output or bool(marks(backward)),
            undifferentiable=results.undifferentiable,
            viewed=viewed,
            copied=copied,
            second_order=second_order and not is_once,
            refused=self.recipe.arguments.refused(layout),
            pushed=None if pushed is None else simplify(pushed),
            is_pushed_first=is_pushed_first,
        ).without_calls()
        # The original may have derivatives that its graph lacks.
        if self.is_imported and second_order and graphs.is_once and not self.recipe.options.copies:
            trace.omit(ORDERS)
        return graphs

    def check_updates(self, updates: Sequence[Update]) -> None:
        trace = self.trace
        for update in updates:
            argument = self.inputs[update.leaf.name]
            if argument in trace.memory.updates:
                advice = trace.words.advise(
                    f"work on a copy: {update.leaf.path}.clone()", f"give it capture={COPIES}"
                )
                what = f"{describe_updates(updates)}, which the caller would see in one framework"
                place = trace.memory.updates[argument]
                raise NotCaptured(trace.error(f"{what} only{advice}", place))

    def symbol(self, leaf: Leaf) -> Any:
        """Return the symbol for a leaf while it is recorded; a static leaf keeps its value."""
        if leaf.kind == "static":
            return leaf.value
        if leaf.kind == "number":
            value = self.trace.input(leaf.name, FLOAT_SCALAR)
            self.inputs[leaf.name] = value.node
            fact = f"param:{leaf.name}"
            return self.trace.value(constant(self.facts[fact])) if fact in self.facts else value
        value = self.trace.input(leaf.name, type_of(self.layout, leaf))
        self.inputs[leaf.name] = value.node
        return value

    def attempt(self, run: Callable[[], Any]) -> Any:
        """Run the user's code; what fails because it met a symbol is no error of the user's."""
        try:
            return run()
        except (NeedsConcrete, NotCaptured, GradientError):
            raise
        except TraceError as error:
            raise NotCaptured(error) from error.__cause__
        except MultigradError:
            raise
        except Exception as error:
            # See test_an_error_of_the_users_function_arrives_once_and_unchanged.
            if not self.is_imported and is_users_own(self.trace, error):
                raise
            raise explain(self.trace, self.layout, error) from error

    ENTRANCES.add(attempt.__code__)

    def check_output(self, output: Any) -> Any:
        """Return an output that is no symbolic value: a number, a word, None."""
        if isinstance(output, bool | int | float | str | type(None)):
            return output
        problem = f"returns a {type(output).__name__} that it did not compute from its arguments"
        if isinstance(output, Picked):
            advice = self.trace.words.advise("use xp.where(mask, x, 0)")
            problem = f"selects elements by a mask, so that the values decide on the size{advice}"
        elif isinstance(output, Pair):
            problem = "returns complex numbers: return their real and their imaginary part"
        raise NotCaptured(self.trace.error(problem))

    def check_dtypes(self, outputs: list[Any]) -> None:
        for value in (each for each in outputs if isinstance(each, V)):
            if (dtype := value.node.type.dtype) in FLOAT8:
                raise NotCaptured(
                    self.trace.error(f"returns {dtype}, which stays inside: cast to a float dtype")
                )

    def number(self, value: Value) -> Value:
        """Return a computed number as a tensor."""
        like = next((self.inputs[leaf.name] for leaf in self.layout.tensors), None)
        if like is None:
            raise NotCaptured(self.trace.error("returns a number"))
        zero = xp.sum(xp.zeros_like(self.trace.value(like)))
        # Libraries differ in the dtype of a whole number as a tensor.
        if value.node.type == INT_SCALAR:
            dialect = find_dialect(next(iter(self.trace.source.routes), ""))
            zero = xp.astype(zero, INT64 if dialect is None else dialect.habits.whole)
        return zero + value

    def heads(self, cotangents: tuple[str, ...]) -> tuple[Node, ...]:
        return tuple(self.inputs[name] for name in cotangents if name in self.inputs)

    def all_inputs(self) -> tuple[Node, ...]:
        leaves = [self.inputs[leaf.name] for leaf in (*self.layout.tensors, *self.layout.numbers)]
        return (*leaves, *(() if self.trace.key is None else (self.trace.key,)))

    def gradients(
        self, run: _Run, results: _Results, cotangents: tuple[str, ...]
    ) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        recorded, values, flat = run.recorded, results.values, run.flat
        leaves = [leaf for leaf in run.leaves if not any(leaf is each for each in run.dirty)]
        given: list[Any] = []
        for i, (value, name) in enumerate(zip(values, cotangents, strict=True)):
            if is_float(value.node.type) and i not in results.undifferentiable:
                cotangent = self.trace.input(name, value.node.type)
                self.inputs[name] = cotangent.node
                given.append(cotangent)
            else:
                zeros = xp.zeros_like(value)
                given.append(zeros if recorded.missing is None else recorded.missing(value))
        heads = self.heads(cotangents)
        if not heads:  # no output carries a gradient: nobody calls backward
            return (), ()
        if recorded.pull is None:
            return self.derivative(values, given)
        sources = {name: value for value, name in zip(values, cotangents, strict=True)}
        for name, value in sources.items():
            shape = known_shape(value)
            if shape is not None:
                self.trace.facts.update({f"shape:{name}": shape, f"ndim:{name}": len(shape)})
        marked, run_pull = results.symbols if recorded.keeps_output else (), recorded.pull

        def pull(given: list[Any]) -> dict[str, Node]:
            rest, asked = iter(given), questions.count()
            filled = [next(rest) if isinstance(each, Value) else None for each in flat]
            upstream = optree.tree_unflatten(run.outputs, filled)
            try:
                with (
                    written_in(self.trace, self.trace.source.latest.libraries),
                    given_by_forward(marked, leaves),
                    self.keeping_values(),
                ):
                    self.trace.backward.is_running = True
                    return self.matched(self.attempt(lambda: run_pull(upstream)))
            except NeedsConcrete as need:  # a cotangent has the shape of its output
                questions.forget(asked)
                raise NeedsConcrete(*facts_of_inputs(need.facts, sources)) from None

        # The pulls with missing cotangents must draw what this one draws.
        drawn = self.trace.draws
        gradients = pull(given)
        if recorded.missing is not None and len(heads) > 1:
            compare_missing(
                self.trace, pull, recorded.missing, given, gradients=gradients, drawn=drawn
            )
        return tuple(gradients.values()), tuple(gradients)

    @contextmanager
    def keeping_values(self) -> Iterator[None]:
        """Undo what a backward writes in place, as it may run again."""
        made = self.trace.source.witness.made  # weakly: a view that is dropped sees no more updates
        before = [(ref, value.node) for ref in made if (value := ref()) is not None]
        try:
            yield
        finally:
            for ref, node in before:
                value = ref()
                if value is not None:
                    value.node = node

    def pushed(self, run: _Run, results: _Results) -> tuple[Graph | None, bool]:
        """Return the graph of the author's tangent rule, and whether backward is its transpose."""
        rule = None if run.recorded.push is None else run.recorded.push()
        if rule is None:
            return None, False
        places = [i for i, each in enumerate(run.flat) if isinstance(each, Value)]
        carried = [
            (place, value)
            for i, (place, value) in enumerate(zip(places, results.values, strict=True))
            if is_float(value.node.type) and i not in results.undifferentiable
        ]
        tensors = [leaf.name for leaf in self.layout.tensors]
        graph = tangent_graph(
            self.trace, rule, self.all_inputs(), tensors, outputs=run.flat, carried=carried
        )
        return graph, graph is not None and rule.is_first

    def matched(self, returned: Any) -> dict[str, Node]:
        """Return the gradients that a backward returned, by the names of their inputs."""
        matched = match_gradients(self.trace.name, returned, self.layout)
        gradients: dict[str, Node] = {}
        for leaf, gradient in zip(self.layout.leaves, matched, strict=True):
            if leaf.kind != "tensor":
                continue
            argument = self.inputs[leaf.name]
            if not is_float(argument.type):
                continue
            value = self.attempt(
                lambda leaf=leaf, argument=argument, gradient=gradient: check_gradient(
                    self.trace, leaf, argument, gradient
                )
            )
            if value is not None:
                gradients[leaf.name] = value.node
        return gradients

    def derivative(
        self, values: list[Value], cotangents: list[Value]
    ) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Return the true derivative by the ops' VJPs."""
        of = tuple(value.node for value in (*values, *cotangents))
        # The first run had the same nodes, so their derivative is known.
        if self.first is not None and self.first.derived[:1] == (of,):
            return self.first.derived[1]
        if lost := self.trace.backward.lost_gradient:
            raise NotCaptured(
                self.trace.error(
                    f"takes the derivative of {lost}, whose own gradient is not captured. Give the "
                    "function a backward"
                )
            )
        floats = [
            leaf.name for leaf in self.layout.tensors if is_float(self.inputs[leaf.name].type)
        ]
        targets = [self.inputs[name] for name in floats]
        seeds = [
            (value.node, cotangent)
            for value, cotangent in zip(values, cotangents, strict=True)
            if is_float(value.node.type)
        ]
        by_name = modes_of(self.recipe.options.modes, self.layout)
        modes = {self.inputs[name]: mode for name, mode in by_name.items() if name in floats}
        gradients = accumulate_all(self.trace, seeds, targets, modes)
        nodes = [
            xp.zeros_like(self.trace.value(target)).node if gradient is None else gradient.node
            for target, gradient in zip(targets, gradients, strict=True)
        ]
        if all(node.op is not ops.CALL for node in every_node(Graph("", (), of))):  # of others
            self.derived = of, (tuple(nodes), tuple(floats))
        return tuple(nodes), tuple(floats)


def note_open(recipe: Recipe, reason: str) -> str:
    code = next((getattr(f, "__code__", None) for f in recipe.functions), None)
    return leave_open(ProofSubject(recipe.subject, code, OWN), reason)
