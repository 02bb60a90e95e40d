"""The page about what frameworks give at kinks, written from `tests/versions/conventions.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path("tests/versions/conventions.json")
NAMES = {
    "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "keras": "Keras",
    "multigrad": "multigrad",
}  # fmt: skip
Cells = list[str]


def read() -> Mapping[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


def beside(data: Mapping[str, Any]) -> tuple[Cells, list[Cells]]:
    """Return the table of the newest releases beside each other: its header and rows."""
    newest = {name: each["versions"][-1] for name, each in data["frameworks"].items()}
    header = ["where", *(f"{NAMES[n]} {newest[n]}" for n in ("torch", "jax", "tensorflow"))]
    rows = []
    for words, texts in data["beside"].items():
        found = dict.fromkeys(("torch", "jax", "tf", "multigrad"), "")
        for text in texts:
            path, _, numbers = text.partition(": ")
            found[path.partition(".")[0]] = f"`{path}`: {numbers}"
        rows.append([words, *found.values()])
    return [*header, "multigrad"], rows


def differences(framework: Mapping[str, Any]) -> Iterator[Cells]:
    """Yield a row for what differs between releases of a framework."""
    for row in framework["differences"]:
        where = row["what"] if row["what"] == "value" else row["what"].replace("function", "")
        at = "; ".join(row["at"]) if row["call"] else ""
        yield [f"`{row['call'] or row['function']}`", at, where, *row["cells"]]
