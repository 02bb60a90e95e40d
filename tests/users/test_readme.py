"""The README is short, its commands are those of CI, and what it links and draws is there.

Its code is run with that of the other pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import multigrad as xg

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
MOST_LINES = 165


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


def test_the_graph_in_the_picture_is_the_one_that_is_shown() -> None:
    shown = re.sub(r" +# .*", "", xg.show("triangular"))
    for line in shown.splitlines():
        assert line.strip() in TEXT
    assert xg.show("triangular").count("=") == 6


def test_both_commands_are_those_of_tox_and_ci() -> None:
    assert "python -m pip install tox && python -m tox run -e demo" in TEXT
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "python -m pip install tox && python -m tox run" in ci


def test_every_extra_that_it_installs_is_declared() -> None:
    declared = (README.parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = {name for names in re.findall(r"'\.\[([\w,]+)\]'", TEXT) for name in names.split(",")}
    assert extras and all(re.search(rf"^{name} = \[", declared, re.MULTILINE) for name in extras)


def test_a_newcomer_reads_at_most_150_words_and_sees_a_picture_before_the_first_code() -> None:
    face = TEXT.partition("```python")[0]
    assert len(face.split()) <= 150
    pictures = re.findall(r'src(?:set)?="([^"]+)"', face)
    assert len(pictures) == 2
    assert [name for name in pictures if not (README.parent / name).is_file()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_half_a_minute_of_reading_aloud_says_what_it_is_for_and_what_goes_wrong_without(
    page: str,
) -> None:
    text = (README.parent / page).read_text(encoding="utf-8")
    text = re.sub(r"^---.*?^---", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"<[^>]*>|\{[^}]*\}|\]\([^)]*\)|[#\[]", " ", text)
    heard = " ".join(prose.split()[:75])  # at 150 words a minute
    assert "A custom gradient that is wrong raises no error" in heard
    assert re.search(r"[Ww]rite (a|the) gradient once", heard)
    assert "PyTorch, JAX, TensorFlow, Keras 3 and NumPy" in heard


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_the_picture_shows_the_formula_in_every_framework() -> None:
    from draw_front import TITLES, surrogates

    x = np.linspace(-2, 2, 9, dtype=np.float32)
    drawn = surrogates(x)
    assert list(drawn) == list(TITLES)
    for values in drawn.values():
        np.testing.assert_allclose(values, np.maximum(1 - np.abs(x), 0), rtol=1e-6)
