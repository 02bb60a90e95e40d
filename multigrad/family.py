"""What a rule becomes with its params: a `Family` owns graphs and lowered code, a `Spec` adds the values."""

from __future__ import annotations

import itertools
import threading
import types
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .capture import capture as capturing
from .errors import NativeRuleWarning, TraceError
from .ir.graph import Graph
from .ir.record import NeedFact

if TYPE_CHECKING:
    from .rule import Rule

MOST_GRAPHS = 256
LIKELY = {"dtype": "float32", "ndim": 2, "shape": (2, 3)}  # an input as good as any
_serial = itertools.count()
lock = threading.RLock()  # held while a rule is captured or lowered
_given_up: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


class Family:
    """A rule with its static params fixed: owns its graphs and its lowered code.

    Attributes:
        runtime: names of the run-time params, in the order of a Spec's values.
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        entries: lowered code by (backend, forward).
    """

    def __init__(self, rule: Rule, runtime: tuple[str, ...], static: Mapping[str, Any]) -> None:
        self.rule = rule
        self.runtime = runtime
        self.static = dict(static)
        self.id = f"{rule.name}#{next(_serial)}"
        self.facts: frozenset[str] = frozenset()
        self.entries: dict[Any, Any] = {}
        self.uncapturable: TraceError | None = None
        self._graphs: dict[Any, Graph] = {}

    def graph(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        """Return the rule's graph under these facts, captured once.

        Raises:
            NeedFact: more facts are needed; `self.facts` has been extended.
            TraceError: it cannot be captured.
        """
        key = (has_tin, tuple(sorted(facts.items(), key=str)))
        with lock:
            graph = self._graphs.get(key)
            if graph is None:
                try:
                    graph = capturing.capture(
                        self.rule.name, self.rule.run, has_tin=has_tin, runtime=self.runtime,
                        static=self.static, facts=facts,
                    )  # fmt: skip
                except NeedFact as need:
                    if facts.keys() >= set(need.facts):  # asked again: no capture would end
                        raise TraceError(
                            f"rule {self.rule.name!r} needs {', '.join(need.facts)} in a way not captured"
                        ) from need
                    self.facts = self.facts | set(need.facts)
                    raise
                if len(self._graphs) >= MOST_GRAPHS:  # many shapes or values: keep memory bounded
                    self._graphs.clear()
                self._graphs[key] = graph
            return graph

    def latest(self) -> Graph | None:
        """Return the graph that was captured last, or None."""
        return next(reversed(self._graphs.values()), None)

    def give_up(self, error: TraceError) -> None:
        """Let the rule run as it is, and say so once, at the line that cannot be captured.

        Raises:
            TraceError: it was registered with native=False.
        """
        if self.rule.native is False:
            raise error
        function = self.rule.function
        if self.uncapturable is not None or function in _given_up:
            self.uncapturable = self.uncapturable or error
            return
        self.uncapturable = error
        if isinstance(function, types.FunctionType):
            _given_up.add(function)
        code = getattr(function, "__code__", None)
        file, line = error.place or (
            (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 1)
        )
        # Where it is used says less, and lies behind the frames of a framework.
        warnings.warn_explicit(
            f"{error}. It runs as it is, in this framework only "
            f"(register it with native=True to say that this is meant)",
            NativeRuleWarning,
            file,
            line,
            module=self.rule.__module__,
        )


@dataclass(frozen=True, slots=True)
class Spec:
    """A family with values for its run-time params; `token` is equal for equal meaning."""

    family: Family
    values: tuple[Any, ...]
    token: str

    @property
    def params(self) -> dict[str, Any]:
        """All params with their values."""
        return {**self.family.static, **dict(zip(self.family.runtime, self.values, strict=True))}

    def graph(self) -> Graph:
        """Return the rule's graph with the params' own values where the rule branches on them.

        Raises:
            NeedFact: it needs to know something about its input.
            TraceError: it cannot be captured.
        """
        facts: dict[str, Any] = {}
        while True:
            try:
                return self.family.graph(True, facts)
            except NeedFact as need:
                names = [fact.removeprefix("param:") for fact in need.facts]
                if not self.params.keys() >= set(names):
                    raise
                facts.update({f"param:{name}": self.params[name] for name in names})

    def likely_graph(self, has_tin: bool) -> tuple[Graph | None, dict[str, Any]]:
        """Return the rule's graph for an input such as there may be, and what it needed to know; no graph: it has none."""
        facts: dict[str, Any] = {}
        known = {**LIKELY, **{f"param:{name}": value for name, value in self.params.items()}}
        while True:
            try:
                return self.family.graph(has_tin, facts), facts
            except NeedFact as need:
                for fact in need.facts:
                    facts[fact] = read_number(known[fact])
                    if facts[fact] is None:  # known at run time only: the application says so
                        return None, facts
            except TraceError:  # it runs as it is, on the numbers that it expects
                return None, facts

    def tensor_params(self) -> tuple[str, ...]:
        """Return the run-time params that may be tensors: the rule's Python code does not look at their values."""
        graph, facts = self.likely_graph(True)
        if graph is None:
            return ()
        return tuple(name for name in self.family.runtime if f"param:{name}" not in facts)


def read_number(value: Any) -> Any:
    """Return the number in a 0-d tensor, None where it is known at run time only; anything else as it is."""
    if not hasattr(value, "dtype"):
        return value
    from .lowering.backend import concrete_number

    return concrete_number(value)


def value_token(value: Any) -> str:
    """Return text that is equal for equal numbers; a traced value equals nothing else."""
    if isinstance(value, float | int):
        return repr(value)
    from .lowering.backend import concrete_number

    number = concrete_number(value)
    return f"<traced {next(_serial)}>" if number is None else repr(number)
