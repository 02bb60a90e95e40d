"""Casts of casts and of draws, forward and backward, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([0.1, 1.0001, -3.3], np.float32)
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
def test_a_cast_of_a_cast_rounds_as_in_torch(name: str, dtype: str, backend: Any) -> None:
    import torch

    function = CASTS.get(name, drawn)
    values = X.astype(dtype)
    x = torch.from_numpy(values.copy()).requires_grad_()
    expected = function(x)
    expected.sum().backward()
    f = xg.function(function, native=False, prove=False)  # what follows is a proof in itself
    y, pull = xg.vjp(f, backend.array(values))
    ones = np.ones(3, backend.numpy(y).dtype)
    (gradient,) = pull(backend.array(ones))
    np.testing.assert_array_equal(backend.numpy(y), expected.detach().numpy())
    np.testing.assert_array_equal(backend.numpy(gradient), x.grad.numpy())
    assert backend.numpy(gradient).dtype == dtype


@pytest.mark.beside_numpy
def test_a_cast_of_a_cast_is_the_same_everywhere(backend: Any) -> None:
    f = xg.function(CASTS["half and back"], native=False)
    y, pull = xg.vjp(f, backend.array(X))
    (gradient,) = pull(backend.array(np.full(3, 0.1, np.float32)))
    np.testing.assert_array_equal(backend.numpy(y), X.astype(np.float16).astype(np.float32))
    expected = np.full(3, 0.1, np.float32).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(backend.numpy(gradient), expected)
