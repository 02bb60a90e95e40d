"""A Function inside of another framework: what was captured runs as straight-line code of the guest.

What cannot be captured runs as it is in the guest, by its own autodiff and on memory of its own: so a Function that is
written for one framework alone is of use in the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..errors import MultigradError
from ..functions.arguments import Layout, flatten, one_backend, owner_of, read_layout, unwrap
from ..functions.binding import assemble
from ..functions.function import Function
from ..functions.record import NotCaptured, Variant
from ..functions.vjp import vjp_leaves
from ..lowering.backend import Backend, load_backend
from ..lowering.input_checks import find_lacking, refuse_lacking
from ..lowering.lower import lower_pair
from ..lowering.straight import Straight, straighten
from ..threads import build_once, make_lock
from ..trees import optree
from .foreign import Foreign, as_key, cross

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

    A Function that runs as it is and draws random numbers of its own draws anew where compiled code runs it again for
    backward.

    Args:
        args, kwargs: what the Function takes; the tensors among them belong to one framework, the host.
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
    layout = read_layout(function.name, function.parameters, leaves, tree)
    host = one_backend(function.name, layout, leaves)
    if host.name == guest:
        return function(*args, **kwargs)
    backend = load_backend(guest)
    variant = find_variant(function, layout, leaves)
    if variant is None:
        return _call_as_it_is(function, host, backend, layout, leaves)
    straight = find_straight(function, variant, backend)
    foreign = _foreign(function, variant, straight, backend, leaves)
    tensors = [leaves[i] for i in layout.indices("tensor")]
    if variant.pair.is_random:
        tensors.append(as_key(host, function.draw(host)))
    return assemble(variant, cross(host, foreign, tuple(tensors)))


def find_variant(function: Function, layout: Layout, leaves: Sequence[Any]) -> Variant | None:
    """Return a Function's graphs for these arguments; None: it runs as it is."""
    if function.native is True:
        return None
    try:
        return function.variant_for(layout, leaves)
    except NotCaptured as error:
        if function.native is False:
            raise error.error from error.__cause__
        return None


def find_straight(function: Function, variant: Variant, guest: Backend) -> Straight:
    """Return a captured form as the guest runs it, lowered once."""
    pair = variant.pair

    def lower() -> tuple[Straight, dict[str, str]]:
        graphs = pair.forward, pair.backward
        lacking = find_lacking(f"function {function.name!r}", guest, *graphs)
        return lower_pair(pair, straighten(guest)).native, lacking

    straight, lacking = build_once(variant.lowered, f"straight {guest.name}", lower)
    refuse_lacking(lacking, variant.layout.dtype or "")
    return straight


def _foreign(
    function: Function, variant: Variant, straight: Straight, guest: Backend, leaves: Sequence[Any]
) -> Foreign:
    """Return what runs in the guest: its inputs are the tensors, and a key."""
    layout = variant.layout
    count = len(layout.tensors)
    numbers = [leaves[i] for i in layout.indices("number")]
    lowering = straight.lowering
    wrt = (
        name in lowering.wrt and leaf.is_float
        for name, leaf in zip(lowering.inputs, layout.tensors, strict=True)
    )

    def fill(inputs: Sequence[Tensor]) -> list[Any]:
        return [*inputs[:count], *numbers, *inputs[count:]]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return straight.run(*fill(inputs))

    def keep(*inputs: Tensor) -> Any:
        return straight.record(*fill(inputs))

    def backward(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return straight.gradients(fill(inputs), cotangents)

    return Foreign(
        f"function {function.name!r}", guest, run, keep, backward,
        tuple(i for i, each in enumerate(wrt) if each),
        undifferentiable=lowering.undifferentiable,
        key=count if straight.is_random else None,
        keeps_outputs=straight.keeps_outputs,
        probed=_probed_of(function, (guest.name, layout.key, layout.dtype, tuple(numbers), variant.pair.name)),
    )  # fmt: skip


def _probed_of(function: Function, key: Any) -> dict[Any, Any]:
    with _lock:
        known = _probed.setdefault(function, {})
        if len(known) >= MOST_PROBED:
            known.clear()
        return known.setdefault(key, {})


# --- as it is --------------------------------------------------------------------------------------------


def _call_as_it_is(
    function: Function, host: Backend, guest: Backend, layout: Layout, leaves: Sequence[Any]
) -> Any:
    """Call a Function that is not captured, on the guest's tensors."""
    places = layout.indices("tensor")
    seen: dict[str, Any] = {}

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
                f"function {function.name!r} returned a tensor of another framework than {guest.name}, where it runs"
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

    numbers = tuple(leaves[i] for i in layout.indices("number"))
    dtypes = tuple(leaf.dtype for leaf in layout.tensors)
    foreign = Foreign(
        f"function {function.name!r}", guest, run, keep, backward,
        tuple(i for i, leaf in enumerate(layout.tensors) if leaf.is_float),
        owns=True, seen=seen,
        probed=_probed_of(function, (guest.name, layout.key, dtypes, numbers)),
    )  # fmt: skip
    outputs = cross(host, foreign, tuple(leaves[i] for i in places))
    flat = list(seen["flat"])
    for i, output in zip(seen["positions"], outputs, strict=True):
        flat[i] = output
    return optree.tree_unflatten(seen["nesting"], flat)
