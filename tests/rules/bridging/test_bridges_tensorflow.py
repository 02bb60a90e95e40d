"""TensorFlow as a host: its graphs, XLA, its tapes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.rules.opaque import call_function
from multigrad.errors import GradientError, UnsupportedOp

from ...written.hosts_and_guests import bridged, every_guest_of

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
Tensor: TypeAlias = Any
every_guest = every_guest_of("tensorflow")
X = np.linspace(-1, 1, 6, dtype=np.float32)


@every_guest
def test_xla_is_refused_while_it_traces(guest: str) -> None:
    f = bridged(guest, "Tanh")
    inner = tf.function(f)
    for compiled in (tf.function(f, jit_compile=True), tf.function(inner, jit_compile=True)):
        with pytest.raises(UnsupportedOp, match=r"XLA cannot call: compile with jit_compile=False"):
            compiled(tf.constant(X))
    np.testing.assert_allclose(tf.function(f, jit_compile=False)(X), np.tanh(X), rtol=1e-6)


@every_guest
def test_a_graph_knows_the_shape_of_what_the_guest_gives(guest: str) -> None:
    function = xg.function(lambda x: x.sum(-1), lambda g, x: g[..., None] + x * 0)
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def run(x: Tensor) -> Tensor:
        y = bridged(guest, "Tanh")(x)
        z = call_function(function, (x,), {}, guest)
        shapes.extend([y.shape.as_list(), z.shape.as_list()])
        return z

    np.testing.assert_allclose(run(tf.ones((4, 3))), np.full(4, 3.0))
    assert shapes == [[None, 3], [None]]


@every_guest
def test_the_first_elements_of_an_unknown_length_are_as_many_as_there_are(guest: str) -> None:
    first = xg.function(lambda x: x[:5] * 2, lambda g, x: x * 0)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x: Tensor) -> Tensor:
        return tf.shape(call_function(first, (x,), {}, guest))

    assert [run(tf.ones(n)).numpy().tolist() for n in (3, 9)] == [[3], [5]]


@every_guest
def test_a_length_may_be_tied_to_another_inputs(guest: str) -> None:
    add = xg.function(lambda x, y: x + y, lambda g, x, y: (g, g))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def run(x: Tensor) -> Tensor:
        return call_function(add, (x, tf.ones((4, 3))), {}, guest)

    np.testing.assert_array_equal(run(tf.ones((4, 3))), np.full((4, 3), 2.0))


def test_an_unknown_number_of_axes_is_said() -> None:
    function = xg.function(lambda x: x * 2, lambda g, x: g)

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def run(x: Tensor) -> Tensor:
        return call_function(function, (x,), {}, "numpy")

    with pytest.raises(UnsupportedOp, match="number of axes of its input is unknown"):
        run(tf.ones(3))


@every_guest
def test_forward_mode_is_refused(guest: str) -> None:
    x = tf.constant(X)
    with (
        pytest.raises(GradientError, match="no forward mode"),
        tf.autodiff.ForwardAccumulator(x, x),
    ):
        bridged(guest, "Tanh")(x)


@every_guest
def test_a_persistent_tape_pulls_twice_and_gives_a_jacobian(guest: str) -> None:
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = bridged(guest, "Tanh")(x)
    slope = 1 - np.tanh(X) ** 2
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x), slope, rtol=1e-5)
    np.testing.assert_allclose(tape.jacobian(y, x), np.diag(slope), rtol=1e-5)


@every_guest
def test_loops_and_branches_of_a_graph_call_the_guest(guest: str) -> None:
    f = bridged(guest, "Tanh")

    @tf.function
    def run(x: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = f(y)
            y = tf.cond(tf.reduce_sum(y) < 100, lambda: f(y), lambda: y)
        return y, tape.gradient(y, x)

    y, gradient = run(tf.constant(X))
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        expected = tf.tanh(tf.tanh(tf.tanh(x)))
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, tape.gradient(expected, x), rtol=1e-5)


@every_guest
def test_variables_are_inputs(guest: str) -> None:
    function = xg.function(lambda x: x * 2, lambda g, x: g * 5)
    variable = tf.Variable(X)
    for run in (lambda f: f(), lambda f: tf.function(f)()):
        with tf.GradientTape() as tape:
            y = run(lambda: call_function(function, (variable,), {}, guest))
        np.testing.assert_array_equal(tape.gradient(y, variable), np.full(6, 5.0))


@every_guest
def test_a_gradient_in_vectorized_map_is_refused(guest: str) -> None:
    f = bridged(guest, "Tanh")
    x = tf.ones((2, 3))
    np.testing.assert_allclose(tf.vectorized_map(f, x), np.tanh(np.ones((2, 3))), rtol=1e-6)
    with pytest.raises(LookupError, match="vectorized_map"), tf.GradientTape() as tape:
        tape.watch(x)
        tape.gradient(tf.vectorized_map(f, x), x)
