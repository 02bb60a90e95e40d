"""An operator of `torch.library.custom_op` keeps the gradient that it registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..capture.values.test_asked_of_a_tensor import X, pulled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")


# Before torch 2.5 annotations that are text give no schema.
@torch.library.custom_op(
    "multigrad_tests::spike", mutates_args=(), schema="(Tensor x, float width=1.0) -> Tensor"
)
def spike(x: torch.Tensor, width: float = 1.0) -> torch.Tensor:
    """Return spikes."""
    return (x > 0).to(x.dtype)


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, width = inputs
    ctx.save_for_backward(x)
    ctx.width = width


def pull_spike(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return halve(grad) * (x.abs() < ctx.width), None


@torch.library.custom_op("multigrad_tests::halve", mutates_args=(), schema="(Tensor x) -> Tensor")
def halve(x: torch.Tensor) -> torch.Tensor:
    """Return a half, of which no gradient is registered."""
    return 0.5 * x


spike.register_autograd(pull_spike, setup_context=keep)


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_its_gradient_is_the_registered_one(backend: Any, width: float) -> None:
    def net(x: Any) -> Any:
        return 3 * spike(2 * x, width) + torch.ops.multigrad_tests.spike(x)

    y, (gradient,) = pulled(backend, xg.function(net), X)
    np.testing.assert_array_equal(y, 4 * (X > 0).astype(np.float32))
    expected = 3.0 * (abs(2 * X) < width) + 0.5 * (abs(X) < 1)
    np.testing.assert_allclose(gradient, expected)


def test_without_a_registered_gradient_a_function_is_refused() -> None:
    def net(x: Any) -> Any:
        return halve(x) + x

    with pytest.raises(xg.TraceError, match=r"multigrad_tests::halve.*registers no gradient"):
        xg.function(net, native=False)(X)
