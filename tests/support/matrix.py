"""The table of what works with what, and the page that shows it.

A backend is one file here, `in_NAME.py`: `TRANSFORMS` (how it applies each) and `EXCEPTIONS` (where
a cell is not just "works"). `tests/users/test_support.py` runs every cell and holds it to
what is declared; `python -m tests.support.matrix` writes docs/support.md from the same rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from . import kinds
from .declared import NONLINEAR, OF_ALL, Cells
from .kinds import GRAD_OUT, KINDS, Kind, NotApplicable, gradient_of, second_of, tangent_of

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "support.md"
# In the order of the page; a new backend's file comes last by itself.
FIRST = ("torch", "jax", "tensorflow", "keras", "mlx", "numpy")
TOLERANCE = {"bfloat16": 2e-2, "autocast": 2e-2}


def backends() -> list[str]:
    found = {path.stem.removeprefix("in_") for path in FOLDER.glob("in_*.py")}
    return [*(name for name in FIRST if name in found), *sorted(found - set(FIRST))]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a backend's file declares.

    Attributes:
        here: the transforms that tests/users/test_support.py runs, with what each needs besides.
        devices: those that run on several devices, in the processes of tests/ranks.
        exceptions: where a cell is not just "works".
    """

    here: dict[str, tuple[str, ...]]
    devices: list[str]
    exceptions: list[Cells]

    @property
    def transforms(self) -> list[str]:
        return [*self.here, *self.devices]


@cache
def rows_of(backend: str) -> Rows:
    """Return what a backend's file declares, read from its source: no framework is imported."""
    source = (FOLDER / f"in_{backend}.py").read_text(encoding="utf-8")
    found: dict[str, Any] = {"ON_DEVICES": [], "EXCEPTIONS": [], "NEEDS": {}}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = getattr(target, "id", "")
        if name in ("TRANSFORMS", "ON_DEVICES") and isinstance(node.value, ast.Dict):
            found[name] = [ast.literal_eval(key) for key in node.value.keys]
        elif name in found:
            names = {"Cells": Cells, "NONLINEAR": NONLINEAR}
            found[name] = eval(compile(ast.Expression(node.value), name, "eval"), names)
    here = {name: found["NEEDS"].get(name, ()) for name in found["TRANSFORMS"]}
    return Rows(here, found["ON_DEVICES"], [*OF_ALL, *found["EXCEPTIONS"]])


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield backend, transform and kind of every cell."""
    for backend in backends():
        for transform in rows_of(backend).transforms:
            for kind in KINDS:
                yield backend, transform, kind


def declared(backend: str, transform: str, kind: str) -> Cells | None:
    """Return what is declared of a cell; None: it works."""
    rows = rows_of(backend).exceptions
    return next((row for row in rows if row.covers(transform, kind)), None)


def wrong(backend: str, transform: str) -> dict[str, str]:
    """Return how the cells of a row differ from what is declared of them, by kind."""
    return {kind: said for kind in KINDS if (said := outcome(backend, transform, kind))}


def outcome(backend: str, transform: str, kind: str) -> str:
    """Return how a cell differs from what is declared of it; "" where it does not."""
    row = declared(backend, transform, kind)
    try:
        said = run(backend, transform, KINDS[kind])
    except NotApplicable:
        return "" if row and row.absent else "has no meaning"
    except Exception as error:  # noqa: BLE001
        is_said = row and type(error).__name__ == row.error and row.text in str(error)
        return "" if is_said else f"{type(error).__name__}: {error}"
    return "is not refused" if row and row.error else said


def run(backend: str, transform: str, kind: Kind) -> str:
    """Run a cell and return what is wrong with its numbers, "" where nothing is.

    Raises:
        NotApplicable: the transform has no meaning for that kind.
    """
    module = import_module(f"{__package__}.in_{backend}")
    kinds.FRAMEWORK[0] = import_module("keras").backend.backend() if backend == "keras" else backend
    given, expected = {**module.TRANSFORMS, **getattr(module, "ON_DEVICES", {})}[transform](kind)
    given = np.asarray(given)
    if not np.isfinite(given).all():
        return f"{given} is not finite"
    if is_drawn(kind, expected):
        whole = np.broadcast_to(GRAD_OUT, given.shape)
        return "nothing was drawn" if np.allclose(given, whole) else ""
    tolerance = TOLERANCE.get(transform, 2e-3)
    wanted = np.zeros(4) if kind.meaning is None and expected is second_of else expected(kind)
    if np.allclose(given, wanted, rtol=tolerance, atol=tolerance):
        return ""
    return f"{given}, expected {wanted}"


def is_drawn(kind: Kind, expected: Any) -> bool:
    """Return whether what must come out is known only to be drawn."""
    return expected == "drawn" or (kind.meaning is None and expected in (gradient_of, tangent_of))


# --- the page -------------------------------------------------------------------------------------

TITLES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "keras": "Keras, on each of its backends",
    "mlx": "MLX",
    "numpy": "NumPy",
}
INTRODUCTION = """\
# What works with what

