"""TensorFlow's convolutions and pooling mean in a graph what they mean in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...harness.own_library import X, assert_as_in

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
RNG = np.random.default_rng(5)
LINE, PICTURE, SOLID = (2, 11, 4), (2, 9, 8, 4), (1, 5, 6, 4, 2)
EXPLICIT = [[0, 0], [1, 2], [0, 1], [0, 0]]
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    **{
        f"resize, {method}, {size}": (
            lambda x, m=method, s=size: tf.image.resize(x, s, m, antialias=s == (4, 3)),
            (PICTURE,),
        )
        for method in ("nearest", "bilinear", "bicubic")
        for size in ((18, 8), (4, 3), [13, 1])
    },
    "conv1d": (lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), (LINE, (3, 4, 5))),
    "conv2d": (lambda x, w: tf.nn.conv2d(x, w, [1, 2, 1, 1], "VALID"), (PICTURE, (3, 2, 4, 6))),
    "explicit": (
        lambda x, w: tf.nn.conv2d(x, w, strides=1, padding=EXPLICIT), (PICTURE, (3, 2, 4, 6))
    ),
    "conv3d": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), (SOLID, (2, 3, 1, 2, 3))),
    "convolution": (
        lambda x, w: tf.nn.convolution(x, w, padding="SAME", dilations=(2, 1)),
        (PICTURE, (3, 2, 4, 6)),
    ),
    "of a line": (lambda x, w: tf.nn.convolution(x, w), (LINE, (3, 4, 5))),
    "depthwise_conv2d": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"), (PICTURE, (3, 3, 4, 2))
    ),
    "conv2d_transpose": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 18, 16, 3], 2, "SAME"),
        (PICTURE, (3, 3, 3, 4)),
    ),
    "max_pool2d": (lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), (PICTURE,)),
    "avg_pool2d": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), (PICTURE,)),
    "avg_pool1d": (lambda x: tf.nn.avg_pool1d(x, 2, 2, "VALID"), (LINE,)),
    "max_pool3d": (lambda x: tf.nn.max_pool3d(x, 2, 1, "VALID"), (SOLID,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_it_means_in_tensorflow(name: str) -> None:
    function, shapes = CASES[name]
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_as_in("tensorflow", function, *arrays)


# TensorFlow's functions that give or take integer places mean in a graph what they mean there.


Tensor = Any


def largest_and_places(t: Tensor) -> Tensor:
    found = tf.math.top_k(t, 2)
    return found.values * tf.cast(found.indices, t.dtype)


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "a list as a tensor": lambda t: tf.reduce_sum([t, tf.tanh([t * 2, t])[1]], axis=0),
    "lists as a tensor": lambda t: (
        t * tf.exp([[t[0, 0, 0], t[0, 1, 0]], [t[1, 0, 0], t[0, 0, 1]]])[0, 1]
    ),
    "argmax": lambda t: t * tf.cast(tf.argmax(t, axis=1)[:, None], t.dtype),
    "taken in order": lambda t: tf.gather(
        t, tf.argsort(t, axis=-1, direction="DESCENDING"), batch_dims=2
    ),
    "gather": lambda t: tf.gather(t, tf.argmax(t[:, :, 0], axis=1), axis=1),
    "gather by rows": lambda t: tf.gather(t, tf.argsort(t[:, :, 0], axis=1)[:, :2], batch_dims=1),
    "gather one of each row": lambda t: tf.gather(t, tf.argmax(t[:, :, 0], axis=1), batch_dims=1),
    "gather_nd": lambda t: tf.gather_nd(
        t, tf.stack([tf.argmax(t[:, :, 0], axis=1) % 3, tf.argmax(t[:, :, 1], axis=1)], -1)
    ),
    "top_k": largest_and_places,
    "one_hot": lambda t: tf.one_hot(tf.argmax(t, -1), 5) * t,
    "scatter_nd": lambda t: tf.scatter_nd(tf.argmax(t[:, 0], axis=1)[:, None], t[:, 0, 0], [5]),
    "tensor_scatter_nd_add": lambda t: tf.tensor_scatter_nd_add(
        t, tf.argmax(t[:, :, 0], axis=1)[:, None] % 3, t * 2
    ),
    "tensor_scatter_nd_update": lambda t: tf.tensor_scatter_nd_update(
        t, tf.argsort(t[:, 0, 0])[:, None], t * 2
    ),
    "unsorted_segment_sum": lambda t: tf.math.unsorted_segment_sum(
        t[:, 0, 0], tf.argmax(t[:, 0], 1), 5
    ),
    "sparse cross entropy": lambda t: tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.argmax(t, -1), t * 2
    ),
    "cast": lambda t: t * tf.cast(tf.cast(t * 3, tf.int64), tf.float32),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_mean_what_they_mean_in_tensorflow(name: str) -> None:
    assert_as_in("tensorflow", PLACES[name], X, atol=1e-6)
