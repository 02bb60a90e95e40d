"""`xg.plot`: which curves, where they break, what the words say; and what cannot be drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness import commands

pytestmark = pytest.mark.needs("matplotlib")


@pytest.fixture
def ax() -> Iterator[Any]:
    from matplotlib.figure import Figure

    yield Figure().subplots()


def lines(ax: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the named lines of a picture."""
    found = {line.get_label(): line.get_data() for line in ax.get_lines()}
    return {name: data for name, data in found.items() if not str(name).startswith("_")}


def at(curve: tuple[np.ndarray, np.ndarray], x: float) -> float:
    """Return a drawn curve at one place, as the eye reads it off."""
    known = np.isfinite(curve[1])
    return float(np.interp(x, curve[0][known], curve[1][known]))


def quantized(x: Any, step: Any) -> Any:
    return xg.xp.round(x / step) * step


def quantized_gradient(grad_out: Any, x: Any, step: Any) -> Any:
    return grad_out * (abs(x) <= 2.0 * step), None


@xg.register("failing_drawn", native=True)
def failing(ctx: Any, grad_out: Any, tin: Any) -> Any:
    raise RuntimeError("it fails")


quantizer = xg.function(quantized, quantized_gradient)
total = xg.function(lambda x: x.sum(), lambda grad_out, x: grad_out * xg.xp.ones_like(x))


def test_a_rule_under_an_activation_has_forward_derivative_and_a_curve_per_value(ax: Any) -> None:
    assert xg.plot("triangular", "Tanh", {"width": [0.5, 1.0, 2.0]}, ax=ax) is ax
    drawn = lines(ax)
    assert list(drawn) == [
        "forward Tanh", "true derivative",
        "surrogate width=0.5", "surrogate width=1", "surrogate width=2",
    ]  # fmt: skip
    assert at(drawn["forward Tanh"], 0.7) == pytest.approx(np.tanh(0.7), abs=1e-3)
    assert at(drawn["true derivative"], 0.7) == pytest.approx(1 - np.tanh(0.7) ** 2, abs=1e-3)
    for width in (0.5, 1.0, 2.0):
        tent = max(0.0, 1.0 - 0.7 / width)
        assert at(drawn[f"surrogate width={width:g}"], 0.7) == pytest.approx(tent, abs=1e-3)
    assert ax.get_title() == "triangular under Tanh"
    assert ax.get_xlabel() == "input tin"
    assert "factor d(tin)" in ax.get_ylabel()
    assert {text.get_text() for text in ax.get_legend().get_texts()} == set(drawn)


def test_the_true_derivative_is_drawn_whatever_rule_is_in_force(ax: Any) -> None:
    with xg.use("rectangular"):
        xg.plot("triangular", "Tanh", ax=ax)
    assert at(lines(ax)["true derivative"], 1.5) == pytest.approx(1 - np.tanh(1.5) ** 2, abs=1e-3)


@pytest.mark.parametrize(
    ("rule", "params", "edges"),
    [
        ("rectangular", {"a": -0.3, "b": 1.1}, [-0.3, 1.1]),
        ("d(ReLU)", {}, [0.0]),
        ("spyx.boxcar", {"width": 1.7}, [-0.85, 0.85]),
        ("leaky_spike", {}, [0.0]),
    ],
)
def test_an_edge_is_a_break_at_its_place(ax: Any, rule: str, params: Any, edges: Any) -> None:
    xg.plot(rule, params=params, ax=ax)
    ((x, y),) = lines(ax).values()
    assert x[np.isnan(y)] == pytest.approx(edges, abs=1e-6)
    slopes = np.abs(np.diff(y) / np.where(np.diff(x) > 0, np.diff(x), 1.0))
    assert np.nanmax(slopes) == 0.0


def test_steep_curves_have_their_peak_and_a_window_that_shows_them(ax: Any) -> None:
    xg.plot("norse.super", ax=ax)
    ((x, y),) = lines(ax).values()
    assert np.nanmax(np.abs(np.diff(y))) < 0.03
    assert np.ptp(x[y > 0.1]) > 0.05 * np.ptp(x)


