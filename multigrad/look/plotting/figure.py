"""`xg.plot`: rules and Functions drawn by matplotlib, which is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...backend.finding.installed import extra_line
from ...errors import BackendNotFound
from .curves import make_picture
from .picture import Curve, Picture

Axes = Any
# Told apart by readers with color vision deficiency (Okabe and Ito, 2008), on light and on dark.
COLORS = {
    False: ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    True: ("#56B4E9", "#E69F00", "#2BC29A", "#E3A0C8", "#F0E442", "#F2793A"),
}
GRAY = {False: "#808080", True: "#9A9A9A"}
LINES = ("-", "--", ":")  # a second time round, another line
SIZE = (7.0, 4.4)


def plot(
    what: Any,
    forward: Any = None,
    params: Mapping[str, Any] | None = None,
    *,
    x: Any = None,
    ax: Axes | None = None,
    key: int = 0,
) -> Axes:
    """Draw what a rule does to gradients, or a Function and its gradient; NumPy computes it.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> ax = xg.plot("triangular", "Heaviside", {"width": [0.5, 1.0, 2.0]})
        >>> ax.figure.savefig("triangular.png")

    A rule that multiplies the gradient by a number d(tin) is drawn over the input; one that looks
    at the gradient alone, over the gradient; one that needs all of a gradient (`centralize`), by an
    example before and after it. Of a random rule there are one draw as dots, the mean of 1000
    draws, and the band in which 90 % of them lie.

    Args:
        what: a rule or its name, a list of them, an activation with a rule, or a Function: its
            forward and the gradient for its first argument.
        forward: an activation for the rule, by name or as a function, drawn with its true
            derivative.
        params: values for the params, or for a Function's other arguments; a list of values draws a
            curve for each.
        x: where to draw, a row of numbers; chosen to show the curve if not given.
        ax: the axes to draw on; a new figure if not given.
        key: seeds a random rule.

    Returns:
        The axes.

    Raises:
        RuleError: no such rule, param, activation, or no curve; also a ValueError or TypeError.
        BackendNotFound: matplotlib is not installed; also an ImportError.
    """
    picture = make_picture(what, forward, params, x, key)
    return draw_picture(picture, make_axes() if ax is None else ax)


def make_axes() -> Axes:
    """Return the axes of a new figure, which `pyplot.show()` shows.

    Raises:
        BackendNotFound: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise lacking() from error
    return pyplot.subplots(figsize=SIZE, layout="constrained")[1]


def make_figure() -> Any:
    """Return a figure for a file alone.

    Raises:
        BackendNotFound: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise lacking() from error
    return Figure(figsize=SIZE, layout="constrained")


def lacking(name: str = "plot") -> BackendNotFound:
    return BackendNotFound(f"{name} needs matplotlib; type: {extra_line('plot')}")


def draw_picture(picture: Picture, ax: Axes) -> Axes:
    """Draw a picture on axes."""
    from matplotlib.colors import to_rgb

    is_dark = sum(to_rgb(ax.get_facecolor())) < 1.5
    for curve in picture.curves:
        style = choose_style(curve, is_dark, ax.xaxis.label.get_color())
        (draw_stems if picture.is_vector else draw_curve)(ax, curve, style)
    ax.set_title(picture.title, fontsize="medium")
    ax.set(xlabel=picture.x_label, ylabel=picture.y_label)
    ax.grid(alpha=0.25)
    ax.margins(x=0.05 if picture.is_vector else 0.01)
    if len(picture.curves) > 1:
        ax.legend(frameon=False, fontsize="small")
    return ax


def choose_style(curve: Curve, is_dark: bool, ink: Any) -> dict[str, Any]:
    """Return how a line looks: gray or in ink what others are compared with."""
    if curve.group is None:
        if curve.role == "derivative":
            return {"color": ink, "linewidth": 1.2, "linestyle": (0, (5, 3))}
        return {"color": GRAY[is_dark], "linewidth": 2.4 if curve.role == "forward" else 1.2}
    colors = COLORS[is_dark]
    again, place = divmod(curve.group, len(colors))
    style = {"color": colors[place], "linewidth": 1.8, "linestyle": LINES[again % len(LINES)]}
    return {**style, "linewidth": 3.0, "alpha": 0.45} if curve.role == "forward" else style


def draw_curve(ax: Axes, curve: Curve, style: Mapping[str, Any]) -> None:
    """Draw a line with its breaks, what holds at one place alone, and what is random."""
    color, (x, y) = style["color"], curve.points
    ax.plot(x, y, label=curve.name, **style)
    alone = curve.points.alone()
    ax.plot(alone.x, alone.y, linestyle="none", marker="o", markersize=4, color=color)
    if curve.band is not None:
        ax.fill_between(x, *curve.band, color=color, alpha=0.2, linewidth=0)
    if curve.dots is not None:
        ax.plot(*curve.dots, linestyle="none", marker=".", markersize=4, color=color)


def draw_stems(ax: Axes, curve: Curve, style: Mapping[str, Any]) -> None:
    """Draw the elements of a vector, each a line from zero with a mark."""
    side = 0.12 * (1 if curve.group is None else -1 - curve.group)
    x = curve.points.x - side
    ax.vlines(x, 0.0, curve.points.y, color=style["color"], linewidth=style["linewidth"])
    ax.plot(x, curve.points.y, "o", markersize=5, color=style["color"], label=curve.name)
    ax.axhline(0.0, color=style["color"], linewidth=0.6, alpha=0.5)
