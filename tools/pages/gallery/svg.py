"""A picture as an SVG element; `gallery.js` draws the same when a slider moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from multigrad.look.curves import Curve, Picture

Array = Any
WIDTH, HEIGHT = 340, 200
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 20, 34
TICKS = 5
SMALL_WIDTH, SMALL_HEIGHT = 96, 40
STRAIGHT = 0.06  # pixels: a point nearer to the line between others is left out


class Scale:
    """From numbers to pixels along one axis."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self.start, self.factor = start, (end - start) / (high - low)

    def __call__(self, values: Any) -> Any:
        return self.start + (values - self.low) * self.factor

    def ticks(self) -> list[float]:
        """Return round numbers along the axis."""
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def draw_svg(picture: Picture) -> str:
    x_scale, y_scale = choose_scales(picture)
    draw = draw_stems if picture.is_vector else draw_curve
    drawn = [part for curve in picture.curves for part in draw(curve, x_scale, y_scale)]
    inner = "".join([*draw_axes(picture, x_scale, y_scale), *drawn])
    title = picture.title.partition("\n")[0]
    label = escape(f"{title}: {picture.y_label} over {picture.x_label}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inner}</svg>'


def choose_scales(picture: Picture) -> tuple[Scale, Scale]:
    xs = np.concatenate([curve.points.x for curve in picture.curves])
    ys = [np.zeros(1), *(curve.points.y for curve in picture.curves)]
    ys += [np.asarray(side) for curve in picture.curves for side in curve.band or ()]
    ys += [curve.dots.y for curve in picture.curves if curve.dots is not None]
    known = np.concatenate(ys)
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    pad = 0.06 * (high - low) or 1.0
    margin = 0.5 if picture.is_vector else 0.0
    return (
        Scale(float(xs.min()) - margin, float(xs.max()) + margin, LEFT, WIDTH - RIGHT),
        Scale(low - pad, high + pad, HEIGHT - BOTTOM, TOP),
    )


def draw_small(picture: Picture) -> str:
    """Return a picture's lines and its zero alone, small enough for a row of a table."""
    known = choose_scales(picture)
    x_scale = Scale(known[0].low, known[0].high, 0, SMALL_WIDTH)
    y_scale = Scale(known[1].low, known[1].high, SMALL_HEIGHT, 0)
    draw = draw_stems if picture.is_vector else draw_curve
    curves = [curve for curve in picture.curves if curve.group is not None]
    drawn = [part for curve in curves for part in draw(curve, x_scale, y_scale)]
    zero = f'<path class="zero" d="M0 {y_scale(0.0):.1f}H{SMALL_WIDTH}"/>'
    box = f'viewBox="0 0 {SMALL_WIDTH} {SMALL_HEIGHT}" aria-hidden="true"'
    return f"<svg {box}>{zero}{''.join(drawn)}</svg>"


def draw_axes(picture: Picture, x_scale: Scale, y_scale: Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in x_scale.ticks():
        x = x_scale(tick)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
        yield words(number(tick), "tick middle", x, bottom + 13)
    for tick in y_scale.ticks():
        y = y_scale(tick)
        yield f'<path class="{"zero" if tick == 0 else "grid"}" d="M{LEFT} {y:.1f}H{right}"/>'
        yield words(number(tick), "tick end", LEFT - 5, y + 3)
    yield words(picture.y_label, "label", LEFT, 12)
    yield words(picture.x_label, "label middle", (LEFT + right) / 2, HEIGHT - 5)


def words(text: str, kind: str, x: float, y: float) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def number(tick: float) -> str:
    return f"{tick:.6g}".replace("-", "\N{MINUS SIGN}")


def draw_curve(curve: Curve, x_scale: Scale, y_scale: Scale) -> Iterator[str]:
    kind = curve.role if curve.group is None else f"curve c{curve.group % 6} {curve.role}"
    if curve.band is not None:
        low, high = (y_scale(side) for side in curve.band)
        path = band_path(x_scale(curve.points.x), low, high)
        yield f'<path class="band {kind}" d="{path}"/>'
    if curve.dots is not None:
        for x, y in zip(x_scale(curve.dots.x), y_scale(curve.dots.y), strict=True):
            yield f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="1.3"/>'
    path = line_path(x_scale(curve.points.x), y_scale(curve.points.y))
    yield f'<path class="{kind}" d="{path}"/>'


def line_path(x: Array, y: Array) -> str:
    """Return the path of a line with its breaks; what stands alone becomes a point."""
    words = []
    for run in runs(x, y):
        kept = straightened(run)
        text = "L".join(f"{a:.1f} {b:.1f}" for a, b in kept)
        words.append(f"M{text}{'h0' if len(kept) == 1 else ''}")
    return "".join(words)


def runs(x: Array, *ys: Array) -> Iterator[list[tuple[float, ...]]]:
    run: list[tuple[float, ...]] = []
    for point in zip(x.tolist(), *(y.tolist() for y in ys), strict=True):
        if all(map(math.isfinite, point)):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def straightened(run: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return points without those on the lines between others (Douglas and Peucker, 1973)."""
    points, kept, parts = np.array(run), {0, len(run) - 1}, [(0, len(run) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        (x, y), (dx, dy) = points[first], points[last] - points[first]
        inner = points[first + 1 : last]
        away = np.abs(dx * (inner[:, 1] - y) - dy * (inner[:, 0] - x)) / (math.hypot(dx, dy) or 1.0)
        if away.max() > STRAIGHT:
            middle = first + 1 + int(away.argmax())
            kept.add(middle)
            parts += [(first, middle), (middle, last)]
    return [run[i] for i in sorted(kept)]


def band_path(x: Array, low: Array, high: Array) -> str:
    words = []
    for run in runs(x, low, high):
        there = [f"{a:.1f} {b:.1f}" for a, b, _ in run]
        back = [f"{a:.1f} {c:.1f}" for a, _, c in reversed(run)]
        words.append(f"M{'L'.join(there + back)}Z")
    return "".join(words)


def draw_stems(curve: Curve, x_scale: Scale, y_scale: Scale) -> Iterator[str]:
    kind = curve.role if curve.group is None else f"curve c{curve.group % 6}"
    side = -3.0 if curve.group is None else 3.0 + 3.0 * curve.group
    zero = y_scale(0.0)
    for x, y in zip(x_scale(curve.points.x) + side, y_scale(curve.points.y), strict=True):
        yield f'<path class="{kind}" d="M{x:.1f} {zero:.1f}V{y:.1f}"/>'
        yield f'<circle class="{kind} end" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
