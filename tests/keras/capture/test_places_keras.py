"""Keras's functions that give or take integer places mean in a graph what they mean in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
Tensor = Any


def largest_and_places(t: Tensor) -> Tensor:
    values, places = keras.ops.top_k(t, 2)
    return values * keras.ops.cast(places, "float32")


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "a list as a tensor": lambda t: keras.ops.sum([t, keras.ops.tanh([t * 2, t])[1]], axis=0),
    "argmax": lambda t: t * keras.ops.cast(keras.ops.argmax(t, axis=1, keepdims=True), "float32"),
    "take": lambda t: keras.ops.take(t, keras.ops.argmax(t[:, :, 0], axis=1), axis=1),
    "take_along_axis of all": lambda t: (
        t * keras.ops.sum(keras.ops.take_along_axis(t, keras.ops.argmax(t[:, 0], axis=1)))
    ),
    "take_along_axis": lambda t: (
        keras.ops.take_along_axis(t, keras.ops.argsort(t, axis=1), axis=1) * 2
    ),
    "one_hot": lambda t: keras.ops.one_hot(keras.ops.argmax(t, -1), 5) * t,
    "top_k": largest_and_places,
    "argmin": lambda t: keras.ops.take(t, keras.ops.argmin(t[:, :, 0], axis=1), axis=1),
    "segment_sum": lambda t: keras.ops.segment_sum(t[:, 0, 0], keras.ops.argmax(t[:, 0], 1), 5),
    "scatter_update": lambda t: keras.ops.scatter_update(
        t, keras.ops.argsort(t[:, 0, 0])[:, None], t * 2
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_places_mean_what_they_mean_in_keras(name: str) -> None:
    expected = keras.ops.convert_to_numpy(CASES[name](keras.ops.convert_to_tensor(X)))
    result = xg.function(CASES[name], native=False)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
