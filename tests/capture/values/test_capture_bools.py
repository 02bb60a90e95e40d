"""Arithmetic on bools: among themselves they stay bools, with numbers they are 0 and 1, as in every
library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

X = np.array([[-1.0, 0.5, 2.0], [3.0, -0.25, 0.0], [0.5, 1.5, -2.0]], np.float32)
G = np.array([[1.0, 2.0, -3.0], [-1.0, -0.5, 4.0], [0.0, -1.0, 0.5]], np.float32)


def narrowed_in_place(m: Any, n: Any) -> Any:
    both = m + False
    both &= n
    return both


def widened_in_place(m: Any, n: Any) -> Any:
    either = m + False
    either |= n
    return either


# Each is given masks m and n; what it returns is multiplied by numbers, as a rule does.
SHARED: dict[str, Any] = {
    "a sum": lambda m, n: m + n,
    "a longer sum": lambda m, n: m + n + m,
    "a product": lambda m, n: m * n + m,
    "with True": lambda m, n: m + True,
    "times True": lambda m, n: (m * True) * n,
    "times False and a mask": lambda m, n: (m * n) * False + n,
    "of what is picked": lambda m, n: m[0] + n[0],
    "of views": lambda m, n: m.T + n.reshape(3, 3),
    "of a sum and a number": lambda m, n: m + n + 1,
    "of a number first": lambda m, n: 1 + m + n,
    "of sums": lambda m, n: m.sum() + n.sum(0),
    "of extremes": lambda m, n: m.max() + n.min() + m.max(),
    "any": lambda m, n: m.any() + n.all() + m.any(),
    "products with numbers": lambda m, n: m * 2 + n * 0.5,
    "a power": lambda m, n: m**2 + n,
    "a quotient": lambda m, n: m / 2 + n,
    "the contrary": lambda m, n: ~m + n,
    "narrowed in place": narrowed_in_place,
    "widened in place": widened_in_place,
}
NUMPY: dict[str, Any] = {
    "add": lambda m, n: np.add(m, n),
    "multiply": lambda m, n: np.multiply(m, n) + m,
    "maximum": lambda m, n: np.maximum(m, n) + m,
    "minimum": lambda m, n: np.minimum(m, n) + m,
    "fmax": lambda m, n: np.fmax(m, n) + m,
    "a matrix product": lambda m, n: m @ n,
    "dot": lambda m, n: np.dot(m, n) + m,
    "einsum": lambda m, n: np.einsum("ij,jk->ik", m, n) + m,
    "outer": lambda m, n: np.outer(m[0], n),
    "abs": lambda m, n: np.abs(m) + m,
    "floor": lambda m, n: np.floor(m) + m,
    "max": lambda m, n: np.max(m, axis=0) + np.min(n, axis=0),
    "sort": lambda m, n: np.sort(m) + n,
    "concatenate": lambda m, n: np.concatenate([m, n]) + np.concatenate([n, n]),
    "stack": lambda m, n: np.stack([m, n]).any(0) + np.stack([n, m]).all(0),
    "where": lambda m, n: np.where(m, True, False) + n,
    "where of a bool": lambda m, n: np.where(m, n, True) + n,
    "where of integers": lambda m, n: np.where(m, 1, 0) + n,
    "a constant": lambda m, n: np.array([True, False, True]) + m,
    "constant integers": lambda m, n: np.array([1, 2, 3]) + m,
    "a sum written into itself": lambda m, n: np.add(m, n, out=m),
    "cumsum": lambda m, n: np.cumsum(m, 0) + n,
}


def torch_rules() -> dict[str, Any]:
    import torch

    return {
        "add": lambda m, n: torch.add(m, n),
        "maximum": lambda m, n: torch.maximum(m, n) + m,
        "max": lambda m, n: torch.max(m, n) + m.amax(0) + m.max(0).values,
        "where": lambda m, n: torch.where(m, True, False) + n,
        "cat": lambda m, n: torch.cat([m, n]) + torch.cat([n, n]),
        "stack": lambda m, n: torch.stack([m, n]).any(0) + n,
        "in place": lambda m, n: m.clone().mul_(n).add_(n),
        "masked_fill": lambda m, n: m.masked_fill(n, True) + m,
    }


def on_masks(function: Any) -> Any:
    """Return the function of numbers that asks another about their signs."""

    def f(g: Any, x: Any) -> Any:
        return function(x > 0.25, g > 0.25) * 1.5

    return f


def check(function: Any, backend: Any) -> None:
    """Compare a captured function with the same on arrays, or tensors, themselves."""
    expected = backend.numpy(on_masks(function)(backend.array(G), backend.array(X)))
    f = xg.function(on_masks(function), native=False)
    actual = backend.numpy(f(backend.array(G), backend.array(X)))
    np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.backends("numpy", "torch", "jax")
def test_an_operator_on_bools_means_what_it_means_in_python(name: str, backend: Any) -> None:
    check(SHARED[name], backend)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.backends("numpy")
def test_a_function_of_numpy_keeps_bools(name: str, backend: Any) -> None:
    check(NUMPY[name], backend)


@pytest.mark.backends("torch")
def test_a_function_of_torch_keeps_bools(backend: Any) -> None:
    for function in torch_rules().values():
        check(function, backend)


@pytest.mark.beside_numpy
def test_bools_added_are_a_union_on_every_backend(backend: Any) -> None:
    def union(g: Any, x: Any) -> Any:
        inside = np.add(x > -1, x < 1) * np.maximum(x > 2, True) + (x > 5) * (g > 0)
        inside += np.stack([x > 1, g > 1]).any(0) + (x > 0).max()
        return g * inside + np.where(x > 0, True, False)

    actual = xg.function(union, native=False)(backend.array(G), backend.array(X))
    np.testing.assert_allclose(backend.numpy(actual), union(G, X))


@pytest.mark.needs("torch")
def test_a_union_in_an_autograd_function_is_torchs(backend: Any, torch: Any) -> None:
    class Window(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * ((x > -1) + (x < 1))

    of = xg.from_autograd_function(Window)
    assert_as_in("torch", Window.apply, X, of=of, backend=backend, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda m, n: m - n, "a . b"),
        (lambda m, n: -m, "~x"),
        (lambda m, n: m // n, "Cast"),
        (lambda m, n: m % n, "Cast"),
        (lambda m, n: np.sign(m), "Cast"),
    ],
)
def test_what_libraries_refuse_on_bools_is_refused(function: Any, advice: str) -> None:
    with pytest.raises(xg.TraceError, match=rf"(?s)bools.*{advice}"):
        xg.function(on_masks(function), native=False)(G, X)


@pytest.mark.backends("numpy")
def test_floats_are_not_inverted(backend: Any) -> None:
    with pytest.raises(xg.TraceError, match="inverts floats by ~"):
        xg.function(lambda x: ~x * 1.0, native=False)(backend.array(X))


# Casts of casts and of draws, forward and backward, on every backend.


X_CASTS = np.array([0.1, 1.0001, -3.3], np.float32)
CASTS: dict[str, Any] = {
    "half and back": lambda x: x.half().float(),
    "double, half, float": lambda x: x.double().half().float(),
    "float and half": lambda x: x.float().half(),
    "bfloat16": lambda x: x.bfloat16().float(),
    "a sum": lambda x: (x.half() + x.half().float()).double(),
    "a mask": lambda x: (x > 0).half().float() + x.half().float(),
    "a scaled": lambda x: x.half().float() * 2.5,
    "by another": lambda x: x.half().type_as(x),
}


def drawn(x: Any) -> Any:
    import torch

    steps = torch.rand_like(x).float() * 0 + torch.randn(x.shape, dtype=x.dtype).float() * 0
    return steps + x.half().float()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", [*CASTS, "drawn"])
@pytest.mark.backends("numpy", "torch")
@pytest.mark.needs("torch")
def test_a_cast_of_a_cast_rounds_as_in_torch(
    name: str, dtype: str, backend: Any, torch: Any
) -> None:
    function = CASTS.get(name, drawn)
    of = xg.function(function, native=False, prove=False)  # what follows is a proof in itself
    x = X_CASTS.astype(dtype)
    assert_as_in("torch", function, x, of=of, backend=backend, rtol=0, atol=0)


@pytest.mark.beside_numpy
def test_a_cast_of_a_cast_is_the_same_everywhere(backend: Any) -> None:
    f = xg.function(CASTS["half and back"], native=False)
    y, pull = xg.vjp(f, backend.array(X_CASTS))
    (gradient,) = pull(backend.array(np.full(3, 0.1, np.float32)))
    np.testing.assert_array_equal(backend.numpy(y), X_CASTS.astype(np.float16).astype(np.float32))
    expected = np.full(3, 0.1, np.float32).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(backend.numpy(gradient), expected)