def test_several_rules_share_a_picture(ax: Any) -> None:
    names = ["triangular", "arctan", "straight_through"]
    xg.plot(names, params={"alpha": 1.0}, ax=ax)
    assert list(lines(ax)) == ["triangular", "arctan (alpha=1)", "straight_through"]
    assert at(lines(ax)["arctan (alpha=1)"], 0.0) == 0.5
    assert at(lines(ax)["straight_through"], 0.4) == 1.0


@pytest.mark.parametrize("make", [xg.get("triangular").with_params, None])
def test_settings_of_a_rule_share_a_picture_and_differ_in_the_legend(ax: Any, make: Any) -> None:
    def activated(width: float) -> Any:
        return xg.activation("Heaviside", "triangular", {"width": width})

    xg.plot([(make or activated)(width=width) for width in (1.0, 2.0)], "Heaviside", ax=ax)
    assert ax.get_title() == "triangular under Heaviside"
    drawn = [f"surrogate triangular (width={width})" for width in (1, 2)]
    assert list(lines(ax)) == ["forward Heaviside", "true derivative", *drawn]
    assert at(lines(ax)[drawn[1]], 1.0) == 0.5


def test_colors_differ_and_dark_axes_get_others(ax: Any) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    dark = Figure().subplots()
    dark.set_facecolor("black")
    for each in (ax, dark):
        xg.plot("triangular", params={"width": [0.2 * i for i in range(1, 7)]}, ax=each)
    colors = [[line.get_color() for line in each.get_lines()[::2]] for each in (ax, dark)]
    assert len(set(colors[0])) == len(set(colors[1])) == 6
    assert min(sum(to_rgb(color)) for color in colors[1]) > 1.2


def test_a_rule_that_looks_at_the_gradient_is_drawn_over_it(ax: Any) -> None:
    xg.plot("clip_norm", params={"max_norm": 0.5}, ax=ax)
    drawn = lines(ax)
    assert list(drawn) == ["unchanged", "clip_norm"]
    assert [at(drawn["clip_norm"], g) for g in (-2.0, 0.25, 1.0)] == pytest.approx(
        [-0.5, 0.25, 0.5]
    )
    assert ax.get_xlabel() == "grad_out, a gradient of one element"


def test_one_that_looks_at_the_sign_of_both_is_drawn_for_both(ax: Any) -> None:
    xg.plot("guided", ax=ax)
    drawn = lines(ax)
    assert at(drawn["tin = 1"], 1.5) == 1.5
    assert at(drawn["tin = -1"], 1.5) == at(drawn["tin = 1"], -1.5) == 0.0


def limited(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * xg.xp.minimum(xg.xp.max(xg.xp.abs(tin)), 0.3)


@pytest.mark.parametrize(
    ("rule", "expected"), [("centralize", lambda g: g - g.mean()), (limited, lambda g: 0.3 * g)]
)
def test_one_that_needs_all_of_a_gradient_or_input_is_drawn_by_an_example(
    ax: Any, rule: Any, expected: Any
) -> None:
    xg.plot(rule, ax=ax)
    before, after = lines(ax).values()
    assert after[1] == pytest.approx(expected(before[1]))
    assert getattr(rule, "__name__", rule) in ax.get_legend().get_texts()[1].get_text()


def test_a_random_rule_has_a_draw_a_mean_and_a_band_and_says_so(ax: Any) -> None:
    xg.plot("positive_jam", ax=ax, x=np.linspace(-1.0, 1.0, 41))
    (mean,) = lines(ax).values()
    assert at(mean, 0.5) == pytest.approx(0.5, abs=0.05)
    assert at(mean, -0.5) == 0.0
    assert "one draw (dots)" in ax.get_title() and "mean of 1000" in ax.get_title()
    band = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.0, 0.95), abs=0.03)
    dots = [line for line in ax.get_lines() if line.get_marker() == "."]
    assert len(dots[0].get_xdata()) == 41


