"""torch's resizing of pictures and sampling at a grid mean in a graph what they mean in torch."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
F = torch.nn.functional
LINE, PICTURE, SOLID, POINT = (2, 3, 7), (2, 3, 5, 4), (1, 2, 3, 4, 3), (1, 2, 1, 1)
RESIZED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    f"{mode}, {by}": ({"mode": mode, **how}, shape)
    for mode, shape in (
        ("nearest", LINE), ("nearest", PICTURE), ("nearest-exact", SOLID), ("area", PICTURE),
        ("linear", LINE), ("bilinear", PICTURE), ("bicubic", PICTURE), ("trilinear", SOLID),
        ("bilinear", POINT), ("bicubic", POINT),
    )
    for by, how in {
        f"{shape} by 2": {"scale_factor": 2},
        f"{shape} by 0.6": {"scale_factor": 0.6, "recompute_scale_factor": True},
        f"{shape} by 1.7": {"scale_factor": 1.7},
        f"{shape} to 3": {"size": 3},
        f"{shape} to 1": {"size": 1},
    }.items()
    if by != f"{POINT} by 0.6"
}  # fmt: skip
RESIZED |= {
    f"{mode}, corners, {n}": ({"mode": mode, "size": n, "align_corners": True}, shape)
    for n in (1, 3, 8)
    for mode, shape in (
        ("linear", LINE), ("bilinear", PICTURE), ("bicubic", PICTURE), ("trilinear", SOLID)
    )
}  # fmt: skip
RESIZED["antialiased"] = ({"mode": "bilinear", "size": (2, 3), "antialias": True}, PICTURE)
RESIZED["antialiased to one"] = ({"mode": "bicubic", "size": 1, "antialias": True}, (1, 1, 12, 9))


def drawn(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


check = partial(assert_as_in, "torch", rtol=0, atol=1e-13, scaled=True)


@pytest.mark.parametrize("name", RESIZED)
def test_interpolate_means_what_torch_computes(name: str) -> None:
    options, shape = RESIZED[name]
    check(lambda x: F.interpolate(x, **options), drawn(shape))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_nan_reaches_what_interpolation_reads_of_it(mode: str) -> None:
    x = drawn(PICTURE)
    x[0, 0, 2, 1] = np.nan
    for options in ({"size": (9, 4)}, {"scale_factor": 2}):
        result = xg.function(lambda x, o=options: F.interpolate(x, mode=mode, **o), native=False)(x)
        expected = F.interpolate(torch.tensor(x), mode=mode, **options).numpy()
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))


def test_a_large_picture_in_float32_is_resized_as_torch_does() -> None:
    x = drawn((1, 1, 301, 2)).astype(np.float32)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        function = xg.function(lambda x, m=mode: F.interpolate(x, (517, 5), mode=m))
        expected = F.interpolate(torch.tensor(x), (517, 5), mode=mode).numpy()
        found = function(torch.tensor(x)).numpy()
        # torch rounds places to float32: 300 of them have an eps of 3e-5.
        np.testing.assert_allclose(found, expected, 0, 4 * 301 * float(np.finfo(np.float32).eps))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_a_picture_in_float32_is_resized_by_weights_in_float32(mode: str) -> None:
    x = drawn((1, 2, 5, 4)).astype(np.float32)
    options = {"mode": mode, "antialias": mode in ("bilinear", "bicubic")}
    function = xg.function(lambda x: F.interpolate(x, (3, 7), **options))
    found = function(torch.tensor(x)).numpy()
    np.testing.assert_allclose(
        found, F.interpolate(torch.tensor(x), (3, 7), **options), 1e-5, 1e-6, strict=True
    )
    assert "captured by protocol\n" in str(xg.show(function))  # not by torch's own trace


GRIDS = itertools.product(
    ("nearest", "bilinear", "bicubic"), ("zeros", "border", "reflection"), (False, True)
)


@pytest.mark.parametrize(("mode", "padding", "corners"), GRIDS)
def test_grid_sample_means_what_torch_computes(mode: str, padding: str, corners: bool) -> None:
    def sampled(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, mode, padding, corners)

    far = 1.4 * drawn((2, 3, 6, 2), 3)  # some places inside, some beyond, by more than one length
    check(sampled, drawn(PICTURE), far)
    check(sampled, drawn((2, 1, 1, 1)), far)
    check(sampled, drawn((2, 1, 1, 3)), 40 * far)
    if mode != "bicubic":
        check(sampled, drawn((1, 2, 3, 4, 2)), 1.4 * drawn((1, 2, 3, 2, 3), 3))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_a_place_that_is_no_number_is_sampled_as_in_torch(mode: str, padding: str) -> None:
    grid = np.zeros((1, 1, 4, 2))
    grid[0, 0, 1] = (np.nan, 0.5)
    grid[0, 0, 2] = (0.25, np.nan)
    x = drawn((1, 2, 3, 4))
    function = xg.function(lambda x, g: F.grid_sample(x, g, mode, padding, False), native=False)
    # Torch's own backward of border and reflection ends the process (2.13): it is proven without.
    function(x, np.zeros_like(grid))
    result, pullback = xg.vjp(function, x, grid)
    expected = F.grid_sample(torch.tensor(x), torch.tensor(grid), mode, padding, False).numpy()
    np.testing.assert_allclose(result, expected, 0, 1e-13)
    of_x, of_grid = pullback(np.ones_like(result))
    assert of_x.shape == x.shape
    assert np.isfinite(of_grid[0, 0, [0, 3]]).all()


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 3, 4)])
def test_affine_grid_means_what_torch_computes(size: tuple[int, ...], corners: bool) -> None:
    theta = drawn((size[0], len(size) - 2, len(size) - 1))
    check(lambda theta: F.affine_grid(theta, size, corners), theta)


def test_an_unknown_mode_is_refused_by_name() -> None:
    function = xg.function(lambda x, g: F.grid_sample(x, g, "cubic"), native=False)
    with pytest.raises(xg.TraceError, match="grid_sample with mode='cubic'"):
        function(drawn(PICTURE), drawn((2, 3, 6, 2)))
