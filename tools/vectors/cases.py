"""The cases of one op or rule: inputs, cotangents, and what the witness says of them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multigrad.engine.functions.documents.format import hex_of
from multigrad.engine.functions.documents.versions import KINKS
from multigrad_conformance.vectors import TABLE_NAMES

from . import points, rules, whole
from .elementwise import FORMULAS
from .rounding import FORMATS, Columns, Format, High, Rounded, round_to
from .witness import compile_expression, evaluate, functions_of, library, parse

Data = dict[str, Any]
TIES = ("maximum", "minimum", "fmax", "fmin")
OF_ZEROS = (
    "add", "subtract", "multiply", *TIES, "logaddexp", "nextafter", "full_like", "clip", "lerp",
    "where",
)  # fmt: skip
# Params that are called as a function of formulas is.
OTHER_NAMES = {"s": "s_", "gamma": "gamma_"}


# --- ops ------------------------------------------------------------------------------------------


@functools.cache
def compiled(name: str) -> tuple[Callable[..., High], tuple[Callable[..., High], ...]]:
    return functions_of(FORMULAS[name])


@functools.cache
def conventions_of(name: str) -> dict[tuple[float, ...], tuple[float, tuple[float, ...]]]:
    """Return what the table of conventions has of an op: value and slopes, by the operands."""
    own = TABLE_NAMES.get(name, name)
    return {at: (value, slopes) for op, _, at, value, slopes in KINKS if op == own}


def op_set(name: str, format: Format) -> Data:
    formula = FORMULAS[name]
    rows: list[tuple[float, ...]]
    if len(formula.operands) == 1:
        marks = [float(x) for x in formula.attrs.values() if isinstance(x, float)]
        rows = [(x,) for x in points.of_one_operand(format, marks)]
    elif len(formula.operands) == 2:
        rows = [*points.of_two_operands(format)]
    else:
        rows = [*points.of_three_operands(format, is_choice=name == "where")]
    numbers = [as_attr(number, format) for number in formula.attrs.values()]
    result = FORMATS.get(formula.attrs.get("dtype", ""), format)
    if "where" in formula.value:  # what a comparison with NaN gives is no mathematics
        rows = [row for row in rows if not any(map(math.isnan, row))]
    rows = [row for row in rows if _is_plain(name, row)]
    found = [(row, *_evaluate(name, row, numbers, format)) for row in rows]
    found = [each for each in found if each[1] is not None and None not in each[2]]
    rows = [row for row, _, _ in found]
    cotangents = points.cotangents(len(rows))
    columns = Columns(format, [list(c) for c in zip(*rows, strict=True)], cotangents)
    columns.gradients = [[] for _ in formula.operands]
    for i, ((row, value, slopes), cotangent) in enumerate(zip(found, cotangents, strict=True)):
        kink = kink_at(name, row)
        if kink is not None:
            slopes = [_exact(s, format) for s in kink]
        if kink is not None or (name == "clip" and len({*row}) < 3):
            columns.mark("kink", i)
        columns.results.append(round_to(value, result))
        for column, slope in zip(columns.gradients, slopes, strict=True):
            column.append(multiplied(cotangent, slope, format))
        if any(map(math.isinf, row)) or (
            not any(map(math.isnan, row)) and math.isnan(columns.results[-1].value)
        ):
            columns.mark("convention", i)  # what it tends to; outside of its domain
    return columns.to_dict()


def _is_plain(name: str, row: Sequence[float]) -> bool:
    """Whether an op has a value there by its formula alone: signs of zeros are no mathematics."""
    if name == "polygamma":
        return not row[0] <= 0
    if len(row) == 1 or name in OF_ZEROS:
        return True
    is_inside = row[0] > 0 if name == "pow" else row[1] > 0 or name not in ("xlogy", "xlog1py")
    return is_inside and all(x != 0 and not math.isnan(x) for x in row)


def as_attr(number: Any, format: Format) -> Any:
    return points.fit([number], format)[0] if isinstance(number, float) else number


def kink_at(name: str, row: Sequence[Any]) -> tuple[float, ...] | None:
    """Return the slopes that are taken at a kink, None elsewhere."""
    if name in TIES and row[0] == row[1]:
        return (0.5, 0.5)
    at = tuple(map(float, row))
    known = conventions_of(name).get(at)
    return None if known is None or at != tuple(row) else known[1]  # and none of a number beside it


def _evaluate(
    name: str, row: Sequence[float], numbers: Sequence[Any], format: Format
) -> tuple[High, list[High]]:
    if name == "nan_to_num" and not math.isfinite(row[0]):
        filled = 0.0 if math.isnan(row[0]) else math.copysign(format.top, row[0])
        return _exact(filled, format), [_exact(0.0, format)]
    value, slopes = compiled(name)
    if name == "nextafter":
        a, b = np.array(row).astype(format.dtype)
        return _exact(float(np.nextafter(a, b)), format), [_exact(s, format) for s in (1.0, 0.0)]

    def closed(function: Callable[..., High]) -> Callable[..., High]:
        return lambda *operands: function(*operands, *numbers)

    return (
        evaluate(closed(value), row, format),
        [evaluate(closed(slope), row, format) for slope in slopes],
    )


def _exact(number: float, format: Format) -> High:
    mp = library("mpmath").mp
    with mp.workdps(format.decimals):
        return mp.mpf(number)


def multiplied(cotangent: float, slope: High, format: Format) -> Rounded:
    mp = library("mpmath").mp
    with mp.workdps(3 * format.decimals):
        return round_to(mp.mpf(cotangent) * slope, format)


# --- rules ----------------------------------------------------------------------------------------


@functools.cache
def formula_of(rule: str) -> str:
    """Return a rule's text: in its own words for its params."""
    if rule not in rules.SAME:
        return rules.WHOLE[rule] if rule in rules.WHOLE else rules.FACTORS[rule]
    base, words = rules.SAME[rule]
    return reworded(formula_of(base), {OTHER_NAMES.get(k, k): v for k, v in words.items()})


