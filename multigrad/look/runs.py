"""One run of a function, on a backend or as its graphs mean it: arrays in, and arrays of its
outputs and gradients out.

What compares runs gives each of them the same cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.contract import Backend
from ..functions.calls.arguments import flatten, owner_of
from ..functions.proof.bounded import Bounded, Signs, run_bounded
from ..graph import random
from ..graph.ir.types import FLOATS, dtype_name
from ..graph.random import key_from_int
from ..graph.support.trees import optree
from ..lowering.function_graph import FunctionGraph
from ..rules.in_force.vjp import vjp_leaves
from .subject import as_float, is_float_array, precision

Array = Any
Results = dict[str, Any]
Cotangents = Callable[[int, tuple[int, ...]], Array]  # of the n-th output, by its shape
SEED = 20  # of the cotangents


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The inputs of a run as flat leaves, NumPy arrays among them at `places`."""

    leaves: tuple[Any, ...]
    tree: Any
    places: tuple[int, ...]
    cotangents: Cotangents

    @property
    def arrays(self) -> list[Array]:
        """The arrays."""
        return [self.leaves[place] for place in self.places]

    def mode(self, backend: Backend) -> AbstractContextManager[Any]:
        """Return the mode in which a backend keeps their dtypes."""
        wide = any(array.dtype == np.float64 for array in self.arrays)
        return precision(backend, "float64" if wide else "float32")

    def tensors(self, backend: Backend) -> list[Any]:
        """Return the arrays as a backend's tensors, which may be written to."""
        return [backend.tensors.from_numpy(array.copy()) for array in self.arrays]

    def differentiate(
        self,
        call: Callable[..., Any],
        backend: Backend,
        tensors: Sequence[Any],
        vjp: Callable[..., Any] | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of a call with these tensors, and their gradients."""
        given = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            given[place] = tensor
        outputs, _, pull = vjp_leaves(call, given, self.tree, backend, vjp)
        gradients = pull(
            [_as_cotangent(n, each, backend, self.cotangents) for n, each in enumerate(outputs)]
        )
        return outputs, [gradients[place] for place in self.places]


def _read(inputs: Sequence[Any], cotangents: Cotangents) -> _Arguments:
    leaves, tree = flatten(tuple(inputs), {})
    places = (i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray))
    return _Arguments(tuple(leaves), tree, tuple(places), cotangents)


def as_array(value: Any) -> Any:
    """Return a framework's tensor as an array; what else there is stays."""
    owner = None if isinstance(value, np.generic) else owner_of(value)
    return value if owner is None else np.asarray(owner.tensors.to_numpy(value))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave: arrays, in the order of the outputs and of the arrays among the inputs.

    Attributes:
        outputs: those that are tensors.
        gradients: None where there is none.
    """

    outputs: list[Array]
    gradients: list[Array | None]


def run_arrays(
    call: Callable[..., Any], backend: Backend, inputs: Sequence[Any], cotangents: Cotangents
) -> Outcome:
    """Run forward and backward with these cotangents, in the backend's mode of the moment."""
    given = _read(inputs, cotangents)
    outputs, gradients = given.differentiate(call, backend, given.tensors(backend))
    return Outcome(
        [_to_array(backend, each) for each in outputs if owner_of(each) is not None],
        [_to_array(backend, each) for each in gradients],
    )


def run(
    call: Callable[..., Any],
    backend: Backend,
    inputs: Sequence[Any],
    *,
    cotangents: Cotangents | None = None,
    vjp: Callable[..., Any] | None = None,
) -> Results:
    """Return outputs, and gradients of the float tensors among the inputs, by name."""
    given = _read(inputs, cotangents or cotangent)
    with given.mode(backend), np.errstate(all="ignore"):
        outputs, gradients = given.differentiate(call, backend, given.tensors(backend), vjp)
        found = [_to_array(backend, each) for each in outputs]
        pulled = [_to_array(backend, each) for each in gradients]
    return _name(found, pulled, given.arrays)


def run_compiled(call: Callable[..., Any], backend: Backend, inputs: Sequence[Any]) -> Results:
    """Do the same in one program of the framework's compiler."""
    given, plain = _read(inputs, cotangent), []

    def run_all(*tensors: Any) -> list[Any]:
        outputs, gradients = given.differentiate(call, backend, tensors)
        both = [*outputs, *gradients]
        plain[:] = [None if owner_of(each) else (_to_array(backend, each),) for each in both]
        return [each for each in both if owner_of(each)]

    assert backend.compiler.jit is not None
    with given.mode(backend), np.errstate(all="ignore"):
        results = backend.compiler.jit(run_all, {})(*given.tensors(backend))
        arrays = iter([_to_array(backend, each) for each in results])
        found = [next(arrays) if each is None else each[0] for each in plain]
    count = len(found) - len(given.places)
    return _name(found[:count], found[count:], given.arrays)


def run_mapped(
    call: Callable[..., Any], backend: Backend, examples: Sequence[Sequence[Any]]
) -> Results:
    """Do the same for examples at once, mapped over by the framework; the results are stacked."""
    stacked = optree.tree_map(
        lambda *each: np.stack(each) if isinstance(each[0], np.ndarray) else each[0],
        *map(tuple, examples),
        none_is_leaf=True,
    )
    return run(call, backend, stacked, vjp=backend.modes.mapped)


def run_each(
    call: Callable[..., Any], backend: Backend, examples: Sequence[Sequence[Any]]
) -> Results:
    """Do the same one after another."""
    count, found = len(examples), []
    for i, example in enumerate(examples):

        def of_example(n: int, shape: tuple[int, ...], i: int = i) -> Array:
            return cotangent(n, (count, *shape))[i]

        found.append(run(call, backend, example, cotangents=of_example))
    return {
        name: None if first is None else np.stack([each[name] for each in found])
        for name, first in found[0].items()
    }


def _as_cotangent(n: int, output: Any, backend: Backend, cotangents: Cotangents) -> Any:
    """Return the cotangent of the n-th output; None where it is no float tensor."""
    if owner_of(output) is None or dtype_name(output.dtype) not in FLOATS:
        return None
    shape = tuple(int(length) for length in output.shape)
    return backend.tensors.from_numpy(as_float(cotangents(n, shape), dtype_name(output.dtype)))


def cotangent(n: int, shape: tuple[int, ...]) -> Array:
    """Return a cotangent for the n-th output in float64, always the same."""
    return np.asarray(np.random.default_rng((SEED, n)).standard_normal(shape))


def ones(n: int, shape: tuple[int, ...]) -> Array:
    """Return a cotangent of ones."""
    return np.ones(shape)


def run_graphs(
    graphs: FunctionGraph,
    given: Mapping[str, Any],
    arrays: Sequence[Any],
    cotangents: Cotangents,
    key: int,
    library: str = "",
) -> tuple[list[Bounded], dict[str, Bounded]]:
    """Return what graphs mean in float64, with the largest value on the way: the outputs, and the
    gradients by the inputs' names.

    Args:
        given: floats in float64, and numbers, by name.
        arrays: the inputs in their own dtypes, in which numbers are drawn.
        key: of the draws.
        library: whose signs vectors have; "": NumPy's.
    """
    given = dict(given)
    if graphs.is_random:
        given["key"] = random.fold_in(key_from_int(key), 0)
    floats = [each.dtype for each in arrays if is_float_array(each)]
    dtype = floats[0] if floats else np.dtype("float32")
    signs = Signs(library, dtype) if library else None
    outputs = run_bounded(graphs.forward, given, dtype, signs)
    for n, (name, output) in enumerate(zip(graphs.cotangents, outputs, strict=True)):
        given[name] = cotangents(n, np.shape(output.value))
    gradients = run_bounded(graphs.backward, given, dtype, signs)
    return outputs, dict(zip(graphs.wrt, gradients, strict=True))


def _name(outputs: Sequence[Any], gradients: Sequence[Any], arrays: Sequence[Array]) -> Results:
    found: Results = {}
    for n, output in enumerate(outputs):
        found["output" if len(outputs) == 1 else f"output {n}"] = output
    for n, (gradient, array) in enumerate(zip(gradients, arrays, strict=True)):
        if is_float_array(array):  # no gradient is zeros
            found[f"gradient {n}"] = np.zeros_like(array) if gradient is None else gradient
    return found


def _to_array(backend: Backend, value: Any) -> Any:
    """Return a tensor or a number as an array; None for what is neither."""
    if owner_of(value) is not None:
        return np.asarray(backend.tensors.to_numpy(value))
    return np.asarray(value) if isinstance(value, bool | int | float) else None
