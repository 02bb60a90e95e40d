"""A function as its own library runs it and as a graph on NumPy: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import multigrad as xg

X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


Array = Any
Result = tuple[Any, Callable[[Any], Sequence[Any]]]


def in_torch(function: Callable[..., Any], *arrays: Array) -> Result:
    import torch

    tins = [torch.tensor(array, requires_grad=True) for array in arrays]
    result = function(*tins)
    return result.detach().numpy(), lambda cotangent: torch.autograd.grad(
        result, tins, torch.tensor(cotangent)
    )


def in_jax(function: Callable[..., Any], *arrays: Array) -> Result:
    import jax

    return jax.vjp(function, *map(jax.numpy.asarray, arrays))


def in_tensorflow(function: Callable[..., Any], *arrays: Array) -> Result:
    import tensorflow as tf

    tins = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tins)
        result = function(*tins)

    def pull(cotangent: Any) -> Any:
        found = tape.gradient(result, tins, output_gradients=tf.constant(cotangent))
        return [tf.convert_to_tensor(gradient) for gradient in found]

    return result, pull


OWN = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


def assert_as_in(
    library: str, function: Callable[..., Any], *arrays: Array, atol: float = 1e-5
) -> None:
    """Compare values and gradients of a function of NumPy arrays with those of its graph."""
    expected, pull = OWN[library](function, *arrays)
    dtype = np.asarray(expected).dtype
    cotangent = np.random.default_rng(1).normal(size=expected.shape).astype(dtype)
    result, captured_pull = xg.vjp(xg.function(function, native=False), *arrays)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=atol)
    for gradient, own in zip(captured_pull(cotangent), pull(cotangent), strict=True):
        np.testing.assert_allclose(gradient, own, rtol=1e-5, atol=atol)
