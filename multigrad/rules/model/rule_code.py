"""The captured code of a rule: `RuleCode`, which equal rules share, and its `Specialization`."""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...backend.discovery import backend_of
from ...capture.copies import capture as capturing
from ...errors import DisprovedError, GradientError, MultigradError, NativeRuleWarning, TraceError
from ...functions.proof.compare import is_asked
from ...functions.proof.functions import RuleUnderProof, prove_rule
from ...functions.proof.samples import called_dtype
from ...graph.ir.graph import Graph
from ...graph.support.params import Range
from ...graph.support.threads import SERIALS, build_once
from ...lowering.input_checks import shape_check
from ...trace.derived.shards import over_shards
from ...trace.identity import Same, items_key
from ...trace.lookups import Meanings, look_up, note, reading
from ...trace.ranks import name_rank
from ...trace.trace import NeedsConcrete, Trace

# --- what has been made of rules ------------------------------------------------------------------
# Kept as long as the functions that rules are made of, even if no rule is held. It refers to
# none of those functions, or what they close over would live forever.
MOST_CODES = 4096
MOST_MEANINGS = 64


class RuleCode:
    """The graphs and the lowered code of a rule with its static params fixed.

    Attributes:
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        reads: what the rule's code read besides its inputs (`lookups.py`); grows.
        draws: whether a capture of it was random.
        uncapturable: why it runs as written, without the frames that led there.
        variants: what it is under each activation, by layout and facts.
        proven: the graph that was compared with the rule, and in which dtypes, by facts.
        emitted: the bare rule by backend, as it was emitted last.
    """

    __slots__ = (
        "_memories",
        "draws",
        "emitted",
        "facts",
        "id",
        "owners",
        "proven",
        "reads",
        "uncapturable",
        "variants",
    )

    def __init__(self, name: str, owners: tuple[int, ...]) -> None:
        self.owners = owners  # by their identity
        self.id = f"{name}#{next(SERIALS)}"
        self.facts: frozenset[str] = frozenset()
        self.reads: frozenset[str] = frozenset()
        self.draws = False
        self.uncapturable: TraceError | None = None
        self.variants: dict[str, dict[Any, Any]] = {}
        self.proven: dict[Any, tuple[Graph, set[str]]] = {}
        self.emitted: dict[tuple[Any, ...], Any] = {}
        # Graphs and lowered code, by what the facts in `reads` mean, in their order.
        self._memories: dict[tuple[Any, ...], tuple[dict[Any, Graph], dict[Any, Any]]] = {}

    @property
    def graphs(self) -> dict[Any, Graph]:
        """The graphs for the present meaning of what the rule reads, the latest last."""
        return self._memory()[0]

    @property
    def entries(self) -> dict[Any, Any]:
        """The bare rule's attached code by backend, for the present meaning of what it reads."""
        return self._memory()[1]

    def _memory(self) -> tuple[dict[Any, Graph], dict[Any, Any]]:
        reads = self.reads
        key = tuple(map(look_up, sorted(reads))) if reads else ()
        memory = self._memories.get(key)
        if memory is None:
            if len(self._memories) >= MOST_MEANINGS:
                self._memories.clear()
            memory = self._memories.setdefault(key, ({}, {}))
        return memory

    def note_capture(self, graph: Graph, meanings: Meanings) -> None:
        """Note what a capture read; graphs and code are keyed by its meaning from now on."""
        self.draws = self.draws or graph.input("key") is not None
        note(meanings)  # by a capture around this one too
        if not self.reads >= meanings.keys():
            self.reads = self.reads | meanings.keys()
            # Their keys lack what this capture read.
            self._memories.clear()


_codes: dict[Any, RuleCode] = {}
_owned: dict[int, tuple[Same, set[Any]]] = {}  # by an owner's identity: which codes go with it


def code_of(name: str, key: Any, owners: Iterable[Any]) -> RuleCode:
    """Return the code made of a rule; it is dropped with the first of its owners to go.

    Args:
        name: the rule's name.
        key: equal for equal rules; it keeps no owner alive.
        owners: the functions and objects of which the rule is made.
    """
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= MOST_CODES:
            _codes.clear()
            _owned.clear()
        owners = tuple(owners)
        for owner in owners:
            _keys_of(owner).add(key)
        code = _codes.setdefault(key, RuleCode(name, tuple(map(id, owners))))
    return code


def _keys_of(owner: Any) -> set[Any]:
    identity = id(owner)
    known = _owned.get(identity)
    # The id of an object that is gone may be another's now.
    if known is None or known[0].item() is not owner:
        known = _owned[identity] = Same(owner, functools.partial(_forget, identity)), set()
    return known[1]


def _forget(identity: int, _: Any) -> None:
    known = _owned.get(identity)
    if known is not None and known[0].item() is None:
        del _owned[identity]
        for key in known[1]:
            code = _codes.pop(key, None)
            # The code's other owners forget its key.
            for other in code.owners if code is not None else ():
                if other in _owned:
                    _owned[other][1].discard(key)


Tensor = Any
Rule = Any  # of rule.py, which imports this module
MOST_GRAPHS = 256
# Functions whose fallback has been warned about.
_given_up: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


class Slot(NamedTuple):
    """Stands for a run-time value that a part of a composed rule has bound; `name` gives it."""

    name: str


