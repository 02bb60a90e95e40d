"""The curves of rules of one name, as a small picture in the page about them.

Its colors are classes, for the site's style sheet; where a page is shown without pictures the
caption remains. Points are rounded before any are left out, so that every machine writes one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

import multigrad as xg

from .gallery.svg import line_path
from .same_names import applied, is_drawn

WIDTH, HEIGHT, EDGE = 320, 130, 4
FAR = 2.0
X = np.linspace(-FAR, FAR, 641)
ALIKE = 1e-9


def draw_curves(rules: Sequence[xg.Rule]) -> str:
    """Return a picture of the factors of rules over the input; none of fewer than two curves."""
    curves = distinct(rule for rule in rules if is_drawn(rule))
    if len(curves) < 2:
        return ""
    low, high = bounds([y for _, y in curves])
    scale = (HEIGHT - 2 * EDGE) / (high - low)
    zero = HEIGHT - EDGE + low * scale
    paths = [f'<path class="axis" d="M0 {zero:.1f}H{WIDTH}M{WIDTH / 2:.0f} 0V{HEIGHT}"/>']
    legend = []
    for number, (names, y) in enumerate(curves):
        across = np.round((X + FAR) * (WIDTH / (2 * FAR)), 1)
        down = np.round(HEIGHT - EDGE - (np.clip(y, low, high) - low) * scale, 1)
        kind = f"c{number % 6} {('', 'dashed', 'dotted')[number // 6 % 3]}".strip()
        paths.append(f'<path class="{kind}" d="{line_path(across, down)}"/>')
        legend.append(f'<span class="{kind}">{", ".join(names)}</span>')
    said = f"Over inputs from {-FAR:g} to {FAR:g}, from {low:.3g} to {high:.3g}: "
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="the curves of the table below"'
    caption = f"<figcaption>{said}{'; '.join(legend)}.</figcaption>"
    return f'<figure class="curves"><svg {box}>{"".join(paths)}</svg>{caption}</figure>'


def distinct(rules: Iterable[xg.Rule]) -> list[tuple[list[str], np.ndarray]]:
    """Return each curve once, with the names of all rules that have it."""
    curves: list[tuple[list[str], np.ndarray]] = []
    for rule in rules:
        y = applied(rule, np.ones_like(X), X)
        assert y is not None
        for names, other in curves:
            if np.allclose(y, other, rtol=ALIKE, atol=ALIKE, equal_nan=True):
                names.append(rule.name)
                break
        else:
            curves.append(([rule.name], y))
    return curves


def bounds(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return from where to where is drawn, with zero."""
    known = np.concatenate([y[np.isfinite(y)] for y in curves])
    low, high = min(0.0, float(known.min())), max(0.0, float(known.max()))
    return low, high if high > low else low + 1.0
