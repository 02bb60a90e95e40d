"""Forward mode: `xg.lower(..., forward_mode=True)` gives the transpose of the rule as its tangent
map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([-2.0, -0.5, 0.1, 0.5, 2.0], np.float32)

# Linear rules with the Jacobian diagonal or matrix that their formula gives at X.
SLOPES: dict[str, Any] = {
    "triangular": np.maximum(0.0, 1.0 - np.abs(X)),
    "rectangular": (np.abs(X) <= 0.5).astype(np.float32),
    "scale": np.ones_like(X),
    "gradient_reversal": -np.ones_like(X),
    "d(Linear)": np.ones_like(X),
    "arctan": 1.0 / (1.0 + (np.pi * X) ** 2),
}


@pytest.mark.parametrize("rule", SLOPES)
@pytest.mark.needs("jax")
def test_jax_forward_and_reverse_mode_give_the_jacobian_of_the_rule(rule: str) -> None:
    import jax

    f = xg.lower(rule, "jax", forward="Heaviside", forward_mode=True)
    expected = np.diag(SLOPES[rule])
    np.testing.assert_allclose(jax.jacfwd(f)(X), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(f)(X), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", SLOPES)
@pytest.mark.needs("torch")
def test_torch_forward_and_reverse_mode_give_the_jacobian_of_the_rule(rule: str) -> None:
    import torch

    f = xg.lower(rule, "torch", forward="Heaviside", forward_mode=True).apply
    expected = np.diag(SLOPES[rule])
    np.testing.assert_allclose(torch.func.jacfwd(f)(torch.tensor(X)), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(torch.func.jacrev(f)(torch.tensor(X)), expected, rtol=0, atol=1e-6)


@pytest.mark.needs("torch")
def test_torch_dual_numbers_carry_the_tangent_of_the_rule() -> None:
    import torch
    from torch.autograd import forward_ad

    f = xg.lower("triangular", "torch", forward="Heaviside", forward_mode=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor(X), torch.full((5,), 2.0))
        tangent = forward_ad.unpack_dual(f.apply(dual)).tangent
    np.testing.assert_allclose(tangent, 2.0 * SLOPES["triangular"], rtol=0, atol=1e-6)


@pytest.mark.needs("jax")
def test_a_rule_that_is_linear_but_not_self_adjoint_is_transposed() -> None:
    import jax

    def weighted_mean(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return tin * xg.xp.mean(grad_out, axis=-1, keepdims=True)

    f = xg.lower(weighted_mean, "jax", forward_mode=True)
    backward = np.outer(X, np.full(5, 0.2, np.float32))  # grad_in = backward @ grad_out
    np.testing.assert_allclose(jax.jacfwd(f)(X), backward.T, rtol=0, atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(f)(X), backward.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["clip_norm", "noise"])
@pytest.mark.needs("jax")
def test_a_rule_that_is_not_linear_in_the_cotangent_has_no_forward_mode(rule: str) -> None:
    with pytest.raises(xg.UnsupportedOp, match=f"{rule}.*not linear in grad_out"):
        xg.lower(rule, "jax", forward_mode=True)


def test_a_backend_without_custom_forward_mode_says_so() -> None:
    with pytest.raises(xg.UnsupportedOp, match="'numpy' has no custom forward mode"):
        xg.lower("triangular", "numpy", forward_mode=True)


@pytest.mark.needs("jax")
def test_custom_vjp_without_forward_mode_refuses_a_tangent_loudly() -> None:
    import jax

    f = xg.lower("triangular", "jax", forward="Heaviside")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(f, (X,), (X,))
