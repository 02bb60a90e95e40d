"""The README's code runs, and its tables are those of the library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import multigrad as xg

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.needs("torch", "jax", "tensorflow")
def test_the_python_blocks_run_from_top_to_bottom() -> None:
    code = "\n".join(BLOCKS)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    zeros_and_ones = [re.sub(r"[^\d ]", "", line).split() for line in run.stdout.splitlines()]
    # torch, jax and TensorFlow print the same gradient.
    assert [row[:5] for row in zeros_and_ones] == [["0", "1", "1", "1", "0"]] * 3


def test_every_rule_stands_in_the_table_with_its_params_and_defaults() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| ?([^|]*?) ?\|", TEXT, flags=re.MULTILINE)
    table = {
        name: params.strip().strip("`")
        for names, params in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    library = {
        name: ", ".join(f"{key}={value!r}" for key, value in xg.get(name).params.items())
        for name in LIBRARY
    }
    assert {name: table.get(name) for name in library} == library
    assert set(library) == set(table) & set(library)


# Other tests register rules of their own in this process; the library is what a fresh one has.
LIBRARY = subprocess.run(
    [sys.executable, "-c", "import multigrad as xg; print('\\n'.join(xg.rules()))"],
    capture_output=True,
    text=True,
    check=True,
).stdout.split("\n")[:-1]


def test_the_graph_in_the_picture_is_the_one_that_is_shown() -> None:
    shown = re.sub(r" +# .*", "", xg.show("triangular"))
    for line in shown.splitlines():
        assert line.strip() in TEXT
    assert xg.show("triangular").count("=") == 6


def test_every_activation_is_named() -> None:
    from multigrad.forwards import ACTIVATIONS

    assert f"Activations: {', '.join(ACTIVATIONS)}." in TEXT


def test_both_commands_are_those_of_tox_and_ci() -> None:
    assert "python -m pip install tox && python -m tox run -e demo" in TEXT
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "python -m pip install tox && python -m tox run" in ci
