"""Keras's convolutions and pooling mean in a graph what they mean in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...dtypes.names import assert_as_the_librarys

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
RNG = np.random.default_rng(6)
PICTURE = (2, 9, 8, 4)
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv": (lambda x, w: keras.ops.conv(x, w, 2, "same"), (PICTURE, (3, 2, 4, 6))),
    "conv, dilated": (
        lambda x, w: keras.ops.conv(x, w, dilation_rate=(2, 1)), (PICTURE, (3, 2, 4, 6))
    ),
    "depthwise_conv": (
        lambda x, w: keras.ops.depthwise_conv(x, w, 1, "same"), (PICTURE, (3, 3, 4, 2))
    ),
    "separable_conv": (
        lambda x, d, p: keras.ops.separable_conv(x, d, p, 1, "valid"),
        (PICTURE, (3, 3, 4, 1), (1, 1, 4, 5)),
    ),
    "conv_transpose": (
        lambda x, w: keras.ops.conv_transpose(x, w, 2, "same"), (PICTURE, (3, 3, 3, 4))
    ),
    "conv_transpose, valid": (
        lambda x, w: keras.ops.conv_transpose(x, w, 3, "valid"), (PICTURE, (2, 2, 3, 4))
    ),
    "max_pool": (lambda x: keras.ops.max_pool(x, 3, 2, "same"), (PICTURE,)),
    "average_pool": (lambda x: keras.ops.average_pool(x, 3, 1, "same"), (PICTURE,)),
    "average_pool, wider at one end": (
        lambda x: keras.ops.average_pool(x, 2, 1, "same"), (PICTURE,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_it_means_in_keras(name: str) -> None:
    function, shapes = CASES[name]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_as_the_librarys("keras", f"{name}()", function, arrays)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.Conv2D(5, 3, strides=2, padding="same", activation="relu"),
        lambda: keras.layers.DepthwiseConv2D(3, padding="same"),
        lambda: keras.layers.SeparableConv2D(5, 3, activation="tanh"),
        lambda: keras.layers.Conv2DTranspose(3, 2, strides=2),
        lambda: keras.layers.MaxPooling2D(2),
        lambda: keras.layers.AveragePooling2D(2),
        lambda: keras.layers.GlobalAveragePooling2D(),
    ],
)
def test_layers_of_pictures_are_functions_of_their_input(make: Callable[[], Any]) -> None:
    layer = make()
    x = RNG.normal(size=PICTURE).astype(np.float32)
    expected = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x)))
    np.testing.assert_allclose(xg.function(layer)(x), expected, rtol=1e-4, atol=1e-5)


# Keras's functions that give or take integer places mean in a graph what they mean in Keras.


X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
Tensor = Any


def largest_and_places(t: Tensor) -> Tensor:
    values, places = keras.ops.top_k(t, 2)
    return values * keras.ops.cast(places, "float32")


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
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


@pytest.mark.parametrize("name", PLACES)
def test_places_mean_what_they_mean_in_keras(name: str) -> None:
    expected = keras.ops.convert_to_numpy(PLACES[name](keras.ops.convert_to_tensor(X)))
    result = xg.function(PLACES[name], native=False)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
