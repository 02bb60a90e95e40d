"""Importing `multigrad.keras`: eager where Keras is there, a helpful error where it is not."""

from __future__ import annotations

import pytest

from ..harness.hidden import run_python

BLOCK = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
import multigrad as xg
try:
    import multigrad.keras
except ImportError as error:
    assert isinstance(error, xg.BackendNotFound), type(error)
    print(error)
"""


def import_without(*packages: str, **environment: str) -> str:
    """Import `multigrad.keras` where these packages cannot be imported, and give what is said."""
    run = run_python("-c", BLOCK, " ".join(packages), **environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_missing_keras_names_its_install_line() -> None:
    said = import_without("keras")
    assert "Keras cannot be imported" in said
    assert "pip install 'keras>=" in said


@pytest.mark.needs("keras")
def test_a_missing_framework_of_keras_is_named() -> None:
    said = import_without("tensorflow", KERAS_BACKEND="tensorflow")
    assert "tensorflow" in said
    assert "KERAS_BACKEND" in said
