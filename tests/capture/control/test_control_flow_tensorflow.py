"""TensorFlow's loops and branches that are functions: unrolled, or all ways and a choice."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import TraceError

from ...harness.own_library import assert_as_in

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
X = np.array([0.5, -1.25, 2.0], np.float32)


def by_a_cast_number(x: Any) -> Any:
    def step(n: Any, y: Any) -> Any:
        return n - 1.0, y + tf.sin(n * x)

    start = (tf.cast(5, x.dtype), tf.zeros_like(x))
    return tf.while_loop(lambda n, *_: n > 0.0, step, start)[1]


def of_version_1(x: Any) -> Any:
    def step(y: Any) -> Any:
        return y * y

    y = tf.compat.v1.while_loop(lambda y: True, step, [x], maximum_iterations=2)
    return tf.compat.v1.cond(tf.reduce_sum(y) > 9, lambda: [y], lambda: [3 * y])


def root_or_triple(x: Any) -> Any:
    total = tf.reduce_sum(x)
    return tf.cond(total > 100, lambda: tf.sqrt(total - 100), lambda: total * 3.0)


def which_of(x: Any) -> Any:
    return tf.cast(tf.round(tf.reduce_sum(x)), tf.int32)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "by an integer": lambda x: tf.while_loop(
        lambda i, y: i < 4, lambda i, y: (i + 1, tf.sin(y) * x), (0, x)
    )[1],
    "by a cast number": by_a_cast_number,
    "by a length": lambda x: tf.while_loop(
        lambda i, y: i < tf.shape(x)[0], lambda i, y: (i + 1, y * x), (0, x)
    )[1],
    "of a closure": lambda x: tf.while_loop(
        lambda i, y: i < 2, lambda i, y: (i + 1, y * x), (tf.constant(0), tf.constant(1.0))
    )[1],
    "so many times": lambda x: tf.while_loop(
        lambda y: True, lambda y: [y * y], [x], maximum_iterations=3
    )[0],
    "of version 1": of_version_1,
    "root or triple": root_or_triple,
    "nested": lambda x: tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: tf.cond(x[0] > 1, lambda: tf.math.log(x[0] - 1), lambda: tf.exp(x[0])),
        lambda: tf.sqrt(-x[1]),
    ),
    "of pairs": lambda x: operator.mul(
        *tf.cond(x[0] > x[1], lambda: (x, 2.0 * x), lambda: (tf.sin(x), x))
    ),
    "one of three": lambda x: tf.switch_case(
        which_of(x), [lambda: x, lambda: x * x, lambda: tf.math.log(x + 0.25)]
    ),
    "with a default": lambda x: tf.switch_case(
        which_of(x), {0: lambda: x, 1: lambda: x * x}, lambda: tf.exp(x)
    ),
    "by a fact": lambda x: tf.cond(tf.rank(x) > 1, lambda: x, lambda: tf.sin(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_it_means_what_it_means_in_tensorflow(name: str, sign: int) -> None:
    assert_as_in("tensorflow", FUNCTIONS[name], sign * X)


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


# TensorFlow's loops that values end, on every backend; what a turn may not change.


X_LOOPS = np.array([0.5, 9.0, -3.0, 100.0])


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
        x = X_LOOPS.astype(dtype)
        result, gradient = backend.vjp(own, x, np.ones_like(x))
        assert result.dtype == dtype
        np.testing.assert_allclose(result, function(tf.constant(x)), rtol=1e-6)
        np.testing.assert_array_equal(gradient, np.sign(x))


def test_a_length_that_is_not_known_stays_so_in_the_loop() -> None:
    own = with_sign(halved)
    compiled = tf.function(lambda x: own(x), input_signature=[tf.TensorSpec([None], tf.float32)])
    x = X_LOOPS.astype("float32")
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
        with_sign(function)(X_LOOPS.astype("float32"))


def test_a_turn_that_changes_a_shape_is_an_error_and_no_other_number(backend: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="shape"):
        with_sign(grows)(backend.array(X_LOOPS.astype("float32")))


# Gradients that TensorFlow's code takes itself mean in a graph what a tape gives.


Tensor = Any
X_GRADIENTS = np.array([[0.3, -1.2, 0.6], [1.5, 0.25, -0.75]], np.float32)


def slope(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(x) * x)
    return x * tape.gradient(y, x)


def slope_of_the_slope(x: Tensor) -> Tensor:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.sin(x) * x
        first = inner.gradient(y, x, output_gradients=x)
    return outer.gradient(first, x)


def what_was_before_is_a_constant(x: Tensor) -> Tensor:
    before = x * x
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = before * x * tf.identity(x)
    return tape.gradient(y, x)


def what_is_not_recorded_is_a_constant(x: Tensor) -> Tensor:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, same = x * x, x * x
        with tape.stop_recording():
            tripled = x * 3
        z = y * same * tripled
    to_y, (to_x, to_same) = tape.gradient(z, y), tape.gradient(z, [x, same])
    return to_y + 2 * to_x + 3 * to_same


def of_several(x: Tensor) -> Tensor:
    given = {"a": x, "b": 2 * x}
    with tf.GradientTape() as tape:
        tape.watch(given)
        outputs = [given["a"] * given["b"], tf.cos(given["a"])]
    slopes = tape.gradient(outputs, given, output_gradients=[x, tf.ones_like(x)])
    return slopes["a"] - slopes["b"]


def of_nothing(x: Tensor) -> Tensor:
    other = x + 1
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(other)
        y = x * x
    assert tape.gradient(y, other) is None
    assert tape.gradient(y, x) is None
    return y + tape.gradient(y, other, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def anew(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        tape.reset()
        tape.watch(y)
        z = y * x
    return tape.gradient(z, y)


def in_compiled_code(x: Tensor) -> Tensor:
    return tf.function(lambda y: tf.gradients(tf.sin(y) * y, [y], grad_ys=[y])[0])(x)


CASES: list[Callable[[Tensor], Tensor]] = [
    slope, slope_of_the_slope, what_was_before_is_a_constant, what_is_not_recorded_is_a_constant,
    of_several, of_nothing, anew, in_compiled_code,
]  # fmt: skip


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_gradient_taken_inside_is_the_tape_s(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_in("tensorflow", function, X_GRADIENTS)


@tf.custom_gradient
def square_with_a_slope(x: Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    slope = tape.gradient(y, x)
    return y, lambda upstream: upstream * slope / 2


def test_a_custom_gradient_may_differentiate(backend: Any) -> None:
    of = xg.from_tf_custom_gradient(square_with_a_slope)
    assert_as_in("tensorflow", square_with_a_slope, X_GRADIENTS, of=of, backend=backend)


def of_a_variable(x: Tensor) -> Tensor:
    variable = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = variable * x
    return tape.gradient(y, variable)


def of_constants(x: Tensor) -> Tensor:
    constant = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(constant)
        y = constant**3
    return x * tape.gradient(y, constant)


def jacobian(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.jacobian(y, x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_a_variable, "takes a gradient of a .*Variable"),
        (of_constants, "watches a tensor that is no value of a graph"),
        (jacobian, "takes a Jacobian"),
    ],
)
def test_what_a_graph_does_not_hold_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(xg.TraceError, match=said):
        xg.function(function, native=False)(X_GRADIENTS)


# A `tf.Variable` that a function reads gets its gradient, however it is read.


X_VARIABLES = np.array([1.0, 2.0, 3.0], np.float32)


def readings() -> dict[str, Callable[[Any], Any]]:
    return {
        "item": lambda w: w[1],
        "gather": lambda w: tf.gather(w, 1),
        "value": lambda w: w.value()[1],
        "identity": lambda w: tf.identity(w)[1],
        "product": lambda w: (w * 2)[1] / 2,
        "sum": lambda w: tf.reduce_sum(w) - w[0],
        "whole": lambda w: tf.reduce_max(w * tf.constant([0.0, 1.0])),
    }


def slopes(f: Callable[[Any], Any], w: Any, graph: bool) -> list[list[float]]:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(f(x))
        return tape.gradient(loss, [x, w])

    found = (tf.function(step) if graph else step)(tf.constant(X_VARIABLES))
    return [tf.convert_to_tensor(each).numpy().tolist() for each in found]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("way", ["item", "gather", "value", "identity", "product", "sum", "whole"])
def test_its_gradient_is_what_the_gradient_function_gives(
    way: str, default: bool, decorated: bool, graph: bool
) -> None:
    w, read = tf.Variable([1.0, 3.0]), readings()[way]

    def poly(x: Any) -> Any:
        y = read(w) * x

        def both(dy: Any, variables: Any) -> Any:
            assert variables is not None and variables[0] is w
            return 5 * dy, [tf.constant([7.0, 8.0]) * tf.reduce_sum(dy)]

        def may(dy: Any, variables: Any = None) -> Any:
            return 5 * dy if variables is None else both(dy, variables)

        return y, may if default else both

    original = tf.custom_gradient(poly)
    ours = xg.from_tf_custom_gradient(original) if decorated else xg.custom_gradient(poly)
    expected = [[5.0] * 3, [21.0, 24.0]]
    assert slopes(original, w, graph) == expected
    assert slopes(ours, w, graph) == expected


def test_the_example_of_tensorflows_own_docstring() -> None:
    weights = tf.Variable(tf.ones([2]))

    def linear_poly(x: Any) -> Any:
        poly = weights[1] * x + weights[0]

        def grad_fn(dpoly: Any, variables: Any) -> Any:
            assert len(variables) == 1
            dy_dw = dpoly * tf.stack([x**1, x**0])
            return dpoly * weights[1], [tf.reduce_sum(tf.reshape(dy_dw, [2, -1]), axis=1)]

        return poly, grad_fn

    assert slopes(xg.custom_gradient(linear_poly), weights, graph=False) == [[1.0] * 3, [6.0, 3.0]]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("way", ["item", "gather", "sum"])
def test_the_true_derivative_reaches_it_too(way: str, graph: bool) -> None:
    w, read = tf.Variable([1.0, 3.0]), readings()[way]
    assert slopes(xg.function(lambda x: read(w) * x), w, graph) == [[3.0] * 3, [0.0, 6.0]]


def test_no_graph_of_another_framework_holds_its_number() -> None:
    w = tf.Variable([1.0, 3.0], name="weights")
    f = xg.function(lambda x: tf.gather(w, 1) * x)
    with pytest.raises(TraceError, match=r"reads the tf.Variable 'weights:0', which waits for"):
        f(X_VARIABLES)


def test_one_that_waits_for_no_gradient_may_be_read() -> None:
    w = tf.Variable([1.0, 3.0], trainable=False)
    np.testing.assert_array_equal(
        xg.function(lambda x: tf.gather(w, 1) * x)(X_VARIABLES), 3 * X_VARIABLES
    )
