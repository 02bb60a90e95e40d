"""Inlining: a Function called with symbols records its ops and its gradient in their capture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import ops
from ..graph.ir.graph import Graph, Node, freeze
from ..graph.ir.questions import crossing, note
from ..graph.ir.types import BOOL, T
from ..graph.support.trees import optree
from ..trace.active_rules import KeySource
from ..trace.assertions import ORDERS, is_caught
from ..trace.coercion import array_node
from ..trace.derived.calls import CustomCall, mark, replay
from ..trace.trace import NeedsConcrete, Trace, Value, lift
from .calls.arguments import Leaf
from .calls.binding import assemble
from .calls.effects import check_apart, put_notes, put_updates
from .calls.gradients import modes_of
from .calls.recipe import NotCaptured, Variant
from .entries import Entries
from .recipes.record import AppliesItself


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


def inline(entries: Entries, draws: KeySource, leaves: Sequence[Any], tree: Any) -> Any:
    """Record a Function's ops in the capture to which its arguments belong.

    Args:
        draws: where its random numbers come from.
    """
    recipe, completion = entries.recipe, entries.completion
    leaves, tree = completion.complete(leaves, tree)
    trace = next(leaf.trace for leaf in leaves if isinstance(leaf, Value))
    layout = recipe.lay_out(completion.parameters, leaves, tree)
    if recipe.apply_within is not None:
        own = recipe.apply_within(trace, *layout.rebuild(leaves))
        if own is not None:
            return own[0]
    try:
        with crossing(NeedsConcrete):
            variant = entries.captures.for_symbols(trace, layout, leaves)
    except AppliesItself as error:
        if not trace.backward.is_running:
            raise note(error.error) from error.__cause__
        # A backward that applies its own function would have derivatives without end: this inner
        # call has none, and says so.
        trace.backward.lost_gradient = recipe.name
        trace.omit(ORDERS, f"the derivatives of {recipe.name!r} of any order")
        assert recipe.record is not None  # only code applies itself
        return recipe.record(trace, *layout.rebuild(leaves)).outputs
    except NotCaptured as error:
        raise note(error.error) from error.__cause__
    graphs = variant.graphs
    # What limits the inner capture limits the outer one, too.
    trace.limits.omissions.update(variant.omissions)
    trace.backward.combines |= variant.combines or bool(recipe.modes)
    trace.backward.is_once |= not graphs.second_order
    given = {
        leaf.name: trace.value(lift_leaf(trace, leaf, value))
        for leaf, value in zip(layout.leaves, leaves, strict=True)
        if leaf.kind != "static"
    }
    # Whether and how often the outer code runs this call is not known, so no counter can follow.
    if graphs.is_random and draws.counter is not None:
        raise trace.error(
            f"calls the random function {recipe.name!r} under a key, which counts calls one by "
            "one. Take the vjp of that function itself, or give the key to the function "
            "around it"
        )
    if graphs.is_random:
        given["key"] = trace.next_key()
    outputs = replay(trace, graphs.forward, given)
    assume(recipe.name, trace, variant, given)
    names = tuple(given)
    called = CustomCall(
        graphs.backward,
        graphs.cotangents,
        names=names,
        wrt=graphs.wrt,
        outputs=tuple(o.node for o in outputs),
        modes=modes_of(recipe.modes, layout),
        refused=graphs.refused,
    )
    result = assemble(variant, mark(trace, called, [given[name].node for name in names]))
    if not (variant.notes or variant.updates):
        return result
    holders = {leaf.name: each for leaf, each in zip(layout.leaves, leaves, strict=True)}
    flat = optree.tree_leaves(result, none_is_leaf=True)
    if recipe.copies:
        check_apart(recipe.subject, variant.updates, leaves)
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
            is_class=recipe.apply is not None,
        )
    return result


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a constant array without axes stays a tensor."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
