"""Functions on TensorFlow: any inputs and outputs, captured or as they are, eagerly and in compiled
code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core.functions.recipe import Recorded
from multigrad.core.trace.trace import Trace
from multigrad.engine.functions.code_recipes import CodeRecipe
from multigrad.engine.functions.custom_gradient import custom_gradient, function
from multigrad.engine.functions.function import Function

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any

X = np.array([-1.5, -0.25, 0.5, 2.0], np.float32)
W = np.array([2.0, -3.0, 0.5, 1.0], np.float32)
captured_and_as_it_is = pytest.mark.parametrize("native", [False, True])
modes = pytest.mark.parametrize("mode", ["eager", "graph", "xla", "unknown"])


def compiled(f: Callable[..., Any], mode: str, count: int = 1) -> Callable[..., Any]:
    """Return a function of that many tensors, to be run in a mode of TensorFlow's."""
    if mode == "eager":
        return f
    if mode == "unknown":
        signature = [tf.TensorSpec(None, tf.float32)] * count
        return tf.function(f, input_signature=signature, autograph=False)
    return tf.function(f, jit_compile=mode == "xla", autograph=False)


def gradients(f: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the function that gives the gradients of `sum(f(*xs))`."""

    def pulled(*xs: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = f(*xs)
        return tape.gradient(y, list(xs))

    return pulled


def make_scaled_clip(native: bool) -> Function:
    """Two inputs, two outputs, and a gradient that is neither's."""

    @custom_gradient(native=native)
    def scaled_clip(x: Tensor, w: Tensor, limit: float) -> Any:
        def grad(upstream: Any) -> Any:
            of_product, of_clipped = upstream
            return of_product * w + 5.0 * of_clipped, of_product * x, None

        return (x * w, tf.clip_by_value(x, -limit, limit)), grad

    return scaled_clip


@modes
@captured_and_as_it_is
def test_two_inputs_and_two_outputs_have_the_own_gradients(mode: str, native: bool) -> None:
    scaled_clip = make_scaled_clip(native)

    def both(x: Tensor, w: Tensor) -> Tensor:
        product, clipped = scaled_clip(x, w, 1.0)
        return 2.0 * product + 3.0 * clipped

    def run(x: Tensor, w: Tensor) -> Any:
        return both(x, w), gradients(both)(x, w)

    y, (of_x, of_w) = compiled(run, mode, 2)(tf.constant(X), tf.constant(W))
    np.testing.assert_allclose(y, 2.0 * X * W + 3.0 * np.clip(X, -1.0, 1.0), rtol=1e-6)
    np.testing.assert_allclose(of_x, 2.0 * W + 15.0, rtol=1e-6)
    np.testing.assert_allclose(of_w, 2.0 * X, rtol=1e-6)


@captured_and_as_it_is
def test_a_gradient_of_none_is_none(native: bool) -> None:
    f = custom_gradient(
        lambda x, w: (x * w, lambda upstream: (None, upstream * 3.0)), native=native
    )
    of_x, of_w = gradients(f)(tf.constant(X), tf.constant(W))
    assert of_x is None
    np.testing.assert_array_equal(of_w, np.full_like(X, 3.0))


@dataclass
class Halves(CodeRecipe):
    """A recipe that marks its second output: no gradient passes through it."""

    native: bool
    name: str = "halves"

    def dialect(self) -> str:
        return ""

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        (x,) = args
        y, marked = x * 0.5, x * 2.0
        return Recorded((y, marked), lambda up: up[0] * 9.0, undifferentiable=(marked,))


@modes
@captured_and_as_it_is
def test_an_output_that_is_marked_carries_no_gradient(mode: str, native: bool) -> None:
    halves = Function(Halves(native))

    def run(x: Tensor) -> Any:
        (of_both,) = gradients(lambda x: halves(x)[0] + halves(x)[1])(x)
        assert gradients(lambda x: halves(x)[1])(x) == [None]
        return of_both

    np.testing.assert_array_equal(compiled(run, mode)(tf.constant(X)), np.full_like(X, 9.0))


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@captured_and_as_it_is
def test_a_variable_that_is_an_argument_gets_its_gradient(mode: str, native: bool) -> None:
    scaled_clip = make_scaled_clip(native)
    variable = tf.Variable(W)

    def run(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            y = scaled_clip(x, variable, 1.0)[0]
        return tape.gradient(y, variable)

    np.testing.assert_array_equal(compiled(run, mode)(tf.constant(X)), X)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_a_variable_from_outside_gets_no_gradient_and_a_warning(mode: str) -> None:
    variable = tf.Variable(3.0)
    scaled = custom_gradient(lambda x: (x * variable, lambda upstream: upstream * 2.0 * variable))

    def run(x: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x)
        return y, tape.gradient(y, [x, variable])

    call = compiled(run, mode)
    with pytest.warns(xg.NativeRuleWarning, match="reads besides its arguments"):
        y, (of_x, of_variable) = call(tf.constant(X))
    np.testing.assert_array_equal(y, 3.0 * X)
    np.testing.assert_array_equal(of_x, np.full_like(X, 6.0))
    assert of_variable is None
    variable.assign(5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(call(tf.constant(X))[0], 5.0 * X)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_a_gradient_function_that_takes_variables_delivers_to_them(mode: str) -> None:
    variable = tf.Variable(3.0)

    @custom_gradient
    def scaled(x: Tensor) -> Any:
        def grad(upstream: Tensor, variables: Any = None) -> Any:
            return upstream * variable, [tf.reduce_sum(upstream * x) for _ in variables]

        return x * variable, grad

    def run(x: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x)
        return tape.gradient(y, [x, variable])

    of_x, of_variable = compiled(run, mode)(tf.constant(X))
    np.testing.assert_array_equal(of_x, np.full_like(X, 3.0))
    np.testing.assert_allclose(of_variable, X.sum(), rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_tensor_from_outside_may_be_one_that_a_tape_or_a_trace_knows(mode: str) -> None:
    def run(x: Tensor, w: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            doubled = w * 2.0
            scaled = custom_gradient(lambda x: (x * doubled, lambda upstream: upstream * doubled))
            y = scaled(x)
        return y, tape.gradient(y, [x, w])

    y, (of_x, of_w) = compiled(run, mode, 2)(tf.constant(X), tf.constant(W))
    np.testing.assert_array_equal(y, X * 2.0 * W)
    np.testing.assert_array_equal(of_x, 2.0 * W)
    assert of_w is None


# Functions under TensorFlow's transforms: second order, forward mode, branches and loops,
# vectorized maps, draws.


def tangent(f: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return the tangent of `f(x)` along ones, by TensorFlow's forward mode."""
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


def make_swish(native: bool) -> Function:
    """x * sigmoid(b x), with its true derivative."""

    @custom_gradient(native=native)
    def swish(x: Tensor, b: Tensor) -> Any:
        s = tf.sigmoid(b * x)

        def grad(upstream: Tensor) -> Any:
            slope = s * (1.0 - s)
            return upstream * (s + b * x * slope), upstream * x * x * slope

        return x * s, grad

    return swish


@captured_and_as_it_is
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_second_order_is_the_same_in_compiled_code(mode: str, native: bool) -> None:
    swish = make_swish(native)
    b = tf.constant(W)
    second = compiled(gradients(lambda x: gradients(lambda x: swish(x, b))(x)[0] ** 2), mode)
    s = 1.0 / (1.0 + np.exp(-W * X))
    d = s * (1 - s)
    slope, curve = s + W * X * d, 2 * W * d + W * W * X * d * (1 - 2 * s)
    np.testing.assert_allclose(second(tf.constant(X))[0], 2.0 * slope * curve, rtol=2e-5)


@captured_and_as_it_is
def test_forward_mode_takes_the_own_gradient(native: bool) -> None:
    scaled_clip = make_scaled_clip(native)
    w = tf.constant(W)
    for call in (scaled_clip, tf.function(scaled_clip, autograph=False)):
        of_product, of_clipped = tangent(lambda x, call=call: call(x, w, 1.0), tf.constant(X))
        np.testing.assert_array_equal(of_product, W)
        np.testing.assert_array_equal(of_clipped, np.full_like(X, 5.0))


@captured_and_as_it_is
def test_forward_over_reverse_is_reverse_over_reverse(native: bool) -> None:
    swish = make_swish(native)
    b = tf.constant(W)

    def first(x: Tensor) -> Tensor:
        return gradients(lambda x: swish(x, b))(x)[0]

    reverse = gradients(first)(tf.constant(X))[0]
    assert np.abs(reverse).max() > 0.1
    np.testing.assert_allclose(tangent(first, tf.constant(X)), reverse, rtol=1e-5)


def test_an_output_kept_for_backward_is_differentiated_by_the_functions_own_backward() -> None:
    kept_norm = function(
        lambda x: 2.0 * xp.tanh(x),
        lambda upstream, y: upstream * y * xp.sum(y),
        residuals=lambda y, x: y,
    )
    y = 2.0 * np.tanh(X)
    own = y * y.sum()  # what stands for the derivative of y
    expected = own * (y.sum() + y.sum())

    def first(x: Tensor) -> Tensor:
        return gradients(kept_norm)(x)[0]

    for mode in ("eager", "graph", "xla"):
        got = compiled(gradients(first), mode)(tf.constant(X))[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_forward_over_reverse_knows_how_a_kept_output_changes() -> None:
    tanh = xg.lower(None, "tensorflow", forward="Tanh")
    t = np.tanh(X)

    def first(x: Tensor) -> Tensor:
        return gradients(tanh)(x)[0]

    np.testing.assert_allclose(tangent(first, tf.constant(X)), -2.0 * t * (1 - t * t), rtol=1e-4)


def test_forward_mode_is_refused_where_backward_is_not_linear_and_within_a_graph() -> None:
    squared = custom_gradient(
        lambda x, w: (x * w, lambda upstream: (upstream * upstream, upstream))
    )
    w = tf.constant(W)
    with pytest.raises(xg.GradientError, match="linear"):
        tangent(lambda x: squared(x, w), tf.constant(X))
    scaled_clip = make_scaled_clip(False)
    with pytest.raises(xg.GradientError, match=r"around the tf\.function"):
        tf.function(lambda x: tangent(lambda x: scaled_clip(x, w, 1.0)[0], x))(tf.constant(X))


@captured_and_as_it_is
def test_vectorized_map_has_the_own_gradient_inside_and_refuses_one_around(native: bool) -> None:
    scaled_clip = make_scaled_clip(native)

    def product(x: Tensor) -> Tensor:
        return tf.reduce_sum(scaled_clip(x, 2.0 * x, 1.0)[1])

    rows = tf.constant(np.stack([X, W]))
    inside = tf.vectorized_map(lambda x: gradients(product)(x)[0], rows)
    np.testing.assert_array_equal(inside, np.full((2, 4), 5.0))
    forward = tf.vectorized_map(product, rows)
    np.testing.assert_allclose(forward, np.clip(rows, -1.0, 1.0).sum(1), rtol=1e-6)
    with pytest.raises(Exception, match="drops custom gradients"):
        gradients(lambda rows: tf.vectorized_map(product, rows))(rows)
    through = gradients(lambda rows: tf.map_fn(product, rows))(rows)[0]
    np.testing.assert_array_equal(through, np.full((2, 4), 5.0))


@captured_and_as_it_is
def test_tensors_from_around_a_branch_and_a_loop_get_the_own_gradients(native: bool) -> None:
    scaled_clip = make_scaled_clip(native)

    @tf.function
    def branched(x: Tensor, w: Tensor) -> Any:
        def inner(x: Tensor, w: Tensor) -> Tensor:
            doubled = w * 2.0
            return tf.cond(
                tf.constant(True),
                lambda: scaled_clip(x, doubled, 1.0)[0],
                lambda: tf.zeros_like(x),
            )

        return gradients(inner)(x, w)

    of_x, of_w = branched(tf.constant(X), tf.constant(W))
    np.testing.assert_array_equal(of_x, 2.0 * W)
    np.testing.assert_array_equal(of_w, 2.0 * X)

    @tf.function
    def looped(x: Tensor, w: Tensor) -> Any:
        def inner(x: Tensor, w: Tensor) -> Tensor:
            def step(i: Tensor, y: Tensor) -> Any:
                return i + 1, scaled_clip(y, w, 1.0)[0]

            return tf.while_loop(lambda i, y: i < 3, step, (0, x))[1]

        return gradients(inner)(x, w)

    of_x, of_w = looped(tf.constant(X), tf.constant(W))
    np.testing.assert_allclose(of_x, W**3, rtol=1e-6)
    np.testing.assert_allclose(of_w, 3.0 * X * W**2, rtol=1e-6)


def test_gradient_survives_a_saved_model(tmp_path: Any) -> None:
    scaled_clip = make_scaled_clip(False)
    module = tf.Module()
    module.call = tf.function(
        lambda x: scaled_clip(x, 2.0 * x, 1.0)[1],
        input_signature=[tf.TensorSpec([None], tf.float32)],
        autograph=False,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    loaded: Any = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.call(tf.constant(X)), np.clip(X, -1.0, 1.0))
    np.testing.assert_array_equal(gradients(loaded.call)(tf.constant(X))[0], np.full_like(X, 5.0))


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_recomputed_forward_draws_again_what_it_drew_first(graph: bool, keyed: bool) -> None:
    @custom_gradient
    def dropped(x: Tensor) -> Any:
        kept = xp.rand_like(x) < 0.5
        return xp.where(kept, x, 0.0), lambda upstream: xp.where(kept, 2.0 * upstream, 0.0)

    dropout = dropped.keyed(5) if keyed else dropped

    @tf.recompute_grad
    def twice(x: Tensor) -> Tensor:
        return dropout(dropout(x)) + dropout(x)

    def run(x: Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            first = twice(x)
            second = twice(x)
        return first, second, tape.gradient(first, x), tape.gradient(second, x)

    first, second, of_first, of_second = (tf.function(run) if graph else run)(tf.ones(200))
    np.testing.assert_array_equal(np.unique(first), [0.0, 1.0, 2.0])
    assert (first.numpy() != second.numpy()).any()
    # Passed twice: a gradient of 4; alone: of 2.
    for y, gradient in ((first, of_first), (second, of_second)):
        gradient, y = gradient.numpy(), y.numpy()
        np.testing.assert_array_equal(gradient == 0.0, y == 0.0)
        np.testing.assert_array_equal(gradient == 6.0, y == 2.0)
