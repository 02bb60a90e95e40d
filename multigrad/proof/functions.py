"""The proof of a Function's graphs: the original's outputs and gradients, by its own backward or
its framework's autodiff.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..calls.arguments import Layout, owner_of
from ..calls.gradients import match_gradients
from ..calls.recipe import Recipe, Variant
from ..errors import BackendNotFound
from ..ground.trees import optree
from ..ir.types import T
from ..lowering.function_graph import FunctionGraph
from ..random import REPLAYED
from . import samples
from .attempt import Attempt, prove
from .bounded import run_bounded
from .purity import may_act
from .run import KEY, homes, isolated, keeps_infinity, keys, on_first_home, replays_draws, to_array
from .samples import Sample, Slot, is_float
from .verdict import Subject, leave_open

Array = Any
Tensor = Any


@dataclass(frozen=True, slots=True)
class FunctionUnderProof:
    """A captured form of a Function, and the arguments that it was captured for."""

    recipe: Recipe
    variant: Variant
    leaves: Sequence[Any]

    @property
    def graphs(self) -> FunctionGraph:
        """The graphs."""
        return self.variant.graphs

    @property
    def layout(self) -> Layout:
        """That of the arguments."""
        return self.variant.layout

    @property
    def is_derived(self) -> bool:
        """Whether it has no backward of its own, but its true derivative."""
        return getattr(self.recipe, "backward", True) is None


def prove_function(
    given: FunctionUnderProof, recapture: Callable[[], Any], *, is_call: bool = False
) -> str:
    """Return "" where a Function's graphs are what was written, else why that could not be found
    out.

    Args:
        recapture: captures once more, to find the line where the two part.
        is_call: compare the arguments' own values alone.

    Raises:
        DisprovedError: they are not.
    """
    graphs, functions = given.graphs, _functions(given.recipe)
    if not functions:
        return ""  # made of graphs, as what comes from a document
    dialect = given.recipe.dialect()
    home = next(homes(dialect), None)
    code = getattr(functions[0], "__code__", None)
    name = home.name if home is not None and dialect else ""
    subject = Subject(f"function {given.recipe.name!r}", code, name)
    slots = _slots(given)
    if slots is None:
        return leave_open(
            subject, "its arguments are too large, or of unknown rank, to run it once more"
        )
    outputs = dict(
        zip(
            graphs.outputs,
            ["the result"] if len(graphs.outputs) == 1 else graphs.outputs,
            strict=True,
        )
    )
    paths = {leaf.name: leaf.path for leaf in given.layout.leaves}
    gradients = {f"gradient of {n}": f"the gradient of {paths[n]}" for n in graphs.wrt}
    attempt = Attempt(
        subject=subject,
        graphs=(graphs.forward, graphs.backward),
        names=(*graphs.outputs, *(f"gradient of {name}" for name in graphs.wrt)),
        shown={**outputs, **gradients},
        slots=slots,
        whole=_whole(given, slots),
        numbers=_numbers(given),
        fixed=frozenset(f.removeprefix("param:") for f in given.variant.facts if f[:6] == "param:"),
        is_polymorphic="dtype" not in given.variant.facts,
        acts=may_act(*functions),
        is_random=graphs.is_random,
        run=lambda sample: _run(given, sample),
        recapture=recapture,
        replays=replays_draws(dialect),
        infinite=keeps_infinity(dialect),
        complete=lambda sample: _with_cotangents(graphs, sample),
        ties=not given.is_derived,
    )
    return prove(attempt, is_call=is_call)


def _functions(recipe: Any) -> tuple[Any, ...]:
    """Return the user's functions that a recipe runs; one of a stranger's may not say."""
    return recipe.functions() if hasattr(recipe, "functions") else ()


# --- inputs ---------------------------------------------------------------------------------------


def _slots(given: FunctionUnderProof) -> tuple[Slot, ...] | None:
    """Return the tensors to be filled, small ones where the capture holds for all shapes; None:
    they are too large.
    """
    facts = given.variant.facts
    shapes = _shapes(given)
    if shapes is None:
        return None
    if any(fact.startswith("shape") and value for fact, value in facts.items()):
        if None in itertools.chain(*shapes) or sum(map(math.prod, shapes)) > samples.MOST:
            return None
    elif not all(map(samples.is_small, shapes)):
        shapes = samples.shrink(shapes)
    return _fill(given, shapes)


def _shapes(given: FunctionUnderProof) -> list[tuple[Any, ...]] | None:
    """Return the shapes of the tensors; None where not even the number of axes is known."""
    try:
        return [samples.lengths(given.leaves[i]) for i in given.layout.indices("tensor")]
    except ValueError:
        return None


def _whole(given: FunctionUnderProof, slots: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
    """Return the tensors in the call's own shapes, where these are others and not too large."""
    shapes = _shapes(given) or []
    known = all(isinstance(n, int) for shape in shapes for n in shape)
    if not known or [slot.shape for slot in slots] == shapes:
        return None
    if not 0 < sum(math.prod(shape) for shape in shapes) <= samples.MOST:
        return None
    return _fill(given, shapes)


def _fill(given: FunctionUnderProof, shapes: Sequence[tuple[int, ...]]) -> tuple[Slot, ...]:
    layout = given.layout
    first = layout.dtype or ""
    rows = []
    for i, shape in zip(layout.indices("tensor"), shapes, strict=True):
        leaf = layout.leaves[i]
        dtype = samples.float_dtype(
            T if leaf.dtype == T else leaf.dtype, given.variant.facts, first
        )
        rows.append(Slot(leaf.name, shape, dtype, samples.values_of(given.leaves[i], shape)))
    return tuple(rows)


