"""`x += y` and its like: in place where the library's own is, whatever the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

OPERATORS = ("+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "<<=", ">>=", "&=", "|=", "^=")
pytestmark = pytest.mark.backends("torch", "numpy", "jax", "tensorflow")


def made(library: str, operator: str) -> Any:
    """Return a function that updates what another name holds, too."""
    other = "y * 0 + 2" if operator == "@=" else 2
    source = f"def f(x):\n    y = x * 1\n    z = y\n    y {operator} {other}\n    return z + y\n"
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 (it stands above)
    return names["f"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_augmented_assignment_reaches_other_names_as_in_the_library(
    operator: str, backend: Any
) -> None:
    function = made(backend.name, operator)
    captured = xg.function(
        function, lambda g, x: None, native=False, prove=False, dialect=backend.name
    )
    for array in (np.array([[3, 5], [7, 9]], np.int32), np.array([[3, 5], [7, 9]], np.float32)):
        try:
            expected = backend.numpy(function(backend.array(array)))
        except Exception:  # noqa: BLE001, S112  (the library's own refuses it)
            continue
        found = backend.numpy(captured(backend.array(array)))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.backends("torch")
def test_an_augmented_assignment_to_a_number_leaves_other_names_of_it(backend: Any) -> None:
    def scaled(x: Any) -> Any:
        number = x.sum().item()
        before = number
        number += 1
        return x * before + number

    captured = xg.function(scaled, lambda g, x: g, native=False)
    x = backend.array(np.array([2.0, 3.0]))
    np.testing.assert_array_equal(backend.numpy(captured(x)), backend.numpy(scaled(x)))
