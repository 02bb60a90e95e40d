"""The capture of a Function: its recipe, run on symbols, becomes a pair of graphs.

A `Recipe` says how to run a function: on symbolic values it returns the outputs, and a map from
their cotangents to gradients. Forward and backward are recorded in one trace, so that what they
share is one node. The steps of `_Recording.run` follow one another, as the user's code leaves
notes in the trace while it runs, and each step reads those of the steps before:

    step             runs                     reads in the trace
    run_forward      the forward              memory.updates: inputs written to, and where
    find_results     -                        source.routes
    find_gradients   the backward, or VJPs    source.latest, witness.made; backward.lost_gradient
    build_graphs     the tangent rule         backward.is_once, source.locations; its own `inputs`
    Variant          -                        facts.told, limits.assumed, limits.omissions, types

A question that symbols cannot answer ends any step: `NeedsConcrete` repeats the capture with facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....core import xp as xp_dialect
from ....core.backend.discovery import in_use
from ....core.functions.arguments import Layout, Leaf
from ....core.functions.plain import check_gradient, with_reads
from ....core.functions.recipe import NotCaptured, Recipe, Recorded, Variant, defined_at
from ....core.ir import questions
from ....core.ir.graph import Graph, Node
from ....core.ir.op import FLOAT8, FLOAT_SCALAR, INT64, INT_SCALAR, is_float
from ....core.lowering.function_graph import FunctionGraph, numbered
from ....core.passes.facts import LIBRARY
from ....core.passes.simplify import simplify
from ....core.support.threads import set_within
from ....core.support.trees import optree
from ....core.trace.lookups import reading
from ....core.trace.source import ORDERS
from ....core.trace.trace import NeedsConcrete, Value, constant, known_shape
from ....core.trace.xp import all as xp
from ....errors import GradientError, MultigradError, TraceError
from ...capture.copies.witness import Witness, has_number_from_elsewhere
from ...capture.dialect import find_dialect, habits_of, load_dialects
from ...capture.foreign_calls import describe_routes, intercepting
from ...capture.meanings.places import Extremes
from ...capture.taken_gradients import passing, prepare
from ...capture.user_code.libraries import told_library, written_in
from ...capture.user_code.reachable import find_reads, noting_reads
from ...capture.user_code.reads import LOOSE, moved, numbers_moving
from ...capture.values.library_types import LibraryTypes
from ...capture.values.memory import given_by_forward, held_values, mark_copies, node_in_memory
from ...capture.values.oracle import keeping_modes
from ...capture.values.tracer import Attributed, V
from ...lowering.cuts import without_calls, without_needless_marks
from ...passes.memory import without_kept
from ...passes.residuals import drop_marks, find_unkept, find_unread, marks, without_stops
from ...trace.code_trace import ENTRANCES, CodeTrace, lend
from ..calls.arguments import flatten_outputs, type_of
from ..calls.assumptions import is_told
from ..calls.effects import (
    COPIES,
    Update,
    changes_containers,
    describe_updates,
    find_notes,
    find_updates,
    has_containers,
    hide_updates,
    told_apart,
)
from ..calls.explained_errors import explain, is_users_own
from ..calls.facts import find_facts, find_lengths
from ..calls.gradient_matching import match_gradients
from ..calls.imported_gradients import tangent_graph
from .derivative import facts_of_inputs, true_derivative
from .recapture import (
    BranchPath,
    check_draws,
    check_memory,
    check_output,
    check_tensors,
    compare_missing,
    note_open,
    record_paths,
    refusing_read,
)

# What is being captured, from the outside in: a capture that needs itself would never end.
_in_progress: ContextVar[tuple[Any, ...]] = ContextVar("multigrad_in_progress", default=())


def capture_function(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Run a recipe on symbolic values, as `capture_code` in `core/functions/captures.py` says."""
    in_use()  # a framework imported by now has its dialect registered
    load_dialects()
    key = (recipe, layout.key, tuple(facts.items()))
    if any(key == outer for outer in _in_progress.get()):
        message = f"function {recipe.name!r} applies itself to arguments like its own"
        raise AppliesItself(TraceError(message))
    try:
        reached = find_reads(
            recipe.functions,
            [leaf.value for leaf in layout.leaves if leaf.kind == "static"],
            takes_defaults=recipe.noun != "rule",
            runs_as_written=recipe.imported is not None,
            owner=recipe.imported and recipe.imported.parts_of,
        )
    except TraceError as error:
        raise NotCaptured(error) from error.__cause__
    with (
        set_within(_in_progress, (*_in_progress.get(), key)),
        keeping_modes(),
        intercepting(),
        passing() as watched,
        reading() as reads,
        refusing_read(recipe.name, watched),
        noting_reads(reached),
    ):
        variant = record_paths(partial(_capture, recipe, layout, facts, leaves))
    return with_reads(variant, facts, reads)


