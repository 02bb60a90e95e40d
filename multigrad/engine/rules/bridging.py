"""Functions, and activations under a rule, in another framework: captured code runs as the guest's.

What cannot be captured runs as it is in the guest, by its own autodiff and on memory of its own, so
that a Function for one framework can be used in the others. The host draws a random rule's key, so
that the numbers are the host's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import backend_of, load_backend
from ...core.functions.arguments import Layout, flatten, one_backend, owner_of, replace_at, unwrap
from ...core.functions.binding import assemble
from ...core.functions.capture_errors import NotCaptured
from ...core.functions.decision import ELSEWHERE
from ...core.functions.function import Function
from ...core.functions.recipe import Variant
from ...core.lowering.checks import find_lacking, refuse_lacking
from ...core.lowering.forwards import Forward
from ...core.lowering.lower import lower_graphs
from ...core.rules.activation import without_rule
from ...core.rules.activation_function import put_under
from ...core.rules.context import RuleInForce
from ...core.rules.vjp import vjp_leaves
from ...core.support.threads import build_once, make_lock
from ...core.support.trees import optree
from ...core.trace.active_rules import FREE, KeySource
from ...core.trace.lookups import at_present
from ...errors import MultigradError
from ..functions.calls.as_written import tensors_among
from ..lowering.plain_functions import PlainFunctions, without_autodiff
from .guest_function import GuestFunction, LatestOutputs, OutputTree, Trials, cross

Tensor = Any
# What a call returned that gives a tensor like its input.
BARE_TENSOR = OutputTree(optree.tree_structure(0), [0], [None])


def call_function(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return a Function's outputs for a host's tensors, run in a guest with its backward.

    A Function that runs as it is and draws random numbers of its own draws anew where compiled code
    runs it again for backward.

    Args:
        args, kwargs: what the Function takes; the tensors among them belong to one framework, the
            host.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        TraceError: it runs as it is and is written for another framework than the guest.
    """
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    # Without a tensor there is no host: it is a plain call.
    if not any(owner_of(leaf) for leaf in leaves):
        return function(*args, **kwargs)
    layout, leaves = function.entries.lay_out(leaves, tree)
    host = one_backend(function.name, layout, leaves)
    # The tensors are the guest's own.
    if host.name == guest:
        return function(*args, **kwargs)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=function.draws)


def call_activation(
    forward: Forward, in_force: RuleInForce | None, x: Tensor, guest: str
) -> Tensor:
    """Return the activation of a host's tensor, run in a guest with its backward.

    Args:
        in_force: the rule; None: the activation's own derivative.
        x: a tensor of the host, whose autodiff the gradient flows back in.
        guest: the name of a backend.

    Raises:
        BackendNotFound, UnsupportedOp: as by `call_function`.
        GradientError: x is no float.
    """
    x = unwrap(x)
    host = backend_of(x)
    if in_force is None:
        if guest == host.name:
            return without_rule(forward, host, x)(x)
        function, leaves, draws = put_under(None, forward), [x], FREE
    else:
        leaves, draws = [x, *at_present(in_force, host).values], in_force.draws
        function = put_under(in_force.specialization, forward)
        if guest == host.name:
            return function.entries.on(host, leaves).run(leaves, draws)
    layout = function.recipe.lay_out(None, leaves, flatten(tuple(leaves), {})[1])
    function.recipe.arguments.check(host, leaves)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=draws)


def _call_leaves(
    function: Function,
    layout: Layout,
    leaves: Sequence[Any],
    host: Backend,
    guest: Backend,
    draws: KeySource,
) -> Any:
    tensors = [leaves[i] for i in tensors_among(layout, leaves)]
    variant = find_variant(function, layout, leaves)
    if variant is None:
        guest_function = _make_uncaptured(function, guest, layout, leaves)
        outputs = cross(host, guest_function, tuple(tensors))
        tree = guest_function.latest.tree
        assert tree is not None  # the bridge ran the code, or inferred what it returns
        return tree.fill(outputs)
    plain_functions = find_plain_functions(function, variant, guest)
    guest_function = make_guest_function(function, variant, plain_functions, guest, leaves)
    if variant.graphs.is_random:
        key = draws.next_key(host)
        is_words = isinstance(key, tuple)
        tensors.append(host.tensors.from_numpy(np.array(key, np.uint32)) if is_words else key)
    return assemble(variant, cross(host, guest_function, tuple(tensors)))


def find_variant(function: Function, layout: Layout, leaves: Sequence[Any]) -> Variant | None:
    """Return a Function's graphs for these arguments; None: it runs as it is."""
    if function.native is True:
        return None
    try:
        return function.entries.decide(ELSEWHERE, layout, leaves).variant
    except NotCaptured as error:
        error.error.__cause__ = error.__cause__
        function.recipe.give_up(error.error)
        return None


