"""Updates of views of views in torch's code: each reaches the tensor and all its other views, as in
torch, or is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")

A = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0], [0.25, 2.0, -3.0]], np.float32)


def diagonal_of_a_triangle(a: Any) -> Any:
    a.tril_().diagonal().mul_(0.5)
    torch.diagonal(a, 1).copy_(a[2, :2])
    return a


def diagonal_of_a_batch(a: Any) -> Any:
    batch = torch.stack([a, -a])
    batch.diagonal(offset=-1, dim1=-2, dim2=-1)[0].add_(1)
    a.fill_diagonal_(7.0)
    return batch + a


def places_in_a_flat_view(a: Any) -> Any:
    a.view(-1)[4] = 9
    first = a.view(9)[0:3]
    first += 1
    a.view(-1)[torch.tensor([6, 8])] = -7
    a.view(-1)[:9:4] = 1
    return a, first


def rows_of_rows(a: Any) -> Any:
    a[0][1] = 5
    a[1:][0][1:][0] = 7
    a.view(3, 3, 1)[0].squeeze(-1)[2] = 11
    return a


def rows_of_a_transposed(a: Any) -> Any:
    turned = a.t()
    turned[0].add_(1)
    a[1, 1] = 2
    a.mT[1].mul_(2)
    a.movedim(0, 1)[2] = 1
    return a, turned


def views_of_views(a: Any) -> Any:
    flat = a.view(9)
    again = flat.view(3, 3).t()
    again[0] = 1
    flat[5] = 5
    a[2, 2] = 8
    return a, flat, again


def axes_put_in_and_out(a: Any) -> Any:
    wide = a.unsqueeze(0)
    wide[0, 1].zero_()
    wide.squeeze(0)[0] = 4
    wide.permute(2, 0, 1)[0].mul_(3)
    a.unflatten(0, (3, 1))[2].sub_(2)
    return a, wide


def by_masks(a: Any) -> Any:
    mask = a > 0
    mask.t()[0] = False
    mask.view(-1)[:2] = True
    a.t()[mask] = 0
    a.t().masked_fill_(a > 3, 5.0)
    a.view(-1).clamp_(max=3)
    return torch.where(mask, a, -a)


def the_same_memory(a: Any) -> Any:
    same = a.new(a)
    row = a.new(a[1])
    a.mul_(2)
    same.add_(1)
    row.sub_(3)
    return a, same, row


def integers(a: Any) -> Any:
    codes = (a * 4).to(torch.int32)
    codes.t()[0] = 3
    codes.view(-1)[4:].add_(1)
    return a * codes


def repeated(a: Any) -> Any:
    spread = a[0].expand(2, 3)
    a.add_(1)
    return a[:2] * spread


CASES = [
    value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__
]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_an_update_of_a_view_of_a_view_means_what_it_means_in_torch(function: Any) -> None:
    def f(given: Any) -> Any:
        return function(given * 1)

    wanted, actual = f(torch.tensor(A)), xg.function(f, native=False)(A)
    wanted, actual = (r if isinstance(r, tuple) else (r,) for r in (wanted, actual))
    for theirs, ours in zip(wanted, actual, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


class HalvesDiagonal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        out = x.clone()
        out.data.t()[0] *= 2
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad.clone()
        grad.tril_().diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return grad


def test_a_class_that_updates_views_means_the_same_on_every_backend(backend: Any) -> None:
    of = xg.from_autograd_function(HalvesDiagonal)
    assert_as_in("torch", HalvesDiagonal.apply, A, of=of, backend=backend, rtol=0, atol=0)


def writes_behind_the_gradient(a: Any) -> Any:
    a.detach().mul_(2)
    return a


def test_an_update_that_may_reach_nobody_is_refused() -> None:
    with pytest.raises(xg.TraceError, match=r"updates a view of another tensor.*clone\(\)"):
        xg.function(lambda x: writes_behind_the_gradient(x * 1), native=False)(A)


# Writes through `reshape`, `flatten`, `ravel` and `contiguous`: they reach the base where it lies
# in memory in order, as the arguments of the call decide; where that is not known they are refused.


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
    twos = torch_class(lambda ctx, grad: torch.ones(2, 3) * 2)
    return xg.from_autograd_function(twos(lambda ctx, x: forward(x)))


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
    with pytest.raises(
        xg.TraceError, match=r"py:\d+\) updates a view of another tensor.*clone\(\)"
    ):
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
