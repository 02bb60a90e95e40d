"""What torch selects by order, as it does: medians, places among boundaries, running extremes, the
largest of what is scattered to one place; shifts of wide integers.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
NAN = float("nan")
X = np.array([[0.3, -1.2, 0.6, 0.3], [1.5, NAN, -0.75, 1.5], [0.6, 1.0, -1.0, 2.0]], np.float32)
INDEX = torch.tensor([[0, 0, 1, 2], [1, 1, 1, 0], [2, 0, 0, 1]])


def medians(x: Any) -> Any:
    values, places = x.median(1, keepdim=True)
    return x.median(), values, places, x[:, :3].median(dim=-1).values


def among_boundaries(x: Any) -> Any:
    edges = torch.tensor([-1.0, 0.3, 1.5])
    unordered = torch.tensor([2.0, 0.3, -1.5, 0.6])  # by halves, whatever that gives
    return (
        torch.bucketize(x, edges),
        torch.searchsorted(edges, x, side="right"),
        torch.bucketize(x, unordered),
        torch.searchsorted(x[:1, :2].abs().sort(1)[0], x[:1]),
    )


def running_extremes(x: Any) -> Any:
    largest, places = x.cummax(1)
    return largest, places, torch.cummin(x, dim=0)[1]


def scattered(x: Any) -> Any:
    zeros, ones = torch.zeros(3, 4), torch.ones(3, 4)
    return (
        zeros.scatter_reduce(0, INDEX, x, "amax"),
        zeros.scatter_reduce(1, INDEX, x, "amin", include_self=False),
        ones.scatter_reduce(0, INDEX, x, "mean"),
        ones.scatter_reduce(0, INDEX[:2], x, "mean", include_self=False),
        ones.scatter_reduce(0, INDEX, x, "sum", include_self=False),
    )


def shifted(x: Any) -> Any:
    return (x > 0).long() << 5 >> 3, (x > 0).int() << 3


def shifted_far(x: Any) -> Any:
    wide = (x > 0).long() * 2**40
    return wide >> 3, wide << 2


def make(forward: Any) -> Any:
    """Return the Function of a class with this forward."""
    methods = {
        "forward": staticmethod(lambda ctx, x: forward(x)),
        "backward": staticmethod(lambda ctx, *grads: torch.zeros(3, 4)),
    }
    return xg.from_autograd_function(type("Of", (torch.autograd.Function,), methods))


@pytest.mark.parametrize(
    "forward", [medians, among_boundaries, running_extremes, scattered, shifted]
)
def test_a_class_selects_what_torch_selects(backend: Any, forward: Any) -> None:
    found = make(forward)(backend.array(X))
    for ours, own in zip(found, forward(torch.tensor(X)), strict=True):
        numbers = backend.numpy(ours)
        np.testing.assert_allclose(numbers, own.numpy(), rtol=1e-6)
        assert numbers.shape == own.shape
        assert numbers.dtype == own.numpy().dtype or backend.name == "jax"  # of 32 bits by default


def test_wide_integers_are_shifted_as_such(backend: Any) -> None:
    if backend.name == "jax":
        pytest.skip("jax has integers of 32 bits unless it is told to")
    found = make(shifted_far)(backend.array(X))
    for ours, own in zip(found, shifted_far(torch.tensor(X)), strict=True):
        np.testing.assert_array_equal(backend.numpy(ours), own.numpy())


def test_a_gradient_that_torch_divides_among_equal_elements_is_not_derived() -> None:
    def largest(x: Any) -> Any:
        return torch.zeros(3, 4).scatter_reduce(0, INDEX, x, "amax")

    with pytest.raises(xg.TraceError, match="derives"):
        xg.function(largest)(X)


def test_what_a_mask_picks_is_refused_in_a_list_too() -> None:
    with pytest.raises(xg.TraceError, match="indexes a tensor by a mask"):
        xg.function(lambda x: torch.cat([x[x > 0], x[0]]), native=False)(X)


def test_places_of_running_extremes_are_exact_above_what_float32_counts() -> None:
    def last_places(x: Any) -> Any:
        return torch.cummax(x, 0).indices[-3:]

    x = torch.zeros(2**24 + 4, dtype=torch.int8)
    x[-3] = 1
    places = xg.function(last_places, native=False)(x)
    assert places.tolist() == last_places(x).tolist()


def test_places_of_running_extremes_that_are_returned_as_a_pair_are_counted_in_integers() -> None:
    def pair(x: Any) -> Any:
        return torch.cummax(x, 0)

    x = torch.arange(2100.0, dtype=torch.float16)
    values, places = xg.function(pair, native=False)(x)
    assert values.tolist() == pair(x).values.tolist()
    assert places.tolist() == pair(x).indices.tolist()


# Torch's distributions, whose own code asks whether what it is given is a tensor.


LOC = np.array([0.25, -1.5, 2.0], np.float32)
SCALE = np.array([0.5, 1.25, 0.75], np.float32)


def normal(loc: Any, scale: Any) -> Any:
    return torch.distributions.Normal(loc, scale).log_prob(scale - loc)


def bernoulli(loc: Any, scale: Any) -> Any:
    return torch.distributions.Bernoulli(logits=loc).log_prob((scale > 1).float())


def independent(loc: Any, scale: Any) -> Any:
    own = torch.distributions.Normal(loc, scale)
    return torch.distributions.Independent(own, 1).log_prob(loc) * loc


def gamma(loc: Any, scale: Any) -> Any:
    return torch.distributions.Gamma(loc.exp(), scale).log_prob(scale)  # by torch.as_tensor


def inverse_gamma(loc: Any, scale: Any) -> Any:  # to the power of a tensor of no axes
    return torch.distributions.InverseGamma(scale, loc.exp()).log_prob(scale)


DENSITIES = (normal, bernoulli, independent, gamma, inverse_gamma)


@pytest.mark.parametrize("function", DENSITIES, ids=lambda f: f.__name__)
def test_a_density_is_that_of_torch_with_its_gradient(function: Any, backend: Any) -> None:
    def of_loc(x: Any) -> Any:
        return function(x, torch.tensor(SCALE))

    assert_as_in("torch", of_loc, LOC, backend=backend, atol=0)


def test_an_argument_that_torch_refuses_is_refused() -> None:
    def checked(loc: Any, scale: Any) -> Any:
        # By default too, until torch.compile is first used, which turns the checks off (2.13).
        own = torch.distributions.Normal(loc, scale, validate_args=True)
        return own.log_prob(scale - loc)

    with pytest.raises(ValueError, match="asserts what does not hold"):
        xg.function(checked, native=False)(LOC, -SCALE)


def test_a_call_that_torch_refuses_in_a_trace_leaves_nothing_in_its_log(
    caplog: Any, monkeypatch: Any
) -> None:
    def f(x: Any) -> Any:
        return torch.scatter_reduce(torch.ones(1), 0, torch.tensor([0, 0]), x, reduce="prod")

    log = logging.getLogger("torch._subclasses.fake_tensor")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    with pytest.raises(xg.TraceError, match="scatter_reduce"):
        xg.convert(f)(np.ones(2))
    assert not caplog.records
