"""What version 0.1.0 wrote loads in every later one: the same numbers, the same document again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.functions.documents.format import format_document, hash_of

from ...data import v0_1_0 as before

Array = Any
DOCUMENTS = sorted(
    str(file.relative_to(before.HERE).with_suffix("")) for file in before.HERE.glob("*/*.json")
)
# Logistic curves and logarithms, which NumPy rounds by the processor.
ROUNDED = ("sigmoid_surrogate", "noise", "composed", "nested_composition", "activation")


@pytest.fixture(scope="module")
def numbers() -> dict[str, Array]:
    """What version 0.1.0 computed on NumPy and torch."""
    with np.load(before.HERE / "numbers.npz") as file:
        return dict(file)


def compare(found: dict[str, Array], numbers: dict[str, Array], name: str) -> None:
    """Check that all numbers of an object are those of version 0.1.0, bit for bit."""
    expected = {k.removeprefix(f"{name}/"): numbers[k] for k in numbers if k.startswith(f"{name}/")}
    assert found.keys() == expected.keys()
    for what, array in found.items():
        if name.rpartition("/")[2] in ROUNDED:
            np.testing.assert_allclose(array, expected[what], rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(array, expected[what], strict=True)


def test_the_files_are_there() -> None:
    assert len(DOCUMENTS) == 52


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_gives_the_same_numbers(numbers: dict[str, Array], name: str) -> None:
    loaded = xg.load(before.HERE / f"{name}.json")
    compare(before.compute(loaded, Path(name).name), numbers, name)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_loaded_is_saved_as_the_same_bytes(name: str, tmp_path: Path) -> None:
    file = before.HERE / f"{name}.json"
    loaded = xg.load(file)
    assert loaded.to_dict() == json.loads(file.read_bytes())
    xg.save(loaded, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_bytes())
    assert again.pop("evidence")["hash"] == hash_of(loaded.to_dict())  # which it had not
    assert format_document(again).encode() == file.read_bytes()


def test_shipped_rules_are_saved_as_the_same_graphs() -> None:
    for file in (before.HERE / "shipped").glob("*.json"):
        written = json.loads(file.read_text("utf-8"))
        assert without_lines(xg.get(file.stem).to_dict()) == without_lines(written), file.stem


def without_lines(data: Any) -> Any:
    """Return a document without the lines of its source, which move, the ranges of its params,
    which version 0.1.0 did not have, and where its prose breaks.
    """
    if isinstance(data, dict):
        return {name: without_lines(data[name]) for name in data if name not in ("at", "range")}
    if isinstance(data, str):
        return " ".join(data.split())
    return [without_lines(item) for item in data] if isinstance(data, list) else data


# What is captured otherwise since, and why; the files themselves load and are saved as they were.
CAPTURED_ANEW = {
    "in_torch": "torch's clamp gives all of its gradient at the limit, maximum half",
    "custom_vjp": "its rule calls it, but its backward reads no output: it keeps none",
    "custom_jvp": "the same",
    "derived": "its table is of float64, which NumPy makes of float32 beside it",
}


def check_again(folder: str, found: dict[str, Any], file: Path) -> None:
    """Check that objects made from their source are saved as version 0.1.0 saved them.

    All bytes are the same, but for the lines of shipped rules, where their prose breaks, and the
    ranges of their params and the evidence, which version 0.1.0 did not have.
    """
    for name, obj in found.items():
        if name in CAPTURED_ANEW:
            continue
        xg.save(obj, file)
        written = (before.HERE / folder / f"{name}.json").read_bytes()
        assert without_lines_of_ours(file.read_bytes()) == without_lines_of_ours(written), name


def without_lines_of_ours(document: bytes) -> bytes:
    document = re.sub(rb', "range": "[^"]+"', b"", document)
    document = re.sub(rb',\n  "evidence": {.*}(?=\n}\n)', b"", document, flags=re.DOTALL)
    return re.sub(rb'"transforms\.py:\d+"', b'"transforms.py"', document).replace(rb"\n", b" ")


def test_objects_of_the_same_source_are_saved_as_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "again.json"
    check_again("rules", before.rules_of_mine(), file)
    check_again("functions", before.functions_of_mine(), file)


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_objects_written_with_each_framework_are_saved_as_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "again.json"
    check_again("rules", before.rules(), file)
    check_again("functions", before.functions(), file)
