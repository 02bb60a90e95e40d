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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    all_rows = list(rows)
    body = "".join(table_row("td", row) for row in all_rows[:MAX_ROWS])
    style = (
        f"border-collapse:collapse;margin:.4em 0;font-size:12px;color:inherit;border-bottom:{LINE}"
    )
    excess = len(all_rows) - MAX_ROWS
    note = faint_paragraph(f"{excess} more rows") if excess > 0 else ""
    return (
        f'<table style="{style}"><thead>{table_row("th", header)}</thead>'
        f"<tbody>{body}</tbody></table>{note}"
    )


def table_row(tag: str, texts: Sequence[str]) -> str:
    """Return a row of cells; `tag` is "th" for a header, else "td"."""
    rule = LINE if tag == "th" else "0"
    style = f"text-align:left;padding:.15em .9em .15em 0;border:0;border-bottom:{rule};{MONO}"
    style += ";vertical-align:top;color:inherit;max-width:60ch"
    cells = (f'<{tag} style="{style}">{escape_and_clip(text, 300)}</{tag}>' for text in texts)
    return f'<tr style="background:none">{"".join(cells)}</tr>'


def beside(*parts: str) -> str:
    """Return parts side by side, or one below the other where it is narrow."""
    cells = "".join(f"<div>{part}</div>" for part in parts if part)
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">{cells}</div>'
    )


def heading(text: str) -> str:
    style = "font-weight:600;margin:.5em 0 .1em;font-size:12px"
    return f'<div style="{style}">{escape_and_clip(text)}</div>'
