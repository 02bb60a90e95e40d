"""`xg.plot` and `xg.heatmap`: rules, Functions and attributions, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Never, TypeAlias

import numpy as np

from ..core.rules.registry import unknown_keyword_error
from ..engine.functions.calls.parameters import told_arguments
from ..engine.support.extras import import_extra
from ..engine.support.files import replacing
from ..errors import RuleTypeError, RuleValueError
from .curves import Curve, Picture, describe_value
from .pictures import make_picture
from .subject import as_array

Axes = Any
# Told apart by readers with color vision deficiency (Okabe and Ito, 2008), on light and on dark.
COLORS = {
    False: ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    True: ("#56B4E9", "#E69F00", "#2BC29A", "#E3A0C8", "#F0E442", "#F2793A"),
}
GRAY = {False: "#808080", True: "#9A9A9A"}
LINES = ("-", "--", ":")  # line styles, used in turn once all colors are taken
SIZE = (7.0, 4.4)  # in inches
FILES = (".png", ".svg", ".pdf")


def plot(
    what: Any,
    forward: Any = None,
    params: Mapping[str, Any] | None = None,
    *,
    x: Any = None,
    ax: Axes | None = None,
    key: int = 0,
    **others: Never,
) -> Axes:
    """Draw what a rule does to gradients, or a Function and its gradient; NumPy computes it.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> ax = xg.plot("triangular", "Heaviside", {"width": [0.5, 1.0, 2.0]})
        >>> ax.figure.savefig("triangular.png")

    A rule that multiplies the gradient by a number d(tin) is drawn over the input; one that looks
    at the gradient alone, over the gradient; one that needs all of a gradient (`centralize`), by an
    example before and after it. For a random rule it shows one draw as dots, the mean of 1000
    draws, and the band in which 90 % of them lie.

    Args:
        what: a rule or its name, an activation with a rule, a list of these, or a Function: its
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
    if others:
        raise unknown_keyword_error(plot, "plot", what, others)
    picture = make_picture(what, forward, params, x, key)
    if ax is None:  # `pyplot.show()` shows a figure that pyplot has made
        ax = import_part("pyplot").subplots(figsize=SIZE, layout="constrained")[1]
    return draw_picture(picture, ax)


def save(pictures: Sequence[Picture], path: Path) -> None:
    """Write pictures below each other to a file, whole or not at all."""
    if path.suffix.lower() not in FILES:
        raise RuleValueError(
            f"{path} is not a picture file; its name must end with {', '.join(FILES)}"
        )
    (width, height), count = SIZE, len(pictures)
    figure = import_part("figure").Figure(figsize=(width, count * height), layout="constrained")
    figure.subplots(count)
    for picture, axes in zip(pictures, figure.axes, strict=True):
        draw_picture(picture, axes)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def import_part(part: str, name: str = "plot") -> Any:
    """Return a module of matplotlib for a function of this name."""
    return import_extra(f"matplotlib.{part}", "plot", f"{name} needs matplotlib")


def draw_picture(picture: Picture, ax: Axes) -> Axes:
    from matplotlib.colors import to_rgb

    # Red, green and blue add up to 3 for white.
    is_dark = sum(to_rgb(ax.get_facecolor())) < 1.5
    for curve in picture.curves:
        style = choose_style(curve, is_dark, ax.xaxis.label.get_color())
        (draw_stems if picture.is_vector else draw_curve)(ax, curve, style)
    ax.set_title(picture.title, fontsize="medium", wrap=True)
    ax.set(xlabel=picture.x_label, ylabel=picture.y_label)
    ax.grid(alpha=0.25)
    ax.margins(x=0.05 if picture.is_vector else 0.01)
    if len(picture.curves) > 1:
        ax.legend(frameon=False, fontsize="small")
    return ax


def choose_style(curve: Curve, is_dark: bool, ink: Any) -> dict[str, Any]:
    """Return the style of a line: gray or ink for lines that others are compared with."""
    if curve.group is None:
        if curve.role == "derivative":
            return {"color": ink, "linewidth": 1.2, "linestyle": (0, (5, 3))}
        return {"color": GRAY[is_dark], "linewidth": 2.4 if curve.role == "forward" else 1.2}
    colors = COLORS[is_dark]
    cycle, place = divmod(curve.group, len(colors))
    style = {"color": colors[place], "linewidth": 1.8, "linestyle": LINES[cycle % len(LINES)]}
    return {**style, "linewidth": 3.0, "alpha": 0.45} if curve.role == "forward" else style


