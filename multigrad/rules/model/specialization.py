"""`Specialization`: a rule with its static params fixed, captured, proven, or run as written.

The other params are run-time numbers: they are arguments of the graph, so that one graph serves
all their values. `triangular(width=1.0)` and `triangular(width=2.0)` are one specialization.

From the top: its numbers and their ranges; its graph; the proof that the graph is what the rule
does; and the rule as written, where it cannot be captured. The last section is `RuleCode`: what has
been made of it.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...backend.discovery import backend_of
from ...capture.copies import capture as capturing
from ...capture.user_code.libraries import read_as_meant
from ...capture.user_code.moving_reads import asks_for_read
from ...capture.user_code.reads import LOOSE, noting_reads
from ...errors import DisprovedError, GradientError, MultigradError, NativeRuleWarning, TraceError
from ...functions.proof.rules import RuleUnderProof, prove_rule
from ...functions.proof.run import dialect_for
from ...functions.proof.samples import called_dtype, called_library
from ...functions.proof.verdicts import is_asked
from ...graph.ir.graph import Graph
from ...graph.passes.facts import LIBRARY
from ...graph.support.params import Range
from ...graph.support.threads import SERIALS, build_once
from ...lowering.checks import shape_check
from ...trace.derived.shards import over_shards
from ...trace.identity import items_key
from ...trace.lookups import Meanings, look_up, note, reading
from ...trace.ranks import name_rank
from ...trace.trace import NeedsConcrete, Trace

Tensor = Any
Rule = Any  # of rule.py, which imports this module
MOST_GRAPHS = 256  # of one rule, by facts
MOST_CODES = 4096  # of all rules: then the table is emptied
MOST_MEANINGS = 64  # of what one rule reads
# The functions of rules whose users were warned that they run as written.
_warned_of: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


class Slot(NamedTuple):
    """Stands for a run-time value that a part of a composed rule has bound; `name` gives it."""

    name: str


class Specialization:
    """A rule with its static params fixed; it never changes, but for the two memories below.

    Attributes:
        runtime: names of the run-time params, in the order of the values of a rule in force.
        static: the other params, with their values.
        hidden: those of `runtime` that parts of a composed rule have bound, so that no caller sets
            them. Their values are run-time numbers too, as the parts share the graph.
        code: its graphs and lowered code, which equal rules share.
        checked_values: the latest values that were found to be in their ranges; () at first.
        functions_under: by an activation's name, the Function of the rule under it.
    """

    def __init__(
        self,
        rule: Rule,
        runtime: tuple[str, ...],
        static: Mapping[str, Any],
        hidden: frozenset[str],
        code: RuleCode,
    ) -> None:
        self.rule = rule
        self.runtime = runtime
        self.static = dict(static)
        self.hidden = hidden
        self.code = code
        self.id = code.id
        self.checked_values: tuple[Any, ...] = ()
        self.functions_under: dict[str, Any] = {}
        # The ranges of run-time params by position, if none depends on another param: a number
        # strictly between the two fits.
        self._ranges: list[tuple[int, float, float, Range]] | None = None
        if not rule.parts and not any(limits.others for limits in rule.own_ranges.values()):
            ranges = [(i, rule.own_ranges.get(name)) for i, name in enumerate(runtime)]
            self._ranges = [(i, *each.inner, each) for i, each in ranges if each is not None]

    @property
    def subject(self) -> str:
        return f"rule {self.rule.name!r}"

    # --- its numbers: `values` are those of `runtime`, in that order ------------------------------
    def has_checked(self, values: Sequence[Any]) -> bool:
        """Return whether these values are those that passed the last check."""
        pairs = zip(self.checked_values, values, strict=False)
        matches = [a is b or (type(a) is type(b) is float and a == b) for a, b in pairs]
        return len(self.checked_values) == len(values) and all(matches)

    def check_numbers(self, values: tuple[Any, ...]) -> None:
        """Check values against their ranges, unless they passed the last check.

        Raises:
            RuleValueError: one is outside its range.
        """
        if values == self.checked_values:
            return
        self.check_anew(values)
        self.checked_values = values

    def check_anew(self, values: tuple[Any, ...]) -> None:
        """Check values against their ranges; compilers may trace it."""
        fits = self._ranges is not None
        for i, low, high, limits in self._ranges or ():  # a loop: each new number comes here
            value = values[i]
            if not (type(value) is float and low < value < high) and not limits.holds(value):
                fits = False
        if not fits:
            rule, params = self.fill_bound(self.name_values(values))
            # The parts of a series have defaults of their own; else all values are given.
            rule._check_ranges(params, with_defaults=bool(rule.parts))

    def name_values(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return all params by name: the static ones, and these values of the run-time ones."""
        return {**self.static, **dict(zip(self.runtime, values, strict=True))}

    def params(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the params that a caller may set, by name."""
        return self.fill_bound(self.name_values(values))[1]

    def fill_bound(self, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """Return the rule with the hidden params put into its parts, and the other params."""
        visible_params = {name: value for name, value in params.items() if name not in self.hidden}
        return (_fill(self.rule, params) if self.hidden else self.rule), visible_params

    def graph(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        """Return the rule's graph under these facts, captured once.

        Raises:
            NeedsConcrete: the rule needs other facts, which are now in `code.facts`, too.
        """
        return self._captured(has_tin, facts).graph

    def latest_graph(self) -> Graph | None:
        captured = next(reversed(self.code.graphs.values()), None)
        return None if captured is None else captured.graph

    def _captured(self, has_tin: bool, facts: Mapping[str, Any]) -> CapturedRule:
        graphs, key = self.code.graphs, (has_tin, items_key(facts))
        build = functools.partial(self._build, has_tin, facts)
        return graphs.get(key) or build_once(graphs, key, build, MOST_GRAPHS)

    def _build(self, has_tin: bool, facts: Mapping[str, Any]) -> CapturedRule:
        try:
            functions = [*_functions_of(self.rule)]
            with reading() as meanings, noting_reads(functions, takes_defaults=False):
                capture = functools.partial(self._capture_proven, has_tin)
                graph = read_as_meant(capture, facts, self.dialect)
            if self.rule.shards is not None:
                # A new graph, which says the same about the proof.
                origin = graph.origin
                graph = replace(over_shards(graph, self.rule.shards, facts), origin=origin)
        except NeedsConcrete as need:
            is_asked_again = facts.keys() >= set(need.facts)  # no capture would end
            if is_asked_again or asks_for_read(need.facts):
                raise TraceError(
                    f"rule {self.rule.name!r} needs {', '.join(need.facts)} in a way not captured"
                ) from need
            self.code.need(need.facts)
            raise
        captured = CapturedRule(graph, {self._called()})
        self.code.note_capture((has_tin, items_key(facts)), captured, meanings)
        self.code.libraries |= {facts[LIBRARY]} if facts.get(LIBRARY) else set()
        return captured

    def dialect(self, called: str | None = None) -> str:
        """Return the library that the first function of the rule is written in; see `Recipe`."""
        rule = self.rule
        while rule.function is None:
            rule = rule._resolved_parts()[0]
        return dialect_for(rule, called)

    def without_call(self, facts: Container[str]) -> dict[str, str]:
        """Return what takes the place of a call for those of these facts that only calls tell: the
        library of the tensors with which it was called, where it is one.
        """
        libraries = self.code.libraries
        name = next(iter(libraries)) if len(libraries) == 1 else ""
        return {LIBRARY: name} if LIBRARY in facts else {}

    def _called(self) -> tuple[str, str]:
        # What its code does may depend on these; a library that is not its own, and its names.
        library = called_library()
        return called_dtype(), "" if library in ("", self.dialect(library)) else library

    def _capture(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        return capturing.capture(
            self.rule.name,
            self._record,
            has_tin=has_tin,
            runtime=self.runtime,
            static=self.static,
            facts=facts,
        )

    def _capture_proven(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        graph = self._capture(has_tin, facts)
        if is_asked(self.rule.prove) and not LOOSE.get():
            reason = self._prove(graph, has_tin, facts)
            if reason:
                return replace(graph, origin=f"{graph.origin}; not proven: {reason}")
        return graph

    def _record(self, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        rule, visible_params = self.fill_bound(params)
        return rule._run(trace, grad_out, tin, visible_params)

    def prove_dtype(self, has_tin: bool, facts: Mapping[str, Any]) -> None:
        """Compare the rule with its graph for the dtype and the library that it is called with,
        once for each.
        """
        captured, called = self._captured(has_tin, facts), self._called()
        if called in captured.proven or self.rule.shards is not None:
            return
        if is_asked(self.rule.prove) and not LOOSE.get():
            self._prove(captured.graph, has_tin, facts, is_known_in_float64=True)
            captured.proven.add(called)

    def prove_call(self, has_tin: bool, facts: Mapping[str, Any]) -> None:
        """Compare the rule with its graph on the input that it is called with now."""
        self._prove(
            self.graph(has_tin, facts), has_tin, facts, is_known_in_float64=True, is_call=True
        )

    def _prove(
        self,
        graph: Graph,
        has_tin: bool,
        facts: Mapping[str, Any],
        *,
        is_known_in_float64: bool = False,
        is_call: bool = False,
    ) -> str:
        # "", or why the proof stays open. `is_known_in_float64`: see `Attempt`.
        under_proof = RuleUnderProof(
            self.rule,
            self.fill_bound,
            graph,
            has_tin,
            runtime=self.runtime,
            static=self.static,
            facts=facts,
            emitted=self.code.emitted,
            is_known_in_float64=is_known_in_float64,
        )
        recapture = functools.partial(self._capture, has_tin, facts)
        return prove_rule(under_proof, recapture, is_call=is_call)

    # --- the rule as written, where it cannot be captured -----------------------------------------
    def give_up(self, error: TraceError) -> None:
        """Let the rule run as written, and warn once, at the line that cannot be captured.

        Raises `error` if it was registered with native=False, or is over shards.
        """
        if self.rule.native is False or self.rule.shards is not None:
            raise error
        function = self.rule.function
        is_known = self.code.uncapturable is not None
        self.code.uncapturable = self.code.uncapturable or error.to_keep()
        if isinstance(function, types.FunctionType):
            is_known = is_known or function in _warned_of
            _warned_of.add(function)
        if is_known:
            return
        code = getattr(function, "__code__", None)
        file, line = error.place or (
            (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 1)
        )
        # The line of use would say less, and is behind the frames of a framework.
        warnings.warn_explicit(
            f"{error}. It runs as written, in this framework only (register it with native=True to "
            "say that this is meant)",
            NativeRuleWarning,
            file,
            line,
            module=self.rule.__module__,
        )

    def run_as_it_is(
        self, ctx: Any, grad_out: Tensor, tin: Tensor | None, values: tuple[Any, ...]
    ) -> Tensor:
        """Call the rule's function on tensors and check what it returns."""
        error = self.code.uncapturable
        if self.rule.shards is not None:
            raise TraceError(
                f"rule {self.rule.name!r} runs as written, on the tensor in hand, so it cannot be "
                f"used {self.rule.shards}: reduce over shards in the rule itself"
            )
        if isinstance(error, DisprovedError) and error.home not in ("", backend_of(grad_out).name):
            raise error.to_keep()
        rule, params = self.fill_bound(self.name_values(values))
        try:
            grad_in = rule._run_native(ctx, grad_out, tin, params)
        except MultigradError:
            raise
        except Exception as failure:
            if self.code.uncapturable is None:
                name_rank(failure, f"{self.subject} failed")
                raise
            owner = backend_of(grad_out).name
            text = f"{self.code.uncapturable}; run as written on {owner}, it failed: {failure}"
            trace_error = TraceError(text)
            name_rank(trace_error)
            raise trace_error from failure
        return check_result(self.rule.name, grad_in, grad_out if tin is None else tin)


def check_result(rule: str, grad_in: Any, like: Tensor) -> Tensor:
    owner = backend_of(like)
    if not isinstance(grad_in, owner.tensors.types):
        kind = type(grad_in)
        module_prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        description = "None" if grad_in is None else f"a {module_prefix}{kind.__qualname__}"
        raise GradientError(
            f"rule {rule!r} returned {description}; expected the gradient, a tensor of {owner.name}"
        )
    shape_check(rule)(grad_in, like)
    if grad_in.dtype != like.dtype:
        raise GradientError(
            f"rule {rule!r} returned {grad_in.dtype} for a {like.dtype} input; cast it back to "
            "tin's dtype"
        )
    return grad_in


def _fill(rule: Rule, values: Mapping[str, Any]) -> Rule:
    bound = {k: values[v.name] if isinstance(v, Slot) else v for k, v in rule.bound.items()}
    return rule.copy(bound=bound, parts=tuple(_fill(part, values) for part in rule.parts))


def _functions_of(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield rule.function
    for part in rule._resolved_parts():
        yield from _functions_of(part)


@dataclass(slots=True, eq=False)
class CapturedRule:
    """A graph of a rule, and the dtypes, and libraries but its own, of the calls in which it was
    compared with the rule itself.
    """

    graph: Graph
    proven: set[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Tables:
    """What was made of a rule under one meaning of what it reads besides its inputs.

    Attributes:
        graphs: by whether there is an input and by the facts about it, the latest last.
        entries: the bare rule's attached code, by backend and facts; None: it runs as written.
    """

    graphs: dict[Any, CapturedRule] = field(default_factory=dict)
    entries: dict[Any, Any] = field(default_factory=dict)


class RuleCode:
    """The graphs and the lowered code of a rule with its static params fixed.

    Equal rules share it, and their Specializations fill it at the first calls:

    1. A capture needs a fact of the input, such as its rank: `need` adds "ndim" to `facts`. Whoever
       asks for a graph gives those facts, and each set of their values has a graph of its own.
    2. A capture ends, and has read more than its input, such as what the name "scale" means:
       `note_capture` adds that to `reads`. From now on there is a `Tables` for each meaning of it.
    3. The graph is put into their table of graphs, and its native code into that of entries.

    Nothing else makes a graph out of date: a name that means another rule leads to other tables,
    and to the same ones again once it means the first rule again.

    Attributes:
        id: its name in tokens, different for each.
        finalizers: drop it with the functions and objects that the rule is made of.
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        reads: what the rule's code read besides its inputs (`lookups.py`); grows.
        draws: whether a capture of it was random.
        libraries: those of the tensors of calls, where the graph depends on it; grows.
        uncapturable: why it runs as written, without the frames that led there.
        variants: by activation, what the rule is under it, by layout and facts, which contain what
            `reads` mean: so they need no `Tables`.
        emitted: the bare rule by backend and graph: equal graphs are emitted once.
    """

    __slots__ = (
        "_tables", "draws", "emitted", "facts", "finalizers", "id", "libraries", "reads",
        "uncapturable", "variants",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.finalizers: list[weakref.finalize[..., Any]] = []
        self.id = f"{name}#{next(SERIALS)}"
        self.facts: frozenset[str] = frozenset()
        self.reads: frozenset[str] = frozenset()
        self.draws = False
        self.libraries: set[str] = set()
        self.uncapturable: TraceError | None = None
        self.variants: dict[str, dict[Any, Any]] = {}
        self.emitted: dict[tuple[Any, ...], Any] = {}
        self._tables: dict[tuple[Any, ...], Tables] = {}  # by the meanings of `reads`, in order

    @property
    def graphs(self) -> dict[Any, CapturedRule]:
        return self._present_tables().graphs

    @property
    def entries(self) -> dict[Any, Any]:
        return self._present_tables().entries

    def _present_tables(self) -> Tables:
        lookups = self.reads
        meanings = tuple(map(look_up, sorted(lookups))) if lookups else ()
        tables = self._tables.get(meanings)
        if tables is None:
            if len(self._tables) >= MOST_MEANINGS:
                self._tables.clear()
            tables = self._tables.setdefault(meanings, Tables())
        return tables

    def need(self, facts: Iterable[str]) -> None:
        """Note facts that a capture asked for; all later ones are given them."""
        self.facts |= set(facts)

    def note_capture(self, key: Any, captured: CapturedRule, meanings: Meanings) -> None:
        """Note whether a capture drew, and what it read, with the meanings of then."""
        self.draws = self.draws or captured.graph.input("key") is not None
        note(meanings)  # by a capture around this one too
        if not self.reads >= meanings.keys():
            self.reads |= meanings.keys()
            # Their keys lack what this capture read.
            self._tables.clear()
            then = [meanings[f] if f in meanings else look_up(f) for f in sorted(self.reads)]
            self._tables[tuple(then)] = Tables({key: captured})


# It lives as long as the functions that the rule is made of, even if no rule is held; and it refers
# to none of them, or what they close over would live forever.
_codes: dict[Any, RuleCode] = {}


def code_of(name: str, key: Any, owners: Iterable[Any]) -> RuleCode:
    """Return the code made of a rule; it is dropped with the first of its owners to go.

    Args:
        key: equal for equal rules; it keeps no owner alive.
        owners: the functions and objects of which the rule is made.
    """
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= MOST_CODES:
            for old_key in tuple(_codes):
                _drop(old_key)
        new_code = RuleCode(name)
        code = _codes.setdefault(key, new_code)
        for owner in owners if code is new_code else ():
            with suppress(TypeError):  # Python offers no weak reference to it
                finalizer = weakref.finalize(owner, _drop, key)
                finalizer.atexit = False
                code.finalizers.append(finalizer)
    return code


def _drop(key: Any) -> None:
    code = _codes.pop(key, None)
    for finalizer in () if code is None else code.finalizers:
        finalizer.detach()  # the other owners may live on
