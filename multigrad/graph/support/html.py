"""The HTML that notebooks show: tables, texts and drawings, without a script or a request.

Lines and words have the color of the text around them, and fills are half transparent, so that a
page is readable on a light and on a dark background. Each function returns a fragment; arguments
named `text` or `content` are escaped, `parts` are HTML already. Tested by
`tests/users/test_first_minutes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# A page is part of the notebook file, so it stays small.
MAX_ROWS, MAX_CHARACTERS = 200, 20_000
FONT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;text-align:left"
MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px"
LINE = "1px solid rgba(128,128,128,.35)"


def page(title: str, *parts: str) -> str:
    """Return a page from a title, which is text, and parts, which are HTML."""
    style = f"{MONO};font-size:13px;font-weight:600;margin:.2em 0"
    head = f'<div style="{style}">{escape_and_clip(title)}</div>'
    body = "".join(part for part in parts if part)
    return (
        f'<div class="multigrad" style="{FONT};max-width:100%;overflow-x:auto">{head}{body}</div>'
    )


def escape_and_clip(text: object, most: int = 400) -> str:
    """Return text escaped for HTML, cut to `most` characters; every text of a page is."""
    characters = str(text)
    return escape(characters if len(characters) <= most else f"{characters[:most]}…")


def paragraph(text: object, style: str = "margin:.2em 0;max-width:75ch") -> str:
    """Return a paragraph; "" for empty text."""
    return f'<div style="{style}">{escape_and_clip(text, 2000)}</div>' if text else ""


def faint_paragraph(text: object) -> str:
    """Return a paragraph in small, pale letters; "" for empty text."""
    return paragraph(text, "margin:.2em 0;opacity:.75;font-size:12px")


def pre(text: object) -> str:
    """Return text whose lines and spaces are shown as they are, such as code."""
    style = f"{MONO};margin:.3em 0;white-space:pre;background:none;color:inherit;padding:0"
    return f'<pre style="{style}">{escape_and_clip(text, MAX_CHARACTERS)}</pre>'


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], marked_rows: Iterable[int] = ()
) -> str:
    """Return a table of texts and numbers, in which some rows, by number, have a red background.

    Columns of numbers, and their headers, are aligned to the right.
    """
    all_rows = [list(row) for row in rows]
    body = all_rows[:MAX_ROWS]
    red_rows = set(marked_rows)
    is_right = [bool(body) and all(is_number(row[i]) for row in body) for i in range(len(header))]
    heads = "".join(cell("th", name, is_right[i]) for i, name in enumerate(header))
    lines = []
    for number, row in enumerate(body):
        background = "rgba(220,60,60,.18)" if number in red_rows else "none"
        cells = "".join(cell("td", each, is_right[i]) for i, each in enumerate(row))
        lines.append(f'<tr style="background:{background}">{cells}</tr>')
    style = (
        f"border-collapse:collapse;margin:.4em 0;font-size:12px;color:inherit;border-bottom:{LINE}"
    )
    excess = len(all_rows) - len(body)
    note = faint_paragraph(f"{excess} more rows") if excess else ""
    return (
        f'<table style="{style}"><thead><tr style="background:none">{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>{note}"
    )


def cell(tag: str, content: object, is_right: bool) -> str:
    """Return a cell, aligned to the right or left; `tag` is "th" for a header, else "td"."""
    side = "right" if is_right else "left"
    rule = LINE if tag == "th" else "0"
    style = f"text-align:{side};padding:.15em .9em .15em 0;border:0;border-bottom:{rule};{MONO}"
    style += ";vertical-align:top;color:inherit;max-width:60ch"
    return f'<{tag} style="{style}">{escape_and_clip(content, 300)}</{tag}>'


def is_number(content: object) -> bool:
    return isinstance(content, int | float) and not isinstance(content, bool)


def beside(*parts: str) -> str:
    """Return parts side by side, or one below the other where it is narrow."""
    cells = "".join(f"<div>{part}</div>" for part in parts if part)
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{cells}</div>'
    )


def heading(text: str) -> str:
    style = "font-weight:600;margin:.5em 0 .1em;font-size:12px"
    return f'<div style="{style}">{escape_and_clip(text)}</div>'
