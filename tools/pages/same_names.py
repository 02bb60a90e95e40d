"""Rules of one name, and what tells their curves apart: measured, by running each on NumPy.

A name is the last part of a rule's, without `surrogate` and `grad`; SYNONYMS brings together what
packages call by several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.rules.rule_names import OWN
from multigrad.errors import RuleError

from .gallery.svg import line_path

Array = np.ndarray[Any, Any]

HEADS = ("rule", "gradient", "params", "at 0", "at 0.5", "at -0.5", "area", "as the first")
SYNONYMS = {
    "absbinarysign": "absolutebinarysign",
    "adaptivegradclip": "adaptiveclip",
    "addnoise": "noise",
    "atan": "arctan",
    "circ": "circle",
    "circdist": "circle",
    "clip": "clipvalue",
    "clipbyblockrms": "cliprms",
    "clipgradvalue": "clipvalue",
    "deconvolution": "deconvnet",
    "dorefa": "dorefaactivations",
    "fastsigmoid": "superspike",
    "guidedbackprop": "guided",
    "heavierfc": "erf",
    "invsquare": "superspike",
    "leakykrelu": "leakyrelu",
    "lso": "leakyspike",
    "nonzerosignlogabs": "nonzerosignlog",
    "normalizebyupdatenorm": "normalize",
    "piecewiseexp": "exponential",
    "rect": "rectangular",
    "relubetasmooth": "betasmooth",
    "reludeconvnet": "deconvnet",
    "reluguidedbackprop": "guided",
    "rev": "gradientreversal",
    "scalebysign": "sign",
    "settozero": "stop",
    "sfs": "sparsefastsigmoid",
    "singleexponential": "exponential",
    "slayer": "exponential",
    "squarewavefourierseries": "squarewavefourier",
    "sso": "stochasticspike",
    "stopgradient": "stop",
    "straightthroughestimator": "straightthrough",
    "super": "superspike",
    "triangle": "triangular",
    "unitrectangular": "rectangular",
}
HALF = np.concatenate([np.geomspace(1e-4, 40, 60), [0.5, 1.0]])
X = np.concatenate([-HALF, [0.0], HALF]).reshape(5, 5, 5)  # of three axes, as means differ
EDGES = 2
G = np.resize([1.0, -2.0, 0.5], X.shape)
# Where an area is measured: evenly over the middle, then by factors, as far as it may still grow.
STEP, MIDDLE, FAR, FARTHER = 2e-4, 16.0, 1e7, 1e9


INTRODUCTION = (
    "Packages use one name for several curves, and several names for one curve. Here a plain name "
    "has one meaning; a package's own version has the package's name in front, `snntorch.atan`, "
    "and its defaults. The figures are computed from the rules, with these defaults: the factor "
    "that multiplies the gradient at 0, 0.5 and -0.5, and the area under the factor, *none* where "
    "it is infinite or undefined. *As the first*: the params with which the first rule of a table "
    "gives these numbers. For all rules with their sources see [rules](rules.md), and for "
    "undocumented behavior of packages [faults](audit.md#faults)."
)


def parts(table: Callable[[Iterable[str], Iterable[Iterable[str]]], str]) -> list[str]:
    """Return the page's paragraphs, given what makes a table."""
    found = list(groups().values())
    alike = [rules for rules in found if is_one_curve(rules)]
    sections = [
        "\n\n".join(filter(None, (f"## {title(r)}", draw_curves(r), table(HEADS, rows(r)))))
        for r in found
        if r not in alike
    ]
    names = "; ".join(", ".join(f"`{rule.name}`" for rule in rules) for rules in alike)
    ending = "These have the same numbers and defaults under each of their names"
    return [INTRODUCTION, *sections, f"## One curve\n\n{ending}: {names}."]


def groups() -> dict[str, list[xg.Rule]]:
    """Return the library's rules by name, where more than one has it; ours are the first."""
    named: dict[str, list[xg.Rule]] = {}
    for name in sorted(xg.rules(), key=lambda name: ("." in name, name)):
        rule = xg.get(name)
        if rule.__module__.startswith(OWN):
            named.setdefault(common_name(name), []).append(rule)
    return {name: rules for name, rules in sorted(named.items()) if len(rules) > 1}


