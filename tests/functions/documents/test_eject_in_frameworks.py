"""What frameworks do with ejected files: compile, differentiate twice, transform them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.ejecting import X, load, native, random_values


@pytest.mark.needs("torch")
@pytest.mark.parametrize("rule", ["clip_norm", "noise"])
def test_torch_compiles_and_transforms_a_file_as_the_lowered_class(rule: str) -> None:
    import torch

    file = load(xg.source(rule, "torch", forward="ReLU", standalone=True), f"file_{rule}")
    own = native(rule, "torch", forward="ReLU")
    values = random_values(rule)
    x = torch.from_numpy(X)

    def loss(call: Any) -> Any:
        return lambda t: (call(t, *values) * t).sum()

    def compiled(call: Any) -> Any:
        t = x.clone().requires_grad_()
        run = torch.compile(loss(call), fullgraph=True, backend="aot_eager")
        return torch.autograd.grad(run(t), t)[0]

    def second(call: Any) -> Any:
        t = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(call)(t), t, create_graph=True)
        return torch.autograd.grad(first.square().sum(), t)[0]

    def mapped(call: Any) -> Any:
        return torch.func.vmap(torch.func.grad(loss(call)))(x)

    for way in (compiled, second, mapped):
        assert torch.equal(way(file), way(own)), way


@pytest.mark.needs("jax")
@pytest.mark.parametrize("rule", ["clip_norm", "noise"])
def test_jax_compiles_and_transforms_a_file_as_the_lowered_function(rule: str) -> None:
    import jax

    file = load(xg.source(rule, "jax", forward="ReLU", standalone=True))
    own = native(rule, "jax", forward="ReLU")
    values = random_values(rule)

    def gradient(call: Any) -> Any:
        return jax.grad(lambda t: (call(t, *values) * t).sum())

    def second(call: Any) -> Any:
        return jax.grad(lambda t: (gradient(call)(t) ** 2).sum())

    for way in (gradient, second):
        for make in (jax.jit, jax.vmap):
            expected, found = make(way(own))(X), make(way(file))(X)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.needs("jax")
def test_jax_takes_every_kind_of_key_and_traces_params() -> None:
    import jax

    file = load(xg.source("full_jam", "jax", standalone=True))
    gradient = jax.grad(lambda t, key: file(t, key=key).sum())
    expected = gradient(X, 7)
    for key in ((0, 7), jax.random.key(7), jax.random.key_data(jax.random.key(7))):
        np.testing.assert_array_equal(gradient(X, key), expected)
    np.testing.assert_array_equal(jax.jit(gradient)(X, jax.random.key(7)), expected)
    wide = load(xg.source("triangular", "jax", standalone=True))
    slope = jax.jit(jax.grad(lambda x, width: wide(x, width=width)))
    assert slope(0.25, 0.5) == 0.5


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("rule", ["triangular", "noise"])
def test_tensorflow_compiles_and_transforms_a_file_as_the_lowered_function(rule: str) -> None:
    import tensorflow as tf

    file = load(xg.source(rule, "tensorflow", forward="ReLU", standalone=True))
    own = native(rule, "tensorflow", forward="ReLU")
    values = random_values(rule)
    x = tf.constant(X)

    def gradient(call: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(t)
            y = tf.reduce_sum(call(t, *values) * t)
        return tape.gradient(y, t)

    def second(call: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(t)
            y = tf.reduce_sum(gradient(call, t) ** 2)
        return tape.gradient(y, t)

    def graph(call: Any, t: Any) -> Any:
        return tf.function(lambda t: gradient(call, t), autograph=False)(t)

    for way in (second, graph):
        np.testing.assert_array_equal(way(file, x).numpy(), way(own, x).numpy())
    # TensorFlow forgets a custom gradient here, and the derivative of ReLU would be taken.
    with pytest.raises(LookupError, match="vectorized_map"), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(lambda row: file(row, *values), x)
        tape.gradient(y, x)
