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
from multigrad.functions.calls.recipe import Recorded
from multigrad.functions.custom_gradient import custom_gradient
from multigrad.functions.function import Function
from multigrad.functions.recipes.record import CodeRecipe
from multigrad.trace.trace import Trace

from ...written.unseen import Unseen

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([-1.5, -0.25, 0.5, 2.0], np.float32)
W = np.array([2.0, -3.0, 0.5, 1.0], np.float32)
captured_and_as_it_is = pytest.mark.parametrize("native", [False, True])
modes = pytest.mark.parametrize("mode", ["eager", "graph", "xla", "unknown"])


def compiled(f: Callable[..., Any], mode: str, count: int = 1) -> Callable[..., Any]:
    """Return a function of that many tensors, to be run in a mode of TensorFlow's."""
    import tensorflow as tf

    if mode == "eager":
        return f
    if mode == "unknown":
        signature = [tf.TensorSpec(None, tf.float32)] * count
        return tf.function(f, input_signature=signature, autograph=False)
    return tf.function(f, jit_compile=mode == "xla", autograph=False)


def gradients(f: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the function that gives the gradients of `sum(f(*xs))`."""
    import tensorflow as tf

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
        import tensorflow as tf

        def grad(upstream: Any) -> Any:
            of_product, of_clipped = upstream
            return of_product * w + 5.0 * of_clipped, of_product * x, None

        return (x * w, tf.clip_by_value(x, -limit, limit)), grad

    return scaled_clip


@modes
@captured_and_as_it_is
def test_two_inputs_and_two_outputs_have_the_own_gradients(mode: str, native: bool) -> None:
    import tensorflow as tf

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


@modes
@captured_and_as_it_is
def test_cotangent_of_an_output_that_is_not_used_is_zero(mode: str, native: bool) -> None:
    import tensorflow as tf

    scaled_clip = make_scaled_clip(native)
    run = gradients(lambda x, w: scaled_clip(x, w, 1.0)[1])
    of_x, of_w = compiled(run, mode, 2)(tf.constant(X), tf.constant(W))
    np.testing.assert_array_equal(of_x, np.full_like(X, 5.0))
    np.testing.assert_array_equal(of_w, np.zeros_like(X))


@modes
@captured_and_as_it_is
def test_integers_and_bools_go_in_and_come_out_without_a_gradient(mode: str, native: bool) -> None:
    import tensorflow as tf

    @custom_gradient(native=native)
    def masked(x: Tensor, count: Tensor, mask: Tensor) -> Any:
        import tensorflow as tf

        def grad(upstream: Any) -> Any:
            return tf.where(mask, upstream[0], 0.0) * 7.0, None, None

        return (x * 1.0, count + 1, mask, x), grad

    count, mask = tf.constant([1, 2, 3, 4]), tf.constant(X > 0)

    def run(x: Tensor) -> Any:
        outputs = masked(x, count, mask)
        return outputs, gradients(lambda x: masked(x, count, mask)[0])(x)[0]

    outputs, of_x = compiled(run, mode)(tf.constant(X))
    for output, expected in zip(outputs, (X, [2, 3, 4, 5], X > 0, X), strict=True):
        np.testing.assert_array_equal(output, expected)
    assert [y.dtype for y in outputs] == [tf.float32, tf.int32, tf.bool, tf.float32]
    np.testing.assert_array_equal(of_x, 7.0 * (X > 0))


@captured_and_as_it_is
def test_only_integers_have_no_gradient_and_no_error(native: bool) -> None:
    import tensorflow as tf

    doubled = custom_gradient(lambda i: (i * 2, lambda upstream: None), native=native)
    np.testing.assert_array_equal(doubled(tf.constant([1, 2])), [2, 4])
    np.testing.assert_array_equal(tf.function(doubled)(tf.constant([1, 2])), [2, 4])


@captured_and_as_it_is
def test_a_gradient_of_none_is_none(native: bool) -> None:
    import tensorflow as tf

    f = custom_gradient(
        lambda x, w: (x * w, lambda upstream: (None, upstream * 3.0)), native=native
    )
    of_x, of_w = gradients(f)(tf.constant(X), tf.constant(W))
    assert of_x is None
    np.testing.assert_array_equal(of_w, np.full_like(X, 3.0))


@modes
@captured_and_as_it_is
def test_an_input_that_is_returned_as_it_is_has_the_own_gradient(mode: str, native: bool) -> None:
    import tensorflow as tf

    def twice(x: Tensor) -> Any:
        return (x, x), lambda upstream: -upstream[0] - 10.0 * upstream[1]

    f = custom_gradient(twice, native=native)
    (of_x,) = compiled(gradients(lambda x: f(x)[0] + 2.0 * f(x)[1]), mode)(tf.constant(X))
    np.testing.assert_array_equal(of_x, np.full_like(X, -21.0))


@modes
@captured_and_as_it_is
def test_keywords_and_nested_arguments_are_taken_in_graphs_too(mode: str, native: bool) -> None:
    import tensorflow as tf

    @custom_gradient(native=native)
    def blended(pair: dict[str, Tensor], *, share: Tensor, kind: str = "sum") -> Any:
        def grad(upstream: Any) -> Any:
            up = upstream["y"]
            return {"a": up * share, "b": None}, {"share": up * pair["a"]}

        return {"y": pair["a"] * share + pair["b"], "kind": kind}, grad

    def run(a: Tensor, b: Tensor) -> Any:
        outputs: Any = {}

        def blend(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
            outputs.update(blended({"a": a, "b": b}, share=share))
            return outputs["y"]

        of_a, of_b, of_share = gradients(blend)(a, b, 3.0 * b)
        assert (of_b, outputs["kind"]) == (None, "sum")
        return outputs["y"], of_a, of_share

    y, of_a, of_share = compiled(run, mode, 2)(tf.constant(X), tf.constant(W))
    np.testing.assert_allclose(y, 3.0 * X * W + W, rtol=1e-6)
    np.testing.assert_array_equal(of_a, 3.0 * W)
    np.testing.assert_array_equal(of_share, X)


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
    import tensorflow as tf

    halves = Function(Halves(native))

    def run(x: Tensor) -> Any:
        (of_both,) = gradients(lambda x: halves(x)[0] + halves(x)[1])(x)
        assert gradients(lambda x: halves(x)[1])(x) == [None]
        return of_both

    np.testing.assert_array_equal(compiled(run, mode)(tf.constant(X)), np.full_like(X, 9.0))


@modes
def test_zero_dim_input_stays_one(mode: str) -> None:
    import tensorflow as tf

    f = custom_gradient(lambda x: (x * x, lambda upstream: upstream * 7.0))

    def run(x: Tensor) -> Any:
        return f(x), gradients(f)(x)[0]

    y, of_x = compiled(run, mode)(tf.constant(3.0))
    assert y.shape == of_x.shape == ()
    assert (float(y), float(of_x)) == (9.0, 7.0)


# --- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@captured_and_as_it_is
def test_a_variable_that_is_an_argument_gets_its_gradient(mode: str, native: bool) -> None:
    import tensorflow as tf

    scaled_clip = make_scaled_clip(native)
    variable = tf.Variable(W)

    def run(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            y = scaled_clip(x, variable, 1.0)[0]
        return tape.gradient(y, variable)

    np.testing.assert_array_equal(compiled(run, mode)(tf.constant(X)), X)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_a_variable_from_outside_gets_no_gradient_and_a_warning(mode: str) -> None:
    import tensorflow as tf

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
    import tensorflow as tf

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
    import tensorflow as tf

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


# --- the user's function --------------------------------------------------------------------------


def test_a_function_as_it_is_runs_once_per_call_and_its_gradient_once_per_pull() -> None:
    import tensorflow as tf

    ran = Unseen()

    @custom_gradient(native=True)
    def counted(x: Tensor) -> Any:
        ran.append("forward")

        def grad(upstream: Tensor) -> Tensor:
            ran.append("backward")
            return upstream

        return x * 2.0, grad

    counted(tf.constant(X))
    assert ran == ["forward"]
    gradients(counted)(tf.constant(X))
    assert ran == ["forward", "forward", "backward"]


class WrongOrder(Exception):
    """An error of the user's own, which takes more than a message."""

    def __init__(self, number: int, order: str) -> None:
        super().__init__(number, order)
        self.order = order


@captured_and_as_it_is
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_an_exception_of_the_users_is_raised_once_and_unchanged(mode: str, native: bool) -> None:
    import tensorflow as tf

    ran = Unseen()
    error = WrongOrder(7, "last")

    @custom_gradient(native=native)
    def failing(x: Tensor) -> Any:
        ran.append(None)
        raise error

    with pytest.raises(WrongOrder) as caught:
        compiled(failing, mode)(tf.constant(X))
    assert caught.value is error
    assert len(ran) == 1


@captured_and_as_it_is
def test_a_gradient_of_another_shape_names_its_argument(native: bool) -> None:
    import tensorflow as tf

    def doubled(x: Tensor, w: Tensor) -> Any:
        import tensorflow as tf

        return x * w, lambda upstream: (upstream * w, tf.concat([upstream, upstream], 0))

    f = custom_gradient(doubled, native=native)
    with pytest.raises(xg.GradientError, match=r"\(8,\) for argument 'w' of shape \(4,\)"):
        gradients(f)(tf.constant(X), tf.constant(W))
    with pytest.raises(xg.GradientError, match="argument 'w'"):
        tf.function(gradients(f))(tf.constant(X), tf.constant(W))
