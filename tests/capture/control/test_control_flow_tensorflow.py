"""TensorFlow's loops and branches that are functions: unrolled, or all ways and a choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
X = np.array([0.5, -1.25, 2.0], np.float32)


def by_an_integer(x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.sin(y) * x), (0, x))[1]


def by_a_cast_number(x: Any) -> Any:
    def step(n: Any, y: Any) -> Any:
        return n - 1.0, y + tf.sin(n * x)

    start = (tf.cast(5, x.dtype), tf.zeros_like(x))
    return tf.while_loop(lambda n, *_: n > 0.0, step, start)[1]


def by_a_length(x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < tf.shape(x)[0], lambda i, y: (i + 1, y * x), (0, x))[1]


def of_a_closure(x: Any) -> Any:
    start = (tf.constant(0), tf.constant(1.0))
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * x), start)[1]


def so_many_times(x: Any) -> Any:
    return tf.while_loop(lambda y: True, lambda y: [y * y], [x], maximum_iterations=3)[0]


def of_version_1(x: Any) -> Any:
    def step(y: Any) -> Any:
        return y * y

    y = tf.compat.v1.while_loop(lambda y: True, step, [x], maximum_iterations=2)
    return tf.compat.v1.cond(tf.reduce_sum(y) > 9, lambda: [y], lambda: [3 * y])


def root_or_triple(x: Any) -> Any:
    total = tf.reduce_sum(x)
    return tf.cond(total > 100, lambda: tf.sqrt(total - 100), lambda: total * 3.0)


def nested(x: Any) -> Any:
    def positive() -> Any:
        return tf.cond(x[0] > 1, lambda: tf.math.log(x[0] - 1), lambda: tf.exp(x[0]))

    return tf.cond(tf.reduce_sum(x) > 0, positive, lambda: tf.sqrt(-x[1]))


def of_pairs(x: Any) -> Any:
    a, b = tf.cond(x[0] > x[1], lambda: (x, 2.0 * x), lambda: (tf.sin(x), x))
    return a * b


def one_of_three(x: Any) -> Any:
    which = tf.cast(tf.round(tf.reduce_sum(x)), tf.int32)
    return tf.switch_case(which, [lambda: x, lambda: x * x, lambda: tf.math.log(x + 0.25)])


def with_a_default(x: Any) -> Any:
    which = tf.cast(tf.round(tf.reduce_sum(x)), tf.int32)
    return tf.switch_case(which, {0: lambda: x, 1: lambda: x * x}, lambda: tf.exp(x))


def by_a_fact(x: Any) -> Any:
    return tf.cond(tf.rank(x) > 1, lambda: x, lambda: tf.sin(x))


FUNCTIONS = [
    by_an_integer, by_a_cast_number, by_a_length, of_a_closure, so_many_times, of_version_1,
    root_or_triple, nested, of_pairs, one_of_three, with_a_default, by_a_fact,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_it_means_what_it_means_in_tensorflow(function: Callable[..., Any], sign: int) -> None:
    assert_as_in("tensorflow", function, sign * X)


def test_a_branch_that_is_not_taken_gives_no_nan() -> None:
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        y = xg.function(root_or_triple, native=False)(x)
    np.testing.assert_array_equal(tape.gradient(y, x), [3, 3, 3])


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "by values": (
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 10, lambda y: [y + 1], [x])[0],
        "derivative of a loop that goes on by values",
    ),
    "too many turns": (
        lambda x: tf.while_loop(lambda i, y: i < 9000, lambda i, y: (i + 1, y / 2), (0, x))[1],
        "at most 5000 operations",
    ),
    "too many operations": (
        lambda x: tf.while_loop(
            lambda i, y: i < 400,
            lambda i, y: (i + 1, sum([tf.sin(y * k) for k in range(9)])),
            (0, x),
        )[1],
        "at most 5000 operations",
    ),
    "other shapes": (
        lambda x: tf.cond(x[0] > 0, lambda: x, lambda: tf.reduce_sum(x)),
        "return the shapes",
    ),
    "other dtypes": (lambda x: tf.cond(x[0] > 0, lambda: x, lambda: x > 0), "return the dtypes"),
    "by a mask": (lambda x: tf.cond(x > 0, lambda: x, lambda: 2 * x), "use tf.where"),
    "without a gradient": (
        lambda x: tf.while_loop(lambda y: True, lambda y: [y], [x], back_prop=False)[0],
        "tf.stop_gradient",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_do_is_refused_with_the_line(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(xg.TraceError, match=rf"test_control_flow_tensorflow.py:\d+.*{reason}"):
        xg.function(function, native=False)(X)
