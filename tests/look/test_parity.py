"""The same numbers where the frameworks lay tensors out, or compile code, in their own ways.

Every rule under every activation, on every backend, in every dtype, is in the conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad_conformance.oracles import FLOAT32, FORWARDS, assert_same_numbers, exact, spread
from multigrad_conformance.test_rules import DETERMINISTIC, SIZE, expected_gradient


def transposed_and_strided(x: Any) -> Any:
    return x.T[::2]


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize("rule", DETERMINISTIC)
def test_strided_inputs_and_expanded_gradients_give_the_same_numbers(
    backend: Any, rule: str
) -> None:
    base = spread((4, 6), FLOAT32)
    x, one = transposed_and_strided(base), np.float32(0.5)
    f = xg.lower(rule, backend.name, forward="Tanh")
    if backend.name == "numpy":
        y, pullback = f.vjp(x)
        grad_in = pullback(np.broadcast_to(one, x.shape))
    else:
        import torch

        primal = transposed_and_strided(torch.from_numpy(base)).requires_grad_()
        out = f.apply(primal)
        (gradient,) = torch.autograd.grad((out * one).sum(), primal)
        y, grad_in = out.detach().numpy(), gradient.numpy()
    assert_same_numbers(y, FORWARDS["Tanh"](exact(x)), "forward")
    expected = expected_gradient(rule, x, np.broadcast_to(one, x.shape))
    assert_same_numbers(grad_in, expected, f"gradient of {rule}")


def compiled(backend: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    if backend.name == "jax":
        import jax

        return jax.jit(f)
    import tensorflow as tf

    return tf.function(f, jit_compile=True)


@pytest.mark.backends("jax", "tensorflow")
def test_the_xla_compiler_keeps_the_numbers(backend: Any) -> None:
    x, g = spread(SIZE, FLOAT32), spread(SIZE, FLOAT32, seed=1)
    for rule in DETERMINISTIC:
        f = xg.lower(rule, backend.name, forward="Softplus")
        y, grad_in = backend.vjp(compiled(backend, f), x, g)
        assert_same_numbers(y, FORWARDS["Softplus"](exact(x)), "forward")
        assert_same_numbers(grad_in, expected_gradient(rule, x, g), f"gradient of {rule}")


@pytest.mark.backends("jax")
def test_a_tiny_width_in_float16_is_still_beyond_jax(backend: Any) -> None:
    x, g = np.array([0.0, 1e-6, 0.5], np.float16), np.ones(3, np.float16)
    f = xg.lower(xg.get("triangular").with_params(width=1e-6), "jax")
    _, grad_in = backend.vjp(f, x, g)
    expected = expected_gradient("triangular", x, g, {"width": 1e-6})
    with pytest.raises(AssertionError, match="differ"):
        assert_same_numbers(grad_in, expected, "triangular")


def test_vectors_of_either_sign_are_right_and_it_is_said() -> None:
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    report = xg.parity(xg.function(lambda x: xp.svd(x)), x)
    assert report.ok, report
    turned = [row for row in report.rows if row.problem]
    assert all("each library chooses" in row.problem and row.ok for row in turned)
    assert ("but for the signs of vectors" in str(report)) == bool(turned)


def test_a_vector_whose_sign_is_turned_on_one_backend_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: Any = load_backend("numpy").kernels.rows
    monkeypatch.setitem(rows, ops.ERF, lambda x: -x)
    x = np.random.default_rng(0).normal(size=(3, 3))
    function = xg.function(lambda x: xp.erf(xp.eigh(x)[1]) + xp.eigh(x)[1])
    assert not xg.parity(function, x, backends="numpy").ok
