"""`FunctionBase`: a function with its own gradient, as its graphs and the entries that run it.

A rule under an activation is one. `xg.Function` is one that people call, with any arguments: see
`engine/functions/function.py`, and `entries.py` there. An entry is built at the first call of a
dtype, from the outside in:

    on                     looks the entry up by the dtype, or has it built
    captured_or_native     captured; as written if the capture fails
    captured_entry         one entry for each set of facts, if the capture needs facts
    entry_for_facts       the entry for the facts of this call
    lowered_entry          graphs, with what is checked before each call
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import TraceError
from ..backend.contract import Backend
from ..backend.discovery import in_use
from ..backend.emitted import Attached
from ..lowering.checks import find_lacking, refuse_lacking
from ..lowering.lower import lower_graphs
from ..support.lazy_modules import NEEDS_ENGINE, of_engine, provided
from ..support.params import Fused
from ..support.threads import build_once
from ..support.trees import Tensor
from ..trace.active_rules import FREE, KeySource
from ..trace.lookups import is_in_force, is_read
from .arguments import Layout
from .captures import Captures
from .facts import watch
from .proof import ALL, how_much
from .recipe import NotCaptured, Options, Recipe, Variant

Run = Callable[[Sequence[Any], KeySource], Any]
# For each Function; a table that is full is emptied.
MOST_ENTRIES = 1024
# For compilers whose traces hold constants alone: by `identifier`; a row goes with its Function.
by_identifier: weakref.WeakValueDictionary[str, FunctionBase] = weakref.WeakValueDictionary()
_serials = itertools.count()


class FunctionBase:
    """A function with its own gradient.

    Attributes:
        name: the name of the function that it was made from.
        draws: where its random draws come from.
        entries: what runs its calls.
        is_surrogate: whether its gradient is meant to differ from the true one.
    """

    is_surrogate: bool = False
    draws = FREE

    def __init__(self, recipe: Recipe, entries: Entries) -> None:
        in_use()  # done now: a compiler that traces a call cannot load a backend
        self.name, self.entries = recipe.name, entries
        self._identify()

    def _identify(self) -> None:
        self.identifier = f"{self.name}#{next(_serials)}"
        by_identifier[self.identifier] = self

    @property
    def captures(self) -> Captures:
        """The graphs of its code; copies of it share them."""
        return self.entries.captures

    @property
    def recipe(self) -> Recipe:
        """How its code is run and captured."""
        return self.entries.recipe

    @property
    def parameters(self) -> inspect.Signature | None:
        """The parameters of a call; None: they are not known."""
        return self.entries.parameters

    @property
    def native(self) -> bool | None:
        """None: code that cannot be captured runs as written, on its own framework; True: it always
        does; False: it never does.
        """
        return self.entries.options.native

    @property
    def residuals(self) -> str:
        """What forward keeps for backward; see `xg.Function.keeping`."""
        return self.entries.options.residuals

    @property
    def defaults(self) -> tuple[Any, ...]:
        """What a call may leave out, and numbers that move among it."""
        return ()


inline = of_engine(__name__, "inline", "a call within a capture", TraceError)
encode_function = of_engine(__name__, "encode_function", "a document of a Function", TraceError)


@provided
def _rebuild(
    data: dict[str, Any],
    key: Any,
    defaults: tuple[Any, ...] = (),
    residuals: str | None = None,
    fused: Fused | None = None,
) -> FunctionBase:
    # What pickles call: the Function of a document.
    raise TraceError(f"a document of a Function {NEEDS_ENGINE}")


# --- one entry: how calls of a layout run on a backend --------------------------------------------
class Entry:
    """How calls of one layout run on one backend.

    Attributes:
        run: `run(leaves, draws) -> outputs`; the engine replaces it by a faster one, once it knows
            what all calls share.
        bind: `bind(x, numbers) -> f(x)` for tensors like x, the numbers prepared; or None.
        call: `call(x, *numbers)` without a look at the numbers; None: there is none.
    """

    __slots__ = ("__weakref__", "bind", "call", "run")

    def __init__(
        self,
        run: Run,
        bind: Callable[[Tensor, tuple[Any, ...]], Callable[[Tensor], Any]] | None = None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.run, self.bind, self.call = run, bind, call

    def bound(
        self, x: Tensor, numbers: tuple[Any, ...], draws: KeySource
    ) -> Callable[[Tensor], Any]:
        """Return `f(x)` for tensors like x, with these numbers for the rest of the leaves."""
        if self.bind is not None and all(type(number) is float for number in numbers):
            return self.bind(x, numbers)
        return lambda x: self.run((x, *numbers), draws)

    def open(self, draws: KeySource) -> Callable[..., Any]:
        """Return `f(x, *numbers)` for numbers that have been checked."""
        return self.call or (lambda *leaves: self.run(leaves, draws))


def bind_leaves(recipe: Recipe, variant: Variant, backend: Backend, lowered: Attached) -> Entry:
    """Return the entry that passes the leaves of a call to the framework's own function."""
    graphs = variant.graphs
    if not graphs.is_rule or graphs.is_random or variant.numbers or variant.weak:
        return bind_leaves_of_code(recipe, variant, backend, lowered)
    call, check = lowered.call, recipe.arguments.check

    # A rule's leaves are its tensor and numbers, in the order of the graph's inputs.
    def run(leaves: Sequence[Any], draws: KeySource) -> Any:
        return call(*leaves)

    def run_checked(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(backend, leaves)
        return call(*leaves)

    bind = backend.autodiff.bind and partial(backend.autodiff.bind, lowered.native)
    return Entry(run_checked if variant.layout.numbers else run, bind, call)


bind_leaves_of_code = of_engine(
    __name__, "bind_leaves_of_code", "a call of code that draws, or of any arguments"
)


# --- one entry for each set of facts about a call's values ----------------------------------------
class EntriesByFacts:
    """Entries of one layout, one for each set of facts about a call's values.

    `captures` has the facts that are needed, of which a new capture may need more. Where a fact is
    the rule in force, or what a rule's name means, each call runs within the compiler's `on_call`.
    """

    __slots__ = ("_around", "_build", "_entry", "_layout", "_on_call", "_state", "captures")

    def __init__(
        self,
        captures: Captures,
        layout: Layout,
        build: Callable[[Sequence[Any]], Entry],
        on_call: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        self.captures, self._layout, self._build = captures, layout, build
        self._on_call = on_call
        self._entry: Callable[[], Entry | None] = lambda: None
        self._begin_anew()

    def entry(self) -> Entry:
        """Return the entry that runs the calls; this table refers to it weakly."""
        entry = Entry(self.run)
        self._entry = weakref.ref(entry)
        return entry

    def _begin_anew(self) -> None:
        facts = self.captures.facts
        # What reads the facts of a call, and the entries by them: both change together.
        self._state: tuple[Any, dict[Any, Entry]] = watch(facts, self._layout), {}
        self._around = self._on_call if any(map(is_in_force, facts)) else None

    def put(self, leaves: Sequence[Any], entry: Entry) -> None:
        read_facts, entries = self._state
        entries[read_facts(leaves)] = entry

    def run(self, leaves: Sequence[Any], draws: KeySource) -> Any:
        """Run the entry for the facts of a call."""
        if self._around is not None:
            with self._around():
                return self._choose(leaves).run(leaves, draws)
        return self._choose(leaves).run(leaves, draws)

    def _choose(self, leaves: Sequence[Any]) -> Entry:
        read_facts, entries = self._state
        return entries.get(read_facts(leaves)) or self._build_anew(leaves)

    def _build_anew(self, leaves: Sequence[Any]) -> Entry:
        old_facts = self.captures.facts
        entry = self._build(leaves)
        if self.captures.facts != old_facts or len(self._state[1]) >= MOST_ENTRIES:
            self._begin_anew()  # new facts tell more calls apart
        self.put(leaves, entry)
        return entry


@provided
def entries_by_facts(
    captures: Captures,
    layout: Layout,
    build: Callable[[Sequence[Any]], Entry],
    on_call: Callable[[], AbstractContextManager[Any]] | None,
) -> EntriesByFacts:
    """Return the entries of a layout by facts, among which are values that code reads."""
    return EntriesByFacts(captures, layout, build, on_call)


# --- one for each layout --------------------------------------------------------------------------
class Entries:
    """The entries that run the calls of a rule under an activation, under one set of choices; see
    `EntriesOfCode` for those of any arguments.

    Attributes:
        captures: what its recipe was captured to; copies of a Function share them.
        options: those of the recipe, unless the Function was given others since.
        known: the entries, by the kinds of a call's leaves.
    """

    def __init__(self, captures: Captures, options: Options | None = None) -> None:
        self.captures, self.recipe = captures, captures.recipe
        self.options = self.recipe.options if options is None else options
        self.known: dict[Any, Entry] = {}

    @property
    def parameters(self) -> inspect.Signature | None:
        """The parameters of a call; None: they are not known."""
        return self.recipe.signature

    def apart(self) -> Entries:
        """Return empty entries for the same recipe. What is built refers to these, not to the table
        that holds it, which would be a cycle of references.
        """
        return Entries(self.captures, self.options)

    def lowered(self, variant: Variant, backend: Backend) -> Attached:
        """Return a variant lowered to one backend, once for each set of choices."""
        graphs, key = variant.graphs, backend.name
        residuals, fused = self.options.residuals, self.options.fused
        if residuals != "auto":
            graphs, key = replace(graphs, residuals=residuals), f"{key} {residuals}"
        if fused != "auto":
            graphs, key = replace(graphs, fused=fused), f"{key} fused={fused}"
        return build_once(variant.lowered, key, partial(lower_graphs, graphs, backend))

    def runs_as_written(self, layout: Layout) -> bool:
        """Return whether such a call runs as written while no compiler traces."""
        return self.options.native is True

    def on(self, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry for a tensor and numbers; there is one for each dtype."""
        key = (backend.name, leaves[0].dtype)
        entry = self.known.get(key)
        if entry is None:
            layout = self.recipe.lay_out(self.parameters, leaves, None)
            build = partial(self.apart().entry_for, layout, backend, leaves)
            entry = build_once(self.known, key, build, MOST_ENTRIES)
        return entry

    def entry_for(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of calls of a layout, captured, or as written if that fails."""
        if self.runs_as_written(layout):
            return native_entry(self, layout, backend, None, "it has native=True")
        capture = partial(self.captured_entry, layout, backend, leaves)
        return self.captured_or_native(layout, backend, capture)

    def captured_or_native(
        self, layout: Layout, backend: Backend, capture: Callable[[], Entry]
    ) -> Entry:
        """Return an entry that is captured, or the code as written if that fails."""
        opaque = backend.compiler.opaque
        try:  # a compiler that traces the code around this call would read on in the capture
            return capture() if opaque is None else opaque(capture)()
        except NotCaptured as error:
            why = self.recipe.give_up(error.with_cause())
            # Kept without the cause, whose traceback would keep the call's tensors alive.
            return native_entry(self, layout.without_objects(), backend, why, error.error.to_keep())
        except Exception as error:
            reason = self.reason_after(error, backend)
            if not reason:
                raise
            return native_entry(self, layout.without_objects(), backend, None, reason)

    def reason_after(self, error: Exception, backend: Backend) -> str:
        """Return why the code runs as written after any other error; "": it is raised."""
        return ""

    def captured_entry(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        entry = self.entry_for_facts(layout, backend, leaves)
        facts = self.captures.facts - {"dtype"}
        if not facts:
            return entry
        layout = layout.without_objects()

        def build(leaves: Sequence[Any]) -> Entry:
            capture = partial(self.entry_for_facts, layout.with_objects(leaves), backend, leaves)
            return self.captured_or_native(layout, backend, capture)

        make = entries_by_facts if any(map(is_read, facts)) else EntriesByFacts
        table = make(self.captures, layout, build, on_call=backend.compiler.on_call)
        table.put(leaves, entry)
        return table.entry()

    def entry_for_facts(self, layout: Layout, backend: Backend, leaves: Sequence[Any]) -> Entry:
        """Return the entry of calls with the facts of this one."""
        variant = self.captures.for_call(layout, leaves)
        if variant.is_whole:
            return self.lowered_entry(variant, backend)
        return decided_entry(self, variant, layout, backend)

    def lowered_entry(self, variant: Variant, backend: Backend) -> Entry:
        """Return the entry of a variant's graphs, with what is checked before each call."""
        graphs, lowered = variant.graphs, self.lowered(variant, backend)
        lacking = find_lacking(self.recipe.subject, backend, graphs.forward, graphs.backward)
        refuse_lacking(lacking, variant.layout.dtype or "")
        entry = bind_leaves(self.recipe, variant, backend, lowered)
        entry = self.checked_entry(entry, variant, backend)
        return proving_each_call(self, entry, variant) if how_much() == ALL else entry

    def checked_entry(self, entry: Entry, variant: Variant, backend: Backend) -> Entry:
        """Return an entry with the checks of a call that its code asks for."""
        return entry


@provided
def native_entry(
    entries: Entries,
    layout: Layout,
    backend: Backend,
    error: TraceError | None,
    reason: str | TraceError,
) -> Entry:
    """Return the entry of the code as written; `error` says why it was not captured."""
    subject, why = entries.recipe.subject, error or reason
    raise TraceError(f"{subject} runs as written ({why}), which {NEEDS_ENGINE}") from error


decided_entry = of_engine(
    __name__, "decided_entry", "a call of code that does more than its graphs", TraceError
)


@provided
def proving_each_call(entries: Entries, entry: Entry, variant: Variant) -> Entry:
    """Return an entry that compares the code with its graph at each call, on its tensors."""
    return entry
