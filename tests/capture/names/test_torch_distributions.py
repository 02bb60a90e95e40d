"""Torch's distributions, whose own code asks whether what it is given is a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")

LOC = np.array([0.25, -1.5, 2.0], np.float32)
SCALE = np.array([0.5, 1.25, 0.75], np.float32)


def normal(loc: Any, scale: Any) -> Any:
    return torch.distributions.Normal(loc, scale).log_prob(scale - loc)


def bernoulli(loc: Any, scale: Any) -> Any:
    return torch.distributions.Bernoulli(logits=loc).log_prob((scale > 1).float())


def independent(loc: Any, scale: Any) -> Any:
    own = torch.distributions.Normal(loc, scale)
    return torch.distributions.Independent(own, 1).log_prob(loc) * loc


@pytest.mark.parametrize("function", [normal, bernoulli, independent], ids=lambda f: f.__name__)
def test_a_density_is_that_of_torch_with_its_gradient(function: Any, backend: Any) -> None:
    loc = torch.tensor(LOC, requires_grad=True)
    wanted = function(loc, torch.tensor(SCALE))
    wanted.backward(torch.tensor(LOC))

    def of_loc(x: Any) -> Any:
        return function(x, torch.tensor(SCALE))

    value, gradient = backend.vjp(xg.function(of_loc, native=False), LOC, LOC)
    np.testing.assert_allclose(value, wanted.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(gradient, loc.grad.numpy(), rtol=1e-5)


def test_an_argument_that_torch_refuses_is_refused() -> None:
    def checked(loc: Any, scale: Any) -> Any:
        # By default too, until torch.compile is first used, which turns the checks off (2.13).
        own = torch.distributions.Normal(loc, scale, validate_args=True)
        return own.log_prob(scale - loc)

    with pytest.raises(ValueError, match="asserts what does not hold"):
        xg.function(checked, native=False)(LOC, -SCALE)
