"""The README's code runs, and its tables are those of the library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import multigrad as xg

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.needs("torch", "jax", "tensorflow", "keras", "optax")
def test_the_python_blocks_run_from_top_to_bottom(tmp_path: Path) -> None:
    code = "\n".join(BLOCKS)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    zeros_and_ones = [re.sub(r"[^\d ]", "", line).split() for line in run.stdout.splitlines()]
    # torch, jax and TensorFlow print the same gradient.
    assert [row[:5] for row in zeros_and_ones[:3]] == [["0", "1", "1", "1", "0"]] * 3
    # What is printed stands behind the call, or on the lines below it.
    promised = re.findall(r"print\(.*\)  # (.*)", code) + re.findall(
        r"^# (?!before)(.*)", code, re.MULTILINE
    )
    assert len(promised) == 21
    printed = [line.strip() for line in run.stdout.splitlines()]
    assert [line for line in promised if line.strip() not in printed] == []


@pytest.mark.needs("torch", "jax")
def test_the_errors_in_the_table_are_those_that_are_raised() -> None:
    import torch

    rows = re.findall(r"^\| `(xg\..*)` \| `(\w+Error|UnsupportedOp): (.*)` \|$", TEXT, re.MULTILINE)
    assert len(rows) == 5
    for written, kind, message in rows:
        with pytest.raises(xg.MultigradError, match=f"^{re.escape(message)}") as raised:
            eval(written, {"xg": xg, "np": np, "torch": torch})
        assert type(raised.value).__name__ == kind


@pytest.mark.needs("torch")
def test_every_switch_of_a_fast_kernel_that_is_named_exists() -> None:
    from multigrad.backend.discovery import load_backend

    words = re.findall(r'(?:without\("|MULTIGRAD_WITHOUT=)([\w.,]+)', TEXT)
    named = {name for word in words for name in word.split(",")}
    rows = {
        row.name for name in ("numpy", "torch") for row in load_backend(name).kernels.fast.patterns
    }
    assert named and named <= rows


@pytest.mark.needs("typer", "rich")
def test_every_option_of_the_command_that_is_named_exists() -> None:
    lines = re.findall(r"^multigrad (.*)", TEXT, re.MULTILINE)
    lines += re.findall(r"`multigrad ([^`]*)`", TEXT)
    assert len(lines) > 5
    for line in lines:
        command, *words = line.partition("#")[0].split()
        run = subprocess.run(
            [sys.executable, "-m", "multigrad.cli", command, "--help"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert run.returncode == 0, f"multigrad {command}"
        for word in words:
            assert not word.startswith("--") or word in run.stdout, line


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
        if "." not in name
    }
    assert {name: table.get(name) for name in library} == library
    assert set(library) == set(table) & set(library)


def test_every_package_whose_surrogates_there_are_is_named_with_their_number() -> None:
    counts = Counter(name.partition(".")[0] for name in LIBRARY if "." in name)
    listed = re.findall(r"`(\w+)` \((\d+)\)", " ".join(TEXT.split()))
    assert {name: int(number) for name, number in listed} == counts


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
    from multigrad.lowering.forwards import ACTIVATIONS

    assert f"Activations: {', '.join(ACTIVATIONS)}." in TEXT


def test_both_commands_are_those_of_tox_and_ci() -> None:
    assert "python -m pip install tox && python -m tox run -e demo" in TEXT
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "python -m pip install tox && python -m tox run" in ci


def test_every_page_that_is_linked_is_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", TEXT)
    assert len(links) >= 4
    assert [link for link in links if not (README.parent / link).is_file()] == []
