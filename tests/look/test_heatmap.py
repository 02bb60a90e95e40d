"""`xg.heatmap`: what is drawn of whose tensor, on which scale; and what cannot be drawn."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("matplotlib")
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def closed() -> Any:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def scale(ax: Any) -> tuple[str, float, float]:
    """Give the color map of what is drawn on top, and the ends of its scale."""
    drawn = ax.get_images()[-1]
    low, high = drawn.get_clim()
    return drawn.get_cmap().name, float(low), float(high)


def test_channels_are_summed_and_zero_is_in_the_middle() -> None:
    relevance = RNG.normal(size=(3, 5, 7))
    ax = xg.heatmap(relevance)
    drawn = np.array(ax.get_images()[0].get_array())
    np.testing.assert_allclose(drawn, relevance.sum(0))
    top = np.abs(relevance.sum(0)).max()
    assert scale(ax) == ("bwr", -top, top)
    last = xg.heatmap(np.moveaxis(relevance, 0, -1), channels="last")
    np.testing.assert_allclose(np.array(last.get_images()[0].get_array()), drawn)


def test_what_is_never_negative_has_colors_in_one_direction_unless_it_is_said_to_be_signed() -> (
    None
):
    assert scale(xg.heatmap([[0.0, 2.0], [1.0, 0.5]])) == ("viridis", 0.0, 2.0)
    assert scale(xg.heatmap([[0.0, 2.0], [1.0, 0.5]], signed=True)) == ("bwr", -2.0, 2.0)
    assert scale(xg.heatmap(np.zeros((2, 2)))) == ("viridis", 0.0, 1.0)
    assert scale(xg.heatmap([[-1.0, 2.0]], limit=5, cmap="PuOr")) == ("PuOr", -5.0, 5.0)


def test_a_batch_is_a_grid_over_its_images() -> None:
    relevance, images = RNG.normal(size=(5, 2, 6, 4)), RNG.uniform(3, 9, size=(5, 3, 6, 4))
    axes = xg.heatmap(relevance, images, columns=2, titles=list("abcde"))
    assert axes.shape == (5,)
    assert [ax.get_title() for ax in axes] == list("abcde")
    assert len({ax.get_subplotspec().colspan.start for ax in axes}) == 2
    image, heat = axes[4].get_images()
    gray = images[4].mean(0)
    within = (gray - images[4].min()) / (images[4].max() - images[4].min())
    np.testing.assert_allclose(np.array(image.get_array()), within)
    np.testing.assert_allclose(np.array(heat.get_array()), relevance[4].sum(0))
    assert heat.get_alpha() == 0.6
    assert scale(axes[0])[2] != scale(axes[1])[2]  # each has its own


def test_tensors_of_every_framework_are_drawn(backend: Any) -> None:
    relevance = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    tensor = backend.array(relevance)
    drawn = xg.heatmap(tensor, tensor[:1]).get_images()[1].get_array()
    np.testing.assert_allclose(np.array(drawn), relevance.sum(0), rtol=1e-6)


def test_it_is_drawn_on_axes_that_are_given() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert xg.heatmap(np.ones((3, 3)), ax=ax) is ax


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (np.ones(3), {}, r"relevance is \(H, W\), \(C, H, W\) .* got shape \(3,\)"),
        (np.full((2, 3), np.nan), {}, "6 of 6 numbers that are infinite or NaN"),
        ("heat", {}, "array of real numbers.*got str 'heat'"),
        (np.ones((2, 2), complex), {}, "array of real numbers"),
        (np.ones((3, 4, 5)), {"image": np.ones((3, 5, 4))}, r"1 maps of \(4, 5\), and image 1 of"),
        (np.ones((4, 5)), {"image": np.ones((4, 5, 3))}, r"image 1 of \(5, 3\)"),
        (np.ones((4, 5)), {"image": np.ones((9, 4, 5))}, "image has 9 channels.*is channels="),
        (np.ones((2, 1, 4, 5)), {"ax": object()}, "ax is the axes of one map"),
        (np.ones((4, 5)), {"titles": ["a", "b"]}, "2 titles for 1 maps"),
        (np.ones((4, 5)), {"channels": "middle"}, "channels is 'first' or 'last'"),
        (np.ones((4, 5)), {"columns": 0}, "columns is an int above 0"),
        (np.ones((4, 5)), {"limit": -1.0}, "limit is a number above 0"),
    ],
)
def test_what_cannot_be_drawn_is_said(given: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(xg.RuleError, match=said):
        xg.heatmap(given, **options)


def test_without_matplotlib_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(xg.BackendNotFound, match=r"heatmap needs matplotlib; type: pip install"):
        xg.heatmap(np.ones((2, 2)))
