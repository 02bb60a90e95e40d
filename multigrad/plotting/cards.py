"""The cards of the gallery: what is said of a rule, its picture, its sliders, its JavaScript and
the code to copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MultigradError
from ..inspection.described import Described, describe
from ..registry import get, rules
from ..rulebook.rule import Rule
from .behavior import observe
from .curves import SIDES, make_picture
from .javascript import emit
from .picture import Picture
from .sliders import Slider, make_sliders
from .snippets import write_snippets


@dataclass(frozen=True, slots=True)
class Card:
    """One rule on the page.

    Attributes:
        sliders: none where the picture does not move.
        script: a JavaScript object that draws it, "" where there is none.
        code: how it is used, by framework.
    """

    described: Described
    picture: Picture
    sliders: tuple[Slider, ...]
    script: str
    code: Mapping[str, str]


def make_cards() -> list[Card]:
    """Return a card for each rule that can be drawn with its defaults."""
    return [make_card(get(name)) for name in rules()]


def make_card(rule: Rule) -> Card:
    """Return the card of a rule.

    Raises:
        MultigradError: it cannot be drawn.
    """
    behavior, picture = observe(rule, {}), make_picture(rule)
    sliders = make_sliders(rule.params, rule.ranges)
    try:
        script = write_script(rule, picture, sliders, is_random=behavior.is_random)
    except MultigradError:  # what it says is for whom writes the rule, not for the page's reader
        sliders, script = (), ""
    numbers = {slider.name: slider.value for slider in sliders}
    code = write_snippets(
        rule.name,
        numbers,
        on_gradients=picture.over != "input" and not behavior.is_linear,
        is_random=behavior.is_random,
    )
    return Card(describe(rule), picture, sliders, script, code)


def write_script(
    rule: Rule, picture: Picture, sliders: tuple[Slider, ...], *, is_random: bool
) -> str:
    """Return the JavaScript object that draws a rule: a graph for each value of an integer.

    Raises:
        MultigradError: it has no JavaScript.
    """
    whole = [slider for slider in sliders if slider.is_whole]
    name = whole[0].name if whole else ""
    values = range(int(whole[0].low), int(whole[0].high) + 1) if whole else [None]
    graphs = {
        "" if value is None else str(value): emit(
            rule.bound_rule({} if value is None else {name: value}).graph()
        )
        for value in values
    }
    reads = len({curve.name for curve in picture.curves if "tin = " in curve.name}) > 1
    fixed = {k: v for k, v in rule.params.items() if isinstance(v, float | int)}
    known = {
        "over": picture.over,
        "sides": SIDES if reads else [0.0],
        "random": is_random,
        "whole": name,
        "params": fixed,
        "ranges": {slider.name: slider.range for slider in sliders if slider.range},
    }
    functions = ", ".join(f"{json.dumps(value)}: {text}" for value, text in graphs.items())
    return f"{{...{to_script(known)}, f: {{{functions}}}}}"


def to_script(value: Any) -> str:
    """Return plain data as JavaScript, such as stands inside of a page."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
