"""`Captures`: the graphs of a Function, one variant for each layout and set of facts.

Facts are what its code asked about the arguments. Each variant is captured once and compared with
the code as written (the proof). Within another capture a variant's graphs are recorded there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..capture.dialect import find_dialect
from ..capture.user_code.libraries import read_as_meant
from ..capture.user_code.moving_reads import asks_for_read
from ..errors import DisprovedError, MultigradError, TraceError
from ..graph import ops
from ..graph.ir.graph import Graph, Location, Node
from ..graph.ir.questions import crossing, note
from ..graph.passes.facts import LIBRARY, Shapes, needed_shapes
from ..graph.support.threads import build_once, set_within
from ..graph.support.trees import optree
from ..trace.assertions import is_caught
from ..trace.derived.custom_calls import CustomCall, draw_in, record_call, replay
from ..trace.identity import items_key
from ..trace.limits import ORDERS
from ..trace.lookups import is_read, look_up_all
from ..trace.random_keys import KeySource
from ..trace.trace import NeedsConcrete, Trace, Value
from .calls.arguments import Layout, flatten, unwrap
from .calls.as_written import warn_disproved
from .calls.binding import assemble, lift_leaf
from .calls.capture_errors import NotCaptured
from .calls.decision import LOWERED, SHOWN, Door, decide
from .calls.effects import check_apart, put_notes, put_updates
from .calls.facts import facts_of_symbols, gather_facts, library_of_leaves
from .calls.parameters import Completion
from .calls.recipe import Forms, Recipe, Variant
from .proof.executions import FunctionUnderProof
from .proof.functions import AS_GIVEN, prove_function
from .proof.memory import as_placed
from .proof.shipped import is_shipped
from .proof.verdicts import is_asked
from .recording.recapture import note_open
from .recording.record import AppliesItself, capture_function

Function = Any  # of function.py, which depends on this module
MOST_VARIANTS = 256
# Ops whose constant index may lie outside the array.
INDEXED = (ops.GETITEM, ops.TAKE)


class Captures:
    """The variants that a recipe was captured as.

    Attributes:
        recipe: runs the function on symbolic values.
        prove: whether a capture is compared with the code as written.
        module: the name of the module that warnings are about.
        forms: what it was captured as.
    """

    def __init__(
        self, recipe: Recipe, prove: bool, module: str, forms: Forms | None = None
    ) -> None:
        self.recipe = recipe
        self.prove = prove
        self.module = module
        self.forms = Forms() if forms is None else forms

    @property
    def variants(self) -> dict[Any, Variant]:
        return self.forms.variants

    @property
    def facts(self) -> frozenset[str]:
        return self.forms.facts

    @facts.setter
    def facts(self, facts: frozenset[str]) -> None:
        self.forms.facts = facts

    def for_call(self, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for a call's arguments, under the facts that turn out to be needed."""
        while True:
            try:
                # Each round adds to `self.facts`, or ends in `NotCaptured`.
                facts = gather_facts(
                    self.recipe.subject, self.facts, layout, leaves, places=self.forms.places
                )
                variant = self.for_facts(layout, facts, leaves)
                if self._is_open_to(variant, leaves):
                    self._require((LIBRARY,), None)
                    continue
                break
            except NeedsConcrete:
                continue
        return self.proven(variant, layout, leaves, facts)

    def proven(
        self, variant: Variant, layout: Layout, leaves: Sequence[Any], facts: Mapping[str, Any]
    ) -> Variant:
        """Return a variant that is proven for the dtype of a call; `facts` are those of its key.

        Raises:
            NotCaptured: it is disproved.
        """
        dtype = layout.dtype or ""
        # One proof for each dtype of the first float tensor.
        # A form for numbers that move is compared with those for some of their values.
        if dtype not in variant.proofs and is_asked(self.prove) and not variant.numbers:
            variant = self._prove(variant.laid_out(layout), leaves)
            # Kept without the call's objects, so that no argument stays alive.
            variant = variant.laid_out(layout.without_objects())
            self.variants[layout.key, items_key(facts)] = variant
        proof = variant.proofs.get(dtype)
        if isinstance(proof, DisprovedError):
            raise NotCaptured(proof)
        if variant.layout is not layout and (variant.layout.dtype or "") != dtype:
            variant = variant.laid_out(layout.without_objects())
        return variant

    def _prove(self, variant: Variant, leaves: Sequence[Any]) -> Variant:
        dtype = variant.layout.dtype or ""
        try:
            is_proven = is_shipped(self.recipe, variant)
            proof = "" if is_proven else prove(self.recipe, variant, leaves)
            variant.proofs[dtype] = proof
        except DisprovedError as error:
            other = self._read_otherwise(variant, leaves)
            if other is not None:
                return other
            warn_disproved(error, self.module)
            # Kept, so that each later call of this dtype raises it too.
            variant.proofs[dtype] = error.to_keep()
            return variant
        except TraceError as error:
            raise NotCaptured(error) from error
        variant = as_placed(variant)
        forward = variant.graphs.forward
        if not proof or "not proven" in forward.origin:
            return variant
        unproven = replace(forward, origin=f"{forward.origin}; not proven: {proof}")
        return replace(variant, graphs=replace(variant.graphs, forward=unproven))

    def _read_otherwise(self, variant: Variant, leaves: Sequence[Any]) -> Variant | None:
        # A proven capture as the code of another library than that of the call's tensors: code that
        # names several may not run on these at all.
        called = variant.facts.get(LIBRARY)
        if called and self.recipe.dialect() != self.recipe.dialect(called):
            facts = {**variant.facts, LIBRARY: ""}
            with suppress(Exception):
                other = capture(self.recipe, variant.layout, facts, leaves)
                other.proofs[variant.layout.dtype or ""] = prove(self.recipe, other, leaves)
                return other
        return None

    def for_facts(
        self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
    ) -> Variant:
        """Return the variant for a layout under these facts, captured once.

        Raises:
            NeedsConcrete: more facts are needed; `self.facts` has been extended.
            NotCaptured: it cannot be captured.
        """
        key = (layout.key, items_key(facts))
        try:
            hash(key)
        except TypeError as error:
            name = self.recipe.name
            message = f"function {name!r} got an object that holds what has no hash: {error}"
            raise NotCaptured(TraceError(message)) from error
        variant = self.variants.get(key)
        if variant is not None and not (leaves and self.looks_outside(variant, layout, leaves)):
            return variant
        if not self.facts <= facts.keys():
            # Facts that one capture of the code asked for are facts of all.
            raise NeedsConcrete(*self.facts, noted=False)
        build = partial(self._capture, layout, facts, leaves)
        return build_once(self.variants, key, build, MOST_VARIANTS)

    def _capture(self, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any]) -> Variant:
        wide_variant = self._reaching(layout, facts)
        if wide_variant is not None:
            return wide_variant
        try:
            variant = read_as_meant(
                lambda facts: capture(self.recipe, layout, facts, leaves),
                facts,
                self.recipe.dialect,
            )
        except NeedsConcrete as need:
            if facts.keys() >= set(need.facts) or asks_for_read(need.facts):
                fact_names = ", ".join(need.facts) or "the shape of what it computed"
                message = f"{self.recipe.subject} needs {fact_names} in a way not captured"
                raise NotCaptured(TraceError(message)) from need
            self._require(need.facts, need.place)
            raise
        if self.looks_outside(variant, layout, leaves):
            raise NeedsConcrete(*self.facts, noted=False)
        variant = variant.laid_out(layout.without_objects())
        # The capture fixed more facts itself: it is stored under these, and the call begins anew.
        if not variant.facts.keys() <= facts.keys():
            self.facts = self.facts | frozenset(variant.facts)
            self.variants[layout.key, items_key(variant.facts)] = variant
            raise NeedsConcrete(*self.facts, noted=False)
        return variant

    def _is_open_to(self, variant: Variant, leaves: Sequence[Any]) -> bool:
        """Return whether names of the code may mean something else for the tensors of a call."""
        recipe = self.recipe
        if not variant.reads_names or isinstance(recipe.written_in, str) or LIBRARY in self.facts:
            return False
        called = library_of_leaves(variant.layout, leaves)
        return recipe.dialect(called) not in ("", called)

    def _require(self, facts: Iterable[str], place: Location | None) -> None:
        self.facts = self.facts | frozenset(facts)
        if place is not None:
            self.forms.places = {**dict.fromkeys(facts, place), **self.forms.places}

    def open_indices(self, variant: Variant) -> dict[Node, frozenset[str]]:
        """Return the ops with a constant index that a library moves inside, or drops, where it lies
        outside, which a variant leaves open; and the facts that tell it.
        """
        indexed = [node for node in variant.graphs.forward.nodes if node.op in INDEXED]
        called = variant.facts.get(LIBRARY)
        dialect = find_dialect(self.recipe.dialect(called)) if indexed else None
        if dialect is None or dialect.habits.outside[0] == "refused":
            return {}
        shapes = Shapes({})
        needed = {node: frozenset(needed_shapes(node, shapes)) for node in indexed}
        return {node: facts for node, facts in needed.items() if not facts <= variant.facts.keys()}

    def looks_outside(self, variant: Variant, layout: Layout, leaves: Sequence[Any]) -> bool:
        """Return whether an open index lies outside in a call; the shape then becomes a fact."""
        for node, needed_facts in self.open_indices(variant).items():
            look_up = partial(gather_facts, self.recipe.subject, needed_facts, layout, leaves)
            try:
                # An index that fits an axis of 1 fits any: lengths may be open, as of a batch.
                values = look_up(unknown=1)
                values = look_up() if None in values.values() else values
                Shapes({**variant.facts, **values}).computed(node)
            except IndexError:
                self._require(needed_facts, variant.graphs.forward.locations.get(node))
                return True
        return False

    def keep_uncaptured(self, layout: Layout) -> None:
        if len(self.forms.uncaptured) >= MOST_VARIANTS:
            self.forms.uncaptured.clear()
        self.forms.uncaptured[layout.key, layout.dtype] = layout.without_objects()

    def _reaching(self, layout: Layout, facts: Mapping[str, Any]) -> Variant | None:
        # A variant captured for wide floats may hold in 16 bits, too: its `reach` tells in which.
        if not layout.is_apart or layout.mixes_floats or "dtype" in self.facts:
            return None
        facts_of_wide = {fact: value for fact, value in facts.items() if fact != "dtype"}
        wide = self.variants.get((layout.key_of_wide, items_key(facts_of_wide)))
        if wide is None or wide.reach is None or not wide.reach.holds_in(facts["dtype"]):
            return None
        return replace(wide, layout=layout.without_objects(), facts=dict(facts))

    def renewed(self, variant: Variant) -> Variant:
        """Return the variant for what its code reads now: the rule in force, the rules of names.

        Raises `NeedsConcrete` or `NotCaptured`, as `for_facts` does.
        """
        current = look_up_all(variant.facts)
        return self.for_facts(variant.layout, {**variant.facts, **current}) if current else variant

    def for_layout(self, layout: Layout) -> Variant:
        """Return the variant for a call of which only the dtype, and what is read, is known."""
        while True:
            facts = {"dtype": layout.dtype, **look_up_all(self.facts)}
            try:
                return self.for_facts(layout, facts)
            except NeedsConcrete:
                if not any(map(is_read, self.facts - facts.keys())):
                    raise

    def for_symbols(self, trace: Trace, layout: Layout, leaves: Sequence[Any]) -> Variant:
        """Return the variant for symbolic arguments, under the facts that turn out to be needed."""
        facts: dict[str, Any] = {}
        while True:
            try:
                return self.for_facts(layout, facts, leaves)
            except NeedsConcrete:
                known, facts = facts, facts_of_symbols(trace, self.facts, layout, leaves)
                if facts.keys() == known.keys():
                    raise  # it asks the symbols themselves, which the outer capture has to answer


