"""What a class makes from numbers alone and then writes into: labels, masks, ranges, unit matrices.

Such a tensor is the library's own until a symbol is written into one; the capture is repeated then,
and all of them are symbols.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)


def labels(x: Any) -> Any:
    places = torch.zeros(4, dtype=torch.long)
    places[1:] = x[0].argsort()
    return x[0][places[1:]]


def masks(x: Any) -> Any:
    mask = torch.ones(2, 3, dtype=torch.bool).triu(1)
    mask[0, 1:] = x[0, 1:] > 0
    return torch.where(mask, x, torch.zeros(2, 3))


def unit_matrices(x: Any) -> Any:
    unit = torch.eye(3).view(1, 3, 3).repeat(2, 1, 1).type(x.dtype)
    unit[:, 0] = x
    return unit


def ranges(x: Any) -> Any:
    line, steps = torch.linspace(0, 1, 3), torch.arange(3).float()
    line += x[0]
    steps.mul_(x[1])
    return line + steps


def listed(x: Any) -> Any:
    given = torch.tensor([1.0, 2.0, 3.0])
    given[0] = x[0, 0]
    return torch.mul(given, x, out=torch.empty(2, 3))


def integers(x: Any) -> Any:
    counts, small = torch.full((3,), 2), torch.zeros(3, dtype=torch.uint8)
    counts[0], small[1:] = x[1, 0] * 3, x[:, 0].argsort()
    return counts * 1.0 + small


def make(forward: Any) -> Any:
    """Return the Function of a class with this forward."""

    def backward(ctx: Any, grad: Any) -> Any:
        return torch.zeros(2, 3) + grad.sum()

    methods = {
        "forward": staticmethod(lambda ctx, x: forward(x)),
        "backward": staticmethod(backward),
    }
    return xg.from_autograd_function(type(forward.__name__, (torch.autograd.Function,), methods))


@pytest.mark.parametrize("forward", [labels, masks, unit_matrices, ranges, listed, integers])
def test_what_a_class_has_made_takes_what_is_written_into_it(backend: Any, forward: Any) -> None:
    function = make(forward)
    expected = forward(torch.tensor(X)).numpy()
    y, pullback = xg.vjp(function, backend.array(X))
    np.testing.assert_array_equal(backend.numpy(y), expected)
    (gradient,) = pullback(backend.array(np.ones_like(expected)))
    np.testing.assert_array_equal(backend.numpy(gradient), np.full_like(X, expected.size))


def test_a_tensor_from_outside_is_not_written_into(backend: Any) -> None:
    outside = torch.zeros(2, 3)

    def counted(x: Any) -> Any:
        outside[0] = x[0]
        return x * 2

    if backend.name == "torch":
        make(counted)(backend.array(X))
        assert torch.equal(outside[0], torch.tensor(X[0]))
    else:
        with pytest.raises(xg.TraceError, match="__setitem__"):
            make(counted)(backend.array(X))


def test_a_function_of_a_class_has_the_signature_of_its_apply() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float = 2.0) -> Any:
            return x * scale

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2, None

    signature = inspect.signature(xg.from_autograd_function(Scaled))
    assert list(signature.parameters) == ["x", "scale"]
