"""How the leaves of a call are handed to a framework's own function, and its outputs put back into their nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MultigradError
from ..lowering.backend import Backend
from ..lowering.input_checks import find_device
from ..lowering.lower import Lowered
from ..trees import optree
from .arguments import Layout
from .record import Variant

if TYPE_CHECKING:
    from .function import Function

Entry = Callable[[Sequence[Any]], Any]


def bind_leaves(function: Function, variant: Variant, backend: Backend, lowered: Lowered) -> Entry:
    """Return how the leaves of a call are handed to the framework's own function."""
    layout, call = variant.layout, lowered.call
    tensors, numbers = layout.indices("tensor"), layout.indices("number")
    order = (*tensors, *numbers)
    simple = len(layout.leaves) == len(order) and order == tuple(range(len(order)))
    is_random = variant.pair.is_random
    bare = variant.outputs.is_leaf() and not variant.fixed

    def run(leaves: Sequence[Any]) -> Any:
        return call(*leaves)

    def run_chosen(leaves: Sequence[Any]) -> Any:
        return call(*[leaves[i] for i in order])

    def run_random(leaves: Sequence[Any]) -> Any:
        return call(*[leaves[i] for i in order], function.draw(backend))

    inner = run_random if is_random else run if simple else run_chosen
    if not bare:
        flat = inner
        single = len(variant.pair.cotangents) == 1

        def inner(leaves: Sequence[Any]) -> Any:
            outputs = flat(leaves)
            return assemble(variant, (outputs,) if single else outputs)

    if len(tensors) < 2:
        return inner

    def entry(leaves: Sequence[Any]) -> Any:
        try:
            return inner(leaves)
        except Exception as error:
            explain(function.name, layout, leaves, error)
            raise

    return entry


def explain(name: str, layout: Layout, leaves: Sequence[Any], error: Exception) -> None:
    """Say it where a call failed because its tensors lie on two devices.

    Raises:
        MultigradError: they do.
    """
    if isinstance(error, MultigradError):
        return
    places = [(layout.leaves[i].path, find_device(leaves[i])) for i in layout.indices("tensor")]
    for path, device in places[1:]:
        first_path, first = places[0]
        if device is not None and first is not None and device != first:
            raise MultigradError(
                f"function {name!r} got {first_path!r} on {first} and {path!r} on {device}; move one of "
                f"them: .to({str(first)!r})"
            ) from error


def assemble(variant: Variant, values: Sequence[Any]) -> Any:
    """Return outputs in their own nesting."""
    rest = iter(values)
    count = variant.outputs.num_leaves
    flat = [variant.fixed[i] if i in variant.fixed else next(rest) for i in range(count)]
    return optree.tree_unflatten(variant.outputs, flat)
