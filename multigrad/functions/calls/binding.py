"""`Entry`: how calls of one layout run on one backend, and checks of the values that they get.

The leaves go to the framework's own function, and outputs are nested. What the code asserts of
values is checked where tensors are known and small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...backend.emitted import Attached
from ...errors import MultigradError, PlaceError
from ...graph import ops
from ...graph.ir.graph import Graph, Node, freeze, walk
from ...graph.ir.types import BOOL, T
from ...graph.ops.arrays.loops import run_graph
from ...graph.support.tensors import Tensor
from ...graph.support.trees import optree
from ...lowering.checks import find_device
from ...trace.coercion import array_node
from ...trace.limits import FORWARD_MODE
from ...trace.random_keys import KeySource
from ...trace.trace import Trace, lift
from .arguments import Layout, Leaf, replace_at
from .as_written import run_as_it_is
from .facts import closed
from .recipe import Recipe, Variant

Run = Callable[[Sequence[Any], KeySource], Any]


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

    is_placed = any(node.op in PLACED for node in variant.graphs.forward.nodes)
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


def weakened(run: Run, weak: tuple[int, ...], weaken: Callable[[Tensor], Tensor]) -> Run:
    """Return a run that makes the outputs at some positions weakly typed."""

    def run_weakened(leaves: Sequence[Any], draws: KeySource) -> Any:
        outputs = run(leaves, draws)
        if not isinstance(outputs, tuple):
            return weaken(outputs)
        return tuple(weaken(y) if i in weak else y for i, y in enumerate(outputs))

    return run_weakened


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


# --- what is assumed of values -------------------------------------------------------------------
# Larger tensors are not read for a check, which would wait for the device.
MOST_ELEMENTS = 4096


def is_told(node: Node, layout: Layout) -> bool:
    names = {leaf.name for leaf in layout.leaves}
    return all(each.attr("name") in names for each in walk((node,)) if each.op is ops.INPUT)


def check_assumptions(
    subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]
) -> None:
    """Check what the code asserts of the values of a call, as far as that is cheap."""
    layout = variant.layout
    inputs = {
        leaf.name: value
        for leaf, value in zip(layout.leaves, leaves, strict=True)
        if leaf.kind != "static"
    }
    for node, expected, location, kind in variant.assumed:
        arrays = read_inputs(node, inputs, backend)
        if arrays is not None and bool(evaluate(node, arrays, layout.dtype)) is not expected:
            suffix = f" ({location})" if location else ""
            line = f": {location.text!r}" if location and location.text else ""
            raise kind(f"{subject}{suffix} asserts what does not hold{line}")


# Ops that read or write at indices, constant or not.
PLACED = (
    ops.GETITEM, ops.TAKE, ops.TAKE_AT, ops.TAKE_ALONG, ops.UNTAKE_AT, ops.UNTAKE_ALONG,
    ops.LAST_PUT,
)  # fmt: skip


def explain_places(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Raise which index lies outside if that made a call fail.

    A framework's own error names neither function nor line, so the ops run by their meaning.
    """
    graph, layout = variant.graphs.forward, variant.layout
    inputs = dict(zip([leaf.name for leaf in layout.leaves], leaves, strict=True))
    # A traced tensor has no values, but its shape decides about constant indices.
    inputs_as_zeros = {
        name: np.zeros(closed(value.shape))
        if hasattr(value, "shape") and backend.tensors.is_traced(value)
        else value
        for name, value in inputs.items()
    }
    for node in graph.nodes:
        if node.op not in PLACED:
            continue
        is_static = node.op in (ops.GETITEM, ops.TAKE)  # of which shapes tell it
        arrays = read_inputs(node, inputs_as_zeros if is_static else inputs, backend, math.inf)
        if arrays is None:
            continue
        try:
            evaluate(node, arrays, layout.dtype)
        except IndexError as error:
            location = graph.locations.get(node)
            suffix = f" ({location})" if location else ""
            raise PlaceError(
                f"{subject}{suffix}: {error} ({node.op.name}). Limit the index first, as by "
                "clip(index, 0, length - 1), or mask the elements that it is not meant for"
            ) from None
        except ValueError:  # not of a place: the framework's own error says it
            continue