def find_plain_functions(function: Function, variant: Variant, guest: Backend) -> PlainFunctions:
    graphs = variant.graphs

    def lower() -> tuple[PlainFunctions, dict[str, str]]:
        lacking = find_lacking(function.recipe.subject, guest, graphs.forward, graphs.backward)
        return lower_graphs(graphs, without_autodiff(guest)).native, lacking

    plain_functions, lacking = build_once(variant.lowered, f"straight {guest.name}", lower)
    refuse_lacking(lacking, variant.layout.dtype or "")
    return plain_functions


def make_guest_function(
    function: Function,
    variant: Variant,
    plain_functions: PlainFunctions,
    guest: Backend,
    leaves: Sequence[Any],
) -> GuestFunction:
    layout = variant.layout
    tensor_count = len(layout.tensors)
    values = [leaves[i] for i in layout.indices("number")]
    # A number that is not plain, such as a tensor, becomes an input of the guest.
    numbers = [value if isinstance(value, int | float) else None for value in values]
    key_position = tensor_count + numbers.count(None)
    emitted = plain_functions.emitted
    names = zip(emitted.names.inputs, layout.tensors, strict=True)

    def insert_numbers(inputs: Sequence[Tensor]) -> list[Any]:
        # What follows the tensors: an input for each number that is not plain, then the key.
        extras = iter(inputs[tensor_count:])
        values = [next(extras) if number is None else number for number in numbers]
        return [*inputs[:tensor_count], *values, *extras]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return plain_functions.run(*insert_numbers(inputs))

    def keep(*inputs: Tensor) -> Any:
        return plain_functions.record(*insert_numbers(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return plain_functions.gradients(insert_numbers(inputs), cotangents)

    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(
            i for i, (name, leaf) in enumerate(names) if name in emitted.names.wrt and leaf.is_float
        ),
        like=(0,) if function.recipe.graphs.gives_like_input else None,
        undifferentiable=emitted.derivative.undifferentiable,
        key=key_position if plain_functions.is_random else None,
        keeps_outputs=plain_functions.keeps_outputs,
        trials=_trials_of(
            function, (guest.name, layout.key, layout.dtype, tuple(numbers), variant.graphs.name)
        ),
    )


# For one Function; numbers that never repeat would fill it without end.
MOST_LAYOUTS = 256
_lock = make_lock()
# By Function, which this keeps no longer alive.
_trials: weakref.WeakKeyDictionary[Function, dict[Any, Trials]] = weakref.WeakKeyDictionary()


def _trials_of(function: Function, key: Any) -> Trials:
    with _lock:
        by_layout = _trials.setdefault(function, {})
        # Only a cache: it is emptied when it is full.
        if len(by_layout) >= MOST_LAYOUTS:
            by_layout.clear()
        return by_layout.setdefault(key, {})


def _make_uncaptured(
    function: Function, guest: Backend, layout: Layout, leaves: Sequence[Any]
) -> GuestFunction:
    places = tensors_among(layout, leaves)
    gives_like_input = function.recipe.graphs.gives_like_input
    latest = LatestOutputs(BARE_TENSOR if gives_like_input else None)

    def note(flat: Sequence[Any], nesting: Any) -> OutputTree:
        positions = [i for i, leaf in enumerate(flat) if owner_of(leaf) is not None]
        non_tensors = [None if i in positions else leaf for i, leaf in enumerate(flat)]
        tree = latest.tree = OutputTree(nesting, positions, non_tensors)
        # The bridge carries only the guest's tensors back.
        if any(owner_of(flat[i]) is not guest for i in positions):
            raise MultigradError(
                f"{function.recipe.subject} returned a tensor of another framework than "
                f"{guest.name}, where it runs"
            )
        return tree

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = layout.rebuild(replace_at(leaves, places, inputs))
        flat, nesting = optree.tree_flatten(function(*args, **kwargs), none_is_leaf=True)
        return tuple(flat[i] for i in note(flat, nesting).positions)

    def keep(*inputs: Tensor) -> Any:
        arguments = replace_at(leaves, places, inputs)
        flat, nesting, pull_leaves = vjp_leaves(function, arguments, layout.tree, guest)
        tree = note(flat, nesting)

        def pull(*cotangents: Tensor) -> tuple[Tensor | None, ...]:
            gradients = pull_leaves(replace_at([None] * len(flat), tree.positions, cotangents))
            return tuple(gradients[i] for i in places)

        return tuple(flat[i] for i in tree.positions), pull

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
        return keep(*inputs)[1](*cotangents)

    numbers = tuple(leaves[i] for i in layout.indices("number") if i not in places)
    dtypes = tuple(leaf.dtype for leaf in layout.tensors)
    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, leaf in enumerate(layout.tensors) if leaf.is_float),
        like=(0,) if gives_like_input else None,
        owns=True,
        latest=latest,
        trials=_trials_of(function, (guest.name, layout.key, dtypes, numbers)),
    )
