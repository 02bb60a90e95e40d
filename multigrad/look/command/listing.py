"""What `multigrad rules` lists: rules by family, each with its params and, below, its formula."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from rich.console import Console
from rich.text import Text

from multigrad.errors import MultigradError, suggest
from multigrad.look.described import Described, describe_all, describe_estimators, find_like

INDENT, WIDEST = 4, 100


def list_rules(family: str = "", like: str = "", estimators: bool = False) -> list[Described]:
    """Return the rules; with a family or a word, what is of it or like it, estimators among them.

    Args:
        estimators: the Functions of `xg.estimators` in their place.

    Raises:
        MultigradError: there are none.
    """
    rules = [] if estimators else describe_all()
    rows = rules if rules and not (family or like) else [*rules, *describe_estimators()]
    families = list(dict.fromkeys(row.family for row in rows if row.family))
    if family:
        rows = [row for row in rows if row.family == family]
        if not rows:
            raise MultigradError(
                f"no family {family!r}{suggest(family, families)} (families: {', '.join(families)})"
            )
    found = find_like(like, rows) if like else rows
    if not found:
        raise MultigradError(f"no rule like {like!r} among {len(rows)}; multigrad rules lists all")
    return found


def print_rules(rows: Sequence[Described], console: Console) -> None:
    """Print rules under the headings of their families, in lines of the console's width."""
    width = min(console.width, WIDEST)
    for (kind, family, heading), own in groupby(rows, attrgetter("kind", "family", "heading")):
        place = f"xg.estimators, {family}" if kind == "estimator" else family
        title = f"{place}: {heading}" if place else heading
        lines = textwrap.wrap(title, width)
        console.print(Text("\n".join(lines), style="bold underline"), soft_wrap=True)
        for row in own:
            console.print(format_rule(row, width), soft_wrap=True)
        console.print()


def format_rule(row: Described, width: int) -> Text:
    """Return a rule as lines: name and params, then its formula."""
    params, indent = ", ".join(map(str, row.params)), " " * INDENT
    wrapped = textwrap.TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False)
    first, *more = wrapped.wrap(f"  {row.name}  {params}".rstrip())
    name = f"  {row.name}"
    text = Text("\n").append(name, style="bold").append(first[len(name) :])
    text.append("".join(f"\n{line}" for line in more))
    wrapped.initial_indent = indent
    said = [row.formula, f"Gradients: {row.gradients}" if row.gradients else ""]
    formula = "".join(f"\n{wrapped.fill(each)}" for each in said if each)
    return text.append(formula, style="dim")
