"""Random Functions in regions that `torch.utils.checkpoint` runs again: backward goes by the draws
of forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any


@xg.custom_gradient
def dropped(x: Tensor) -> Any:
    """Return x where a draw exceeds a half, squared so that backward needs what was kept."""
    import torch

    kept = x * (torch.rand_like(x) > 0.5)
    return kept * kept, lambda upstream: upstream * 2.0 * kept


def gradient(run: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
    """Return output and gradient: the latter is 2 * sqrt(output), whatever was drawn."""
    import torch

    x = torch.linspace(1.0, 4.0, 64, requires_grad=True)
    y = run(x)
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def checkpointed(function: Callable[..., Tensor], reentrant: bool, **options: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(function, x, use_reentrant=reentrant, **options)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("key", [None, 7])
@pytest.mark.parametrize("preserved", [False, True])
def test_backward_of_a_region_goes_by_the_draws_of_its_forward(
    reentrant: bool, key: int | None, preserved: bool
) -> None:
    function = dropped if key is None else dropped.keyed(key)
    run = checkpointed(
        lambda x: function(x) + 3.0 * function(x), reentrant, preserve_rng_state=preserved
    )
    own = dropped if key is None else dropped.keyed(key)
    for _ in range(3):
        y, grad = gradient(run)
        x = np.linspace(1.0, 4.0, 64, dtype=np.float32)
        np.testing.assert_allclose(grad, 2.0 * y / x, rtol=1e-5)
        if key is not None:  # as without a checkpoint, at the next step too
            np.testing.assert_array_equal(y, gradient(lambda x: own(x) + 3.0 * own(x))[0])


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("key", [None, 7])
def test_nested_regions_go_by_the_same_draws(outer: bool, inner: bool, key: int | None) -> None:
    function = dropped if key is None else dropped.keyed(key)
    nested = checkpointed(function, inner)
    y, grad = gradient(checkpointed(lambda x: function(x) + nested(x), outer))
    x = np.linspace(1.0, 4.0, 64, dtype=np.float32)
    np.testing.assert_allclose(grad, 2.0 * y / x, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_regions_in_sequence_and_a_second_backward_go_by_the_same_draws(reentrant: bool) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint_sequential

    function = dropped.keyed(3)
    x = torch.linspace(1.0, 4.0, 8, requires_grad=True)
    y = checkpoint_sequential([function, function], 2, x, use_reentrant=reentrant)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    np.testing.assert_allclose(first, 4.0 * y.detach() / x.detach(), rtol=1e-5)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, 2.0 * first)


def test_other_draws_of_a_region_are_what_they_were() -> None:
    import torch

    def region(x: Tensor) -> Tensor:
        return dropped(x) * torch.nn.functional.dropout(x, 0.5)

    for reentrant in (False, True):
        found = []
        for run in (region, checkpointed(region, reentrant)):
            torch.manual_seed(0)
            found.append(gradient(run))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