def _capture(
    recipe: Recipe,
    layout: Layout,
    facts: Mapping[str, Any],
    leaves: Sequence[Any],
    path: BranchPath,
) -> tuple[CodeTrace, Variant]:
    recording = _Recording(recipe, layout, facts, path)
    if leaves:
        recording.trace.facts.lengths = partial(find_lengths, layout=layout, leaves=leaves)
        if not any(isinstance(leaf, Value) for leaf in leaves):
            recording.trace.facts.find = partial(find_facts, recipe.subject, layout, leaves)
    trace = recording.trace
    try:
        variant = recording.run_asking()
    finally:  # a trace is a cycle of references, which would keep the call's objects
        trace.facts.lengths = trace.facts.find = None
    # Code that looks at memory is recorded for tensors that are not contiguous, too.
    if trace.memory.is_asked:
        check_memory(variant, _Recording(recipe, layout, trace.facts, BranchPath(path.decisions)))
    statics = {leaf.name: leaf.value for leaf in layout.leaves if leaf.kind == "static"}
    has_number = has_number_from_elsewhere(recording.graphs, trace, statics)
    # Something may have come from outside the arguments: a second recording must be the same.
    has_tensors = trace.memory.lifted and recipe.noun != "rule"  # whose values are facts
    if trace.source.witness.is_suspect or has_tensors or has_number:
        second = _Recording(recipe, layout, trace.facts, BranchPath(path.decisions), recording)
        snapshot = trace.source.witness.outside
        with snapshot.dropping_added():
            other_variant = second.run_asking()
        if has_tensors:
            check_tensors(trace, second.trace)
        drew = snapshot.moved and second.trace.source.witness.outside.moved
        check_draws(trace, variant, other_variant, drew=drew)
    graphs = without_needless_marks(variant.graphs)
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
    """One run of a recipe on symbolic values.

    Attributes:
        facts: those that were given; `trace.facts` grows by what code asks for.
        inputs: the graphs' input nodes by name, of the arguments, then of the cotangents.
        graphs: forward and backward as recorded, before they are simplified.
        first: an earlier run of the same, whose `derived` is taken over where the nodes are equal.
        derived: the nodes of outputs and cotangents, and what `true_derivative` gave for them.
        latest: the gradients of the backward that ran last.
        returned, incoming, unkept, unread: those of the first, its cotangents; see `FunctionGraph`.
    """

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
        self.derived: tuple[Any, ...] = ()
        self.layout = layout
        self.is_imported = recipe.imported is not None
        kind = "imported function" if self.is_imported else recipe.noun
        self.trace = prepare(CodeTrace(recipe.name, facts, Attributed, kind, xp_dialect))
        self.trace.source.defined = defined_at(recipe.functions)
        self.trace.source.siblings = told_library(*recipe.functions)
        self.types = LibraryTypes(self.trace)
        if recipe.noun != "rule":  # in which numbers take the dtype of the input
            self.trace.types = self.types
        self.trace.limits.branch_path = path
        self.inputs: dict[str, Node] = {}
        self.graphs: tuple[Graph, ...] = ()
        self.facts = dict(facts)
        self.latest: list[Value] = []
        self.returned: list[Value] = []
        self.incoming: list[Any] = []
        self.unkept: tuple[str, ...] = ()
        self.unread: tuple[str, ...] = ()

    def run_asking(self) -> Variant:
        """Run the recipe; raise what symbols could not answer, even if user code caught it."""
        statics = [leaf.value for leaf in self.layout.leaves if leaf.kind == "static"]
        witness = self.trace.source.witness = Witness(self.trace, self.recipe.functions, statics)
        try:
            with witness, questions.asking():
                variant = self.run()
            witness.refuse_escaped_symbols()
        except NeedsConcrete as need:
            need.place = self.trace.source.location(need)
            raise
        except TraceError as error:
            raise NotCaptured(error, self.trace.limits.omissions) from error.__cause__
        return variant

    def run(self) -> Variant:
        run = self.run_forward()
        notes = self.attempt(lambda: find_notes(self.trace, run.named, run.flat))
        results = self.find_results(run)
        cotangents = numbered("grad_out", len(results.values))
        gradients, wrt = self.find_gradients(run, results, cotangents)
        # The backward may have changed them, too.
        arguments = self.layout.rebuild(run.leaves) if has_containers(*run.rebuilt) else None
        if arguments is not None and changes_containers(arguments, run.rebuilt):
            problem = "changes a list or dict that it is given, which a graph does not"
            raise NotCaptured(self.trace.error(problem))
        graphs = self.build_graphs(run, results, cotangents, gradients, wrt)
        # From here on no more code runs, so that the notes in the trace are complete.
        trace = self.trace
        facts = dict(sorted({**self.facts, **trace.facts.told}.items()))  # as they are gathered
        weak, assumed = self.types.weak, trace.limits.assumed
        return Variant(
            graphs,
            self.layout,
            run.outputs,
            results.fixed,
            facts,
            omissions=dict(trace.limits.omissions),
            weak=tuple(i for i, value in enumerate(results.values) if value.node in weak),
            assumed=tuple(each for each in assumed if is_told(each.node, self.layout)),
            notes=notes,
            updates=run.updates,
            draws_apart=1 < trace.limits.draws_of_one < trace.draws,
            reach=None if "dtype" in facts else self.types.reach,
            reads_names=trace.source.reads_names,
            numbers=tuple(find for _, find in numbers_moving()),
        )

    def run_forward(self) -> _Run:
        """Run the recipe on symbols of its arguments, and check what it writes into them."""
        trace, layout = self.trace, self.layout
        leaves = [self.make_symbol(leaf) for leaf in layout.leaves]
        trace.source.moved = moved(trace) if LOOSE.get() else None
        trace.facts.is_fresh = True  # until the user's code has made a first node
        nodes_before = [leaf.node if isinstance(leaf, Value) else None for leaf in leaves]
        rebuilt = layout.rebuild(leaves)
        record = self.recipe.record
        assert record is not None  # `capture` has the graphs of others
        recorded = self.attempt(lambda: record(trace, *rebuilt))
        returned = recorded.outputs
        flat, outputs = flatten_outputs(
            tuple(returned) if isinstance(returned, Extremes) else returned
        )
        updates = find_updates(layout.leaves, leaves, nodes_before, flat, recorded.dirty)
        by_name = {leaf.name: symbol for leaf, symbol in zip(layout.leaves, leaves, strict=True)}
        dirty = recorded.dirty
        if self.recipe.options.copies:  # each copy is what the code has made of it
            dirty = tuple(by_name[update.leaf.name] for update in updates)
        elif self.is_imported:  # by somebody else, who may not be told to copy
            hide_updates(updates, by_name, self.inputs)
        else:
            self.check_updates(updates)
        for value in (each for each in flat if isinstance(each, V)):
            if (dtype := value.node.type.dtype) in FLOAT8:
                problem = f"returns {dtype}, which stays inside: cast to a float dtype"
                raise NotCaptured(self.trace.error(problem))
        outcome = {"outputs": outputs, "updates": updates, "dirty": dirty}
        return _Run(leaves, rebuilt, by_name, recorded, flat, **outcome)

    def find_results(self, run: _Run) -> _Results:
        """Split the outputs into tensors, and values that are the same at every call."""
        fixed = {i: each for i, each in enumerate(run.flat) if not isinstance(each, Value)}
        for i, each in fixed.items():
            fixed[i] = check_output(self.trace, each)
        # Where outputs are told apart, it is by these objects: equal values are one node.
        symbols = [each for each in run.flat if isinstance(each, Value)]
        values = [
            self.trace.value(each.node) if each.node.type.kind == "tensor" else self.as_tensor(each)
            for each in symbols
        ]
        if not values:
            raise NotCaptured(self.trace.error("returns nothing that it computed from its tensors"))
        declared = run.recorded.undifferentiable
        undifferentiable = tuple(
            i
            for i, symbol in enumerate(symbols)
            if is_float(symbol.node.type) and any(symbol is each for each in declared)
        )
        return _Results(fixed, symbols, values, undifferentiable)

    def build_graphs(
        self,
        run: _Run,
        results: _Results,
        cotangents: tuple[str, ...],
        gradients: tuple[Node, ...],
        wrt: tuple[str, ...],
    ) -> FunctionGraph:
        trace, layout, recorded = self.trace, self.layout, run.recorded
        tangent, is_tangent_first = self.tangent(run, results)
        inputs, locations = self.all_inputs(), trace.source.locations
        # A number that became a tensor, or a result of a loop, is another value.
        pairs = zip(results.values, results.symbols, strict=True)
        values = [s if s.node is value.node else value for value, s in pairs]
        outputs = tuple(map(node_in_memory, values))
        forward = drop_marks(Graph(trace.name, inputs, outputs, locations))
        heads = self.cotangent_inputs(cotangents)
        backward = Graph(trace.name, (*heads, *inputs), gradients, locations)
        # A function, where it is known only after the backward has run.
        declared = recorded.second_order
        second_order = declared if isinstance(declared, bool) else declared()
        # What is never differentiated needs no stops.
        if trace.backward.is_once or not second_order:
            backward = without_stops(backward)
        self.graphs = forward, backward
        returned, incoming = self.returned, self.incoming
        self.latest, self.returned, self.incoming = [], [], []  # no symbol outlives its capture
        lend(trace)  # raises NeedsConcrete if the dtypes turned out to be the tensors' library's
        if calls := ", ".join(self.types.unconfirmed):
            note_open(self.recipe, f"no library says what dtype these give: {calls}")
        library = find_dialect(self.recipe.dialect(trace.facts.get(LIBRARY)))
        own_forward = told_apart(simplify(forward), values, run.leaves)
        is_once = trace.backward.lost_gradient or trace.backward.is_once
        graphs = FunctionGraph(
            trace.name,
            replace(own_forward, origin=describe_routes(trace)),
            told_apart(simplify(backward), returned, (*run.leaves, *incoming)),
            first_order=recorded.first_order,
            inputs=tuple(leaf.name for leaf in layout.tensors),
            cotangents=cotangents,
            wrt=wrt,
            keeps_output=recorded.keeps_output or bool(marks(backward)),
            undifferentiable=results.undifferentiable,
            second_order=second_order and not is_once,
            unkept=self.unkept,
            unread=self.unread,
            refused=self.recipe.arguments.refused(layout),
            pushed=None if tangent is None else simplify(tangent),
            is_pushed_first=is_tangent_first,
            selects=library is not None and library.habits.selects,
        )
        if self.recipe.noun != "rule":  # which may be applied alone, and differentiated
            graphs = without_calls(graphs)
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
                change = f"{describe_updates(updates)}, which the caller would see in one framework"
                place = trace.memory.updates[argument]
                raise NotCaptured(trace.error(f"{change} only{advice}", place))

    def make_symbol(self, leaf: Leaf) -> Any:
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

    def as_tensor(self, value: Value) -> Value:
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

    def cotangent_inputs(self, cotangents: tuple[str, ...]) -> tuple[Node, ...]:
        # Outputs that carry no gradient have none.
        return tuple(self.inputs[name] for name in cotangents if name in self.inputs)

    def all_inputs(self) -> tuple[Node, ...]:
        nodes = [self.inputs[leaf.name] for leaf in (*self.layout.tensors, *self.layout.numbers)]
        nodes += [each.node for each in self.trace.source.moved.inputs] if LOOSE.get() else []
        key = self.trace.key  # None until the code draws a first number
        return tuple(nodes) if key is None else (*nodes, key)

    def find_gradients(
        self, run: _Run, results: _Results, cotangents: tuple[str, ...]
    ) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        recorded, values, flat = run.recorded, results.values, run.flat
        leaves = [leaf for leaf in run.leaves if not any(leaf is each for each in run.dirty)]
        upstream: list[Any] = []  # a cotangent for each output
        for i, (value, name) in enumerate(zip(values, cotangents, strict=True)):
            if is_float(value.node.type) and i not in results.undifferentiable:
                symbol = self.trace.input(name, value.node.type)
                self.inputs[name] = symbol.node
                upstream.append(symbol)
            else:
                zeros = xp.zeros_like(value)
                upstream.append(zeros if recorded.missing is None else recorded.missing(value))
        heads = self.cotangent_inputs(cotangents)
        if not heads:  # no output carries a gradient: nobody calls backward
            return (), ()
        if recorded.pull is None:
            return true_derivative(self, values, upstream)
        outputs = {name: value for value, name in zip(values, cotangents, strict=True)}
        for name, value in outputs.items():
            shape = known_shape(value)
            if shape is not None:
                self.trace.facts.update({f"shape:{name}": shape, f"ndim:{name}": len(shape)})
        own = (*run.leaves, *results.symbols, *results.values, *upstream)
        computed = held_values(self.trace.source.witness.made, own)
        # A backward that closes over an output has what forward gave of the input as it was.
        is_closed_over = not (recorded.recomputes or recorded.keeps_output or self.is_imported)
        marked_outputs = results.symbols if recorded.keeps_output or is_closed_over else ()
        run_pull = recorded.pull

        def pull(incoming: list[Any]) -> dict[str, Node]:
            remaining, question_count = iter(incoming), questions.count()
            seeds = [next(remaining) if isinstance(each, Value) else None for each in flat]
            nested = optree.tree_unflatten(run.outputs, seeds)
            try:
                with (
                    written_in(self.trace, self.trace.source.latest.libraries),
                    given_by_forward(marked_outputs, leaves),
                    self.keeping_values(),
                ):
                    self.trace.backward.is_running = True
                    mark_copies(computed)
                    return self.gradients_by_name(self.attempt(lambda: run_pull(nested)))
            except NeedsConcrete as need:  # a cotangent has the shape of its output
                questions.forget(question_count)
                raise NeedsConcrete(*facts_of_inputs(need.facts, outputs)) from None

        # The pulls with missing cotangents must draw what this one draws.
        draws = self.trace.draws
        gradients = pull(upstream)
        self.returned, self.incoming = self.latest, upstream
        if recorded.missing is not None and len(heads) > 1:
            compare_missing(
                self.trace, pull, recorded.missing, upstream, gradients=gradients, drawn=draws
            )
        held = {value.node for value in computed}
        locations = self.trace.source.locations
        marked = Graph(self.trace.name, (), tuple(gradients.values()), locations)
        nodes = dict(zip(numbered("output", len(values)), [v.node for v in values], strict=True))
        unkept, bare = find_unkept(marked, held, nodes, keeps_outputs=is_closed_over)
        if recorded.recomputes:
            unkept, bare = (), without_kept(bare)
        locations.update(bare.locations)
        self.unkept = unkept
        if marked_outputs:
            self.unread = find_unread(marked, nodes)
        return bare.outputs, tuple(gradients)

    @contextmanager
    def keeping_values(self) -> Iterator[None]:
        """Undo what a backward writes in place, as it may run again."""
        refs = self.trace.source.witness.made  # weakly: a view that is dropped sees no more updates
        nodes_before = [(ref, value.node) for ref in refs if (value := ref()) is not None]
        try:
            yield
        finally:
            for ref, node in nodes_before:
                value = ref()
                if value is not None:
                    value.node = node

    def tangent(self, run: _Run, results: _Results) -> tuple[Graph | None, bool]:
        """Return the graph of the author's tangent rule, and whether backward is its transpose."""
        rule = None if run.recorded.push is None else run.recorded.push()
        if rule is None:
            return None, False
        positions = [i for i, each in enumerate(run.flat) if isinstance(each, Value)]
        carried = [
            (position, value)
            for i, (position, value) in enumerate(zip(positions, results.values, strict=True))
            if is_float(value.node.type) and i not in results.undifferentiable
        ]
        tensors = [leaf.name for leaf in self.layout.tensors]
        return tangent_graph(
            self.trace, rule, self.all_inputs(), tensors, outputs=run.flat, carried=carried
        )

    def gradients_by_name(self, returned: Any) -> dict[str, Node]:
        """Return the gradients that a backward returned, by the names of their float tensors."""
        matches = match_gradients(self.trace.name, returned, self.layout)
        casts = self.is_imported and habits_of(self.trace).casts_gradients
        gradients: dict[str, Node] = {}
        self.latest = []
        for leaf, gradient in zip(self.layout.leaves, matches, strict=True):
            if leaf.kind != "tensor":
                continue
            argument = self.inputs[leaf.name]
            if not is_float(argument.type):
                continue
            value = self.attempt(
                lambda leaf=leaf, argument=argument, gradient=gradient: check_gradient(
                    self.trace, leaf, argument, gradient, casts=casts
                )
            )
            if value is not None:
                gradients[leaf.name] = node_in_memory(value)
                self.latest.append(value)
        return gradients