def common_name(name: str) -> str:
    """Return what a rule is called whatever the package: `snntorch.atan` is `arctan`."""
    last = name.rpartition(".")[2].lower().replace("_", "")
    for ending in ("surrogate", "grad"):
        last = last.removesuffix(ending)
    return SYNONYMS.get(last, last)


def title(rules: Iterable[xg.Rule]) -> str:
    return ", ".join(dict.fromkeys(rule.name.rpartition(".")[2] for rule in rules))


def is_one_curve(rules: list[xg.Rule]) -> bool:
    """Whether all of a group give the same numbers, each with its own defaults."""
    return all(as_the_first(rule, rules[0]) == SAME for rule in rules[1:])


def rows(rules: list[xg.Rule]) -> Iterator[tuple[str, ...]]:
    for rule in rules:
        formula = " ".join((rule.__doc__ or "").partition("Source:")[0].split())
        sentence = formula.partition(". ")[0].removesuffix(".")
        params = written(defaults(rule))
        alike = "" if rule is rules[0] else as_the_first(rule, rules[0])
        yield (f"`{rule.name}`", sentence, params, *figures(rule), alike)


def defaults(rule: xg.Rule) -> dict[str, Any]:
    return {
        name: value for name, value in rule.params.items() if value is not inspect.Parameter.empty
    }


# --- what is measured -----------------------------------------------------------------------------

SAME, OTHER = "the same", "**another curve**"


def applied(rule: xg.Rule, g: Array, x: Array, key: int = 0, **params: Any) -> Array | None:
    """Return a rule's result; None where it needs more than that."""
    try:
        with np.errstate(all="ignore"):
            return rule(None, g, x, **params, key=key)
    except RuleError:
        return None


def as_the_first(rule: xg.Rule, first: xg.Rule) -> str:
    """Return with which params, and times what, the first of a group gives a rule's numbers."""
    own = applied(rule, G, X)
    if own is None or applied(first, G, X) is None:
        return ""
    results = [(params, applied(first, G, X, **params)) for params in settings(rule, first)]
    for params, result in results:
        if result is not None and agree(own, result):
            return written(params) or SAME
    for params, result in results:
        if result is not None and agree(own, result, most=EDGES):
            return ", ".join(filter(None, [written(params), "but for the edges"]))
    for params, result in results:
        times = None if result is None else multiple(own, result)
        if times is not None:
            return ", ".join(filter(None, [written(params), f"times {times:.3g}"]))
    return OTHER


def settings(rule: xg.Rule, first: xg.Rule) -> Iterator[dict[str, Any]]:
    """Yield params for the first of a group that may make it another rule; few changes first."""
    numbers = [each for each in defaults(rule).values() if type(each) in (int, float) and each]
    known = {name: each for name, each in defaults(first).items() if type(each) in (int, float)}
    tried = {name: sorted(candidates(type(value), numbers)) for name, value in known.items()}
    yield {}
    for count in (1, 2):
        for names in combinations(known, count):
            for values in product(*(tried[name] for name in names)):
                params = dict(zip(names, values, strict=True))
                if all(value != known[name] for name, value in params.items()):
                    yield params


def candidates(kind: type, numbers: Iterable[float]) -> set[float]:
    """Return what a param may be where another rule has these: a number, its inverse, a half."""
    if kind is int:
        return {more for number in numbers if type(number) is int for more in (number, number - 1)}
    return {each for n in map(float, numbers) for each in (n, 1.0 / n, n / 2.0, n * 2.0, -n / 2.0)}


def multiple(own: Array, ours: Array) -> float | None:
    """Return by which number one result is a multiple of another."""
    if not (np.isfinite(own).all() and np.isfinite(ours).all() and ours.any()):
        return None
    place = np.abs(ours).argmax()
    times = float(own.flat[place] / ours.flat[place])
    return times if times and agree(own, times * ours) else None


