"""A function of linear algebra under a library's names: on NumPy it gives the library's numbers and
gradients.

A call takes the library, its room of linear algebra, square matrices a, positive ones s, right
sides b of matrices and v of vectors, and r with more rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import multigrad as xg

Tensor: TypeAlias = Any
Call: TypeAlias = Callable[..., Any]


def arrays() -> list[np.ndarray[Any, Any]]:
    """a, what makes s of it, b, v and r."""
    draw = np.random.default_rng(3)
    shapes = ((2, 3, 3), (2, 3, 2), (2, 3), (2, 4, 3))
    a, b, v, r = (draw.normal(size=shape) for shape in shapes)
    return [a + 2 * np.eye(3), np.eye(3), b, v, r]


def program(call: Call, library: Any, room: Any) -> Call:
    """Return the function that is captured."""

    def run(a: Tensor, one: Tensor, b: Tensor, v: Tensor, r: Tensor) -> Any:
        s = a @ a.swapaxes(-1, -2) + (one + one.T) / 2
        return call(library, room, a, s, b, v, r)

    return run


def flat(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple) else [results]


def weights_of(results: list[Any]) -> list[Any]:
    return [np.cos(np.arange(np.size(r))).reshape(np.shape(r)) for r in results]


def check(run: Call, wanted: list[Any], slopes: list[Any], rtol: float, dialect: str) -> None:
    """Compare a function on NumPy with a library's results and gradients."""
    outputs, pullback = xg.vjp(xg.function(run, native=False, dialect=dialect), *arrays())
    given = flat(outputs)
    for each, own in zip(given, wanted, strict=True):
        np.testing.assert_allclose(each, own, 1e-9, 1e-9)
    weights = weights_of(wanted)
    gradients = pullback(tuple(weights) if isinstance(outputs, tuple) else weights[0])
    for each, own in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(each, own, rtol, rtol)


def check_torch(call: Call) -> None:
    import torch

    run = program(call, torch, torch.linalg)
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays()]
    results = flat(run(*tensors))
    wanted = [each.detach().numpy() for each in results]
    pairs = zip(results, weights_of(wanted), strict=True)
    total = sum((each * torch.tensor(w)).sum() for each, w in pairs)
    slopes = torch.autograd.grad(total, tensors, materialize_grads=True)
    check(run, wanted, [g.numpy() for g in slopes], 1e-9, "torch")


def check_tensorflow(call: Call) -> None:
    import tensorflow as tf

    def run(a: Tensor, one: Tensor, b: Tensor, v: Tensor, r: Tensor) -> Any:
        return call(tf, tf.linalg, a, tf.matmul(a, a, transpose_b=True) + one, b, v, r)

    tensors = [tf.constant(array) for array in arrays()]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = flat(run(*tensors))
        pairs = zip(results, weights_of(results), strict=True)
        total = sum(tf.reduce_sum(each * w) for each, w in pairs)
    slopes = tape.gradient(total, tensors, unconnected_gradients="zero")
    check(run, [each.numpy() for each in results], [*map(np.asarray, slopes)], 1e-9, "tensorflow")


def check_jax(call: Call, library: Any, room: Any) -> None:
    import jax

    run = program(call, library, room)
    with jax.enable_x64(True):
        results, pull = jax.vjp(jax.jit(lambda *given: flat(run(*given))), *arrays())
        wanted = [np.asarray(each) for each in results]
        slopes = [np.asarray(g) for g in pull([*map(jax.numpy.asarray, weights_of(wanted))])]
        check(run, wanted, slopes, 1e-9, "jax")


def check_numpy(call: Call, room: Any) -> None:
    run = program(call, np, room)
    wanted = [np.asarray(each) for each in flat(run(*arrays()))]
    weights = weights_of(wanted)

    def total(given: list[Any]) -> float:
        return sum(float(np.sum(y * w)) for y, w in zip(flat(run(*given)), weights, strict=True))

    check(run, wanted, slopes_of(total, arrays()), 2e-6, "numpy")


def slopes_of(total: Callable[[list[Any]], float], given: list[Any]) -> list[Any]:
    """Central differences."""
    step, found = 1e-6, [np.zeros_like(array) for array in given]
    for array, slopes in zip(given, found, strict=True):
        for at in np.ndindex(array.shape):
            kept = array[at]
            ends = []
            for array[at] in (kept + step, kept - step):
                ends.append(total(given))
            array[at] = kept
            slopes[at] = (ends[0] - ends[1]) / (2 * step)
    return found
