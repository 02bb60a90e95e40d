"""torch's convolutions and pooling mean in a graph what they mean in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import X as PLACED
from ...harness.own_library import assert_as_in

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F, nn = torch.nn.functional, torch.nn
RNG = np.random.default_rng(3)
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
OPTIONS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
LINE, PICTURE, SOLID = (2, 4, 11), (2, 4, 9, 8), (1, 2, 5, 6, 4)
CASES: dict[str, Case] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=3, padding=2), (LINE, (5, 4, 3))),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=(2, 1)),
        (PICTURE, (6, 4, 3, 2), (6,)),
    ),
    "groups": (
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), 1, 2), (PICTURE, (6, 2, 3, 2))
    ),
    "same": (lambda x, w: F.conv2d(x, w, padding="same", groups=4), (PICTURE, (4, 1, 3, 2))),
    "no batch": (lambda x, w: torch.conv2d(x, w, padding="valid"), (PICTURE[1:], (6, 4, 3, 2))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1, stride=2), (SOLID, (3, 2, 3, 3, 2))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (LINE, (4, 3, 2))),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        (PICTURE, (4, 3, 3, 3), (3,)),
    ),
    "conv_transpose2d, groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(3, 2), dilation=2, groups=2),
        (PICTURE, (4, 3, 2, 3)),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, ceil_mode=True), (LINE,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), (PICTURE,)),
    "max_pool2d, ties": (
        lambda x: F.max_pool2d(x.round() + 0.1 * x, 3, 2, 1, dilation=2, ceil_mode=True),
        (PICTURE,),
    ),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (SOLID,)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (LINE,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (PICTURE,)),
    "avg_pool2d, its own": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (PICTURE,)
    ),
    "avg_pool2d by 3": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (PICTURE,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (None, 3)), (PICTURE,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), (PICTURE,)),
    "conv1d_input": (
        lambda x, w, g: nn.grad.conv1d_input(x.shape, w, g, padding=1),
        (LINE, (5, 4, 3), (2, 5, 11)),
    ),
    "conv1d_weight": (
        lambda x, w, g: nn.grad.conv1d_weight(x, w.shape, g, padding=1),
        (LINE, (5, 4, 3), (2, 5, 11)),
    ),
    "conv2d_input": (
        lambda x, w, g: nn.grad.conv2d_input(x.shape, w.sign(), g, **OPTIONS),
        (PICTURE, (6, 2, 3, 2), (2, 6, 5, 10)),
    ),
    "conv2d_weight": (
        lambda x, w, g: nn.grad.conv2d_weight(x, w.shape, g, **OPTIONS),
        (PICTURE, (6, 2, 3, 2), (2, 6, 5, 10)),
    ),
    "unfold": (lambda x: F.unfold(x, (3, 2), padding=1, stride=2), (PICTURE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_it_means_in_torch(name: str) -> None:
    function, shapes = CASES[name]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_as_in("torch", function, *arrays)


def test_of_equal_elements_of_a_window_the_first_gets_the_gradient() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    assert_as_in("torch", lambda x: F.max_pool2d(x, 2), x)


class Net(nn.Module):
    """A network for pictures as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x: Any) -> Any:
        x = self.pool(F.relu(self.norm(self.first(x))))
        return self.last(torch.flatten(x, 1))


def test_a_network_with_convolutions_is_a_function_of_its_input() -> None:
    net = Net().eval()
    x = RNG.normal(size=PICTURE).astype(np.float32)
    assert_as_in("torch", lambda x: net(x), x)
    expected = net(torch.tensor(x)).detach()
    np.testing.assert_allclose(xg.function(net)(x), expected, rtol=1e-4, atol=1e-5)


PAIRS: dict[str, Callable[[Any], Any]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "adaptive_max_pool1d": lambda x: torch.adaptive_max_pool1d(x[0], 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, None), return_indices=True),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (1, 4, 3), return_indices=True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_places_of_the_largest_are_torch_s(name: str) -> None:
    x = RNG.normal(size=PICTURE).astype(np.float32).round(1)
    assert_as_in("torch", lambda x: PAIRS[name](x)[0], x)
    found = xg.function(lambda x: PAIRS[name](x)[1], native=False)(x)
    np.testing.assert_array_equal(found, PAIRS[name](torch.tensor(x))[1])


# torch's functions that give or take integer places mean in a graph what they mean in torch.


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


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
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


@pytest.mark.parametrize("name", PLACES)
def test_places_mean_what_they_mean_in_torch(name: str) -> None:
    assert_as_in("torch", PLACES[name], PLACED, atol=1e-6)


def test_of_equal_extremes_the_first_gets_the_whole_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0], [-2.0, -2.0, 0.0]], np.float32)

    def both(t: Tensor) -> Tensor:
        return torch.max(t, dim=1).values + 10 * t.min(dim=-1, keepdim=True).values.squeeze(1)

    assert_as_in("torch", both, x, rtol=0, atol=0)


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
        xg.function(function, native=False)(PLACED)
