"""The forms of a Function that was called before, for doors without a call of their own: listings,
files, documents. Calls that ran as written are captured for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.functions.arguments import Layout, flatten
from ...core.functions.captures import Captures
from ...core.functions.facts import (
    SOME_LENGTH,
    first_tensor,
    gather_facts,
    leaf_of_each,
    watch_arguments,
)
from ...core.functions.function import EntriesByFacts, Entry, FunctionBase, Run
from ...core.functions.recipe import NotCaptured, Variant
from ...core.ir.graph import Graph
from ...core.lowering.function_graph import FunctionGraph
from ...core.passes.facts import LIBRARY
from ...core.passes.simplify import constant, simplify, substitute
from ...core.support.threads import set_within
from ...core.trace.active_rules import KeySource
from ...core.trace.identity import items_key
from ...core.trace.lookups import is_read, look_up_all
from ...core.trace.trace import NeedsConcrete
from ...errors import DisprovedError, MultigradError, TraceError
from ..capture.user_code.reads import LOOSE, Reads, run_while
from ..lowering.checks import format_lengths
from ..trace.moving_numbers import is_noted
from .calls.arguments import unwrap
from .decision import LOWERED, PULLED, SHOWN, Decision, Door, decide, decide_call
from .function import Function
from .proof.functions import AS_GIVEN


def renewed_variants(function: Function, door: Door) -> list[Variant]:
    """Return the captured forms of a Function under the rule that is in force now.

    Calls that ran as written are captured here.
    """
    for layout in tuple(function.captures.findings.uncaptured.values()):
        with suppress(Exception):  # of the author's code, too
            function.captures.for_known(layout, {"dtype": layout.dtype})
    variants: dict[int, Variant] = {}
    for variant in tuple(function.captures.variants.values()):
        try:
            current = {**variant.facts, **look_up_all(variant.facts)}
            renewed = function.captures.for_facts(variant.layout, current)
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
    function: FunctionBase,
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
    return decide_call(function.entries, SHOWN, *_lay_out(function, args, kwargs)).variant


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
        variant = decide_call(function.entries, SHOWN, layout, leaves).variant
        with set_within(AS_GIVEN, True):
            function.captures.compare(variant, leaves, is_call=False)
    except DisprovedError:
        raise
    except (NotCaptured, TraceError):  # it runs as written
        return


def shape_under(
    facts: Mapping[str, Any], layout: Layout, n: int, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of a tensor that is made up: the given one, as far as facts leave it open.

    Args:
        n: its place among the leaves.
    """
    name, is_first = layout.leaves[n].name, n == first_tensor(layout)
    fixed = facts.get(f"shape:{name}", facts.get("shape") if is_first else None)
    if fixed is not None:
        return tuple(SOME_LENGTH if length is None else length for length in fixed)
    rank = facts.get(f"ndim:{name}", facts.get("ndim"))
    return shape if rank is None else (*shape, *(1,) * rank)[:rank]


def fixed_shapes(layout: Layout, facts: Mapping[str, Any]) -> str:
    """Return in words the shapes that a capture is for alone; "" if it is for all."""
    return " and ".join(
        f"{layout.leaves[index].path} of shape {format_lengths(facts[fact])}"
        for fact, kind, index in leaf_of_each(facts, layout, first_tensor(layout))
        if kind == "shape" and index is not None and any(n is not None for n in facts[fact] or ())
    )


# --- forms for all values of numbers that code reads and that keep changing -----------------------
# A slope that is annealed is one. The numbers are the last inputs (`Variant.numbers`), so that no
# step costs a capture.
#
#     captures    slope = 1.0, 2.0, 3.0     a form each, as for any value that code reads
#     tried       3.0, the second change    a form with a symbol wherever the slope is read
#     held        4.0                       it is now, at two values, the form for that value alone
#
# A form in which the number decides what Python does, or is read in a way that no symbol reaches,
# does not hold: each value keeps a form of its own. Calls alone run open forms. A file, a compiler
# and a capture around them get the form for the present values.
CALLS = 4  # for which what code reads has stayed the same: then a check of it is written
MOST_TRIED = 4  # forms of one layout, of which none held
Numbers = Mapping[Reads, frozenset[Any]]  # the paths to them


