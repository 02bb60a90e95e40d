"""How the leaves of a call of code reach the framework's own function, and outputs are nested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.contract import Backend
from ....core.backend.emitted import Attached
from ....core.functions.arguments import Layout, Leaf
from ....core.functions.function import Entry
from ....core.functions.recipe import Recipe, Variant, assemble
from ....core.ir.graph import Node, freeze
from ....core.ir.op import BOOL, T
from ....core.lowering.checks import find_device
from ....core.trace.active_rules import KeySource
from ....core.trace.coercion import array_node
from ....core.trace.trace import Trace, lift
from ....errors import MultigradError, PlaceError
from .assumptions import PLACED, explain_places
from .library_dtypes import weakened


def bind_leaves_of_code(
    recipe: Recipe, variant: Variant, backend: Backend, lowered: Attached
) -> Entry:
    """Return the entry that passes the leaves of a call to the framework's own function."""
    layout, call, check = variant.layout, lowered.call, recipe.arguments.check
    tensors, numbers = layout.indices("tensor"), layout.indices("number")
    # The order of the graphs' inputs: tensors come first.
    order = (*tensors, *numbers)
    is_in_order = len(layout.leaves) == len(order) and order == tuple(range(len(order)))
    is_random, is_rule = variant.graphs.is_random, variant.graphs.is_rule
    is_bare = variant.outputs.is_leaf() and not variant.fixed
    if read := variant.numbers:
        call = reading_numbers(call, read, len(order) if is_random else None)

    def run(leaves: Sequence[Any], draws: KeySource) -> Any:
        try:
            return call(*leaves)
        except Exception as error:
            explain(recipe.subject, layout, leaves, error)
            raise

    def run_checked(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(backend, leaves)
        return call(*leaves)

    def run_chosen(leaves: Sequence[Any], draws: KeySource) -> Any:
        return call(*[leaves[i] for i in order])

    def run_random(leaves: Sequence[Any], draws: KeySource) -> Any:
        check(backend, leaves)
        return call(*[leaves[i] for i in order], draws.next_key(backend))

    # The cheapest that suffices: each frame costs time at every call.
    inner = run_random if is_random else run if is_in_order else run_chosen
    if is_rule and not is_random and numbers:
        inner = run_checked
    weak_types = backend.tensors.weak_types
    if variant.weak and weak_types is not None and recipe.dialect(backend.name) == backend.name:
        inner = weakened(inner, variant.weak, weak_types.weaken)
    # One tensor in, one out: the framework's function is called directly.
    if is_bare and is_rule:
        if is_random:
            return Entry(inner)
        bind = backend.autodiff.bind and partial(backend.autodiff.bind, lowered.native)
        return Entry(inner, None if read else bind, call)
    if not is_bare:
        run_flat, is_single = inner, len(variant.graphs.cotangents) == 1

        def inner(leaves: Sequence[Any], draws: KeySource, /) -> Any:
            outputs = run_flat(leaves, draws)
            return assemble(variant, (outputs,) if is_single else outputs)

    is_placed = any(node.op.name in PLACED for node in variant.graphs.forward.nodes)
    if not is_placed and (inner is run or len(tensors) < 2):
        return Entry(inner, call=call if inner is run and len(tensors) < 2 else None)

    def explained(leaves: Sequence[Any], draws: KeySource) -> Any:
        try:
            return inner(leaves, draws)
        except Exception as error:
            explain(recipe.subject, layout, leaves, error)
            if is_placed and (
                isinstance(error, PlaceError) or not isinstance(error, MultigradError)
            ):
                explain_places(recipe.subject, variant, backend, leaves)
            raise

    return Entry(explained)


def reading_numbers(
    call: Callable[..., Any], read: Sequence[Callable[[], float]], count: int | None
) -> Callable[..., Any]:
    """Return a call that is given the numbers that code reads; after `count` inputs, or all."""

    def call_with_numbers(*inputs: Any) -> Any:
        return call(*inputs, *[find() for find in read])

    def call_with_number(*inputs: Any) -> Any:
        return call(*inputs, find())

    def call_before_key(*inputs: Any) -> Any:
        return call(*inputs[:count], *[find() for find in read], *inputs[count:])

    if count is not None:
        return call_before_key
    if len(read) > 1:
        return call_with_numbers
    (find,) = read
    return call_with_number


def explain(subject: str, layout: Layout, leaves: Sequence[Any], error: Exception) -> None:
    """Raise a plain error if a call failed because its tensors are on two devices."""
    if isinstance(error, MultigradError):
        return
    places = [(layout.leaves[i].path, find_device(leaves[i])) for i in layout.indices("tensor")]
    for path, device in places[1:]:
        first_path, first_device = places[0]
        if device is not None and first_device is not None and device != first_device:
            raise MultigradError(
                f"{subject} got {first_path!r} on {first_device} and {path!r} on {device}; move "
                f"one of them: .to({str(first_device)!r})"
            ) from error


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a constant array without axes stays a tensor."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
