"""Forward mode, by the frameworks' own names: the tangent map is the transpose of the backward. On
torch it is there; in JAX `xg.lower(..., forward_mode=True)` asks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.torch_class import torch_class

X = np.array([-2.0, -0.5, 0.1, 0.5, 2.0], np.float32)


@pytest.mark.needs("tensorflow")
def test_a_backend_without_custom_forward_mode_says_so() -> None:
    with pytest.raises(xg.UnsupportedOp, match="'tensorflow' has no custom forward mode"):
        xg.lower("triangular", "tensorflow", forward_mode=True)


def test_numpy_has_it_beside_reverse_mode() -> None:
    f = xg.lower("triangular", "numpy", forward="Heaviside", forward_mode=True)
    y, tangent = f.jvp([X, 0.5], [2.0 * np.ones_like(X)])
    np.testing.assert_array_equal(y, X > 0)
    np.testing.assert_allclose(tangent, 2.0 * np.maximum(0.0, 1.0 - np.abs(X) / 0.5), atol=1e-6)
    with pytest.raises(xg.UnsupportedOp, match="lowered without forward_mode=True"):
        xg.lower("triangular", "numpy").jvp([X], [X])


@xg.custom_gradient
def scaled(x: Any, w: Any) -> Any:
    """Two outputs, and three times the true gradient."""
    y = xg.xp.exp(x) * w

    def grad(upstream: Any, _: Any) -> Any:
        return 3.0 * upstream * y, 3.0 * upstream * y / w

    return (y, x > 0.25), grad


W = np.array([1.0, 2.0, -1.0, 0.5, 4.0], np.float32)


@pytest.mark.needs("jax")
def test_a_lowered_function_of_jax_has_both_modes_and_their_compositions() -> None:
    import jax
    import jax.numpy as jnp

    scaled(X, W)
    f = xg.lower(scaled, "jax", forward_mode=True)
    slope = 3.0 * np.exp(X) * W
    (y, mask), (tangent, nothing) = jax.jit(
        lambda x, w: jax.jvp(f, (x, w), (jnp.ones(5), jnp.zeros(5)))
    )(X, W)
    np.testing.assert_allclose(y, np.exp(X) * W, rtol=1e-6)
    np.testing.assert_allclose(tangent, slope, rtol=1e-6)
    np.testing.assert_array_equal(mask, X > 0.25)
    assert nothing.dtype == jax.dtypes.float0
    first = jax.tree_util.Partial(lambda x, w: f(x, w)[0])
    np.testing.assert_allclose(jax.jacfwd(first)(X, W), np.diag(slope), rtol=1e-6)
    np.testing.assert_allclose(jax.jacrev(first)(X, W), np.diag(slope), rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(first, 1)(X, W), np.diag(3.0 * np.exp(X)), rtol=1e-5)
    second = jax.hessian(lambda x: first(x, W).sum())(X)
    np.testing.assert_allclose(second, np.diag(slope), rtol=1e-6)
    mapped = jax.vmap(lambda t: jax.linearize(lambda x: first(x, W), X)[1](t))(jnp.eye(5))
    np.testing.assert_allclose(mapped, np.diag(slope), rtol=1e-6)


@pytest.mark.needs("torch")
def test_a_function_on_torch_has_both_modes_and_their_compositions() -> None:
    import torch
    from torch.autograd import forward_ad
    from torch.func import hessian, jacfwd, jacrev, jvp, vmap

    x, w = torch.tensor(X), torch.tensor(W)
    slope = 3.0 * torch.exp(x) * w
    own = {"rtol": 1e-5, "atol": 0.0}

    def first(x: Any, w: Any) -> Any:
        return scaled(x, w)[0]

    _, (tangent, nothing) = jvp(lambda x: scaled(x, w), (x,), (torch.ones(5),))
    np.testing.assert_allclose(tangent, slope, **own)
    assert not nothing.any()
    np.testing.assert_allclose(jacfwd(first)(x, w), torch.diag(slope), **own)
    np.testing.assert_allclose(jacfwd(first, 1)(x, w), torch.diag(3.0 * torch.exp(x)), **own)
    expected = torch.diag(slope)
    for way in (hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f))):
        np.testing.assert_allclose(way(lambda x: first(x, w).sum())(x), expected, **own)
    rows = vmap(lambda t: jvp(lambda x: first(x, w), (x,), (t,))[1])(torch.eye(5))
    np.testing.assert_allclose(rows, torch.diag(slope), **own)
    with forward_ad.dual_level():
        y, _ = scaled(forward_ad.make_dual(x, torch.ones(5)), w)
        np.testing.assert_allclose(forward_ad.unpack_dual(y).tangent, slope, **own)
        alone = scaled(x, w)[0]
        assert forward_ad.unpack_dual(alone).tangent is None


@pytest.mark.needs("torch")
def test_a_tangent_has_the_part_of_each_input_whatever_a_class_asks_about_gradients() -> None:
    import torch
    from torch.autograd import forward_ad

    def backward(ctx: Any, grad_out: Any) -> Any:
        (x, w), (has_x, has_w) = ctx.saved_tensors, ctx.needs_input_grad
        return 3.0 * w * grad_out if has_x else None, 5.0 * x * grad_out if has_w else None

    @xg.convert
    @torch_class(backward)
    def Product(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x * w

    x, w, dx, dw = torch.tensor([[1.0], [2.0], [1.0], [0.5]])
    assert xg.jvp(Product, (x, w), (dx, dw))[1] == 3 * 2 + 5 * 0.5
    assert xg.jvp(Product, (x.requires_grad_(), w), (dx, dw))[1] == 3 * 2 + 5 * 0.5
    assert torch.func.linearize(Product, x.detach(), w)[1](dx, dw) == 3 * 2 + 5 * 0.5

    def push(w: Any) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(Product(x, forward_ad.make_dual(w, dw))).tangent

    assert push(w) == torch.compile(push, backend="eager")(w) == 5 * 0.5


@pytest.mark.needs("torch")
def test_torch_carries_tangents_through_views_and_what_is_given_back() -> None:
    import torch
    from torch.autograd import forward_ad

    @xg.custom_gradient
    def flat(x: Any) -> Any:
        shape = x.shape
        return x.reshape(-1), lambda upstream: 2.0 * upstream.reshape(shape)

    x = torch.arange(6.0).reshape(2, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for f in (flat, xg.activation("Linear", "scale", {"s": 2.0})):
            tangent = forward_ad.unpack_dual(f(dual)).tangent
            np.testing.assert_array_equal(tangent.reshape(2, 3), 2.0 * torch.ones(2, 3))


@pytest.mark.needs("torch")
def test_an_output_that_was_kept_has_the_own_gradient_in_the_second_derivative() -> None:
    import torch
    from torch.func import hessian, jacfwd, jacrev

    @torch_class(lambda ctx, grad_out: 3.0 * grad_out * ctx.saved_tensors[0])
    def Tripled(ctx: Any, x: Any) -> Any:
        y = torch.exp(x)
        ctx.save_for_backward(y)
        return y

    f, x = xg.convert(Tripled), torch.tensor(X)
    expected = torch.diag(9.0 * torch.exp(x))
    for way in (hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f))):
        np.testing.assert_allclose(way(lambda x: f(x).sum())(x), expected, rtol=1e-6)


@pytest.mark.needs("torch")
def test_a_promise_of_one_derivative_holds_in_forward_mode() -> None:
    import torch
    from torch.func import jacfwd, jvp

    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3.0 * grad_out * x * x

    @torch_class(backward)
    def Once(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    f, x = xg.convert(Once), torch.tensor(X)
    np.testing.assert_allclose(jvp(f, (x,), (torch.ones(5),))[1], 3.0 * X * X, rtol=1e-6)
    with pytest.raises(xg.GradientError, match="promises that nobody differentiates"):
        torch.func.jacrev(jacfwd(f))(x)
