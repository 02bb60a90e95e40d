"""Calls of a Function or an activation within a capture: its graphs are recorded there, with its
effects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...core import ops
from ...core.functions.arguments import flatten
from ...core.functions.captures import Captures
from ...core.functions.recipe import NotCaptured, Recipe, Variant, assemble
from ...core.ir.graph import Graph
from ...core.ir.questions import crossing, note
from ...core.lowering.derivatives import replay
from ...core.lowering.forwards import Forward
from ...core.rules.activation import Activation
from ...core.rules.activation_function import put_under
from ...core.rules.rule_in_force import RuleInForce
from ...core.rules.specialization import Specialization
from ...core.support.trees import optree
from ...core.trace.active_rules import KeySource
from ...core.trace.lookups import RULE_IN_FORCE, at_present, look_up, note_lookup
from ...core.trace.source import ORDERS
from ...core.trace.trace import NeedsConcrete, Value
from ..lowering.calls import CustomCall, draw_in, record_call
from ..trace.assertions import is_caught
from ..trace.code_trace import CodeTrace
from ..trace.moving_numbers import read_number
from .calls.binding import lift_leaf
from .calls.effects import check_apart, put_notes, put_updates
from .calls.parameters import Completion
from .recording.record import AppliesItself


def assume(name: str, trace: CodeTrace, variant: Variant, given: Mapping[str, Any]) -> None:
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


def refuse_closed_over(trace: CodeTrace, recipe: Recipe, given: Mapping[str, Value]) -> None:
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
    trace: CodeTrace,
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


# --- activations ----------------------------------------------------------------------------------
def record_activation(activation: Activation, x: Value, in_force: RuleInForce | None) -> Value:
    """Record an activation of a symbol in the capture around it."""
    # The capture depends on the rule in force, and on the names that it was looked up by.
    if activation.rule is None:
        look_up(RULE_IN_FORCE)
    for lookup in activation._own.lookups:
        note_lookup(lookup)
    if in_force is None:
        return _inlined(None, activation.forward, x)
    numbers = [read_number(value) for value in at_present(in_force).values]
    if None in numbers:
        advice = x.trace.words.advise("give the param to the function as an argument")
        raise x.trace.error(f"applies a rule under a param that is known at run time only{advice}")
    specialization = in_force.specialization
    output = _inlined(specialization, activation.forward, x, *numbers)
    if specialization.code.draws:
        look_up(RULE_IN_FORCE)  # its key seeds an own rule too
        if in_force.counter is not None:
            raise x.trace.error(
                "applies a random rule under a key, which counts applications one by one. "
                "Take the vjp of the activation itself, or leave key= out"
            )
    return output


def _inlined(specialization: Specialization | None, forward: Forward, *inputs: Any) -> Value:
    function = put_under(specialization, forward)
    captures, flat_inputs = function.captures, flatten(inputs, {})
    return inline(captures, Completion(function.parameters), function.draws, *flat_inputs)
