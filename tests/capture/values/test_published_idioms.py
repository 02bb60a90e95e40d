"""Idioms of published classes: what they compute as graphs is what they compute on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from .test_asked_of_a_tensor import make

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]])
G = np.array([[1.0, -0.5, 2.0], [0.25, 3.0, -1.5]])
DTYPES = ("float32", "float16", "float64")
LIMITS = {"float32": 4e-6, "float16": 4e-3, "float64": 1e-14}

Forward = Callable[[Any, Any], Any]


def keeping(compute: Callable[[Any], Any]) -> Forward:
    """Return a forward that keeps its output."""

    def forward(ctx: Any, x: Any) -> Any:
        y = compute(x)
        ctx.save_for_backward(y)
        return y

    return forward


def keeping_input(compute: Callable[[Any], Any]) -> Forward:
    """Return a forward that keeps its input."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return compute(x)

    return forward


def by_private(name: str) -> Callable[[Any, Any], Any]:
    """Return a backward that calls torch's own function of a forward's output."""

    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        return getattr(torch, name)(grad, y, -1, y.dtype)

    return backward


def by_aten(name: str, *args: Any, **kwargs: Any) -> Callable[[Any, Any], Any]:
    """Return a backward that calls an operator of aten by its packet and by its overload."""

    def backward(ctx: Any, grad: Any) -> Any:
        packet = getattr(torch.ops.aten, name)
        (x,) = ctx.saved_tensors
        return packet(grad, x, *args, **kwargs) + packet.default(grad, x, *args, **kwargs)

    return backward


def mean_of_the_positive(x: Any) -> Any:
    return torch.log(x[x > 0]).pow(2).mean() + x[x < 0].abs().sum()


def scattered_back(x: Any) -> Any:
    mask = x > 0
    return x.masked_scatter(mask, x.masked_select(mask).mul_(2).exp())


def by_equality(x: Any) -> Any:
    return x * 2 if torch.equal(x, x.abs()) or torch.allclose(x, x + 1) else x * 3


def by_the_device(x: Any) -> Any:
    here = "cpu" in str(x.device) and x.device == torch.device("cpu")
    return x * 2 if here else x.clone()


def weighted_by_a_constant(x: Any) -> Any:
    weights = torch.tensor([[1.0, 2.0, 1.0]]).to(x)
    return x @ weights.T + x.new_tensor(3.0) * torch.tensor([0.1, 0.2, 0.7]).type_as(x).sum()


def divided_by_a_count(x: Any) -> Any:
    mask = x > 0
    count = mask.sum().item()
    assert isinstance(count, int)
    twice = 2 * count + 1
    return (x * mask).sum() / max(count, 1) + x * twice / count + (mask.sum(1) * twice).to(x)[0]


def added_to_a_number(x: Any) -> Any:
    total, count = torch.zeros((), device=x.device), torch.tensor(0.0)
    for row in x:
        total += row.float().sum()
        count.add_(1)
    return x * (total / count)


def times_input(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad.sum() * x if grad.shape != x.shape else grad * x


PROGRAMS: dict[str, tuple[Forward, Callable[[Any, Any], Any]]] = {
    "softmax": (keeping(lambda x: x.softmax(-1)), by_private("_softmax_backward_data")),
    "log_softmax": (keeping(lambda x: x.log_softmax(-1)), by_private("_log_softmax_backward_data")),
    "sigmoid": (keeping(lambda x: torch.ops.aten.sigmoid(x)), by_aten("sigmoid_backward")),
    "tanh": (keeping(lambda x: x.tanh()), by_aten("tanh_backward")),
    "silu": (keeping_input(lambda x: torch.ops.aten.silu.default(x)), by_aten("silu_backward")),
    "gelu": (keeping_input(lambda x: torch.ops.aten.gelu(x)), by_aten("gelu_backward")),
    "gelu by tanh": (
        keeping_input(lambda x: torch.ops.aten.gelu(x)),
        by_aten("gelu_backward", approximate="tanh"),
    ),
    "threshold": (keeping_input(lambda x: x.relu()), by_aten("threshold_backward", 0)),
    "leaky relu": (keeping_input(lambda x: x.relu()), by_aten("leaky_relu_backward", 0.1, False)),
    "mean of a mask": (keeping_input(mean_of_the_positive), times_input),
    "scattered back": (keeping_input(scattered_back), times_input),
    "equality": (keeping_input(by_equality), times_input),
    "constant": (keeping_input(weighted_by_a_constant), times_input),
    "count": (keeping_input(divided_by_a_count), times_input),
    "sum": (keeping_input(added_to_a_number), times_input),
    "device": (keeping_input(by_the_device), times_input),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_the_same_as_a_graph(name: str, dtype: str, backend: Any) -> None:
    function, cls = make(*PROGRAMS[name])
    x, limit = X.astype(dtype), LIMITS[dtype]
    assert_as_in("torch", cls.apply, x, of=function, backend=backend, rtol=limit, atol=4 * limit)


def test_values_and_places_are_returned_as_they_are(backend: Any) -> None:
    def largest(ctx: Any, x: Any) -> Any:
        found = x.max(1)
        ctx.mark_non_differentiable(found.indices)
        ctx.length = x.shape[1]
        return found

    def spread(ctx: Any, grad: Any, _: Any) -> Any:
        return grad.unsqueeze(1).expand(-1, ctx.length)

    function, _ = make(largest, spread)
    values, places = function(backend.array(X.astype(np.float32)))
    np.testing.assert_array_equal(backend.numpy(values), X.max(1).astype(np.float32))
    np.testing.assert_array_equal(backend.numpy(places), X.argmax(1))


@pytest.mark.parametrize("fill", [("bernoulli_", 0.7), ("bernoulli_",), ("bernoulli", 0.7)])
def test_a_mask_is_drawn_with_its_own_probability(fill: Any, backend: Any) -> None:
    def dropped(ctx: Any, x: Any) -> Any:
        name, *rate = fill
        mask = getattr(torch.zeros_like(x), name)(*rate)
        ctx.save_for_backward(mask)
        return x * mask

    function, _ = make(dropped, lambda ctx, grad: grad * ctx.saved_tensors[0])
    ones = np.ones((400, 50), np.float32)
    y, pull = xg.vjp(function.keyed(3), backend.array(ones))
    kept = backend.numpy(y)
    assert set(np.unique(kept)) == {0, 1}
    assert abs(kept.mean() - (fill[1] if len(fill) > 1 else 0.5)) < 0.02
    np.testing.assert_array_equal(backend.numpy(pull(backend.array(ones))[0]), kept)
