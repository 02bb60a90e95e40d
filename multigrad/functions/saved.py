"""A recipe that came from a document: graphs stand where the source of a Function would.

A call is matched with what was saved by the names of its arguments, so that a keyword may stand for a position.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TraceError
from ..ir import ops
from ..ir.graph import Graph, Location
from ..ir.record import NeedFact, Trace, Value
from ..ir.replay import replay
from ..ir.types import INTEGERS
from ..saved import floats_of, take_keys
from ..trees import optree
from .arguments import Layout, Leaf, flatten, read_layout
from .record import NotCaptured, Recorded, Variant

Data = Any
Tensor = Any


@dataclass(frozen=True, slots=True, eq=False)
class SavedVariant:
    """One captured form of a Function, with its draws as inputs of their own.

    Attributes:
        variant: the form itself, with one key.
        drawn: where in the source each key is drawn, in the order of draws.
    """

    variant: Variant
    forward: Graph
    backward: Graph
    drawn: tuple[Location | None, ...]

    def takes(self, layout: Layout, given: Mapping[str, Any]) -> bool:
        """Return whether arguments are of the names and kinds that this form was captured for."""
        own = {leaf.name: leaf for leaf in self.variant.layout.leaves}
        return own.keys() == {leaf.name for leaf in layout.leaves} and all(
            self._takes_leaf(own[leaf.name], leaf, given[leaf.name]) for leaf in layout.leaves
        )

    def _takes_leaf(self, own: Leaf, leaf: Leaf, value: Any) -> bool:
        if own.kind != leaf.kind:
            return False
        if own.kind == "static":
            return type(own.value) is type(value) and repr(own.value) == repr(value)
        if own.kind == "number":
            return True
        node = self.variant.pair.forward.input(own.name)
        assert node is not None
        mine, other = node.type, value.node.type
        both_integers = mine.dtype in INTEGERS and other.dtype in INTEGERS
        # Which tensor comes first, to whose shape the others relate, is of interest to facts alone.
        alike = mine.shape == other.shape or self.variant.facts.keys().isdisjoint(("ndim", "shape"))
        return alike and (mine.dtype == other.dtype or both_integers)

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Return whether nothing that is known speaks against this form."""
        return all(facts.get(name, value) == value for name, value in self.variant.facts.items())


@dataclass(frozen=True, slots=True, eq=False)
class SavedRecipe:
    """What a Function was saved with; `text` is its document."""

    name: str
    parameters: tuple[str, ...]
    saved: tuple[SavedVariant, ...]
    text: str
    doc: str = ""
    native: bool | None = False

    @property
    def signature(self) -> inspect.Signature:
        """The names of the arguments."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.parameters])

    def dialect(self) -> str:
        """Return "": a document is written for all."""
        return ""

    def functions(self) -> tuple[Any, ...]:
        """Return none: graphs are all that there is."""
        return ()

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        """Record the form that fits the arguments."""
        leaves, tree = flatten(args, kwargs)
        layout = read_layout(self.name, self.signature, leaves, tree)
        given = {leaf.name: value for leaf, value in zip(layout.leaves, leaves, strict=True)}
        chosen = self._choose(trace, layout, given)
        pair = chosen.variant.pair
        trace.numbers.update(floats_of(chosen.forward) | floats_of(chosen.backward))
        trace.routes.setdefault("a saved document", "")
        values = {name: value for name, value in given.items() if isinstance(value, Value)}
        values.update(take_keys(trace, chosen.drawn))
        outputs = replay(trace, chosen.forward, values)

        def pull(upstream: Any) -> Any:
            flat = optree.tree_leaves(upstream, none_is_leaf=True)
            flat = [each for i, each in enumerate(flat) if i not in chosen.variant.fixed]
            cotangents = dict(zip(pair.cotangents, flat, strict=True))
            found = replay(trace, chosen.backward, {**values, **cotangents})
            gradients = dict(zip(pair.wrt, found, strict=True))
            rows = [gradients.get(leaf.name) for leaf in layout.leaves]
            own, named = optree.tree_unflatten(tree, rows)
            return (*own, named) if named else own

        marked = tuple(outputs[i] for i in pair.undifferentiable)
        nested = _assemble(chosen.variant, outputs)
        return Recorded(nested, pull, pair.first_order, pair.keeps_output, marked, pair.twice)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        """Refuse: there is nothing to run but graphs."""
        raise TraceError(f"function {self.name!r} comes from a document, so it cannot run as it is")

    def _choose(self, trace: Trace, layout: Layout, given: Mapping[str, Any]) -> SavedVariant:
        """Return the form for these arguments and for what is known of them.

        Raises:
            NeedFact: more has to be known.
            NotCaptured: there is none.
        """
        known = {**trace.facts, **_numbers_of(given)}
        of_layout = [saved for saved in self.saved if saved.takes(layout, given)]
        fitting = [saved for saved in of_layout if saved.fits(known)]
        for saved in fitting:
            if saved.variant.facts.keys() <= known.keys():
                return saved
        if fitting:
            raise NeedFact(*(name for name in fitting[0].variant.facts if name not in known))
        forms = of_layout or self.saved
        words = "; ".join(dict.fromkeys(_describe(saved.variant) for saved in forms))
        raise NotCaptured(
            trace.error(
                f"was not saved for ({layout.describe()}), but for {words}. Where its source is, call it "
                f"like this too and save it again"
            )
        )


def _assemble(variant: Variant, values: Sequence[Any]) -> Any:
    from .binding import assemble

    return assemble(variant, values)


def _numbers_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers among arguments that are known in this capture, as facts."""
    nodes = {name: value.node for name, value in given.items() if isinstance(value, Value)}
    return {f"param:{n}": node.attr("value") for n, node in nodes.items() if node.op is ops.CONST}


def _describe(variant: Variant) -> str:
    leaves = variant.layout.leaves
    words = [
        f"{leaf.path} = {leaf.value!r:.60}"
        if leaf.kind == "static"
        else f"{leaf.path}: {leaf.dtype or leaf.kind}"
        for leaf in leaves
    ]
    facts = [f"{name} {value}" for name, value in variant.facts.items()]
    return f"({', '.join([*words, *facts])})"
