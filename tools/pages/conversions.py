"""The page about other people's custom gradients, written from the committed table of the corpus.

The table stands in `tests/foreign`, and `tests/foreign/run.py` holds the packages to it; the page
needs none of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multigrad.errors import MultigradError

FOLDER = Path("tests/foreign")
BACKENDS = ("numpy", "torch", "jax", "tensorflow")
EQUAL, AS_IT_IS = "equal", "as it is"
KINDS = {
    "torch custom gradient": "`torch.autograd.Function` classes",
    "jax custom gradient": "jax's `custom_vjp`, `custom_jvp` and `custom_gradient` functions",
    "tensorflow custom gradient": "`tf.custom_gradient` functions",
}
INSIDE = "functions that apply one"
OF_USERS = "inside"  # the section of functions that no package holds


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the corpus, as it is committed.

    Attributes:
        verdicts: the verdict by backend; "kind" is what it is.
    """

    package: str
    name: str
    inputs: str
    verdicts: Mapping[str, str]

    @property
    def kind(self) -> str:
        return KINDS.get(self.verdicts.get("kind", ""), INSIDE)

    @property
    def is_equal(self) -> bool:
        return all(self.state_on(name) == EQUAL for name in BACKENDS)

    def state_on(self, backend: str) -> str:
        return self.verdicts.get(backend, "not run").partition(": ")[0]

    @property
    def summary(self) -> str:
        """The verdicts, what several backends share once."""
        if self.is_equal:
            return EQUAL
        groups: dict[str, list[str]] = {}
        for name in BACKENDS:
            groups.setdefault(self.state_on(name), []).append(name)
        return "; ".join(f"{state} on {', '.join(names)}" for state, names in groups.items())

    @property
    def reason(self) -> str:
        """The first reason why one of them does not convert it."""
        for name in BACKENDS:
            state, _, reason = self.verdicts.get(name, "").partition(": ")
            if reason and state not in (EQUAL, AS_IT_IS):
                return reason
        return ""


def read_rows() -> list[Row]:
    try:
        cases, expected = (
            tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
            for name in ("cases.toml", "expected.toml")
        )
    except FileNotFoundError as error:
        raise MultigradError(
            f"{error.filename} is not here; the page about conversions is written in the "
            "project's own folder"
        ) from error
    return [
        Row(package, name, inputs, expected[name])
        for package, names in cases.items()
        for name, inputs in names.items()
        if name in expected
    ]


def count_equal(rows: Sequence[Row]) -> str:
    equal = sum(row.is_equal for row in rows)
    return f"{equal} of {len(rows)}"


def count_by(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """Return rows by a name for each, in the order of their first ones."""
    groups: dict[str, list[Row]] = {}
    for row, name in zip(rows, names, strict=True):
        groups.setdefault(name, []).append(row)
    return groups


# --- what conversion gives ------------------------------------------------------------------------
# The answers stand in `tests/foreign/gains.toml`; `tests/foreign/gains.py` asks them again. README
# and the page about audits show the counts.


QUESTIONS = {
    "vmap": "runs under `vmap`, with the same numbers",
    "compiled": "is one graph of `torch.compile(fullgraph=True)`",
    "second derivative": "has the right second derivative",
}
GAINS_HEADER = ("on torch", "as published", "`@xg.convert`")

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