def written(params: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in params.items())


def agree(own: Array, ours: Array, most: int = 0) -> bool:
    """Whether two results are the same numbers, but for so many."""
    return int((~np.isclose(own, ours, rtol=1e-9, atol=1e-12, equal_nan=True)).sum()) <= most


def figures(rule: xg.Rule) -> tuple[str, ...]:
    """Return the factor at 0, 0.5 and -0.5 and the area below it, as text."""
    result = applied(rule, G, X)
    if result is None or not is_factor(rule, result):
        return ("", "", "", "")
    again = applied(rule, G, X, key=1)
    if again is None or not agree(again, result):
        return ("random",) * 3 + ("",)
    at = [float(factor(rule, np.array([x]))[0]) for x in (0.0, 0.5, -0.5)]
    return (*(shown(value) for value in at), area(rule))


def is_drawn(rule: xg.Rule) -> bool:
    """Whether a rule has a curve: the same in each draw, and of each element's own input."""
    result, again = applied(rule, G, X), applied(rule, G, X, key=1)
    if result is None or again is None or not agree(result, again):
        return False
    return is_factor(rule, result)


def is_factor(rule: xg.Rule, result: Array) -> bool:
    """Whether a rule multiplies each element by a number that depends on this element's input."""
    alone = applied(rule, G[:1, :1, :1], X[:1, :1, :1])
    if alone is None or not agree(alone, result[:1, :1, :1]):
        return False
    doubled = applied(rule, 2.0 * G, X)
    return doubled is not None and agree(doubled, 2.0 * result)


def factor(rule: xg.Rule, x: Array) -> Array:
    result = applied(rule, np.ones_like(x), x)
    assert result is not None
    return result


def area(rule: xg.Rule) -> str:
    """Return the integral of the factor, or that it has none."""
    middle = (np.arange(-MIDDLE / STEP, MIDDLE / STEP) + 0.5) * STEP
    total = float(factor(rule, middle).sum()) * STEP
    tails = []
    for far in (FAR, FARTHER):
        edges = np.geomspace(MIDDLE, far, 20_000)
        centers, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        tails.append(float(((factor(rule, centers) + factor(rule, -centers)) * widths).sum()))
    if not np.isfinite(tails).all() or abs(tails[1] - tails[0]) > 1e-3:
        return "none"
    return shown(total + tails[0])


def shown(value: float) -> str:
    """Return three digits; what is less than rounding is zero."""
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"


# --- a small picture of the curves ----------------------------------------------------------------
# Its colors are classes, for the site's style sheet; where a page is shown without pictures the
# caption remains. Points are rounded before any are left out: every machine writes one text.


WIDTH, HEIGHT, EDGE = 320, 130, 4
REACH = 2.0
ACROSS = np.linspace(-REACH, REACH, 641)
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
        across = np.round((ACROSS + REACH) * (WIDTH / (2 * REACH)), 1)
        down = np.round(HEIGHT - EDGE - (np.clip(y, low, high) - low) * scale, 1)
        kind = f"c{number % 6} {('', 'dashed', 'dotted')[number // 6 % 3]}".strip()
        paths.append(f'<path class="{kind}" d="{line_path(across, down)}"/>')
        legend.append(f'<span class="{kind}">{", ".join(names)}</span>')
    said = f"Over inputs from {-REACH:g} to {REACH:g}, from {low:.3g} to {high:.3g}: "
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="the curves of the table below"'
    caption = f"<figcaption>{said}{'; '.join(legend)}.</figcaption>"
    return f'<figure class="curves"><svg {box}>{"".join(paths)}</svg>{caption}</figure>'


def distinct(rules: Iterable[xg.Rule]) -> list[tuple[list[str], np.ndarray]]:
    """Return each curve once, with the names of all rules that have it."""
    curves: list[tuple[list[str], np.ndarray]] = []
    for rule in rules:
        y = applied(rule, np.ones_like(ACROSS), ACROSS)
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
