"""Cards of the gallery: a rule's description, picture, sliders, JavaScript and code to copy."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from multigrad.core.ir.graph import Graph
from multigrad.core.rules.registry import get, rules
from multigrad.core.rules.rule import Rule
from multigrad.core.support.params import Range
from multigrad.core.trace.trace import NeedsConcrete
from multigrad.engine.functions.known_forms import capture_example
from multigrad.errors import MultigradError, UnsupportedOp
from multigrad.estimators.declared import Estimator, broadcastable, catalogue
from multigrad.look.curves import Picture, grid, observe
from multigrad.look.pictures import SIDES, make_picture
from multigrad.look.rule_description import Described, as_tried, describe, describe_estimator

from .javascript import emit
from .snippets import write_function_snippets, write_snippets

ROW = {"ndim": 1, "dtype": "float64"}  # what a graph may need to know of a row of doubles


@dataclass(frozen=True, slots=True)
class Card:
    """One rule, or Function of the library, on the page.

    Attributes:
        picture: None where there is no curve; `note` says why.
        sliders: none where the picture does not move.
        script: a JavaScript object that draws it, "" where there is none.
        code: how it is used, by framework.
    """

    described: Described
    picture: Picture | None
    sliders: tuple[Slider, ...]
    script: str
    code: Mapping[str, str]
    note: str = ""

    @property
    def key(self) -> str:
        """A name of its own: rules and Functions may share one."""
        row = self.described
        return row.name if row.kind == "rule" else f"estimators.{row.name}"


def make_cards() -> list[Card]:
    with as_tried():
        cards = [make_card(get(name)) for name in rules()]
    return [*cards, *map(make_function_card, catalogue().values())]


def make_card(rule: Rule) -> Card:
    """Return the card of a rule; one of yours may have no picture."""
    said = describe(rule)
    try:
        behavior, picture = observe(rule, {}), make_picture(rule)
    except MultigradError as error:
        return Card(said, None, (), "", {}, note=f"It cannot be drawn: {error}")
    sliders = make_sliders(rule.params, rule.ranges)
    try:
        reads = len({curve.name for curve in picture.curves if "tin = " in curve.name}) > 1
        known = {"over": picture.over, "sides": SIDES if reads else [0.0]}
        known["random"] = behavior.is_random
        script = to_object(known, rule.params, sliders, lambda whole: emit(graph_of(rule, whole)))
    except MultigradError:  # what it says is for whom writes the rule, not for the page's reader
        sliders, script = (), ""
    numbers = {slider.name: slider.value for slider in sliders}
    code = write_snippets(
        rule.name,
        numbers,
        on_gradients=picture.over != "input" and not behavior.is_linear,
        is_random=behavior.is_random,
    )
    return Card(said, picture, sliders, script, code)


def to_object(
    known: dict[str, Any],
    params: Mapping[str, Any],
    sliders: tuple[Slider, ...],
    emit_with: Callable[[Mapping[str, int]], str],
) -> str:
    """Return what is known as a JavaScript object, with code for each value of an integer."""
    whole = next((slider for slider in sliders if slider.is_whole), None)
    functions = {"": {}}
    if whole is not None:
        values = range(int(whole.low), int(whole.high) + 1)
        functions = {str(value): {whole.name: value} for value in values}
    known = {
        **known,
        "whole": "" if whole is None else whole.name,
        "params": {k: v for k, v in params.items() if isinstance(v, float | int)},
        "ranges": {slider.name: slider.range for slider in sliders if slider.range},
    }
    texts = (f"{json.dumps(key)}: {emit_with(given)}" for key, given in functions.items())
    return f"{{...{to_script(known)}, f: {{{', '.join(texts)}}}}}"


def graph_of(rule: Rule, params: Mapping[str, Any]) -> Graph:
    """Return a rule's graph for a row of doubles, whose length and params may be any."""
    facts: dict[str, Any] = {}
    while True:
        try:
            return rule.bound_rule(params).specialization.graph(True, facts)
        except NeedsConcrete as need:
            if not set(need.facts) <= ROW.keys():
                raise UnsupportedOp(f"rule {rule.name!r} needs {', '.join(need.facts)}") from None
            facts.update({fact: ROW[fact] for fact in need.facts})


# --- Functions ----------------------------------------------------------------------------------

NUMBER = 0.5  # for an argument without a default: a step, a width, a bound