@dataclass(slots=True, eq=False)
class OpenForms:
    """The open forms of a layout, by its other facts.

    Attributes:
        paths: the numbers.
        tried: the forms; None: it does not hold.
        numbers: their values when each was captured.
        held: those that run.
    """

    paths: Numbers
    tried: dict[Any, Variant | None] = field(default_factory=dict)
    numbers: dict[Any, list[float]] = field(default_factory=dict)
    held: set[Any] = field(default_factory=set)


def find_form(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> Variant:
    """Return the variant for a call: an open one, if there is one that holds."""
    forms = captures.findings.open_forms.get(layout.key)
    if forms is not None and forms.held and not is_noted():
        with set_within(LOOSE, forms.paths):
            if _key(captures, layout, leaves) in forms.held:
                return captures.for_call(layout, leaves)
    variant = captures.for_call(layout, leaves)
    try_open(captures, layout, leaves, variant)
    return variant


def decide_vjp(
    function: FunctionBase, layout: Layout, leaves: Sequence[Any], backend: Backend
) -> Decision:
    """Decide how `xg.vjp` runs a call; captures its code if that is still to be done."""
    # A form for numbers that move serves all calls of a function whose code reads some.
    has_reads = any(map(is_read, function.captures.facts))
    find = find_form if has_reads else Captures.for_call
    variant = find(function.captures, layout, leaves)
    return decide(PULLED, function.recipe, variant, backend, function.native)


def try_open(
    captures: Captures, layout: Layout, leaves: Sequence[Any], variant: Variant
) -> Numbers:
    """Return the numbers that a form leaves open which holds now; empty if none does.

    `variant` is that for the present values alone.
    """
    paths = {
        fact: fact.moving
        for fact in sorted(captures.facts)
        if isinstance(fact, Reads) and fact.moving
    }
    forms = captures.findings.open_forms.get(layout.key)
    if not paths:
        return {}
    if forms is None or forms.paths != paths:
        forms = captures.findings.open_forms[layout.key] = OpenForms(paths)
    with set_within(LOOSE, paths):
        key = _key(captures, layout, leaves)
        if key not in forms.tried:
            if len(forms.tried) >= MOST_TRIED and not forms.held:
                return {}
            try:
                forms.tried[key] = captures.for_call(layout, leaves)
            except Exception:  # noqa: BLE001  # of the user's code, too, which met a symbol
                forms.tried[key] = None
        form = forms.tried[key]
    if form is not None and not _agrees(form, variant):
        form = forms.tried[key] = None
    if form is None:
        return {}
    numbers = [find() for find in form.numbers]
    if any(map(operator.eq, forms.numbers.setdefault(key, numbers), numbers)):
        return {}  # it is compared again once all have changed
    forms.held.add(key)
    return paths


def _key(captures: Captures, layout: Layout, leaves: Sequence[Any]) -> Any:
    subject, places = captures.recipe.subject, captures.findings.places
    return items_key(gather_facts(subject, captures.facts, layout, leaves, places=places))


def _agrees(form: Variant, variant: Variant) -> bool:
    # Whether an open form is, at the present values, the variant for these.
    graphs, own = _at_present(form), variant.graphs
    return (
        graphs.forward.outputs == own.forward.outputs
        and graphs.backward.outputs == own.backward.outputs
        and (graphs.wrt, form.outputs, form.fixed) == (own.wrt, variant.outputs, variant.fixed)
    )


def _at_present(form: Variant) -> FunctionGraph:
    graphs, values = form.graphs, form.numbers_now()

    def filled(graph: Graph) -> Graph:
        rows = {
            node: constant(values[node.attr("name")])
            for node in graph.inputs
            if node.attr("name") in values
        }
        kept = tuple(node for node in graph.inputs if node not in rows)
        return simplify(replace(substitute(graph, rows), inputs=kept))

    return replace(graphs, forward=filled(graphs.forward), backward=filled(graphs.backward))


# --- which entry runs a call ----------------------------------------------------------------------
class OpenEntries(EntriesByFacts):
    """Entries by facts where values that the code reads are among these.

    A float that the code reads, and that keeps changing, becomes a number of the call: the entries
    in `_open` take it as it is then.

    Where nothing is looked up but what code reads (`_reads`), and that has stayed the same for some
    calls, the entry of this table runs a quick check of it, and then one of the entries in
    `_latest`, which are by the facts about arguments.
    """

    __slots__ = ("_latest", "_look", "_open", "_reads")

    def _run_by(self, run: Run) -> None:
        entry = self._entry()
        if entry is not None:
            entry.run = run

    def _begin_anew(self) -> None:
        super()._begin_anew()
        facts = self.captures.facts
        # Numbers that the code reads and that move, and the entries of forms for all their values.
        self._open: tuple[Numbers, dict[Any, Entry]] = {}, {}
        reads = sorted(filter(is_read, facts))
        is_of_code = all(isinstance(fact, Reads) for fact in reads)
        self._reads: list[Any] = reads if is_of_code else []
        self._look = watch_arguments(facts, self._layout)
        # The entries, the numbers of what was read, and for how many calls.
        self._latest: tuple[dict[Any, Entry], Any, int] = {}, (), 0
        self._run_by(self.run)

    def _choose(self, leaves: Sequence[Any]) -> Entry:
        paths, open_entries = self._open
        if paths and not is_noted():
            with set_within(LOOSE, paths):
                key = self._state[0](leaves)
            entry = open_entries.get(key)
            if entry is not None:
                if self._reads:
                    self._note_latest(key, entry, paths)
                return entry
        read_facts, entries = self._state
        key = read_facts(leaves)
        entry = entries.get(key)
        if entry is not None:
            if self._reads:
                self._note_latest(key, entry, {})
            return entry
        entry = self._build_anew(leaves)
        if any(isinstance(fact, Reads) and fact.moving for fact in self.captures.facts):
            self._try_open(leaves)
        return entry

    def _note_latest(self, key: Any, entry: Entry, paths: Numbers) -> None:
        """Note the entry for a key of `watch`; in time, have the check written."""
        *numbers, of_arguments = key
        entries, numbers_before, calls = self._latest
        if numbers != numbers_before:
            entries, calls = {}, 0
            self._run_by(self.run)
        entries[of_arguments] = entry
        # Again after 8, 16, ... calls: equal numbers may have taken the place of those it has.
        if calls >= CALLS and not calls & (calls - 1):
            meanings = dict(zip(self._reads, numbers, strict=True))
            run = self._run_latest(entries) if self._look else entry.run
            self._run_by(run_while(meanings, paths, run, self.run))
        self._latest = entries, numbers, calls + 1

    def _run_latest(self, entries: Mapping[Any, Entry]) -> Run:
        look, otherwise = self._look, self.run
        assert look is not None

        def run(leaves: Sequence[Any], draws: KeySource) -> Any:
            entry = entries.get(look(leaves))
            return otherwise(leaves, draws) if entry is None else entry.run(leaves, draws)

        return run

    def _try_open(self, leaves: Sequence[Any]) -> None:
        layout = self._layout.with_objects(leaves)
        paths: Numbers = {}
        with suppress(Exception):  # it runs as written
            variant = self.captures.for_call(layout, leaves)
            paths = try_open(self.captures, layout, leaves, variant)
        if paths:
            paths_before, entries = self._open
            with set_within(LOOSE, paths):
                entries = entries if paths == paths_before else {}
                entries[self._state[0](leaves)] = self._build(leaves)
            self._open = paths, entries


entries_by_facts = OpenEntries