def test_the_same_key_draws_the_same(ax: Any) -> None:
    from matplotlib.figure import Figure

    axes = [ax, Figure().subplots(), Figure().subplots()]
    for each, key in zip(axes, (1, 1, 2), strict=True):
        xg.plot("full_jam", ax=each, key=key, x=np.linspace(-1.0, 1.0, 9))
    one, again, other = (each.get_lines()[-1].get_ydata() for each in axes)
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_a_function_is_drawn_with_its_gradient(ax: Any) -> None:
    xg.plot(quantizer, params={"step": 0.5}, ax=ax)
    drawn = lines(ax)
    assert ax.get_title() == "quantized (step=0.5)"
    x, y = drawn["forward"]
    assert x[np.isnan(y)] == pytest.approx(np.arange(-1.75, 2.0, 0.5), abs=1e-6)
    assert at(drawn["gradient"], 0.9) == 1.0 and at(drawn["gradient"], 1.1) == 0.0


def test_an_activation_with_a_rule_is_drawn_as_it_is(ax: Any) -> None:
    xg.plot(xg.activation("ReLU", "triangular", {"width": 2.0}), ax=ax)
    assert ax.get_title() == "triangular (width=2) under ReLU"
    assert list(lines(ax)) == ["forward ReLU", "true derivative", "triangular"]
    width = xg.schedule.linear(2.0, 0.5, steps=10)
    xg.plot(xg.get("triangular").with_params(width=width), ax=ax)
    assert ax.get_title() == f"triangular (width={width!r})"  # all of it


def test_a_function_of_yours_is_a_forward(ax: Any) -> None:
    def bump(x: Any) -> Any:
        return xg.xp.exp(-x * x)

    xg.plot("triangular", bump, ax=ax)
    drawn = lines(ax)
    assert ax.get_title() == "triangular (width=1) under bump"
    assert at(drawn["forward bump"], 0.5) == pytest.approx(np.exp(-0.25), abs=1e-3)
    assert at(drawn["true derivative"], 0.5) == pytest.approx(-np.exp(-0.25), abs=1e-3)


def test_a_composed_rule_is_drawn_with_what_its_parts_do(ax: Any) -> None:
    xg.plot(xg.compose("triangular", xg.get("scale").with_params(s=3.0)), ax=ax)
    ((_, y),) = lines(ax).values()
    assert np.nanmax(y) == 3.0
    assert "compose(triangular, scale" in ax.get_title()


def test_an_estimator_is_drawn_with_a_curve_per_number(ax: Any) -> None:
    xg.plot(xg.estimators.lsq, params={"step": [0.5, 1.0], "bits": 3}, ax=ax)
    drawn = lines(ax)
    assert at(drawn["forward, step=0.5, bits=3"], 1.1) == 1.0
    assert at(drawn["gradient, step=0.5, bits=3"], 1.7) == 0.0
    assert at(drawn["gradient, step=1, bits=3"], 1.7) == 1.0


def test_a_function_that_looks_at_all_of_its_input_is_drawn_by_an_example(ax: Any) -> None:
    xg.plot(xg.estimators.dorefa_weights, ax=ax)
    drawn = lines(ax)
    assert list(drawn) == ["input x", "forward", "gradient"]
    x = drawn["input x"][1]
    outputs, pull = xg.vjp(xg.estimators.dorefa_weights, x)
    assert np.array_equal(drawn["forward"][1], outputs)
    assert drawn["gradient"][1] == pytest.approx(pull(np.ones_like(x))[0])


def test_a_function_along_an_axis_is_drawn_for_a_row_where_each_number_alone_gives_the_same(
    ax: Any,
) -> None:
    @xg.custom_gradient
    def shares(x: Any) -> Any:
        return xg.xp.softmax(x, axis=-1), lambda grad_out: grad_out * x

    xg.plot(shares, ax=ax)
    drawn = lines(ax)
    x, forward = drawn["input x"][1], drawn["forward"][1]
    assert forward == pytest.approx(np.exp(x) / np.exp(x).sum())


