"""A rule's function that came from a document: its graphs stand where the source would.

Each graph was captured under some facts about the input (its dtype, its rank); where there are several, the one
that fits is taken, by the same `NeedFact` by which a source asks for them.
"""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .capture.signature import REQUIRED, Param
from .identity import value_key
from .ir import ops
from .ir.graph import Graph, Location, Node, make_node
from .ir.passes import substitute
from .ir.record import NeedFact, Trace, Value
from .ir.replay import replay
from .ir.serialize import draws
from .ir.types import KEY

Data = Any
Tensor = Any
FREE: Any = object()  # the value of a param that may be set


@dataclass(frozen=True, slots=True)
class SavedParam:
    """A param and the value with which the rule was captured, or FREE."""

    param: Param
    value: Any = FREE


@dataclass(frozen=True, slots=True, eq=False)
class SavedGraph:
    """A graph with its draws as inputs, and what is known of the input where it holds.

    Attributes:
        draws: where in the source each key is drawn, in the order of draws.
    """

    graph: Graph
    has_tin: bool
    facts: Mapping[str, Any]
    draws: tuple[Location | None, ...]

    @staticmethod
    def of(graph: Graph, has_tin: bool, facts: Mapping[str, Any]) -> SavedGraph:
        """Return a graph with each of its draws' keys as an input of its own.

        Raises:
            FormatError: its keys are not made as those of draws.
        """
        graph, drawn = name_draws(graph)
        return SavedGraph(graph, has_tin, facts, drawn)

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Return whether nothing that is known speaks against this graph."""
        return all(facts.get(name, value) == value for name, value in self.facts.items())


def name_draws(graph: Graph) -> tuple[Graph, tuple[Location | None, ...]]:
    """Return a graph with each of its draws' keys as an input, and where in the source they are drawn.

    Raises:
        FormatError: its keys are not made as those of draws.
    """
    places = draws(graph)
    inputs: dict[Node, Node] = {
        node: make_node(ops.INPUT, (), {"name": draw_name(j)}, KEY) for node, j in places.items()
    }
    known = {j: graph.locations.get(node) for node, j in places.items()}
    drawn = tuple(known.get(j) for j in range(1 + max(known, default=-1)))
    return substitute(graph, inputs), drawn


def take_keys(trace: Trace, drawn: Sequence[Location | None]) -> dict[str, Value]:
    """Return the next keys of a capture, as the inputs that `name_draws` gave a graph."""
    keys = {}
    for j, location in enumerate(drawn):
        key = keys[draw_name(j)] = trace.next_key()
        if location is not None:
            trace.locations.setdefault(key.node, location)
    return keys


def draw_name(j: int) -> str:
    """Return the input's name of the j-th draw; no param can have it."""
    return f"draw {j}"


class SavedRule:
    """Stands for `fn(ctx, grad_out, tin, **params)`; one object for equal documents, made by `of`."""

    @staticmethod
    def of(data: Data, params: tuple[SavedParam, ...], graphs: tuple[SavedGraph, ...]) -> SavedRule:
        """Return the function of a document."""
        made = SavedRule(data, params, graphs)
        return _known.setdefault(made.text, made)

    def __init__(
        self, data: Data, params: tuple[SavedParam, ...], graphs: tuple[SavedGraph, ...]
    ) -> None:
        self.params = params
        self.graphs = graphs
        self.text = json.dumps(data)  # the data are the caller's, who may change them
        self.__name__: str = data["name"]
        self.__doc__ = data["doc"]
        self.__signature__ = make_signature(params)

    def __repr__(self) -> str:
        return f"<saved rule {self.__name__}>"

    def __reduce__(self) -> Any:
        from .rule_documents import function_of

        return function_of, (json.loads(self.text),)

    def __call__(self, ctx: Any, grad_out: Tensor, tin: Tensor | None, **params: Any) -> Tensor:
        """Apply the rule: to symbolic values in a capture, else as a `Rule` does."""
        if isinstance(grad_out, Value):
            return self.record(grad_out.trace, grad_out, tin, params)
        from .rule import Rule

        return Rule(name=self.__name__, function=self, native=False)(ctx, grad_out, tin, **params)

    def record(
        self, trace: Trace, grad_out: Value, tin: Value | None, params: Mapping[str, Any]
    ) -> Any:
        """Record the graph that fits in a capture, and return the gradient."""
        given = {"grad_out": grad_out, **({} if tin is None else {"tin": tin})}
        for saved in self.params:
            name = saved.param.name
            value = params.get(name, saved.param.default)
            if saved.value is FREE:
                given[name] = self._check_number(trace, name, value)
            else:
                self._check_fixed(trace, saved, value)
        chosen = self._choose(trace, tin is not None)
        given.update(take_keys(trace, chosen.draws))
        trace.numbers.update(floats_of(chosen.graph))
        trace.routes.setdefault("a saved document", "")
        return replay(trace, chosen.graph, given)[0]

    def _check_number(self, trace: Trace, name: str, value: Any) -> Any:
        if isinstance(value, bool | str | tuple | None):
            raise trace.error(
                f"was saved with a number for {name}, which cannot be {value!r:.60} here"
            )
        return float(value) if isinstance(value, int) else value

    def _check_fixed(self, trace: Trace, saved: SavedParam, value: Any) -> None:
        name = saved.param.name
        if isinstance(value, Value):
            if value.node.op is not ops.CONST:
                raise NeedFact(f"param:{name}")
            value = value.node.attr("value")
        if value_key(value) != value_key(saved.value):
            raise trace.error(
                f"was saved with {name}={saved.value!r}, which cannot be {value!r} here; save "
                f"rule.with_params({name}={value!r}) where its source is"
            )

    def _choose(self, trace: Trace, has_tin: bool) -> SavedGraph:
        """Return the graph that holds for what is known of the input.

        Raises:
            NeedFact: more has to be known.
            TraceError: the rule was saved without one.
        """
        known = trace.facts
        graphs = [graph for graph in self.graphs if graph.has_tin is has_tin]
        if not graphs:
            without = "" if has_tin else "out"
            raise trace.error(
                f"was saved for use with{'out' if has_tin else ''} tin, not with{without}"
            )
        fitting = [graph for graph in graphs if graph.fits(known)]
        for graph in fitting:
            if graph.facts.keys() <= known.keys():
                return graph
        if fitting:
            raise NeedFact(*(name for name in fitting[0].facts if name not in known))
        saved = "; ".join(sorted({_describe(graph.facts) for graph in graphs}))
        raise trace.error(f"was not saved for an input of {_describe(known)}, but for {saved}")


_known: weakref.WeakValueDictionary[str, SavedRule] = weakref.WeakValueDictionary()


def _describe(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if ":" not in name)


def floats_of(graph: Graph) -> set[float]:
    """Return the constants of a graph, which stand where a source would have them."""
    numbers = (node.attr("value") for node in graph.nodes() if node.op is ops.CONST)
    return {number for number in numbers if isinstance(number, float)}


def make_signature(params: tuple[SavedParam, ...]) -> inspect.Signature:
    """Return the signature from which a rule reads its params."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    leading = [inspect.Parameter(name, kind) for name in ("ctx", "grad_out", "tin")]
    return inspect.Signature([*leading, *(_parameter(saved.param) for saved in params)])


def _parameter(param: Param) -> inspect.Parameter:
    annotation: Any = REQUIRED
    if param.kind is not None:
        annotation = f"{param.kind.__name__} | None" if param.optional else param.kind
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(param.name, kind, default=param.default, annotation=annotation)