def capture(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Return the graphs of a recipe for arguments of a layout; see `capture_function`."""
    run = recipe.graphs.capture or capture_function
    return run(recipe, layout, facts, leaves)


def prove(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool = False) -> str:
    """Return "" where graphs are what was written, else why that could not be found out."""
    compare = recipe.graphs.prove or prove_code
    return compare(recipe, variant, leaves, is_call=is_call)


def prove_code(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool) -> str:
    """Compare graphs with the code that they were captured from; see `captures.prove`."""
    if variant.draws_apart:
        return note_open(recipe, "a function that it calls draws several times, by keys of its own")
    recapture = partial(capture_function, recipe, variant.layout, variant.facts)
    captured = FunctionUnderProof(recipe, variant, leaves)
    return prove_function(captured, recapture, is_call=is_call)


def renewed_variants(function: Function, door: Door) -> list[Variant]:
    """Return the captured forms of a Function under the rule that is in force now.

    Calls that ran as written are captured here.
    """
    for layout in tuple(function.captures.forms.uncaptured.values()):
        with suppress(Exception):  # of the author's code, too
            function.captures.for_layout(layout)
    variants: dict[int, Variant] = {}
    for variant in tuple(function.captures.variants.values()):
        try:
            renewed = function.captures.renewed(variant)
        except (NeedsConcrete, NotCaptured):  # under this rule it has not been called
            continue
        variants[id(renewed)] = decide(
            door, function.recipe, renewed, None, function.native
        ).variant
    return list(variants.values())


def find_variant(function: Function, door: Door, backend: Backend | None = None) -> Variant:
    """Return the latest captured form of a Function, with its choice of residuals, for a door.

    Args:
        backend: the framework that it goes to; None: all.

    Raises:
        TraceError: it has not been called, and its signature does not tell what it takes.
        UnsupportedOp: this door refuses what the code does besides returning.
    """
    variant = _find_variant(function)
    if LIBRARY in variant.facts and backend is not None:  # whose methods the code has there
        variant = generalized(function, variant, {LIBRARY: backend.name}.get) or variant
    if door in (LOWERED, SHOWN):  # with all gradients, whichever the call's tensors asked for
        general = generalized(function, variant, lambda fact: fact.startswith("gradient:") or None)
        if general is None and door is LOWERED:
            raise TraceError(some_gradients(function))
        variant = general or variant
    decide(door, function.recipe, variant, backend, function.native)
    if function.residuals == "auto":
        return variant
    return replace(variant, graphs=replace(variant.graphs, residuals=function.residuals))


def generalized(
    function: Function,
    variant: Variant,
    general: Callable[[str], Any],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Variant | None:
    """Return a captured form of more calls; None if that needs more facts about the arguments.

    Args:
        general: the value of a fact in these calls; None where the form keeps its own.
        facts: others that hold there.
    """
    own = variant.facts
    facts = {**{k: v if general(k) is None else general(k) for k, v in own.items()}, **facts}
    # Without the call's own facts the capture may ask for others.
    while facts != own:
        try:
            return function.captures.for_facts(variant.layout, facts)
        except NotCaptured:
            return None
        except NeedsConcrete:
            more_facts = {fact: general(fact) for fact in function.captures.facts - facts.keys()}
            if not more_facts or None in more_facts.values():
                return None
            facts = {**facts, **more_facts}
    return variant


def some_gradients(function: Function) -> str:
    return (
        f"function {function.name!r} asks which of its arguments need a gradient, and was called "
        "where some need none: call it with tensors that all require one"
    )


def _find_variant(function: Function) -> Variant:
    variants = renewed_variants(function, SHOWN)
    if variants:
        # Variants are in the order of their captures, so the last is the latest.
        return variants[-1]
    if function.examples is not None:
        return capture_example(function, *function.examples)
    parameters = function.parameters
    args: list[Any] = []
    for parameter in () if parameters is None else parameters.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            args = []
            break
        if parameter.kind is parameter.KEYWORD_ONLY:
            continue
        # It may be a tensor, so an array is tried; a capture that fails says so below.
        args.append(np.zeros(2) if parameter.default is parameter.empty else parameter.default)
    refusal: MultigradError | None = None
    if args:
        try:
            variant = capture_example(function, *args)
            if LIBRARY not in variant.facts:
                return variant
            # The arrays are made up: whose methods the code has, what it imports tells.
            function.captures.variants.clear()
            return generalized(function, variant, {LIBRARY: ""}.get) or variant
        except NotCaptured as error:
            refusal = error.error
        except MultigradError as error:
            refusal = error
    explanation = f". With arrays for those without a default: {refusal}" if refusal else ""
    raise TraceError(
        f"function {function.name!r} is captured when it is called, as only then it is known which "
        f"of its arguments are tensors. Call it once, with NumPy arrays for instance{explanation}"
    ) from refusal


def capture_example(function: Function, *args: Any, **kwargs: Any) -> Variant:
    """Return the captured form of a Function for arguments like these; may raise `NotCaptured`."""
    return function.entries.decide(SHOWN, *_lay_out(function, args, kwargs)).variant


def _lay_out(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Layout, Sequence[Any]]:
    leaves, tree = flatten(tuple(args), dict(kwargs))
    return function.entries.lay_out([unwrap(leaf) for leaf in leaves], tree)


def prove_given(function: Function, args: Sequence[Any]) -> None:
    """Compare a Function's graph with its code, which runs as written on these arguments.

    Raises:
        DisprovedError: they differ.
    """
    layout, leaves = _lay_out(function, args, {})
    try:
        variant = function.entries.decide(SHOWN, layout, leaves).variant
        with set_within(AS_GIVEN, True):
            prove(function.recipe, variant, leaves)
    except DisprovedError:
        raise
    except (NotCaptured, TraceError):  # it runs as written
        return


def assume(name: str, trace: Trace, variant: Variant, given: Mapping[str, Any]) -> None:
    """Add what a function asserts of its arguments to the assumptions of the capture around it."""
    inputs = variant.graphs.forward.inputs
    # No proof would find it: test_what_is_caught_beyond_all_samples_is_no_assertion.
    if variant.assumed and is_caught(sys._getframe(1)):
        raise trace.error(f"catches what {name!r} raises, which depends on values")
    for each in variant.assumed:
        (value,) = replay(trace, Graph(name, inputs, (each.node,)), given)
        if isinstance(value, Value) and not trace.backward.is_running:
            trace.limits.assumed.append(each._replace(node=value.node))


def inline(
    captures: Captures, completion: Completion, draws: KeySource, leaves: Sequence[Any], tree: Any
) -> Any:
    """Record a Function's ops in the capture to which its arguments belong."""
    recipe = captures.recipe
    leaves, tree = completion.complete(leaves, tree)
    trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
    layout = recipe.lay_out(completion.parameters, leaves, tree)
    imported = recipe.imported
    if imported is not None and imported.apply_within is not None:
        inner_result = imported.apply_within(trace, *layout.rebuild(leaves))
        if inner_result is not None:
            return inner_result[0]
    try:
        with crossing(NeedsConcrete):
            variant = captures.for_symbols(trace, layout, leaves)
    except AppliesItself as error:
        if not trace.backward.is_running:
            raise note(error.error) from error.__cause__
        # A backward that applies its own function: its derivatives have no end, so it has none.
        trace.backward.lost_gradient = recipe.name
        trace.omit(ORDERS, f"the derivatives of {recipe.name!r} of any order")
        assert recipe.record is not None  # only code applies itself
        return recipe.record(trace, *layout.rebuild(leaves)).outputs
    except NotCaptured as error:
        raise note(error.error) from error.__cause__
    graphs = variant.graphs
    if variant.numbers:
        raise trace.error(f"calls {recipe.name!r}, which reads a number that moves")
    # What limits the inner capture limits the outer one, too.
    trace.limits.omissions.update(variant.omissions)
    trace.backward.is_once |= not graphs.second_order
    values = {
        leaf.name: trace.value(lift_leaf(trace, leaf, value))
        for leaf, value in zip(layout.leaves, leaves, strict=True)
        if leaf.kind != "static"
    }
    refuse_closed_over(trace, recipe, values)
    # Whether and how often the outer code runs this call is not known, so no counter can follow.
    if graphs.is_random and draws.counter is not None:
        raise trace.error(
            f"calls the random function {recipe.name!r} under a key, which counts calls one by "
            "one. Take the vjp of that function itself, or give the key to the function "
            "around it"
        )
    # Each draw takes a key of the capture around it: those of two functions never meet.
    forward, backward = graphs.forward, graphs.backward
    if graphs.is_random:
        (forward, backward), keys = draw_in(trace, forward, backward)
        trace.limits.draws_of_one = max(trace.limits.draws_of_one, len(keys))
        values |= keys
    outputs = replay(trace, forward, values)
    assume(recipe.name, trace, variant, values)
    names = tuple(values)
    call = CustomCall(
        backward,
        graphs.cotangents,
        names=names,
        wrt=graphs.wrt,
        outputs=tuple(o.node for o in outputs),
        refused=graphs.refused,
    )
    result = assemble(variant, record_call(trace, call, [values[name].node for name in names]))
    if variant.notes or variant.updates:
        _put_effects(trace, recipe, variant, leaves, values=values, result=result)
    return result


def refuse_closed_over(trace: Trace, recipe: Recipe, given: Mapping[str, Value]) -> None:
    """Raise for a function that reads an argument of the code around it and is given another value
    for one of that name: in its graph the two are one node.
    """
    for function in recipe.functions:
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # an empty cell
                value = cell.cell_contents
                node = value.node if isinstance(value, Value) else None
                name = node.attr("name") if node is not None and node.op is ops.INPUT else ""
                if name in given and given[name].node is not node:
                    raise trace.error(
                        f"calls {recipe.name!r}, which reads {name!r} of the code around it and "
                        "has an argument of that name: name its argument otherwise"
                    )


def _put_effects(
    trace: Trace,
    recipe: Recipe,
    variant: Variant,
    leaves: Sequence[Any],
    *,
    values: Mapping[str, Any],
    result: Any,
) -> None:
    # Updates of arguments, and attributes that were set, happen to the symbols there.
    holders = {leaf.name: each for leaf, each in zip(variant.layout.leaves, leaves, strict=True)}
    flat, forward = optree.tree_leaves(result, none_is_leaf=True), variant.graphs.forward
    if recipe.options.copies:
        check_apart(recipe.subject, variant.updates, leaves)
    else:
        put_updates(trace, variant.updates, forward, inputs=values, holders=holders, outputs=flat)
    if variant.notes:
        everything = {**holders, **dict(enumerate(flat))}
        is_class = recipe.imported is not None
        put_notes(trace, variant.notes, forward, values, everything, is_class=is_class)
