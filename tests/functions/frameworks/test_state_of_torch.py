"""What classes ask of torch's own state while they run: autocast, and the generator's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.array([[-1.0, 2.0], [3.0, 0.5]], np.float32)


class UnderAutocast(torch.autograd.Function):
    """Computes its backward under the autocast of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.enabled = torch.is_autocast_enabled("cpu")
        ctx.dtype = torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        x, w = ctx.saved_tensors
        with torch.autocast("cpu", dtype=ctx.dtype, enabled=ctx.enabled):
            return grad_out @ w.t(), x.t() @ grad_out


class Restoring(torch.autograd.Function):
    """Keeps the generator's state, and computes again from there."""

    @staticmethod
    def forward(ctx: Any, x: Any, noise: float) -> Any:
        ctx.state, ctx.noise = torch.get_rng_state(), noise
        ctx.save_for_backward(x)
        drawn = torch.rand_like(x) if noise else 1.0
        return x * x * drawn

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            drawn = torch.rand_like(x) if ctx.noise else 1.0
        return 2 * x * drawn * grad_out, None


def test_a_class_that_asks_for_autocast_is_captured_without_it(backend: Any) -> None:
    y, pull = xg.vjp(xg.convert(UnderAutocast), backend.array(X), backend.array(2 * X))
    np.testing.assert_allclose(backend.numpy(y), X @ (2 * X), rtol=1e-6)
    ones = np.ones((2, 2), np.float32)
    found = [backend.numpy(each) for each in pull(backend.array(ones))]
    np.testing.assert_allclose(found, [ones @ (2 * X).T, X.T @ ones], rtol=1e-6)


def test_under_autocast_torch_runs_that_class_as_it_is() -> None:
    ours = xg.convert(UnderAutocast)
    found = []
    for apply in (UnderAutocast.apply, ours):
        x = torch.tensor(X, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = apply(x, 2 * x.detach())
        y.sum().backward()
        found.append((y.dtype, x.grad))
    (dtype, expected), (own, gradient) = found
    assert own == dtype == torch.bfloat16
    assert torch.equal(gradient, expected)


def test_one_that_sets_the_generator_back_and_draws_nothing_is_captured(backend: Any) -> None:
    y, pull = xg.vjp(xg.convert(Restoring), backend.array(X), 0.0)
    np.testing.assert_allclose(backend.numpy(y), X * X)
    np.testing.assert_allclose(backend.numpy(pull(backend.array(X))[0]), 2 * X * X)


def test_one_that_draws_the_same_again_is_refused_on_other_frameworks() -> None:
    with pytest.raises(xg.TraceError, match="draws the same numbers again"):
        xg.vjp(xg.convert(Restoring), X, 0.5)
    x = torch.tensor(X, requires_grad=True)
    y = xg.convert(Restoring)(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, 2 * y)  # the same draws


@pytest.mark.parametrize("ask", [torch.get_rng_state, torch.is_autocast_enabled])
def test_a_rule_does_not_ask_for_it(ask: Any) -> None:
    @xg.register(f"asks_for_{ask.__name__}")
    def asks(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out if ask() is None else grad_out * tin

    with pytest.raises(xg.TraceError, match=f"calls torch.{ask.__name__}, which gives another"):
        xg.show(f"asks_for_{ask.__name__}")
