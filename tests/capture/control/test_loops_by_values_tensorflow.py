"""TensorFlow's loops that values end, on every backend; what a turn may not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
X = np.array([0.5, 9.0, -3.0, 100.0])


def halved(x: Any) -> Any:
    """As TensorFlow Probability writes them: who has ended is told by bools that are carried."""

    def turn(stop: Any, y: Any, n: Any, least: Any) -> Any:
        y = tf.where(stop, y, y / 2)
        return y < least, y, n + 1, least

    start = (tf.zeros_like(x, dtype=tf.bool), x, 0, 1.0)
    _, y, n, _ = tf.while_loop(lambda stop, *_: tf.reduce_any(~stop), turn, start)
    return y * tf.cast(n, y.dtype)


def at_most(x: Any) -> Any:
    """No more turns than that, the first one known."""

    def turn(goes_on: Any, y: Any) -> Any:
        return tf.reduce_max(y) > 1, {"y": y["y"] * 0.5} if isinstance(y, dict) else y * 0.5

    return tf.while_loop(lambda go, _: go, turn, (True, x), maximum_iterations=3)[1]


def of_a_structure(x: Any) -> Any:
    """A structure is carried, a single one as it is."""

    def turn(state: Any) -> Any:
        return ({"y": state["y"] * 0.5, "sum": state["sum"] + tf.reduce_sum(state["y"])},)

    start = ({"y": x, "sum": 0.0},)
    (state,) = tf.while_loop(lambda state: tf.reduce_max(state["y"]) > 1, turn, start)
    return state["y"] + state["sum"]


def with_sign(function: Callable[..., Any]) -> Any:
    return xg.function(function, lambda g, x: g * tf.sign(x), native=False)


@pytest.mark.parametrize("function", [halved, at_most, of_a_structure], ids=lambda f: f.__name__)
def test_a_loop_gives_what_it_gives_in_tensorflow(backend: Any, function: Any) -> None:
    own = with_sign(function)
    for dtype in ("float32", "float64"):
        x = X.astype(dtype)
        result, gradient = backend.vjp(own, x, np.ones_like(x))
        assert result.dtype == dtype
        np.testing.assert_allclose(result, function(tf.constant(x)), rtol=1e-6)
        np.testing.assert_array_equal(gradient, np.sign(x))


def test_a_length_that_is_not_known_stays_so_in_the_loop() -> None:
    own = with_sign(halved)
    compiled = tf.function(lambda x: own(x), input_signature=[tf.TensorSpec([None], tf.float32)])
    x = X.astype("float32")
    np.testing.assert_array_equal(compiled(x), halved(tf.constant(x)))


def grows(x: Any) -> Any:
    return tf.while_loop(lambda y: tf.size(y) < 9 * x[0], lambda y: tf.concat([y, y], 0), (x,))[0]


def changes_dtype(x: Any) -> Any:
    return tf.while_loop(lambda y: tf.reduce_max(y) > 1, lambda y: tf.cast(y > 2, tf.int32), (x,))[
        0
    ]


def draws(x: Any) -> Any:
    def turn(y: Any) -> Any:
        return (y * tf.random.uniform(tf.shape(y)),)

    return tf.while_loop(lambda y: tf.reduce_max(y) > 1, turn, (x,))[0]


def has_axes(x: Any) -> Any:
    return tf.while_loop(lambda y: y > 1, lambda y: (y / 2,), (x,))[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (changes_dtype, "carries .*, and int32.* after a turn"),
        (draws, "draws"),
        (has_axes, "condition is no bool without axes"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_a_turn_may_not_do_is_refused(function: Any, message: str) -> None:
    with pytest.raises(xg.TraceError, match=message):
        with_sign(function)(X.astype("float32"))


def test_a_turn_that_changes_a_shape_is_an_error_and_no_other_number(backend: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shape"):
        with_sign(grows)(backend.array(X.astype("float32")))
