"""Everyday expressions come out of a capture in the dtype and with the value of the library."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from ...dtypes import everyday, table
from ...support.sampling import WHOLE

PART = 1.0 if WHOLE else 0.3  # of each share below
# Of the cases: all where they are quick, a share where each compiles.
SHARES = {"numpy": 1.0, "torch": 0.4, "tensorflow": 0.1, "jax": 0.05}
# Of the names, and of the cases of each.
SHARES_OF_NAMES = {
    "numpy": (0.2, 0.05),
    "torch": (0.1, 0.05),
    "tensorflow": (0.1, 0.03),
    "jax": (0.05, 0.01),
}


def in_64_bits(name: str) -> Any:
    if name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_everyday_expressions_have_the_librarys_dtype_and_value(backend: Any) -> None:
    with in_64_bits(backend.name):
        outcome = everyday.run(backend.name, PART * SHARES[backend.name])
    assert outcome.differing == []
    tried = outcome.counts["equal"] + outcome.counts["refused"]
    assert outcome.counts["refused"] <= 0.05 * tried, outcome.refused


@pytest.mark.backends("numpy", "torch", "jax", "tensorflow")
@pytest.mark.filterwarnings("ignore")
def test_captured_names_are_equal_to_the_librarys_or_refused(backend: Any) -> None:
    with in_64_bits(backend.name):
        names, share = SHARES_OF_NAMES[backend.name]
        outcome = table.run(backend.name, share, PART * names)
    assert outcome.differing == []
    assert outcome.counts["equal"] > 0
