"""A Function inside of another capture: its ops are recorded there, with its own gradient."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import ops
from ..graph.ir.array_values import freeze
from ..graph.ir.graph import Graph, Node
from ..graph.ir.questions import crossing, note
from ..graph.ir.types import BOOL, T
from ..graph.support.trees import optree
from ..trace.assertions import is_caught
from ..trace.constants import array_node
from ..trace.derived.calls import CustomCall, mark
from ..trace.omissions import ORDERS
from ..trace.replay import replay
from ..trace.scope.draws import Draws
from ..trace.trace import NeedsConcrete, Trace, Value, lift
from .calls.accumulation import modes_of
from .calls.arguments import Layout, Leaf
from .calls.binding import assemble
from .calls.notes import put_notes
from .calls.recipe import Variant
from .calls.updates import check_apart, put_updates
from .entries import Entries
from .recipes.record import AppliesItself, CodeRecipe, NotCaptured


class Inlined(Entries):
    """A recipe with its entries, which other captures take up.

    Attributes:
        draws: where random numbers of its calls come from.
    """

    draws: Draws

    def _record_again(self, trace: Trace, layout: Layout, leaves: Sequence[Any]) -> Any:
        """Record what the backward applies of the function itself, without its derivative, which
        would go on for ever.
        """
        trace.lost_gradient = self.name
        trace.omit(ORDERS, f"the derivatives of {self.name!r} of any order")
        assert isinstance(self.recipe, CodeRecipe)
        return self.recipe.record(trace, *layout.rebuild(leaves)).outputs

    def _assume(self, trace: Trace, variant: Variant, given: Mapping[str, Any]) -> None:
        """Let the capture around it assume what this function asserts of its arguments."""
        inputs = variant.graphs.forward.inputs
        # Else no proof finds test_what_is_caught_beyond_all_samples_is_no_assertion.
        if variant.assumed and is_caught(sys._getframe(1)):
            raise trace.error(f"catches what {self.name!r} raises, which depends on values")
        for each in variant.assumed:
            (value,) = replay(trace, Graph(self.name, inputs, (each.node,)), given)
            if isinstance(value, Value) and not trace.in_backward:
                trace.assumed.append(each._replace(node=value.node))

    def _inline(self, leaves: Sequence[Any], tree: Any) -> Any:
        """Record the function's ops in the capture that its arguments belong to."""
        leaves, tree = self._complete(leaves, tree)
        trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
        layout = self.recipe.lay_out(self.parameters, leaves, tree)
        own = self.recipe.apply_within(trace, *layout.rebuild(leaves))
        if own is not None:
            return own[0]
        try:
            with crossing(NeedsConcrete):
                variant = self._variant_for_symbols(trace, layout, leaves)
        except AppliesItself as error:
            if not trace.in_backward:
                raise note(error.error) from error.__cause__
            return self._record_again(trace, layout, leaves)
        except NotCaptured as error:
            raise note(error.error) from error.__cause__
        graphs = variant.graphs
        trace.omissions.update(variant.omissions)
        trace.combines |= variant.combines or bool(self.recipe.modes)
        trace.is_once |= not graphs.second_order
        given = {
            leaf.name: trace.value(lift_leaf(trace, leaf, value))
            for leaf, value in zip(layout.leaves, leaves, strict=True)
            if leaf.kind != "static"
        }
        if graphs.is_random and self.draws.counter is not None:
            raise trace.error(
                f"calls the random function {self.name!r} under a key, which counts calls one by "
                "one. Take the vjp of that function itself, or give the key to the function "
                "around it"
            )
        if graphs.is_random:
            given["key"] = trace.next_key()
        outputs = replay(trace, graphs.forward, given)
        self._assume(trace, variant, given)
        names = tuple(given)
        called = CustomCall(
            graphs.backward,
            graphs.cotangents,
            names=names,
            wrt=graphs.wrt,
            outputs=tuple(o.node for o in outputs),
            modes=modes_of(self.recipe.modes, layout),
            refused=graphs.refused,
        )
        result = assemble(variant, mark(trace, called, [given[name].node for name in names]))
        if not (variant.notes or variant.updates):
            return result
        holders = {leaf.name: each for leaf, each in zip(layout.leaves, leaves, strict=True)}
        flat = optree.tree_leaves(result, none_is_leaf=True)
        if self.recipe.copies:
            check_apart(self.recipe.subject, variant.updates, leaves)
        else:
            put_updates(
                trace, variant.updates, graphs.forward, given=given, holders=holders, outputs=flat
            )
        if variant.notes:
            put_notes(
                trace,
                variant.notes,
                graphs.forward,
                given,
                {**holders, **dict(enumerate(flat))},
                is_class=hasattr(self.recipe, "apply"),
            )
        return result


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a tensor without axes is no number to the function."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