def draw_curve(ax: Axes, curve: Curve, style: Mapping[str, Any]) -> None:
    """Draw a line with its breaks, single points, band and dots."""
    color, (x, y) = style["color"], curve.points
    ax.plot(x, y, label=curve.name, **style)
    isolated = curve.points.alone()
    ax.plot(isolated.x, isolated.y, linestyle="none", marker="o", markersize=4, color=color)
    if curve.band is not None:
        ax.fill_between(x, *curve.band, color=color, alpha=0.2, linewidth=0)
    if curve.dots is not None:
        ax.plot(*curve.dots, linestyle="none", marker=".", markersize=4, color=color)


def draw_stems(ax: Axes, curve: Curve, style: Mapping[str, Any]) -> None:
    """Draw the elements of a vector, each a line from zero with a mark."""
    # The stems of several curves are side by side.
    side = 0.12 * (1 if curve.group is None else -1 - curve.group)
    x = curve.points.x - side
    ax.vlines(x, 0.0, curve.points.y, color=style["color"], linewidth=style["linewidth"])
    ax.plot(x, curve.points.y, "o", markersize=5, color=style["color"], label=curve.name)
    ax.axhline(0.0, color=style["color"], linewidth=0.6, alpha=0.5)


# --- heat maps ------------------------------------------------------------------------------------


Array: TypeAlias = np.ndarray[Any, Any]
SIDE = 2.0  # inches of one map
MOST_COLUMNS = 8  # of maps side by side
IMAGE_CHANNELS = (1, 3, 4)  # gray, red-green-blue, and with transparency
SIGNED, UNSIGNED = "bwr", "viridis"
SHAPES = {
    "first": "(H, W), (C, H, W) or (N, C, H, W)",
    "last": "(H, W), (H, W, C) or (N, H, W, C)",
}


@told_arguments
def heatmap(
    relevance: Any,
    image: Any = None,
    *,
    ax: Axes | None = None,
    channels: Literal["first", "last"] | None = None,
    signed: bool | None = None,
    cmap: str | None = None,
    alpha: float | None = None,
    limit: float | None = None,
    columns: int | None = None,
    titles: Any = None,
) -> Axes:
    """Draw attributions as heat maps, over their images if there are any.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> relevance = np.linspace(-1.0, 2.0, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
        >>> axes = xg.heatmap(relevance, titles=["cat", "dog"])
        >>> axes.shape
        (2,)
        >>> axes[0].figure.savefig("heat.png")

    Channels are summed: relevance is a share, and an image's pixel has that of all its channels.
    Each map has its own scale, from -m to m with m its largest absolute value, so that 0 has the
    color in the middle; or from 0 to m, where it is not signed. One that is 0 everywhere has m = 1.
    An image is drawn below its map in gray, from its lowest to its highest number.

    Args:
        relevance: (H, W), or one of (C, H, W), (N, C, H, W), of any framework: what a gradient of
            the image is; with channels="last" (H, W, C) and (N, H, W, C). Real numbers, all finite.
        image: of the same shape, but for its number of channels.
        ax: the axes to draw one map on; a new figure if not given.
        channels: which axis the channels are: by default the first, unless only the last looks like
            colors, or three axes begin with neither 1, 3 nor 4, as N maps (N, H, W) do: an error.
        signed: whether scales go from -m to m; None: if any of the maps has a negative number.
        cmap: a color map of matplotlib; by default "bwr", red above 0 and blue below, or "viridis"
            where maps are not signed.
        alpha: how opaque the map is, from 0 to 1; by default 0.6 over an image, else 1.
        limit: m, the same for all maps.
        columns: how many maps a row has.
        titles: a word for each map, or one for one map.

    Returns:
        The axes; of a batch, an array of those of its maps, of shape (N,).

    Raises:
        RuleValueError: shapes that do not fit, numbers that are not finite, no map, several maps
            for one `ax`.
        BackendNotFound: matplotlib is not installed; also an ImportError.
    """
    if channels not in ("first", "last", None):
        raise RuleValueError(f"channels is 'first' or 'last', got {channels!r}")
    maps = read_maps("relevance", relevance, channels or "first", is_given=channels is not None)
    channels = channels or "first"
    images = None if image is None else read_gray_images(image, channels)
    heat = maps.sum(-1)
    if images is not None and images.shape[:3] != heat.shape:
        raise RuleValueError(
            f"relevance has {len(heat)} maps of {heat.shape[1:]}, and image {len(images)} of "
            f"{images.shape[1:3]}: both are {SHAPES[channels]}, with channels={channels!r}"
        )
    names = read_titles(titles, len(heat))
    if limit is not None and not 0 < limit < math.inf:
        raise RuleValueError(f"limit is a number above 0, got {limit!r}")
    if signed not in (None, True, False):
        raise RuleTypeError(f"signed is True, False or None, got {signed!r:.40}")
    places = make_grid(len(heat), columns, heat.shape[1:]) if ax is None else [one_map(ax, heat)]
    is_signed = bool((heat < 0).any()) if signed is None else signed
    cmap = cmap or (SIGNED if is_signed else UNSIGNED)
    opaque = (1.0 if images is None else 0.6) if alpha is None else alpha
    for i, place in enumerate(places):
        if images is not None:
            place.imshow(images[i], cmap="gray")
        top = limit or float(np.abs(heat[i]).max()) or 1.0
        place.imshow(heat[i], cmap=cmap, vmin=-top if is_signed else 0.0, vmax=top, alpha=opaque)
        place.set(xticks=[], yticks=[])
        place.set_title(names[i], fontsize="medium")
    return np.array(places, object) if np.ndim(relevance) == 4 else places[0]


