"""The page about other people's custom gradients, written from the committed table of the corpus.

The table stands in `tests/foreign`, and `tests/foreign/run.py` holds the packages to it; the page
needs none of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
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
        """What it is, in words."""
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
    """Return the committed table."""
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
