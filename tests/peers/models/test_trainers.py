"""The examples of trainers, each in a process of its own, with the real package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[2] / "examples" / "trainers"
RUN = "import runpy, sys, declare_ops; runpy.run_path(sys.argv[1], run_name='__main__')"


def run_example(name: str, folder: Path, **environment: str) -> str:
    """Run one example; its output, once it has ended well."""
    paths = [str(HERE), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(EXAMPLES / name)],
        check=False,
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def read_rows(output: str) -> list[list[float]]:
    """Return the numbers of the line without rules, and of that with them."""
    lines = [line for line in output.splitlines() if line.startswith("rules ")]
    return [[float(n) for n in re.findall(r"\d+\.\d+", line)] for line in lines]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("lightning_fit.py", marks=pytest.mark.needs("lightning")),
        pytest.param("accelerate_loop.py", marks=pytest.mark.needs("accelerate")),
        pytest.param("flax_optax.py", marks=pytest.mark.needs("flax")),
        pytest.param("equinox_optax.py", marks=pytest.mark.needs("equinox")),
    ],
)
def test_a_network_without_gradients_learns_once_rules_are_on_it(name: str, tmp_path: Path) -> None:
    (_, still), (accuracy, moved) = read_rows(run_example(name, tmp_path))
    assert still == 0.0 < moved
    assert accuracy > 0.85


@pytest.mark.parametrize("keras_backend", ["torch", "jax", "tensorflow"])
def test_keras_fits_a_network_without_gradients_and_keeps_its_weights(
    keras_backend: str, tmp_path: Path
) -> None:
    output = run_example("keras_fit.py", tmp_path, KERAS_BACKEND=keras_backend)
    (_, still), (accuracy, moved) = read_rows(output)
    assert still == 0.0 < moved
    assert accuracy > 0.85
    assert output.count("the same weights: True") == 2


@pytest.mark.needs("transformers", "accelerate")
def test_a_transformer_of_hugging_face_trains_under_rules(tmp_path: Path) -> None:
    output = run_example("hugging_face.py", tmp_path)
    (without,), (within,) = read_rows(output)
    assert without != within < 2.3
    assert output.count("the same names of weights: True") == 2
    assert "gelu" in output
