"""`Entry`: how calls of one layout run on one backend.

The leaves go to the framework's own function, and outputs are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import MultigradError, PlaceError
from .. import ops
from ..backend.contract import Backend
from ..backend.emitted import Attached
from ..ir.graph import Node, freeze
from ..ir.op import BOOL, T
from ..lowering.checks import find_device
from ..support.lazy_modules import provided
from ..support.trees import Tensor, optree
from ..trace.active_rules import KeySource
from ..trace.coercion import array_node
from ..trace.trace import Trace, lift
from .arguments import Layout, Leaf
from .recipe import Recipe, Variant

Run = Callable[[Sequence[Any], KeySource], Any]
# Ops that read or write at indices, constant or not.
PLACED = frozenset(
    ["getitem", "take", "take_at", "take_along", "untake_at", "untake_along", "last_put"]
)


class Entry:
    """How calls of one layout run on one backend.

    Attributes:
        run: `run(leaves, draws) -> outputs`; another once it is known what all calls share.
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


@provided
def weakened(run: Run, weak: tuple[int, ...], weaken: Callable[[Tensor], Tensor]) -> Run:
    """Return a run that makes the outputs at some positions weakly typed; of rules none is."""
    return run


@provided
def explain_places(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Raise which index lies outside, if that made a call fail; here, code has no indices."""


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


def assemble(variant: Variant, values: Sequence[Any]) -> Any:
    remaining = iter(values)
    count = variant.outputs.num_leaves
    flat = [variant.fixed[i] if i in variant.fixed else next(remaining) for i in range(count)]
    return optree.tree_unflatten(variant.outputs, flat)


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a constant array without axes stays a tensor."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
