"""A Function, or an activation under a rule, inside of another framework: captured code runs as the
guest's own.

What cannot be captured runs as it is in the guest, by its own autodiff and on memory of its own: so
a Function that is written for one framework alone is of use in the others. The host draws a random
rule's key, so that the numbers are those of the host's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ...backend.contract import Backend
from ...backend.finding.discovery import backend_of, load_backend
from ...errors import MultigradError
from ...functions.calls.arguments import Layout, flatten, one_backend, owner_of, unwrap
from ...functions.calls.binding import assemble
from ...functions.calls.decision import ELSEWHERE, tensors_among
from ...functions.calls.recipe import Variant
from ...functions.function import Function
from ...functions.recipes.record import NotCaptured
from ...graph.support.threads import build_once, make_lock
from ...graph.support.trees import optree
from ...lowering.forwards import Forward
from ...lowering.input_checks import find_lacking, refuse_lacking
from ...lowering.lower import lower_graphs
from ...lowering.plain_functions import PlainFunctions, without_autodiff
from ...trace.scope.draws import FREE, Draws
from ...trace.scope.present import at_present
from ..context import RuleInForce
from ..in_force.activation import plain
from ..in_force.vjp import vjp_leaves
from ..model.under import put_under
from .foreign import GuestFunction, as_key, cross

Tensor = Any
MOST_PROBED = 256
_lock = make_lock()
# What was found out about outputs by trying, of Functions that run as they are.
_probed: weakref.WeakKeyDictionary[Function, dict[Any, dict[Any, Any]]] = (
    weakref.WeakKeyDictionary()
)


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
    if not any(owner_of(leaf) for leaf in leaves):
        return function(*args, **kwargs)
    leaves, tree = function._complete(leaves, tree)
    layout = function.recipe.lay_out(function.parameters, leaves, tree)
    host = one_backend(function.name, layout, leaves)
    if host.name == guest:
        return function(*args, **kwargs)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=function.draws)


def call_activation(
    forward: Forward, in_force: RuleInForce | None, x: Tensor, guest: str
) -> Tensor:
    """Return the activation of a host's tensor, run in a guest with its backward.

    Args:
        application: the rule in force; None: the activation's own derivative.
        x: a tensor of the host, whose autodiff the gradient flows back in.
        guest: the name of a backend.

    Raises:
        BackendNotFound: there is no such backend, or it is not installed.
        UnsupportedOp: the guest lacks an op, or the host cannot call it here.
        GradientError: x is no float.
    """
    x = unwrap(x)
    host = backend_of(x)
    if in_force is None:
        if guest == host.name:
            return plain(forward, host, x)(x)
        function, leaves, draws = put_under(None, forward), [x], FREE
    else:
        in_force = at_present(in_force, host)
        bound_rule, draws = in_force.bound_rule, in_force.draws
        function, leaves = put_under(bound_rule.specialization, forward), [x, *bound_rule.values]
        if guest == host.name:
            return function._entry_on(host, leaves).run(leaves, draws)
    layout = function.recipe.lay_out(None, leaves, flatten(tuple(leaves), {})[1])
    function.recipe.check(host, leaves)
    return _call_leaves(function, layout, leaves, host, load_backend(guest), draws=draws)


def _call_leaves(
    function: Function,
    layout: Layout,
    leaves: Sequence[Any],
    host: Backend,
    guest: Backend,
    draws: Draws,
) -> Any:
    variant = find_variant(function, layout, leaves)
    if variant is None:
        return _call_as_it_is(function, host, guest, layout, leaves)
    plain_functions = find_plain_functions(function, variant, guest)
    foreign = make_foreign(function, variant, plain_functions, guest, leaves)
    tensors = [leaves[i] for i in tensors_among(layout, leaves)]
    if variant.graphs.is_random:
        tensors.append(as_key(host, draws.next_key(host)))
    return assemble(variant, cross(host, foreign, tuple(tensors)))


def find_variant(function: Function, layout: Layout, leaves: Sequence[Any]) -> Variant | None:
    """Return a Function's graphs for these arguments; None: it runs as it is."""
    if function.native is True:
        return None
    try:
        return function._decide(ELSEWHERE, layout, leaves).variant
    except NotCaptured as error:
        error.error.__cause__ = error.__cause__
        function.recipe.give_up(error.error)
        return None


def find_plain_functions(function: Function, variant: Variant, guest: Backend) -> PlainFunctions:
    """Return a captured form as the guest runs it, lowered once."""
    graphs = variant.graphs

    def lower() -> tuple[PlainFunctions, dict[str, str]]:
        lacking = find_lacking(function.recipe.subject, guest, graphs.forward, graphs.backward)
        return lower_graphs(graphs, without_autodiff(guest)).native, lacking

    plain_functions, lacking = build_once(variant.lowered, f"straight {guest.name}", lower)
    refuse_lacking(lacking, variant.layout.dtype or "")
    return plain_functions


