"""TensorFlow's functions that give or take integer places mean in a graph what they mean there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...harness.own_library import assert_as_in
from ...harness.places import X

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
Tensor = Any


def largest_and_places(t: Tensor) -> Tensor:
    found = tf.math.top_k(t, 2)
    return found.values * tf.cast(found.indices, t.dtype)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
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


@pytest.mark.parametrize("name", CASES)
def test_places_mean_what_they_mean_in_tensorflow(name: str) -> None:
    assert_as_in("tensorflow", CASES[name], X, atol=1e-6)
