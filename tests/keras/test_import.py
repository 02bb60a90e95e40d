"""Importing `multigrad.keras` where Keras is there, and its framework is not: a helpful error.

Without Keras it is one of `tests/project/test_packaging.py`.
"""

from __future__ import annotations

import pytest

from ..harness.hidden import python

BLOCK = """
import sys
sys.modules["tensorflow"] = None
import multigrad as xg
try:
    import multigrad.keras
except ImportError as error:
    assert isinstance(error, xg.BackendNotFound), type(error)
    print(error)
"""


@pytest.mark.needs("keras")
def test_a_missing_framework_of_keras_is_named() -> None:
    said = python("-c", BLOCK, KERAS_BACKEND="tensorflow")
    assert "tensorflow" in said
    assert "KERAS_BACKEND" in said
