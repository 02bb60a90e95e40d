"""How a call runs on one backend: its leaves handed to the framework's own function, outputs put
into their nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...backend.contract import Backend
from ...backend.emitted import Attached
from ...errors import MultigradError, PlaceError
from ...graph.support.trees import optree
from ...lowering.input_checks import find_device
from ...trace.scope.draws import Draws
from .arguments import Layout
from .assumptions import PLACED, explain_places
from .recipe import Recipe, Variant

Tensor = Any
Run = Callable[[Sequence[Any], Draws], Any]


class Entry(NamedTuple):
    """How calls of one layout run on one backend.

    Attributes:
        run: `run(leaves, draws) -> outputs`.
        bind: `bind(x, numbers) -> f(x)` for tensors like x, the constants of the numbers prepared;
            None: there is none.
        call: `call(x, *numbers)` without a look at the numbers; None: there is none.
    """

    run: Run
    bind: Callable[[Tensor, tuple[Any, ...]], Callable[[Tensor], Any]] | None = None
    call: Callable[..., Any] | None = None

    def bound(self, x: Tensor, numbers: tuple[Any, ...], draws: Draws) -> Callable[[Tensor], Any]:
        """Return `f(x)` for tensors like x, with these numbers for the rest of the leaves."""
        if self.bind is not None and all(type(number) is float for number in numbers):
            return self.bind(x, numbers)
        return partial(_run_with, self.run, numbers, draws)

    def open(self, draws: Draws) -> Callable[..., Any]:
        """Return `f(x, *numbers)` for numbers that have been checked."""
        return self.call or partial(_run_on, self.run, draws)


def _run_flat(
    variant: Variant, flat: Run, single: bool, leaves: Sequence[Any], draws: Draws
) -> Any:
    outputs = flat(leaves, draws)
    return assemble(variant, (outputs,) if single else outputs)


def _run_with(run: Run, numbers: tuple[Any, ...], draws: Draws, x: Tensor) -> Any:
    return run((x, *numbers), draws)


def _run_on(run: Run, draws: Draws, *leaves: Any) -> Any:
    return run(leaves, draws)


def bind_leaves(recipe: Recipe, variant: Variant, backend: Backend, lowered: Attached) -> Entry:
    """Return how the leaves of a call are handed to the framework's own function."""
    layout, call = variant.layout, lowered.call
    tensors, numbers = layout.indices("tensor"), layout.indices("number")
    order = (*tensors, *numbers)
    simple = len(layout.leaves) == len(order) and order == tuple(range(len(order)))
    is_random, is_rule = variant.graphs.is_random, variant.graphs.is_rule
    bare = variant.outputs.is_leaf() and not variant.fixed

    def run(leaves: Sequence[Any], draws: Draws) -> Any:
        try:
            return call(*leaves)
        except Exception as error:
            explain(recipe.subject, layout, leaves, error)
            raise

    def run_checked(leaves: Sequence[Any], draws: Draws) -> Any:
        recipe.check(backend, leaves)
        return call(*leaves)

    def run_chosen(leaves: Sequence[Any], draws: Draws) -> Any:
        return call(*[leaves[i] for i in order])

    def run_random(leaves: Sequence[Any], draws: Draws) -> Any:
        recipe.check(backend, leaves)
        return call(*[leaves[i] for i in order], draws.next_key(backend))

    inner = run_random if is_random else run if simple else run_chosen
    if is_rule and not is_random and numbers:
        inner = run_checked
    weak_types = backend.tensors.weak_types
    if variant.weak and weak_types is not None and backend.name == recipe.dialect():
        inner = weakened(inner, variant.weak, weak_types.weaken)
    if bare and is_rule:
        if is_random:
            return Entry(inner)
        bind = backend.autodiff.bind and partial(backend.autodiff.bind, lowered.native)
        return Entry(inner, bind, call)
    if not bare:
        inner = partial(_run_flat, variant, inner, len(variant.graphs.cotangents) == 1)
    is_placed = any(node.op in PLACED for node in variant.graphs.forward.nodes)
    if not is_placed and (inner is run or len(tensors) < 2):
        return Entry(inner, call=call if inner is run and len(tensors) < 2 else None)

    def explained(leaves: Sequence[Any], draws: Draws) -> Any:
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


def weakened(run: Run, weak: tuple[int, ...], weaken: Callable[[Tensor], Tensor]) -> Run:
    """Return what gives weak outputs at some positions."""

    def run_weakened(leaves: Sequence[Any], draws: Draws) -> Any:
        outputs = run(leaves, draws)
        if not isinstance(outputs, tuple):
            return weaken(outputs)
        return tuple(weaken(y) if i in weak else y for i, y in enumerate(outputs))

    return run_weakened


def explain(subject: str, layout: Layout, leaves: Sequence[Any], error: Exception) -> None:
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
                f"{subject} got {first_path!r} on {first} and {path!r} on {device}; move one of "
                f"them: .to({str(first)!r})"
            ) from error


def assemble(variant: Variant, values: Sequence[Any]) -> Any:
    """Return outputs in their own nesting."""
    rest = iter(values)
    count = variant.outputs.num_leaves
    flat = [variant.fixed[i] if i in variant.fixed else next(rest) for i in range(count)]
    return optree.tree_unflatten(variant.outputs, flat)
