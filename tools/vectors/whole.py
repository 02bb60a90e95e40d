"""Rules of a whole tensor: a norm, a mean or a maximum; what is exact is written for mpmath."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import points
from .rounding import Columns, Format, High, round_to
from .witness import library

Data = dict[str, Any]
Row = list[High]
ROWS, WIDTH = 2, 3
G = (1.25, -0.75, 3.0, 0.1, -2.6, 0.0)
X = (0.3, -0.7, 1.0, -1.5, 0.011, 2.0)


def norm(numbers: Row) -> High:
    mp = library("mpmath").mp
    return mp.sqrt(sum((v * v for v in numbers), mp.mpf(0)))


def _clip_norm(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    length = max(norm(g), p["eps"])  # in 16 bits eps may be zero
    return [v * min(1, p["max_norm"] / length) for v in g] if length else g


def _clip_rms(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    rms = norm(g) / library("mpmath").mp.sqrt(len(g))
    return [v * min(1, p["threshold"] / rms) for v in g] if rms else g


def _normalize(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    length = norm(g)
    return [v * p["scale"] / (length + p["eps"]) for v in g] if length else g


def _less_row_mean(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    means = [sum(g[i * WIDTH : (i + 1) * WIDTH]) / WIDTH for i in range(ROWS)]
    return [v - means[i // WIDTH] for i, v in enumerate(g)]


def _adaptive_clip(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    mp, found = library("mpmath").mp, []
    for i, v in enumerate(g):
        column = slice(i % WIDTH, None, WIDTH)
        limit = p["clipping"] * max(norm(x[column]), p["eps"])
        found.append(v * min(1, limit / max(norm(g[column]), mp.mpf(10) ** -6)))
    return found


def _dorefa_weights(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    tanh = library("mpmath").mp.tanh
    top = max(abs(tanh(v)) for v in x)
    return [a * (1 - tanh(v) ** 2) / top if top else a * 0 for a, v in zip(g, x, strict=True)]


def _magnitude_aware(g: Row, x: Row, p: Mapping[str, Any]) -> Row:
    means = [sum(abs(v) for v in x[j::WIDTH]) / ROWS for j in range(WIDTH)]
    inside = [1 if abs(v) <= p["clip"] else 0 for v in x]
    return [a * means[i % WIDTH] * inside[i] for i, a in enumerate(g)]


RULES: dict[str, Callable[[Row, Row, Mapping[str, Any]], Row]] = {
    "clip_norm": _clip_norm,
    "clip_rms": _clip_rms,
    "normalize": _normalize,
    "centralize": _less_row_mean,
    "optax.centralize": _less_row_mean,
    "adaptive_clip": _adaptive_clip,
    "dorefa_weights": _dorefa_weights,
    "magnitude_aware_sign": _magnitude_aware,
}


def sets(
    base: str,
    words: Mapping[str, str],
    params: Mapping[str, Any],
    written: Mapping[str, Any],
    format: Format,
) -> list[Data]:
    """Return a set for each of three arrays: ordinary numbers, small ones, zeros."""
    mp, found = library("mpmath").mp, []
    names = {new: old for old, new in words.items()}
    own = {names.get(name, name): value for name, value in params.items()}
    for scale in (1.0, 0.0625, 0.0):
        g = [points.fit([v * scale], format)[0] for v in G]
        x = [points.fit([v], format)[0] for v in X]
        with mp.workdps(format.decimals):
            numbers = {n: mp.mpf(v) if isinstance(v, float) else v for n, v in own.items()}
            rows = [mp.mpf(v) for v in g], [mp.mpf(v) for v in x]
            gradient = [round_to(mp.mpf(v), format) for v in RULES[base](*rows, numbers)]
        columns = Columns(format, [x], g, gradients=[gradient])
        found.append(columns.to_dict(params=dict(written), shape=[ROWS, WIDTH]))
    return found