def _numbers(given: FunctionUnderProof) -> dict[str, float]:
    layout = given.layout
    return {layout.leaves[i].name: float(given.leaves[i]) for i in layout.indices("number")}


def _with_cotangents(graphs: FunctionGraph, sample: Sample) -> Sample:
    """Return a sample with cotangents of the shapes that the graph's outputs have."""
    given: dict[str, Any] = {**sample.widened().arrays, **sample.numbers, "key": KEY}
    floats = [array.dtype for array in sample.arrays.values() if is_float(array)]
    dtype = floats[0] if floats else np.dtype("float32")
    outputs = run_bounded(graphs.forward, given, dtype)
    slots = [
        Slot(name, np.shape(output.value), dtype.name)
        for name, output in zip(graphs.seeds, outputs, strict=True)
        if name is not None
    ]
    return replace(sample, arrays={**sample.arrays, **samples.draw(slots, {}).arrays})


# --- the original ---------------------------------------------------------------------------------


def _run(given: FunctionUnderProof, sample: Sample) -> dict[str, Any]:
    """Run the original on the framework that it is written in; outputs, then gradients, by name."""
    dtypes = [array.dtype.name for array in sample.arrays.values() if is_float(array)]
    dtype = next((name for name in dtypes if name == "float64"), "float32")

    def run_on(backend: Backend) -> dict[str, Any]:
        draws = keys()

        def run() -> dict[str, Any]:
            REPLAYED.set(draws)
            return _run_on(given, sample, backend)

        return isolated(backend, run, dtype, given.graphs.is_random)

    return on_first_home(given.recipe.dialect(), run_on)


def _run_on(given: FunctionUnderProof, sample: Sample, backend: Backend) -> dict[str, Any]:
    layout, graphs = given.layout, given.graphs
    leaves = [leaf.value for leaf in layout.leaves]
    for leaf, i in zip(layout.leaves, range(len(leaves)), strict=True):
        if leaf.kind == "tensor":
            leaves[i] = backend.tensors.from_numpy(sample.arrays[leaf.name].copy())
        elif leaf.kind == "number":
            leaves[i] = sample.numbers[leaf.name]
    flat, pull = _record(given, backend, leaves)
    positions = [i for i in range(len(flat)) if i not in given.variant.fixed]
    outputs: dict[str, Any] = {
        name: as_array(backend, flat[i]) for name, i in zip(graphs.outputs, positions, strict=True)
    }
    if pull is None or not graphs.wrt:
        return outputs
    cotangents: list[Any] = [None] * len(flat)
    for i, name, output in zip(positions, graphs.seeds, outputs.values(), strict=True):
        if name is not None:
            if output.shape != sample.arrays[name].shape:
                return outputs  # which is the difference
            cotangents[i] = backend.tensors.from_numpy(sample.arrays[name].astype(output.dtype))
    gradients = pull(cotangents)
    indices = {leaf.name: i for i, leaf in enumerate(layout.leaves)}
    found = {name: gradients[indices[name]] for name in graphs.wrt}
    return {**outputs, **{f"gradient of {n}": as_array(backend, g) for n, g in found.items()}}


def _record(
    given: FunctionUnderProof, backend: Backend, leaves: list[Any]
) -> tuple[list[Any], Callable[[list[Any]], list[Any]] | None]:
    """Return the original's outputs, and the map from their cotangents to a gradient, or None, for
    each leaf.
    """
    recipe, layout = given.recipe, given.layout
    # Torch's modes, by which draws are replayed, do not reach into its own backward.
    apply = None if given.graphs.is_random else getattr(recipe, "apply", None)
    if apply is None and not given.is_derived:
        args, kwargs = layout.rebuild(leaves)
        recorded = recipe.run(args, kwargs)
        flat, tree = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
        assert recorded.pull is not None
        own = recorded.pull

        def pull_own(cotangents: list[Any]) -> list[Any]:
            upstream = [_zeros(c, y, backend) for c, y in zip(cotangents, flat, strict=True)]
            returned = own(optree.tree_unflatten(tree, upstream))
            return match_gradients(recipe.name, returned, layout)

        return flat, pull_own
    indices = layout.indices("tensor")

    def run(tensors: Sequence[Tensor]) -> list[Any]:
        filled = list(leaves)
        for i, tensor in zip(indices, tensors, strict=True):
            filled[i] = tensor
        args, kwargs = layout.rebuild(filled)
        result = apply(*args, **kwargs) if apply is not None else recipe.run(args, kwargs).outputs
        return optree.tree_leaves(result, none_is_leaf=True)

    tensors = [leaves[i] for i in indices]
    if backend.autodiff.vjp is None:
        return run(tensors), None
    flat, pull_tensors = backend.autodiff.vjp(run, tensors)

    def pull(cotangents: list[Any]) -> list[Any]:
        gradients: list[Any] = [None] * len(leaves)
        for i, gradient in zip(indices, pull_tensors(cotangents), strict=True):
            gradients[i] = gradient
        return gradients

    return flat, pull


def _zeros(cotangent: Any, output: Any, backend: Backend) -> Any:
    """Return a cotangent; of a tensor that carries no gradient, zeros, as a capture has it."""
    if cotangent is not None or owner_of(output) is None:
        return cotangent
    return backend.tensors.from_numpy(np.zeros_like(np.asarray(backend.tensors.to_numpy(output))))


def as_array(backend: Backend, value: Any) -> Array | None:
    """Return a tensor, or a number, as an array; None for None."""
    try:
        return to_array(backend, value)
    except (AttributeError, BackendNotFound, TypeError):
        return np.asarray(value, np.float32 if isinstance(value, float) else None)