class Specialization:
    """A rule with its static params fixed, and what has been made of it.

    Attributes:
        runtime: names of the run-time params, in the order of the values of a rule in force.
        hidden: those of them that parts of a composed rule have bound, so that no caller sets them.
        code: its graphs and lowered code, which equal rules share.
        in_range: the numbers that were found to be in their ranges last.
        under: the Functions that it is under activations, by their names.
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
        self.under: dict[str, Any] = {}
        self.id = code.id
        self.code = code
        self.in_range: tuple[Any, ...] = ()
        # The ranges of run-time params by position, if none depends on another param: a number
        # strictly between the two fits.
        self._ranges: list[tuple[int, float, float, Range]] | None = None
        if not rule.parts and not any(allowed.others for allowed in rule.own_ranges.values()):
            ranges = [(i, rule.own_ranges.get(name)) for i, name in enumerate(runtime)]
            self._ranges = [(i, *each.inner, each) for i, each in ranges if each is not None]

    @property
    def subject(self) -> str:
        return f"rule {self.rule.name!r}"

    def graph(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        """Return the rule's graph under these facts, captured once."""
        graphs, key = self.code.graphs, (has_tin, items_key(facts))
        build = functools.partial(self._build, has_tin, facts)
        return graphs.get(key) or build_once(graphs, key, build, MOST_GRAPHS)

    def _build(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        try:
            with reading() as meanings:
                graph = self._prove(self._capture(has_tin, facts), has_tin, facts)
            if self.rule.shards is not None:
                # A new graph, which says the same about the proof.
                origin = graph.origin
                graph = replace(over_shards(graph, self.rule.shards, facts), origin=origin)
        except NeedsConcrete as need:
            if facts.keys() >= set(need.facts):  # asked again: no capture would end
                raise TraceError(
                    f"rule {self.rule.name!r} needs {', '.join(need.facts)} in a way not captured"
                ) from need
            self.code.facts = self.code.facts | set(need.facts)
            raise
        self.code.note_capture(graph, meanings)
        self.code.proven[has_tin, items_key(facts)] = graph, {called_dtype()}
        return graph

    def _run(self, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        rule, free = self.open(params)
        return rule._run(trace, grad_out, tin, free)

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
        rule, params = self.open(self._given(values))
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
            explained = TraceError(text)
            name_rank(explained)
            raise explained from failure
        return check_result(self.rule.name, grad_in, grad_out if tin is None else tin)

    def has_in_range(self, values: Sequence[Any]) -> bool:
        """Return whether these numbers are those that passed the last check."""
        pairs = zip(self.in_range, values, strict=False)
        same = [a is b or (type(a) is type(b) is float and a == b) for a, b in pairs]
        return len(self.in_range) == len(values) and all(same)

    def check_numbers(self, values: tuple[Any, ...]) -> None:
        """Check the ranges of a call's numbers, unless they passed the last check."""
        if values == self.in_range:
            return
        fits = self._ranges is not None
        for i, low, high, allowed in self._ranges or ():  # a loop: each new number comes here
            value = values[i]
            if not (type(value) is float and low < value < high) and not allowed.holds(value):
                fits = False
        if not fits:
            rule, params = self.open(self._given(values))
            # The parts of a series have defaults of their own; else all values are given.
            rule._check_ranges(params, whole=bool(rule.parts))
        self.in_range = values

    def params(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return all params with their values, without those that parts have bound."""
        return self.open(self._given(values))[1]

    def _given(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return {**self.static, **dict(zip(self.runtime, values, strict=True))}

    def open(self, params: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """Return the rule with what its parts have bound, and the other params."""
        free = {name: value for name, value in params.items() if name not in self.hidden}
        return (_fill(self.rule, params) if self.hidden else self.rule), free

    def _capture(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        known = {"runtime": self.runtime, "static": self.static, "facts": facts}
        return capturing.capture(self.rule.name, self._run, has_tin=has_tin, **known)

    def _prove(self, graph: Graph, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        if not is_asked(self.rule.prove):
            return graph
        reason = self._prove_graph(graph, has_tin, facts)
        return replace(graph, origin=f"{graph.origin}; not proven: {reason}") if reason else graph

    def _prove_graph(
        self, graph: Graph, has_tin: bool, facts: Mapping[str, Any], is_call: bool = False
    ) -> str:
        known = {"runtime": self.runtime, "static": self.static, "facts": facts}
        known |= {
            "emitted": self.code.emitted,
            "is_again": any(g is graph for g, _ in self.code.proven.values()),
        }
        under_proof = RuleUnderProof(self.rule, self.open, graph, has_tin, **known)
        again = functools.partial(self._capture, has_tin, facts)
        return prove_rule(under_proof, again, is_call=is_call)

    def prove_dtype(self, has_tin: bool, facts: Mapping[str, Any]) -> None:
        """Compare the rule with its graph in the dtype that it is called in, once for each."""
        graph, key = self.graph(has_tin, facts), (has_tin, items_key(facts))
        known, dtypes = self.code.proven.get(key, (None, {""}))
        if known is graph and self.rule.shards is None and is_asked(self.rule.prove):
            if called_dtype() not in dtypes:
                self._prove_graph(graph, has_tin, facts)
            dtypes.add(called_dtype())

    def prove_call(self, has_tin: bool, facts: Mapping[str, Any]) -> None:
        """Compare the rule with its graph on the input that it is called with now."""
        self._prove_graph(self.graph(has_tin, facts), has_tin, facts, is_call=True)

    def latest(self) -> Graph | None:
        return next(reversed(self.code.graphs.values()), None)

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
            is_known = is_known or function in _given_up
            _given_up.add(function)
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


def check_result(rule: str, grad_in: Any, like: Tensor) -> Tensor:
    owner = backend_of(like)
    if not isinstance(grad_in, owner.tensors.types):
        kind = type(grad_in)
        home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        description = "None" if grad_in is None else f"a {home}{kind.__qualname__}"
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