<!-- Written by `python -m tests.support.matrix`; change a file of tests/support instead. -->

A test runs every cell on four numbers and compares the result with the rule's meaning: the result
of calling the rule itself on NumPy, or, for second derivatives, finite differences of that. So a
cell that works gives the right numbers, and does not merely run without an error.

- **yes**: works.
- **yes (1)**: works, with a note below the table.
- **no (2)**: refused with an error, quoted below the table. Nothing is silently wrong.
- **-**: not applicable to that kind.

Rows on several devices run on two processes of PyTorch, four devices of JAX and two of TensorFlow,
all on CPUs. MLX runs in a separate environment.

The kinds of rules:
"""


def render() -> str:
    kinds = "\n".join(f"| {kind.name} | {kind.example} |" for kind in KINDS.values())
    parts = [INTRODUCTION, f"| kind | example |\n| --- | --- |\n{kinds}", *overview()]
    for backend in backends():
        parts += section(backend)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def overview() -> Iterator[str]:
    """Yield the table of transforms by backends."""
    names = backends()
    transforms = list(dict.fromkeys(each for name in names for each in rows_of(name).transforms))
    head = " | ".join(TITLES.get(name, name).partition(",")[0] for name in names)
    lines = [f"| transform | {head} |", "| --- |" + " --- |" * len(names)]
    for transform in transforms:
        counts = " | ".join(counted(name, transform) for name in names)
        lines.append(f"| {transform} | {counts} |")
    yield "## At a glance"
    yield (
        f"How many of the {len(KINDS)} kinds work, if the transform applies to them; an empty "
        "cell means that the framework has no such transform, or that it is in another row."
    )
    yield "\n".join(lines)


def counted(backend: str, transform: str) -> str:
    """Return how many kinds work with a transform."""
    if transform not in rows_of(backend).transforms:
        return ""
    found = [declared(backend, transform, kind) for kind in KINDS]
    meant = [each for each in found if not (each and each.absent)]
    works = [each for each in meant if not (each and each.error)]
    return "all" if works == meant else f"{len(works)}&nbsp;of&nbsp;{len(meant)}"


def section(backend: str) -> Iterator[str]:
    transforms = rows_of(backend).transforms
    texts: list[str] = []
    yield f"## {TITLES.get(backend, backend)}"
    lines = ["| | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    for transform in transforms:
        marks = [mark(declared(backend, transform, kind), texts) for kind in KINDS]
        lines.append(f"| {transform} | " + " | ".join(marks) + " |")
    yield "\n".join(lines)
    if texts:
        yield "\n".join(f"{i}. {text}" for i, text in enumerate(texts, 1))


def mark(row: Cells | None, texts: list[str]) -> str:
    """Return a cell, and note its text below the table."""
    if row is None:
        return "yes"
    if row.absent:
        return "-"
    text = row.written()
    if text not in texts:
        texts.append(text)
    return f"{'no' if row.error else 'yes'} ({texts.index(text) + 1})"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
