"""`torch.nn.grad`: what classes with a convolution call in their backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
draw = np.random.default_rng(3).standard_normal
X, W = draw((2, 4, 7, 6)).astype(np.float32), draw((6, 2, 3, 2)).astype(np.float32)
OPTIONS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv2d(x, w.sign(), None, **OPTIONS)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, w = ctx.saved_tensors
        grad_x = torch.nn.grad.conv2d_input(x.shape, w.sign(), grad, **OPTIONS)
        return grad_x, torch.nn.grad.conv2d_weight(x, w.shape, grad, **OPTIONS)


class Line(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv1d(x, w, padding=1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, w = ctx.saved_tensors
        grad_x = torch.nn.grad.conv1d_input(x.shape, w, grad, padding=1)
        return grad_x, torch.nn.grad.conv1d_weight(x, w.shape, grad, padding=1)


CASES = {Convolution: (X, W), Line: (X[:, :, 0], W[:, :, :, 0].repeat(2, 1))}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_gradient_of_a_convolution_is_that_of_torch(function: Any, backend: Any) -> None:
    given = CASES[function]
    tensors = [torch.tensor(each, requires_grad=True) for each in given]
    y = function.apply(*tensors)
    grad = draw(tuple(y.shape)).astype(np.float32)
    y.backward(torch.tensor(grad))
    value, pull = xg.vjp(xg.from_autograd_function(function), *map(backend.array, given))
    np.testing.assert_allclose(backend.numpy(value), y.detach().numpy(), rtol=1e-5, atol=1e-4)
    for found, tensor in zip(pull(backend.array(grad)), tensors, strict=True):
        np.testing.assert_allclose(backend.numpy(found), tensor.grad, rtol=1e-5, atol=1e-4)