def make_foreign(
    function: Function,
    variant: Variant,
    plain_functions: PlainFunctions,
    guest: Backend,
    leaves: Sequence[Any],
) -> GuestFunction:
    """Return what runs in the guest: its inputs are the tensors, and a key."""
    layout = variant.layout
    count = len(layout.tensors)
    values = [leaves[i] for i in layout.indices("number")]
    numbers = [value if isinstance(value, int | float) else None for value in values]
    given = count + numbers.count(None)
    emitted = plain_functions.emitted
    wrt = (
        name in emitted.wrt and leaf.is_float
        for name, leaf in zip(emitted.inputs, layout.tensors, strict=True)
    )

    def fill(inputs: Sequence[Tensor]) -> list[Any]:
        rest = iter(inputs[count:])
        filled = [next(rest) if number is None else number for number in numbers]
        return [*inputs[:count], *filled, *rest]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return plain_functions.run(*fill(inputs))

    def keep(*inputs: Tensor) -> Any:
        return plain_functions.record(*fill(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return plain_functions.gradients(fill(inputs), cotangents)

    return GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, each in enumerate(wrt) if each),
        like=(0,) if function.recipe.gives_like_input else None,
        undifferentiable=emitted.undifferentiable,
        key=given if plain_functions.is_random else None,
        keeps_outputs=plain_functions.keeps_outputs,
        probed=_probed_of(
            function, (guest.name, layout.key, layout.dtype, tuple(numbers), variant.graphs.name)
        ),
    )


def _probed_of(function: Function, key: Any) -> dict[Any, Any]:
    with _lock:
        known = _probed.setdefault(function, {})
        if len(known) >= MOST_PROBED:
            known.clear()
        return known.setdefault(key, {})


# --- as it is -------------------------------------------------------------------------------------


def _call_as_it_is(
    function: Function, host: Backend, guest: Backend, layout: Layout, leaves: Sequence[Any]
) -> Any:
    """Call a Function that is not captured, on the guest's tensors."""
    places = tensors_among(layout, leaves)
    gives_like_input = function.recipe.gives_like_input
    seen: dict[str, Any] = {}
    if gives_like_input:
        seen = {"nesting": optree.tree_structure(0), "positions": [0], "flat": [None]}

    def place(inputs: Sequence[Tensor]) -> list[Any]:
        given = list(leaves)
        for i, tensor in zip(places, inputs, strict=True):
            given[i] = tensor
        return given

    def note(flat: Sequence[Any], nesting: Any) -> tuple[Tensor, ...]:
        positions = [i for i, each in enumerate(flat) if owner_of(each) is not None]
        seen.update(
            nesting=nesting,
            positions=positions,
            flat=[None if i in positions else each for i, each in enumerate(flat)],
        )
        if any(owner_of(flat[i]) is not guest for i in positions):
            raise MultigradError(
                f"{function.recipe.subject} returned a tensor of another framework than "
                f"{guest.name}, where it runs"
            )
        return tuple(flat[i] for i in positions)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = layout.rebuild(place(inputs))
        return note(*optree.tree_flatten(function(*args, **kwargs), none_is_leaf=True))

    def keep(*inputs: Tensor) -> Any:
        given = place(inputs)
        flat, nesting, pull_leaves = vjp_leaves(function, given, layout.tree, guest)
        outputs = note(flat, nesting)

        def pull(*cotangents: Tensor) -> tuple[Tensor | None, ...]:
            upstream: list[Any] = [None] * len(flat)
            for i, cotangent in zip(seen["positions"], cotangents, strict=True):
                upstream[i] = cotangent
            found = pull_leaves(upstream)
            return tuple(found[i] for i in places)

        return outputs, pull

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Any, ...]:
        return keep(*inputs)[1](*cotangents)

    numbers = tuple(leaves[i] for i in layout.indices("number") if i not in places)
    dtypes = tuple(leaf.dtype for leaf in layout.tensors)
    foreign = GuestFunction(
        function.recipe.title,
        guest,
        run,
        keep=keep,
        backward=backward,
        wrt=tuple(i for i, leaf in enumerate(layout.tensors) if leaf.is_float),
        like=(0,) if gives_like_input else None,
        owns=True,
        seen=seen,
        probed=_probed_of(function, (guest.name, layout.key, dtypes, numbers)),
    )
    outputs = cross(host, foreign, tuple(leaves[i] for i in places))
    flat = list(seen["flat"])
    for i, output in zip(seen["positions"], outputs, strict=True):
        flat[i] = output
    return optree.tree_unflatten(seen["nesting"], flat)
