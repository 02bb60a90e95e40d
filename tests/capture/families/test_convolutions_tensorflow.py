"""TensorFlow's convolutions and pooling mean in a graph what they mean in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...harness.own_library import assert_as_in

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
