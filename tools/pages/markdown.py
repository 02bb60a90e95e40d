"""Markdown of the written pages: a page, tables, lists of meanings, code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BEGIN = "<!-- Written by `tools/write_pages.py`. -->\n"  # and by hand around this part
END = "<!-- To here. -->\n"
NOTICE = "<!-- Written by `tools/write_pages.py`; its sentences are in `tools/pages/`. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE, *parts]) + "\n"


def fill(text: str, part: str) -> str:
    """Return a page that is written by hand with the part between its two marks written anew."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark and end, "the page has lost the marks of its written part"
    return f"{before}{BEGIN}{part}\n{END}{after}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines)


def bullets(meanings: Mapping[str, str]) -> str:
    return "\n".join(f"- **{word}**: {text}." for word, text in meanings.items())


def escape(text: str) -> str:
    """Return text that does not end a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