def read_inputs(
    node: Node, leaves: Mapping[str, Any], backend: Backend, most: float = MOST_ELEMENTS
) -> dict[str, Any] | None:
    """Return the inputs of a node as arrays, None where they are not known or not small."""
    arrays: dict[str, Any] = {}
    for each in walk((node,)):
        if each.op is not ops.INPUT:
            continue
        name = each.attr("name")
        value = leaves.get(name)
        if value is None or backend.tensors.is_traced(value):
            return None
        is_number = isinstance(value, int | float)
        if not is_number and math.prod(value.shape) > most:
            return None
        arrays[name] = value if is_number else np.asarray(backend.tensors.to_numpy(value))
    return arrays


def evaluate(node: Node, arrays: Mapping[str, Any], dtype: str | None) -> Any:
    """Return the value of a node by the meaning of its ops."""
    graph = Graph("", (), (node,))
    inputs = {each: arrays[each.attr("name")] for each in graph.nodes if each.op is ops.INPUT}
    with np.errstate(all="ignore"):
        return run_graph(graph, inputs, dtype or "float32")[0]


# --- while the framework chooses dtypes by itself: under autocast, and of weak types --------------
def follow_casts(
    entry: Entry,
    native: Callable[[], Entry] | None,
    recipe: Recipe,
    layout: Layout,
    backend: Backend,
) -> Entry:
    """Return an entry that asks at each call whether the framework chooses dtypes now.

    `native` makes the entry of the original; None: the graph runs then, too.
    """
    casts, run, call = backend.autodiff.casts, entry.run, entry.call
    assert casts is not None
    is_on, transform = casts.is_on, backend.autodiff.transform
    assert transform is not None
    native_entries: list[Entry] = []

    def run_aside(leaves: Sequence[Any], draws: KeySource) -> Any:
        kinds = transform()
        # The graph, in its own dtypes: the original draws by no key, and may lack forward mode.
        if native is None or draws.counter is not None or (kinds and FORWARD_MODE in kinds):
            with casts.without():
                return run(leaves, draws)
        if kinds is not None:  # which an original with nothing but a backward does not support
            return run_as_it_is(recipe, layout, backend, leaves, None)
        if not native_entries:
            native_entries.append(native())
        return native_entries[0].run(leaves, draws)

    def following(leaves: Sequence[Any], draws: KeySource) -> Any:
        return run_aside(leaves, draws) if is_on() else run(leaves, draws)

    def following_call(leaves: Sequence[Any], draws: KeySource) -> Any:  # one frame fewer
        return run_aside(leaves, draws) if is_on() else call(*leaves)  # type: ignore[misc]

    return Entry(following if call is None else following_call)


def follow_weak(entry: Entry, recipe: Recipe, variant: Variant, backend: Backend) -> Entry:
    """Return an entry whose results are weakly typed where those of the original are."""
    layout, run = variant.layout.without_objects(), entry.run
    weak_types = backend.tensors.weak_types
    assert weak_types is not None
    is_weak, tensors = weak_types.is_weak, layout.indices("tensor")
    # By the shapes, dtypes and weakness of the tensors; grows with them, and is never emptied.
    weakness: dict[Any, Sequence[bool]] = {}

    def following(leaves: Sequence[Any], draws: KeySource) -> Any:
        for i in tensors:
            if is_weak(leaves[i]):
                return weakened(leaves, run(leaves, draws))
        return run(leaves, draws)

    def weakened(leaves: Sequence[Any], outputs: Any) -> Any:
        inputs = [leaves[i] for i in tensors]
        key = tuple([(x.shape, x.dtype, is_weak(x)) for x in inputs])
        if key not in weakness:
            weakness[key] = weak_types.find(partial(forward, leaves), inputs)
        flat, tree = optree.tree_flatten(outputs)
        if len(weakness[key]) != len(flat):  # the original was not understood
            return outputs
        pairs = zip(flat, weakness[key], strict=True)
        return optree.tree_unflatten(tree, [weak_types.weaken(y) if w else y for y, w in pairs])

    def forward(leaves: Sequence[Any], *given: Any) -> list[Any]:
        all_leaves = replace_at(leaves, tensors, given)
        return optree.tree_leaves(recipe.run_forward(*layout.rebuild(all_leaves)))

    return Entry(following)


def lift_leaf(trace: Trace, leaf: Leaf, value: Any) -> Node:
    """Return the node of an argument; a constant array without axes stays a tensor."""
    node = lift(trace, value)
    if leaf.kind == "number" or node.op is not ops.CONST:
        return node
    number = node.attr("value")
    dtype = BOOL if isinstance(number, bool) else T
    return array_node(trace.like(), freeze(np.asarray(number)), dtype)
