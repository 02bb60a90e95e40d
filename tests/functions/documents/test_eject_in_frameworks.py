"""What frameworks do with ejected files: compile, differentiate twice, transform them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.ejecting import X, load, native, random_values
from ...harness.models.surrogates import triangle
from ...harness.traced import OPTIONS


def mapped(backend: Any) -> Callable[..., Any]:
    """Return the function of a framework that maps over rows."""
    module = "torch.func" if backend.name == "torch" else backend.name
    return import_module(module).vmap


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize("rule", ["clip_norm", "noise"])
def test_a_file_is_compiled_mapped_and_differentiated_twice_as_what_is_lowered(
    backend: Any, rule: str
) -> None:
    text = xg.source(rule, backend.name, forward="ReLU", standalone=True)
    values, ones = random_values(rule), np.ones_like(X)
    found = []
    for call in (load(text, f"file_{rule}"), native(rule, backend.name, forward="ReLU")):

        def weighted(x: Any, call: Any = call) -> Any:
            return call(x, *values) * x

        def slope(x: Any, run: Any = weighted) -> Any:
            return xg.vjp(run, x)[1](x * 0 + 1)[0] ** 2

        compiled = xg.jit(weighted, backend.name, **OPTIONS[backend.name])
        ways = [compiled, slope, weighted]
        if backend.name != "tensorflow":
            ways.append(mapped(backend)(weighted))
        found.append([backend.vjp(way, X, ones) for way in ways])
    for of_file, own in zip(*found, strict=True):
        np.testing.assert_array_equal(of_file, own)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_compiled_code_calls_a_file_with_other_numbers(backend: Any) -> None:
    file = load(xg.source("triangular", backend.name, forward="ReLU", standalone=True))
    compiled = xg.jit(file, backend.name, **OPTIONS[backend.name])
    for width in (1.0, 2.0, 0.5):
        _, grad = backend.vjp(lambda x, width=width: compiled(x, width=width), X, np.ones_like(X))
        np.testing.assert_allclose(grad, triangle(X, width), 1e-6)


@pytest.mark.needs("tensorflow")
def test_a_file_is_not_differentiated_through_vectorized_map() -> None:
    import tensorflow as tf

    file, x = load(xg.source("triangular", "tensorflow", standalone=True)), tf.constant(X)
    # TensorFlow forgets a custom gradient here, and the derivative of the forward would be taken.
    with pytest.raises(LookupError, match="vectorized_map"), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(file, x)
        tape.gradient(y, x)


@pytest.mark.needs("jax")
def test_jax_takes_every_kind_of_key_and_traces_params() -> None:
    import jax

    file = load(xg.source("full_jam", "jax", standalone=True))
    gradient = jax.grad(lambda t, key: file(t, key=key).sum())
    expected = gradient(X, 7)
    for key in ((0, 7), jax.random.key(7), jax.random.key_data(jax.random.key(7))):
        np.testing.assert_array_equal(gradient(X, key), expected)
    np.testing.assert_array_equal(jax.jit(gradient)(X, jax.random.key(7)), expected)
