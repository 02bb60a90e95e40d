"""A function as its own library runs it and as a graph on a backend: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

import multigrad as xg
from multigrad_conformance.under_test import BackendUnderTest, as_arrays, as_tensors

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


Array = Any
# Outputs, and what gives for cotangents, nested likewise, the gradients of all arrays: zeros where
# the library has none.
Result = tuple[Any, Callable[[Any], Sequence[Any]]]


def leaves_of(nested: Any) -> list[Any]:
    return optree.tree_leaves(nested, none_is_leaf=True)


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def in_torch(function: Callable[..., Any], *arrays: Array) -> Result:
    import torch

    tins = [
        torch.tensor(a, requires_grad=is_float(a)) if isinstance(a, np.ndarray) else a
        for a in arrays
    ]
    asked = [tin for tin, array in zip(tins, arrays, strict=True) if is_float(array)]
    result = function(*tins)

    def pull(cotangent: Any) -> Any:
        pairs = zip(leaves_of(result), leaves_of(cotangent), strict=True)
        given = [(y, torch.tensor(ct)) for y, ct in pairs if ct is not None and y.requires_grad]
        given = given or [(sum(tin.sum() for tin in asked), torch.tensor(0.0))]
        ys, cts = zip(*given, strict=True)
        found = iter(torch.autograd.grad(ys, asked, cts, materialize_grads=True))
        return [next(found).numpy() if is_float(array) else None for array in arrays]

    def to_array(y: Any) -> Any:
        return y.detach().resolve_neg().numpy() if torch.is_tensor(y) else y

    return optree.tree_map(to_array, result), pull


def in_jax(function: Callable[..., Any], *arrays: Array) -> Result:
    import jax

    flat, nesting = jax.tree.flatten(arrays)
    places = [i for i, leaf in enumerate(flat) if is_float(leaf)]

    def call(given: list[Any]) -> Any:
        whole = dict(enumerate(flat)) | dict(zip(places, given, strict=True))
        return function(*nesting.unflatten(whole.values()))

    result, pull = jax.vjp(call, [jax.numpy.asarray(flat[i]) for i in places])
    tree = jax.tree.structure(result)

    def pull_leaves(cotangent: Any) -> Any:
        (slopes,) = pull(tree.unflatten(map(jax.numpy.asarray, leaves_of(cotangent))))
        found = dict(zip(places, slopes, strict=True))
        return [found.get(i) for i in range(len(flat))]

    return result, pull_leaves


def in_tensorflow(function: Callable[..., Any], *arrays: Array) -> Result:
    import tensorflow as tf

    tins = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tins)
        result = function(*tins)

    def pull(cotangent: Any) -> Any:
        given = [*map(tf.constant, leaves_of(cotangent))]
        found = tape.gradient(leaves_of(result), tins, given, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in found]

    return result, pull


def in_numpy(function: Callable[..., Any], *arrays: Array) -> Result:
    """Return NumPy's own outputs, and gradients by central differences."""

    def pull(cotangent: Any) -> Any:
        def total() -> float:
            pairs = zip(leaves_of(function(*moved)), leaves_of(cotangent), strict=True)
            return sum(float(np.sum(y * ct)) for y, ct in pairs)

        step, moved = 1e-6, [array.copy() for array in arrays]
        found = [np.zeros_like(array) for array in arrays]
        for array, slopes in zip(moved, found, strict=True):
            for at in np.ndindex(array.shape):
                kept, ends = array[at], []
                for array[at] in (kept + step, kept - step):
                    ends.append(total())
                array[at] = kept
                slopes[at] = (ends[0] - ends[1]) / (2 * step)
        return found

    return function(*arrays), pull


OWN = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow, "numpy": in_numpy}
DIFFERENCES = 2e-6  # what central differences leave of a gradient


def assert_as_in(
    library: str,
    function: Callable[..., Any],
    *arrays: Array,
    of: Callable[..., Any] | None = None,
    backend: Any = None,
    cotangent: Any = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    scaled: bool = False,
) -> None:
    """Compare values and gradients of a function of a library's tensors with those of its graph.

    Args:
        of: what has the graph, such as a converted class; by default the function, captured.
        backend: where the graph runs; by default NumPy.
        cotangent: nested like the outputs, or that of the first; by default drawn for each of
            floats.
        rtol: with an `atol` of 0, too, 0 means equal bits, but for a NaN's.
        scaled: whether `atol` is a share of the largest finite number of each array, above 1.
    """
    expected, pull_own = OWN[library](function, *arrays)
    own, draw = leaves_of(expected), np.random.default_rng(1)
    if cotangent is None:
        cotangent = [
            draw.normal(size=y.shape).astype(y.dtype) if is_float(y) else None
            for y in map(np.asarray, own)
        ]
    cotangent = [*leaves_of(cotangent), *(None for _ in own)][: len(own)]
    graph = xg.function(function, native=False, dialect=library) if of is None else of
    backend = BackendUnderTest("numpy") if backend is None else backend
    dtypes = [a.dtype for a in leaves_of(arrays) if isinstance(a, np.ndarray)]
    with backend.precision(max(dtypes, key=lambda dtype: dtype.itemsize)):
        outputs, pull = xg.vjp(graph, *as_tensors(backend, arrays))
        tree = optree.tree_structure(outputs, none_is_leaf=True)
        slopes = pull(as_tensors(backend, optree.tree_unflatten(tree, cotangent)))
        found = as_arrays(backend, [*leaves_of(outputs), *leaves_of(slopes)])
    own += pull_own(cotangent)
    for i, (each, known) in enumerate(zip(found, own, strict=True)):
        assert (each is None) == (known is None)
        if known is not None:
            ours, wanted = np.asarray(each), np.asarray(known)
            assert ours.shape == wanted.shape
            assert ours.dtype == wanted.dtype or wanted.dtype.kind != "f"
            size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0) if scaled else 1.0
            least = DIFFERENCES if library == "numpy" and i >= len(own) - len(arrays) else 0.0
            np.testing.assert_allclose(ours, wanted, max(rtol, least), max(atol * size, least))
            if rtol == atol == 0 and wanted.dtype.kind == "f":
                signs = [np.signbit(x[wanted == 0]) for x in (ours, wanted)]
                np.testing.assert_array_equal(*signs)
