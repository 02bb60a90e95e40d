"""The gallery: one page with a card for every rule, which asks nothing of anybody.

Pictures of the defaults are drawn here, so that the page can be read without JavaScript; with it,
sliders draw what the rules' own graphs compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from string import Template

from multigrad.look.curves import Picture
from multigrad.look.rule_description import place_of

from .cards import Card, Slider, make_cards, to_script
from .javascript import RUNTIME
from .snippets import read_snippets
from .svg import draw_svg, number

FOLDER = Path(__file__).parent
ABOUT = (
    "What each rule makes of a gradient. <em>grad_out</em> is the gradient that arrives, "
    "<em>tin</em> the input of the forward, <em>grad_in</em> the gradient that is passed on; a "
    "surrogate is drawn as the factor d(tin) between them."
)
FOOTER = (
    "Written by <code>tools/write_gallery.py</code>. Curves are computed from each rule's own "
    "graph. Draws of random rules are this page's own, not those of the library."
)


def render_gallery(cards: list[Card] | None = None) -> str:
    cards = sorted(make_cards() if cards is None else cards, key=place_on_page)
    families = dict.fromkeys(card.described.family for card in cards if card.described.family)
    scripts = [f"{to_script(card.key)}: {card.script}," for card in cards if card.script]
    words = {
        "style": read("gallery.css"),
        "about": ABOUT,
        "families": "".join(f"<option>{escape(family)}</option>" for family in families),
        "frameworks": "".join(
            f'<option value="{name}">{row.title}</option>' for name, row in read_snippets().items()
        ),
        "sections": "\n".join(render_sections(cards)),
        "footer": FOOTER,
        "runtime": RUNTIME.read_text(encoding="utf-8"),
        "cards": "\n".join(scripts),
        "script": read("gallery.js") + read("controls.js"),
    }
    return Template(read("gallery.html")).substitute(words)


def place_on_page(card: Card) -> tuple[bool, int, str]:
    """Return what cards are sorted by: rules by families, then Functions by theirs."""
    row = card.described
    return row.kind == "estimator", place_of(row.family), row.family


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def render_sections(cards: Sequence[Card]) -> Iterator[str]:
    for (kind, heading), own in groupby(cards, attrgetter("described.kind", "described.heading")):
        inner = "\n".join(render_card(card) for card in own)
        title, _, rest = heading.partition(": ")
        title = f"xg.estimators: {title[:1].lower()}{title[1:]}" if kind == "estimator" else title
        rest = mark_code(rest[:1].upper() + rest[1:])
        about = f'<p class="heading">{rest}.</p>' if rest else ""
        yield f'<section><h2>{escape(title)}</h2>{about}<div class="cards">{inner}</div></section>'


def render_card(card: Card) -> str:
    row = card.described
    name, identifier = escape(row.name), escape(card.key, quote=True)
    words = escape(f"{row.name} {row.family} {row.formula} {row.gradients} {row.source}")
    formula, edges = (row.formula, "") if row.gradients else split_formula(row.formula)
    code = "".join(
        f'<pre class="code" data-framework="{framework}"><code>{escape(text)}</code></pre>'
        for framework, text in card.code.items()
    )
    facts = {
        "Gradients": mark_code(row.gradients),
        "Params": escape(", ".join(map(str, row.params))),
        "Without tin": mark_code(row.without_tin),
        "Source": mark_code(row.source),
    }
    said = "".join(f"<dt>{title}</dt><dd>{text}</dd>" for title, text in facts.items() if text)
    about = f'data-name="{identifier}" data-family="{row.family}" data-words="{words}"'
    family = f'<span class="family">{row.family or "yours"}</span>'
    button = '<button type="button" class="copy">Copy</button>'
    parts = [
        f'<article class="card" id="{identifier}" {about}>',
        f'<header><h3><a href="#{identifier}">{name}</a></h3>{family}</header>',
        render_figure(card),
        render_sliders(card),
        f'<p class="formula"><code>{escape(formula.replace("`", ""))}</code></p>',
        f'<p class="edges">{mark_code(edges)}</p>' if edges else "",
        f"<dl>{said}</dl>",
        f"<details><summary>Code</summary>{code}{button}</details>" if code else "",
        "</article>",
    ]
    return "\n".join(filter(None, parts))


def render_figure(card: Card) -> str:
    """Return the picture of a card with its legend; what has no curve says so."""
    if card.picture is None:
        return f'<p class="nothing">{mark_code(card.note)}</p>'
    return f"<figure>{draw_svg(card.picture)}{render_legend(card.picture)}</figure>"


def mark_code(text: str) -> str:
    """Return text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def split_formula(text: str) -> tuple[str, str]:
    """Return the formula of a docstring, and what is said of its edges."""
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0 and sign in ":;." and text[i + 1 : i + 2] in (" ", ""):
            return text[:i], text[i + 1 :].strip()
    return text, ""


def render_legend(picture: Picture) -> str:
    curves, notes = picture.curves, picture.title.partition("\n")[2]
    kinds = ["" if curve.group is None else f"c{curve.group % 6}" for curve in curves]
    parts = [
        f'<span class="{kind}">{escape(curve.name)}</span>'
        for kind, curve in zip(kinds, curves, strict=True)
        if len(curves) > 1
    ]
    if notes:
        parts.append(f'<span class="note">{notes[:1].upper()}{notes[1:]}</span>')
    return f"<figcaption>{''.join(parts)}</figcaption>" if parts else ""


def render_sliders(card: Card) -> str:
    """Return the sliders of a card, which show the defaults without JavaScript too."""
    if not card.sliders:
        return ""
    rows = "".join(map(render_slider, card.sliders))
    return (
        f'<div class="sliders">{rows}</div><p class="outside" role="status" hidden></p>'
        '<button type="button" class="reset" hidden>Back to the defaults</button>\n'
    )


def render_slider(slider: Slider) -> str:
    step = "1" if slider.is_whole else "any"
    return (
        f'<label><span class="name">{slider.name}</span><input type="range" '
        f'name="{slider.name}" min="{slider.low!r}" max="{slider.high!r}" step="{step}" '
        f'value="{slider.value!r}"><output>{number(slider.value)}</output></label>'
    )
