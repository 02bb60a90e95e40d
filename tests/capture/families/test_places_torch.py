"""torch's functions that give or take integer places mean in a graph what they mean in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in, in_torch
from ...harness.places import X

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F = torch.nn.functional
Tensor = Any


def put_one(t: Tensor) -> Tensor:
    y = t.clone()
    y[t[:, 0, 0].argsort()[:2]] = 1.5
    return y * 2


def put_pairs(t: Tensor) -> Tensor:
    y = t.clone()
    y[torch.arange(3), t[:, :, 0].argmax(1)] = t[:, 0] * 3
    return y


def add_in_place(t: Tensor) -> Tensor:
    y = torch.zeros_like(t)
    y[:, :, t[0, 0].argmax()] += t[:, :, 1]
    return y


def in_place(t: Tensor) -> Tensor:
    y = torch.zeros_like(t)
    y.scatter_(-1, t.abs().topk(2).indices, 1.0)
    y.scatter_add_(1, t.argsort(1), t)
    return y * t


def maximum_and_place(t: Tensor) -> Tensor:
    values, places = torch.max(t, dim=1)
    return values + places


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows in order": lambda t: t[t[:, 0, 0].argsort()],
    "behind an ellipsis": lambda t: t[..., t[0, 0].argsort(descending=True)],
    "two indices": lambda t: t[t.sum((1, 2)).argsort(), t[:, 0, :3].argmax(-1)],
    "two indices in the middle": lambda t: t[:, t[0, :, 0].argsort(), t[0, :4, 1].argsort()],
    "an arange beside": lambda t: t[torch.arange(3), t[:, :, 0].argmax(1)],
    "one place": lambda t: t[t[:, 0, 0].argmax()],
    "an index with two axes": lambda t: t[0][t[0, :, :2].argsort(0)],
    "from the end": lambda t: t[t[:, 0, 0].argsort() - 3],
    "put one": put_one, "put pairs": put_pairs, "add in place": add_in_place,
    "in place": in_place,
    "gather": lambda t: t.gather(1, t[:, :2].argsort(1)),
    "gather from less": lambda t: t.gather(2, t[:2, :3].argsort(2)[..., :2]),
    "scatter": lambda t: torch.zeros_like(t).scatter(1, t[:, :2].argsort(1), t[:, :2] * 2),
    "scatter to less": lambda t: t.scatter(2, t[:2, :3].argsort(2)[..., :2], 7.0),
    "scatter_add": lambda t: torch.zeros_like(t).scatter_add(2, (t * 2).long().clamp(0, 4), t),
    "scatter_add to less": lambda t: torch.ones_like(t).scatter_add(
        1, t[:2].argsort(1), t[:2]
    ),
    "one_hot": lambda t: F.one_hot(t.argmax(-1), 5) * t,
    "kthvalue": lambda t: t.kthvalue(2, dim=1).values + t.kthvalue(2, dim=1)[1],
    "a share of all": lambda t: t * (t >= t.view(-1).kthvalue(round(0.4 * t.numel())).values),
    "max with its place": maximum_and_place,
    "place of the smallest": lambda t: torch.min(t, 1).indices * t[:, 0],
    "sort, unpacked": lambda t: torch.sort(t, -1)[1] * t,
    "index_select": lambda t: t.index_select(1, t[0, :, 0].argsort()),
    "index_add": lambda t: t.index_add(0, t[:, 0, 0].argsort(), t * 2, alpha=3),
    "index_fill": lambda t: t.index_fill(2, t[0, 0].argsort()[:2], -1.0),
    "index_copy": lambda t: t.index_copy(2, t[0, 0].argsort()[:2], t[..., :2] * 5),
    "how many": lambda t: t * (t > 0).sum(-1, keepdim=True),
    "counted on": lambda t: t * ((t > 0).cumsum(-1) - 1),
    "quotients": lambda t: t * (t.argsort(-1) // 2) + (t.argsort(-1) % 3),
    "take_along_dim": lambda t: torch.take_along_dim(t, t[:1].argsort(1), 1),
    "embedding": lambda t: F.embedding(t[0].argmin(-1) % 3, t[0]),
    "clamped": lambda t: t.gather(-1, (t.argmax(-1, keepdim=True) + 1).clamp(max=4)),
    "as a number": lambda t: t * t.argmax(-1, keepdim=True).float() / 3,
    "of all": lambda t: t * t.argmax(),
    "cross_entropy": lambda t: F.cross_entropy(t[:, :, 0], t[:, :, 1].argmax(1)),
    "cross_entropy with all that there is": lambda t: F.cross_entropy(
        t, t.argmin(1), torch.tensor([0.5, 2.0, 1.0, 0.25]), ignore_index=2, label_smoothing=0.1
    ),
    "nll_loss": lambda t: F.nll_loss(t, t.argmax(1), reduction="none", ignore_index=0),
    "casts": lambda t: t * (t.long() / 2) + (t * 3).int(),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_places_mean_what_they_mean_in_torch(name: str) -> None:
    assert_as_in("torch", CASES[name], X, atol=1e-6)


def test_of_equal_extremes_the_first_gets_the_whole_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0], [-2.0, -2.0, 0.0]], np.float32)

    def both(t: Tensor) -> Tensor:
        return torch.max(t, dim=1).values + 10 * t.min(dim=-1, keepdim=True).values.squeeze(1)

    expected, pull = in_torch(both, x)
    result, captured = xg.vjp(xg.function(both, native=False), x)
    np.testing.assert_array_equal(result, expected)
    ones = np.ones_like(expected)
    np.testing.assert_array_equal(captured(ones)[0], pull(ones)[0])


class Sparsemax(torch.autograd.Function):
    """Martins and Astudillo 2016, as packages write it: sort, count, gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        largest, _ = x.max(dim=dim, keepdim=True)
        x = x - largest
        top, _ = torch.topk(x, k=x.shape[dim], dim=dim)
        sums = top.cumsum(dim) - 1
        rank = torch.arange(1, x.shape[dim] + 1, device=x.device, dtype=x.dtype)
        size = (rank * top > sums).sum(dim=dim).unsqueeze(dim)
        tau = sums.gather(dim, size - 1) / size.to(x.dtype)
        result = torch.clamp(x - tau, min=0)
        ctx.save_for_backward(size, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        size, result = ctx.saved_tensors
        grad = grad.clone()
        grad[result == 0] = 0
        mean = (grad.sum(dim=ctx.dim) / size.to(result.dtype).squeeze(ctx.dim)).unsqueeze(ctx.dim)
        return torch.where(result != 0, grad - mean, grad), None


def test_a_class_that_keeps_places_for_its_backward_is_the_same_in_numpy() -> None:
    sparsemax = xg.from_autograd_function(Sparsemax)
    x, cotangent = X[:, :, 0], X[:, :, 1]
    tin = torch.tensor(x, requires_grad=True)
    expected = Sparsemax.apply(tin, -1)
    (gradient,) = torch.autograd.grad(expected, tin, torch.tensor(cotangent))
    result, pull = xg.vjp(lambda a: sparsemax(a, -1), x)
    np.testing.assert_allclose(result, expected.detach(), atol=1e-6)
    np.testing.assert_allclose(pull(cotangent)[0], gradient, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda t: F.one_hot(t.argmax(-1)) * 1.0, "num_classes"),
        (lambda t: t.scatter(0, t.argsort(0), t, reduce="multiply"), "multiply"),
        (lambda t: t[t.argmax(0)[0, 0], t > 0], "indexes a tensor"),
        (lambda t: torch.bincount(t.long().flatten()), "bincount"),
    ],
)
def test_what_depends_on_the_values_is_refused(function: Any, message: str) -> None:
    with pytest.raises(xg.TraceError, match=message):
        xg.function(function, native=False)(X)
