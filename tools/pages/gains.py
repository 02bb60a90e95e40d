"""What conversion gives published torch gradients, counted from the committed table.

The answers stand in `tests/foreign/gains.toml`; `tests/foreign/gains.py` asks them again. README
and the page about audits show the counts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from .conversions import FOLDER

QUESTIONS = {
    "vmap": "runs under `vmap`, with the same numbers",
    "compiled": "is one graph of `torch.compile(fullgraph=True)`",
    "second derivative": "has the right second derivative",
}
HEADER = ("on torch", "as published", "`@xg.convert`")
BEGIN = "<!-- Written by `tools/write_pages.py`. -->\n"
END = "<!-- To here. -->\n"

Answers = dict[str, list[str]]


def read_gains() -> list[Answers]:
    """Return for each torch gradient the answers, before and after conversion, by question."""
    rows = tomllib.loads((FOLDER / "gains.toml").read_text(encoding="utf-8"))
    return [
        {question: answers.split(", ") for question, answers in row.items()}
        for row in rows.values()
    ]


def count_gains(rows: list[Answers]) -> Iterator[tuple[str, ...]]:
    """Yield for each question how many gradients it is true of, and of how many it is asked."""
    for question, words in QUESTIONS.items():
        asked = [row[question] for row in rows if question in row]
        before, after = (sum(each[i] == "kept" for each in asked) for i in range(2))
        yield words, f"{before} of {len(asked)}", f"{after} of {len(asked)}"
    pairs = [tuple(int(each) for each in row["bytes"]) for row in rows]
    fewer, more = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    yield "keeps fewer bytes for backward than the other does", str(more), str(fewer)


def say_lost() -> str:
    """Return how many gradients lose by conversion, in a sentence."""
    rows = read_gains()
    lost = {
        question: sum(row[question][0] == "kept" != row[question][1] for row in asked)
        for question in QUESTIONS
        if (asked := [row for row in rows if question in row])
    }
    words = [f"{count} lose `{question}`" for question, count in lost.items() if count]
    return f"A capability lost by conversion raises an error: {', '.join(words)}." if words else ""


def fill(text: str, block: str) -> str:
    """Return a page with what stands between its two marks written anew."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark and end, "README has lost the marks of its table"
    return f"{before}{BEGIN}{block}\n{END}{after}"
