"""The HTML that notebooks show: tables, texts and drawings, without a script or a request.

Lines and words have the color of the text around them, and fills are half transparent, so that a
page is readable on light and on dark ground. All text that is not ours is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# A page is part of the notebook file, so it stays small.
MOST_ROWS, MOST_LETTERS = 200, 20_000
FONT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;text-align:left"
MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px"
LINE = "1px solid rgba(128,128,128,.35)"


def page(title: str, *parts: str) -> str:
    """Return a page from a title, which is text, and parts, which are HTML."""
    head = f'<div style="{MONO};font-size:13px;font-weight:600;margin:.2em 0">{clip(title)}</div>'
    body = "".join(part for part in parts if part)
    return (
        f'<div class="multigrad" style="{FONT};max-width:100%;overflow-x:auto">{head}{body}</div>'
    )


def clip(text: object, most: int = 400) -> str:
    words = str(text)
    return escape(words if len(words) <= most else f"{words[:most]}…")


def line(text: object) -> str:
    return f'<div style="margin:.2em 0;max-width:75ch">{clip(text, 2000)}</div>' if text else ""


def quiet(text: object) -> str:
    if not text:
        return ""
    return f'<div style="margin:.2em 0;opacity:.75;font-size:12px">{clip(text, 2000)}</div>'


def pre(text: object) -> str:
    style = f"{MONO};margin:.3em 0;white-space:pre;background:none;color:inherit;padding:0"
    return f'<pre style="{style}">{clip(text, MOST_LETTERS)}</pre>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]], bad: Iterable[int] = ()) -> str:
    """Return a table, with the rows numbered in `bad` marked.

    Columns of numbers, and their heads, are aligned to the right.
    """
    all_rows = [list(row) for row in rows]
    shown = all_rows[:MOST_ROWS]
    marked = set(bad)
    right = [bool(shown) and all(is_number(row[i]) for row in shown) for i in range(len(header))]
    heads = "".join(cell("th", name, right[i]) for i, name in enumerate(header))
    lines = []
    for number, row in enumerate(shown):
        ground = "rgba(220,60,60,.18)" if number in marked else "none"
        cells = "".join(cell("td", each, right[i]) for i, each in enumerate(row))
        lines.append(f'<tr style="background:{ground}">{cells}</tr>')
    style = (
        f"border-collapse:collapse;margin:.4em 0;font-size:12px;color:inherit;border-bottom:{LINE}"
    )
    more = len(all_rows) - len(shown)
    note = quiet(f"{more} more rows") if more else ""
    return (
        f'<table style="{style}"><thead><tr style="background:none">{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>{note}"
    )


def cell(tag: str, content: object, to_right: bool) -> str:
    side = "right" if to_right else "left"
    rule = LINE if tag == "th" else "0"
    style = f"text-align:{side};padding:.15em .9em .15em 0;border:0;border-bottom:{rule};{MONO}"
    style += ";vertical-align:top;color:inherit;max-width:60ch"
    return f'<{tag} style="{style}">{clip(content, 300)}</{tag}>'


def is_number(content: object) -> bool:
    return isinstance(content, int | float) and not isinstance(content, bool)


def beside(*parts: str) -> str:
    """Return parts side by side, or one below the other where it is narrow."""
    cells = "".join(f"<div>{part}</div>" for part in parts if part)
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{cells}</div>'
    )


def heading(text: str) -> str:
    return f'<div style="font-weight:600;margin:.5em 0 .1em;font-size:12px">{clip(text)}</div>'
