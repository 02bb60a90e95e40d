"""torch's convolutions and pooling mean in a graph what they mean in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F, nn = torch.nn.functional, torch.nn
RNG = np.random.default_rng(3)
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
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


def test_the_places_of_the_largest_are_torch_s() -> None:
    x = RNG.normal(size=PICTURE).astype(np.float32)
    assert_as_in("torch", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], x)
    _, places = F.max_pool2d(torch.tensor(x), 2, return_indices=True)
    found = xg.function(lambda x: F.max_pool2d(x, 2, return_indices=True)[1], native=False)(x)
    np.testing.assert_array_equal(found, places)


def test_torchs_own_adaptive_max_pool_gives_a_pair_which_is_refused() -> None:
    x = np.arange(8.0).reshape(1, 2, 4)
    assert_as_in("torch", lambda x: F.adaptive_max_pool1d(x, 2), x)
    assert len(torch.adaptive_max_pool1d(torch.tensor(x), 2)) == 2
    with pytest.raises(xg.TraceError, match="of which another result is known"):
        xg.function(lambda x: torch.adaptive_max_pool1d(x, 2)[0], native=False)(x)
