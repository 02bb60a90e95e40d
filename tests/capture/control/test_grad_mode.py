"""Whether autograd records is known while a class runs; what its backward does for a second
derivative is not taken for its first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..values.test_asked_of_a_tensor import X, make, pulled

pytestmark = pytest.mark.needs("torch")


def tells_the_mode(ctx: Any, x: Any) -> Any:
    import torch

    ctx.save_for_backward(x)
    with torch.enable_grad():
        factor = 2.0 if torch.is_grad_enabled() else 7.0
    return x * x * x * (factor if not torch.is_grad_enabled() else 5.0)


def backward_of_two_ways(ctx: Any, grad: Any) -> Any:
    import torch

    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        return 6 * grad * x * x
    with torch.no_grad():
        return 6 * grad * (x * x).detach()


def test_forward_does_not_record_and_backward_neither(backend: Any) -> None:
    function, _ = make(tells_the_mode, backward_of_two_ways)
    y, (gradient,) = pulled(backend, function, X)
    np.testing.assert_allclose(y, 2 * X**3, rtol=1e-6)
    np.testing.assert_allclose(gradient, 6 * X**2, rtol=1e-6)


@pytest.mark.needs("torch", "jax")
def test_a_second_derivative_is_the_original_s_or_refused() -> None:
    import jax
    import torch

    function, cls = make(tells_the_mode, backward_of_two_ways)
    for apply in (function, cls.apply, xg.function(cls.apply)):
        x = torch.tensor(X, requires_grad=True)
        (first,) = torch.autograd.grad(apply(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 12 * x.detach())
    for on_jax in (function, xg.function(cls.apply)):
        slope = jax.grad(lambda x, f=on_jax: f(x).sum())
        np.testing.assert_allclose(slope(X), 6 * X**2, rtol=1e-6)
        with pytest.raises(xg.GradientError, match="differentiated again"):
            jax.grad(lambda x, slope=slope: slope(x).sum())(X)


def test_a_plain_function_is_not_told() -> None:
    import torch

    def asks(x: Any) -> Any:
        return 2 * x if torch.is_grad_enabled() else x

    with pytest.raises(xg.TraceError, match=r"torch.is_grad_enabled, which gives another value"):
        xg.function(asks, native=False)(X)


def test_what_is_cut_off_may_ask_for_a_gradient_of_its_own(backend: Any) -> None:
    def watched(ctx: Any, x: Any) -> Any:
        y = x.detach().requires_grad_()
        return y * 3 if y.requires_grad and not (y * 3).requires_grad else y

    function, _ = make(watched)
    y, (gradient,) = pulled(backend, function, X)
    np.testing.assert_allclose(y, 3 * X, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 2 * np.ones_like(X))

    def leaf(x: Any) -> Any:
        return x.detach().requires_grad_() * 3 + (2 * x).requires_grad_()

    _, (gradient,) = pulled(backend, xg.function(leaf, dialect="torch"), X)
    np.testing.assert_array_equal(gradient, 2 * np.ones_like(X))


def test_what_would_change_an_argument_or_is_autograd_s_is_refused() -> None:
    def watches(x: Any) -> Any:
        return x.requires_grad_() * 3

    def asks(x: Any) -> Any:
        y = 2 * x
        return y if y.requires_grad else 5 * y

    for function, said in ((watches, "of its argument"), (asks, "which is autograd's")):
        with pytest.raises(xg.TraceError, match=said):
            xg.function(function, dialect="torch", native=False)(X)