def reworded(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: words.get(found[0], found[0]), text)


def base_of(rule: str) -> str:
    return rules.SAME[rule][0] if rule in rules.SAME else rule


def is_whole(rule: str) -> bool:
    """Whether a gradient depends on more than one element."""
    return base_of(rule) in rules.WHOLE


@functools.cache
def _factor(rule: str, names: tuple[str, ...]) -> Callable[..., High]:
    inputs = (
        "grad_out",
        "x",
        "uniform",
        "normal",
        *(OTHER_NAMES.get(name, name) for name in names),
    )
    return compile_expression(parse(formula_of(rule), inputs), inputs)


def rule_sets(rule: str, params: Mapping[str, Any], format: Format) -> list[Data]:
    """Return the cases of a rule in a dtype: edges of tin, then those of the cotangent."""
    numbers = {
        name: points.fit([value], format)[0]
        for name, value in params.items()
        if isinstance(value, float)
    }
    given = {**params, **numbers}
    written = {n: hex_of(v) if isinstance(v, float) else v for n, v in given.items()}
    if is_whole(rule):
        return whole.sets(base_of(rule), rules.SAME.get(rule, ("", {}))[1], given, written, format)
    marks = [*numbers.values(), *(1 / v for v in numbers.values() if v)]
    x = points.of_one_operand(format, [m for m in marks if 1e-3 < abs(m) < 1e3])
    edges = [g for g in points.extremes(format) if abs(g) != math.ldexp(1.0, format.least)]
    pairs = [(0.25, g) for g in edges] + [(-2.0, g) for g in edges]
    first = [*zip(x, points.cotangents(len(x)), strict=True), *pairs]
    return [_rule_set(rule, first, given, written, format)]


def _rule_set(
    rule: str,
    pairs: Sequence[tuple[float, float]],
    params: Mapping[str, Any],
    written: Mapping[str, Any],
    format: Format,
) -> Data:
    text, draws = formula_of(rule), {}
    columns = Columns(format, [[x for x, _ in pairs]], [g for _, g in pairs])
    columns.gradients = [[]]
    known = {name: value for name, value in params.items() if not isinstance(value, str)}
    function, values = _factor(rule, tuple(known)), list(known.values())
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    for name, number in (("uniform", 0.375), ("normal", -0.625)):
        if name in names:
            draws[name] = hex_of(number)
    for x, g in pairs:

        def at(
            tin: High, g: float = g, function: Any = function, values: list[Any] = values
        ) -> High:
            mp = library("mpmath").mp
            return function(mp.mpf(g), tin, mp.mpf(0.375), mp.mpf(-0.625), *values)

        factor = evaluate(at, [x], format)
        if math.isinf(g) or math.isinf(x):
            columns.mark("convention", len(columns.gradients[0]))
        if "grad_out" in names:
            columns.gradients[0].append(round_to(factor, format))
        else:
            columns.gradients[0].append(multiplied(g, factor, format))
    return columns.to_dict(params=dict(written), **({"draws": draws} if draws else {}))


def formula_of_or_none(rule: str) -> str | None:
    known = rule in rules.SAME or rule in rules.WHOLE or rule in rules.FACTORS
    return formula_of(rule) if known else None
