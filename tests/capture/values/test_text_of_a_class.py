"""A word is looked for in the class of a tensor, which is one of several: what holds of each is
known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("tensorflow")
X = np.array([0.5, -1.0], np.float32)


def is_keras_s(x: Any) -> Any:
    return x * 2 if "KerasTensor" in str(type(x)) else x * 3


def is_a_tensor(x: Any) -> Any:
    return x * 3 if "tensor" in repr(type(x)).lower() and "Tensor" in repr(type(x)) else x * 2


def is_eager(x: Any) -> Any:
    return x * 2 if "Eager" in repr(type(x)) else x * 3


def is_named(x: Any) -> Any:
    return x * 2 if str(type(x)) == "a" else x * 3


def test_a_word_in_none_or_all_is_known() -> None:
    np.testing.assert_array_equal(captured(is_keras_s)(X), 3 * X)


@pytest.mark.parametrize("function", [is_eager, is_named, is_a_tensor])
def test_what_holds_of_some_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(xg.TraceError, match=r"the class of a tensor"):
        captured(function)(X)


def captured(function: Callable[[Any], Any]) -> Any:
    return xg.function(function, native=False, dialect="tensorflow")