def make_function_card(function: Estimator) -> Card:
    params = choose_arguments(function)
    try:
        picture = make_picture(function, params=params)
    except MultigradError:  # of vectors
        picture = None
    sliders = tuple(
        fit_whole(function, params, slider) for slider in make_sliders(params, function.ranges)
    )
    try:
        script = (
            "" if picture is None else write_function_script(function, params, sliders, picture)
        )
    except MultigradError:  # an op has no row
        script = ""
    is_random = picture is not None and "one draw" in picture.title
    code = write_function_snippets(function, params, is_random=is_random)
    note = "" if picture is not None else "It takes vectors: it has no curve."
    said, moving = describe_estimator(function), sliders if script else ()
    return Card(said, picture, moving, script=script, code=code, note=note)


def fit_whole(function: Estimator, params: Mapping[str, Any], slider: Slider) -> Slider:
    """Return a slider for an integer without the low values that the others do not go with."""
    low = slider.low
    while slider.is_whole and low < slider.value:
        try:
            capture_example(function, grid(points=5), **{**params, slider.name: int(low)})
        except MultigradError:
            low += 1
        else:
            break
    return replace(slider, low=low)


def choose_arguments(function: Estimator) -> dict[str, Any]:
    """Return numbers for all arguments but the first: defaults, the examples', or one in range."""
    found = {}
    examples = function.examples or ()
    for argument, example in zip(function.arguments[1:], examples[1:], strict=True):
        if argument.default is not inspect.Parameter.empty:
            found[argument.name] = argument.default
        elif argument.check_shape is broadcastable:
            found[argument.name] = float(example) if np.ndim(example) == 0 else NUMBER
        else:
            found[argument.name] = example
    return found


def write_function_script(
    function: Estimator,
    params: Mapping[str, Any],
    sliders: tuple[Slider, ...],
    picture: Picture,
) -> str:
    first = function.arguments[0].name

    def emit_pair(whole: Mapping[str, int]) -> str:
        graphs = capture_example(function, grid(points=5), **{**params, **whole}).graphs
        if first not in graphs.wrt[:1]:
            raise UnsupportedOp(f"{function.name} has no gradient for {first}")
        return f"[{emit(graphs.forward)}, {emit(graphs.backward)}]"

    over = picture.over if picture.over == "vector" else "function"
    random = [curve.dots is not None for curve in picture.curves]
    known = {"over": over, "input": first, "random": random}
    return to_object(known, params, sliders, emit_pair)


def to_script(value: Any) -> str:
    """Return plain data as JavaScript, such as stands inside of a page."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


# --- sliders: from a param's default down to an eighth and up to four times of it, in its range ---


LEAST = 1e-6  # a default below it guards a division
MOST_WHOLE = 12  # graphs of a rule with an integer
ANY = Range.read("finite")


@dataclass(frozen=True, slots=True)
class Slider:
    """A number of a rule: where it starts, its ends, and the text of its range."""

    name: str
    value: float
    low: float
    high: float
    is_whole: bool
    range: str


def make_sliders(params: Mapping[str, Any], ranges: Mapping[str, Range]) -> tuple[Slider, ...]:
    """Return a slider for each param that is a number: floats, and integers that have a range."""
    found = []
    for name, value in params.items():
        is_whole = type(value) is int
        if (
            type(value) not in (float, int)
            or not math.isfinite(value)
            or (is_whole and name not in ranges)
        ):
            continue
        if 0.0 < abs(value) < LEAST:
            continue
        allowed = ranges.get(name, ANY)
        low, high = choose_ends(value, allowed, params)
        if is_whole:
            low, high = math.ceil(low), math.floor(max(high, low + 1))
            high = min(high, low + MOST_WHOLE - 1)
        text = allowed.text if name in ranges else ""
        ends = {"low": low, "high": high}
        found.append(Slider(name, value, **ends, is_whole=is_whole, range=text))
    return tuple(found)


def choose_ends(value: float, allowed: Range, params: Mapping[str, Any]) -> tuple[float, float]:
    size = abs(value)
    if value > 0 and allowed.low >= 0.0:
        low, high = max(allowed.low, value / 8), min(allowed.high, 4 * value)
    else:
        low, high = max(allowed.low, -4 * size or -2.0), min(allowed.high, 4 * size or 2.0)
    others = {name: other for name, other in params.items() if name not in allowed.others}
    # An end that does not belong to the range itself: "> 1".
    low = low if allowed.holds(low, others) else low + 0.02 * (value - low)
    return low, high if allowed.holds(high, others) else high - 0.02 * (high - value)
