"""Writes through `reshape`, `flatten`, `ravel` and `contiguous`: they reach the base where it lies
in memory in order, as the arguments of the call decide; where that is not known they are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)


def through_reshape(x: Any) -> Any:
    out = torch.zeros_like(x)
    out.reshape(-1)[::2] = x.reshape(-1)[::2]
    return out


def through_flatten(x: Any) -> Any:
    out = torch.where(x > 0, x, -x)
    out[0, 0] = 5.0
    out.flatten()[1] = 7.0
    return out


def through_ravel_of_a_row(x: Any) -> Any:
    out = torch.zeros(2, 3)
    out[1].ravel().mul_(2).add_(x[0])
    return out


def back_from_the_base(x: Any) -> Any:
    base = x * 1
    seen = base.reshape(3, 2)
    base += 1
    return seen * 2


def through_contiguous(x: Any) -> Any:
    base = x * 2
    base.contiguous().view(-1)[0] = 3.0
    return base


def of_a_transpose(x: Any) -> Any:
    out = (x * 2).t()
    out.reshape(-1)[0] = 9.0
    return out


def of_a_column(x: Any) -> Any:
    out = torch.zeros(2, 3) + x
    out[:, 1].reshape(-1)[1] = 9.0
    return out


def make(forward: Any) -> Any:
    """Return the Function of a class with this forward."""
    methods = {
        "forward": staticmethod(lambda ctx, x: forward(x)),
        "backward": staticmethod(lambda ctx, grad: torch.ones(2, 3) * 2),
    }
    return xg.from_autograd_function(type(forward.__name__, (torch.autograd.Function,), methods))


KNOWN = [
    through_reshape, through_flatten, through_ravel_of_a_row, back_from_the_base,
    through_contiguous,
]  # fmt: skip


@pytest.mark.parametrize("forward", KNOWN)
def test_a_write_reaches_the_base_of_what_lies_in_order(backend: Any, forward: Any) -> None:
    expected = forward(torch.tensor(X)).numpy()
    np.testing.assert_array_equal(backend.numpy(make(forward)(backend.array(X))), expected)


@pytest.mark.parametrize("forward", [*KNOWN, of_a_transpose, of_a_column])
def test_on_torch_each_layout_of_an_argument_is_written_to_as_the_class_does(forward: Any) -> None:
    function, x = make(forward), torch.tensor(X)
    for given in (x, x.t().contiguous().t(), torch.stack([x, x], -1)[..., 0], x):
        torch.testing.assert_close(function(given), forward(given), rtol=0, atol=0)


@pytest.mark.parametrize("forward", [of_a_transpose, of_a_column])
def test_a_write_through_what_may_be_a_copy_is_refused_elsewhere(forward: Any) -> None:
    with pytest.raises(xg.TraceError, match=r"py:\d+\) updates a view of another tensor"):
        make(forward)(X)


def test_what_numpy_s_code_writes_through_reshape_follows_the_order_of_its_arguments() -> None:
    @xg.custom_gradient
    def doubled(x: Any) -> Any:
        out = np.multiply(x, 2)
        out.reshape(-1)[0] = 7
        return out, lambda upstream: upstream * 2

    for x in (X, np.asfortranarray(X)):
        expected = np.multiply(x, 2)
        expected.reshape(-1)[0] = 7
        np.testing.assert_array_equal(doubled(x), expected)


def test_pooling_gives_places_that_unpooling_takes(backend: Any) -> None:
    def back(x: Any) -> Any:
        options = {"kernel_size": 3, "stride": 2, "padding": 1}
        values, places = torch.nn.functional.max_pool1d(x, **options, return_indices=True)
        return torch.nn.functional.max_unpool1d(values * 2, places, **options)

    def places_of(x: Any) -> Any:
        options = {"kernel_size": 2, "stride": 1, "padding": 1, "ceil_mode": True}
        return torch.nn.functional.max_pool2d(x, **options, return_indices=True)[1]

    line = X.reshape(1, 2, 3)
    least = np.full((1, 2, 3), -np.inf, np.float32)
    for x in (line, least):
        expected = places_of(torch.tensor(x)).numpy()
        np.testing.assert_array_equal(backend.numpy(make(places_of)(backend.array(x))), expected)
    expected = back(torch.tensor(line)).numpy()
    np.testing.assert_allclose(backend.numpy(make(back)(backend.array(line))), expected)