def read_titles(titles: Any, count: int) -> list[str]:
    titles = [titles] if isinstance(titles, str) else titles
    names = [""] * count if titles is None else [str(each) for each in titles]
    if len(names) != count:
        raise RuleValueError(f"{len(names)} titles for {count} maps")
    return names


def one_map(ax: Any, heat: Array) -> Any:
    """Return axes, if they are those of one map and there is one."""
    if len(heat) != 1:
        raise RuleValueError(f"ax is the axes of one map, and relevance has {len(heat)}")
    if not hasattr(ax, "imshow"):
        raise RuleTypeError(
            f"ax is the axes of one map, got {type(ax).__name__}: give one of them, such as axes[0]"
        )
    return ax


def refuse_unclear(shape: tuple[int, ...]) -> None:
    """Raise for a shape that does not tell which axis the channels are."""
    first, middle, last = shape[-3:] if len(shape) in (3, 4) else (1, 1, 1)
    if last in IMAGE_CHANNELS and min(first, middle) > 4:
        raise RuleValueError(
            f"relevance of shape {shape} looks like {SHAPES['last']}: write channels='last', or "
            f"channels='first' if {first} is the number of channels"
        )
    if len(shape) == 3 and first not in IMAGE_CHANNELS:
        raise RuleValueError(
            f"relevance of shape {shape} may be {first} maps, or {first} channels of one: write "
            "relevance[:, None] for maps, or channels='first' to sum channels"
        )


def read_maps(name: str, value: Any, channels: str, is_given: bool = True) -> Array:
    """Return the given maps as a float64 array of shape (N, H, W, C)."""
    try:
        array = np.asarray(as_array(value))
        if array.dtype.kind not in "biuf" and "float" not in array.dtype.name:
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise RuleValueError(
            f"{name} is an array of real numbers, {SHAPES[channels]}; got {type(value).__name__} "
            f"{value!r:.60}"
        ) from None
    if array.ndim not in (2, 3, 4) or not array.size:
        raise RuleValueError(
            f"{name} is {SHAPES[channels]} with channels={channels!r}, got {describe_value(array)}"
        )
    if not is_given:
        refuse_unclear(array.shape)
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise RuleValueError(
            f"{name} has {count} of {array.size} numbers that are infinite or NaN: look for where "
            "they come from, or give np.nan_to_num(...) of it"
        )
    if array.ndim == 2:
        return array[None, :, :, None]
    array = array[None] if array.ndim == 3 else array
    return np.moveaxis(array, 1, -1) if channels == "first" else array


def read_gray_images(image: Any, channels: str) -> Array:
    """Return images as gray ones, each scaled from its lowest and highest number to 0 and 1."""
    maps = read_maps("image", image, channels)
    if maps.shape[-1] not in IMAGE_CHANNELS:
        raise RuleValueError(
            f"image has {maps.shape[-1]} channels, expected "
            f"{', '.join(map(str, IMAGE_CHANNELS))}: is channels={channels!r} right?"
        )
    low, high = (f(maps, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    scaled = (maps - low) / np.where(high > low, high - low, 1.0)
    return scaled[..., :3].mean(-1)


def make_grid(count: int, columns: int | None, size: tuple[int, int]) -> list[Axes]:
    """Return the axes of a new figure, in rows, which `pyplot.show()` shows."""
    wide = columns if columns is not None else min(count, MOST_COLUMNS)
    if not isinstance(wide, int) or wide < 1:
        raise RuleValueError(f"columns is an int above 0, got {columns!r}")
    pyplot = import_part("pyplot", "heatmap")
    rows = math.ceil(count / wide)
    # At most four times as high as wide, or the reverse.
    high = SIDE * min(4.0, max(0.25, size[0] / size[1]))
    _, axes = pyplot.subplots(
        rows, wide, figsize=(SIDE * wide, (high + 0.3) * rows), squeeze=False, layout="constrained"
    )
    for empty in axes.flat[count:]:
        empty.set_axis_off()
    return list(axes.flat[:count])