def test_a_function_of_yours_is_a_rule(ax: Any) -> None:
    def halved(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.5 * grad_out

    xg.plot(halved, ax=ax)
    assert at(lines(ax)["halved"], 1.0) == 0.5


def test_without_axes_there_is_a_new_figure() -> None:
    one, other = xg.plot("triangular"), xg.plot("arctan")
    assert one.figure is not other.figure


@pytest.mark.parametrize(
    ("what", "given", "error", "message"),
    [
        ("triangluar", {}, xg.RuleError, "did you mean 'triangular'"),
        ("triangular", {"width": 1.0}, TypeError, 'write params={"width": 1.0}'),
        ("triangular", {"params": 1.0}, TypeError, "params are a dict, such as"),
        ("triangular", {"params": {"widht": 1.0}}, TypeError, "did you mean 'width'"),
        ("triangular", {"params": {"width": [1.0, -1.0]}}, ValueError, "'width' is >= 0, got -1.0"),
        ("triangular", {"params": {"width": []}}, ValueError, "0 curves"),
        ("triangular", {"params": {"width": range(99)}}, ValueError, "99 curves"),
        ("triangular", {"forward": "Heavside"}, ValueError, "did you mean 'Heaviside'"),
        ("triangular", {"x": np.zeros((2, 3))}, ValueError, r"x is a row .* got shape \(2, 3\)"),
        ("triangular", {"x": 1.0}, ValueError, "x is a row of at least two finite numbers"),
        ("triangular", {"x": [0.0, np.nan]}, ValueError, "x is a row"),
        ("triangular", {"x": ["a", "b"]}, ValueError, "x is a row"),
        ("clip_norm", {"forward": "ReLU"}, TypeError, "plot it without forward"),
        ([], {}, ValueError, "plot got no rule"),
        (3, {}, TypeError, "a rule is a name, a Rule or a function"),
        ([quantizer, "arctan"], {}, TypeError, "is a Function, .*: plot it alone"),
        (quantizer, {"forward": "ReLU"}, TypeError, "a forward of its own"),
        (failing, {}, ValueError, "failing_drawn' cannot be drawn: on a row of numbers it fails"),
        (quantizer, {"params": {"stpe": 1.0}}, TypeError, "did you mean 'step'"),
        (xg.estimators.lsq, {}, TypeError, "of one tensor, and lsq lacks step: give a number"),
        (xg.estimators.lsq, {"params": {"step": -1.0}}, ValueError, "'step' is > 0"),
        (total, {}, ValueError, r"has no curve: of 401 numbers it makes shape \(\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_said(
    ax: Any, what: Any, given: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        xg.plot(what, ax=ax, **given)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    return partial(commands.invoke, "plot")


@pytest.mark.needs("typer", "rich")
@pytest.mark.parametrize(
    ("words", "name", "start"),
    [
        (("triangular", "--param", "width=0.5,1,2"), "triangular.png", b"\x89PNG"),
        (("arctan", "d(ReLU)", "--forward", "ReLU", "--out", "two.svg"), "two.svg", b"<?xml"),
        (("arctan", "estimators.ste_round", "estimators.ste_sign"), "arctan.png", b"\x89PNG"),
    ],
)
def test_the_command_writes_a_picture(
    invoke: Any, tmp_path: Any, words: Any, name: str, start: bytes
) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.output.strip()) == (0, name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.needs("typer", "rich")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a rule, such as: multigrad plot triangular"),
        (("triangular", "--out", "x.txt"), "x.txt is not a picture"),
        (
            ("triangular", "--param", "width"),
            "'width' is no param with its value; write it as width=0.5,1,2",
        ),
        (("triangular", "--param", "widht=1"), "did you mean 'width'"),
        (("--gallery",), "type there: python tools/write_gallery.py --out gallery.html"),
        (("triangular", "--out", "nowhere/x.png"), "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(invoke: Any, words: Any, message: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in result.output


PRODUCT = """
import multigrad as xg
product = xg.function(lambda x, y: x * y, lambda g, x, y: (g * y, g * x))
"""
SQUARED = "squared = xg.function(lambda x: x * x, lambda g, x: 2 * g * x)\n"


@pytest.mark.needs("typer", "rich")
def test_what_has_no_curve_is_named_and_what_else_a_file_has_is_drawn(
    invoke: Any, tmp_path: Any
) -> None:
    (tmp_path / "own.py").write_text(PRODUCT + SQUARED)
    result = invoke("own.py", "triangular")
    assert result.exit_code == 1
    assert "own.py:product is not drawn: plot draws a function of one tensor" in result.output
    assert result.output.splitlines()[-1] == "own.png"
    assert (tmp_path / "own.png").stat().st_size > 20_000  # a curve, and another one
    (tmp_path / "products.py").write_text(PRODUCT)
    assert invoke("products.py").exit_code == 2


# `xg.heatmap`: what is drawn of whose tensor, on which scale; and what cannot be drawn.


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
    relevance = RNG.normal(size=(3, 3, 4)).astype(np.float32)
    tensor = backend.array(relevance)
    drawn = xg.heatmap(tensor, tensor[:1]).get_images()[1].get_array()
    np.testing.assert_allclose(np.array(drawn), relevance.sum(0), rtol=1e-6)


def test_it_is_drawn_on_axes_that_are_given(ax: Any) -> None:
    assert xg.heatmap(np.ones((3, 3)), ax=ax, titles="three") is ax
    assert ax.get_title() == "three"


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (np.ones(3), {}, r"relevance is \(H, W\), \(C, H, W\) .* got shape \(3,\)"),
        (np.ones((16, 16, 3)), {}, r"\(16, 16, 3\) looks like .* write channels='last'"),
        (np.ones((50, 8, 8)).tolist(), {}, r"50 maps, or 50 channels.*write relevance\[:, None\]"),
        (np.ones((16, 16, 1)), {}, r"\(16, 16, 1\) looks like .* write channels='last'"),
        (np.ones((2, 9, 8, 3)), {}, r"\(2, 9, 8, 3\) looks like .* write channels='last'"),
        (np.full((2, 3), np.nan), {}, "6 of 6 numbers that are infinite or NaN"),
        ("heat", {}, "array of real numbers.*got str 'heat'"),
        (np.ones((2, 2), complex), {}, "array of real numbers"),
        (np.ones((3, 4, 5)), {"image": np.ones((3, 5, 4))}, r"1 maps of \(4, 5\), and image 1 of"),
        (np.ones((4, 5)), {"image": np.ones((4, 5, 3))}, r"image 1 of \(5, 3\)"),
        (np.ones((4, 5)), {"image": np.ones((9, 4, 5))}, "image has 9 channels.*is channels="),
        (np.ones((2, 1, 4, 5)), {"ax": object()}, "ax is the axes of one map"),
        (
            np.ones((4, 5)),
            {"ax": np.array([1, 2])},
            r"got ndarray: give one of them, such as axes\[0",
        ),
        (np.ones((4, 5)), {"signed": "yes"}, "signed is True, False or None"),
        (np.ones((4, 5)), {"color_map": "bwr"}, "heatmap takes no 'color_map'"),
        (np.ones((4, 5)), {"vmax": 1.0}, "heatmap takes no 'vmax'; did you mean 'limit'"),
        (np.ones((4, 5)), {"titles": ["a", "b"]}, "2 titles for 1 maps"),
        (np.ones((4, 5)), {"channels": "middle"}, "channels is 'first' or 'last'"),
        (np.ones((4, 5)), {"columns": 0}, "columns is an int above 0"),
        (np.ones((4, 5)), {"limit": -1.0}, "limit is a number above 0"),
    ],
)
def test_what_cannot_be_drawn_is_said_map(given: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(xg.RuleError, match=said):
        xg.heatmap(given, **options)


def test_without_matplotlib_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(xg.BackendNotFound, match=r"heatmap needs matplotlib; type: pip install"):
        xg.heatmap(np.ones((2, 2)))
