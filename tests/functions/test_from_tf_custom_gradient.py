"""`xg.from_tf_custom_gradient`: functions of TensorFlow's, unchanged, with the same numbers on
every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.rules.vjp import vjp
from multigrad.engine.functions.importers import from_tf_custom_gradient
from multigrad_conformance.under_test import pull

from ..conftest import NumpyBackend
from ..harness.own_library import assert_as_in
from ..written.functions_in_tensorflow import CASES, written

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.array([[-3.0, -0.5, 0.0, 0.25], [0.75, 1.5, 20.0, 100.0]], np.float32)
W = np.array([[0.5, 2.0, -1.0, 3.0], [1.0, -0.25, 0.125, 1.0]], np.float32)
UPSTREAM = np.array([[1.0, -2.0, 0.5, 3.0], [-1.0, 4.0, 0.25, 1.0]], np.float32)


def flat(outputs: Any) -> list[Tensor]:
    """The tensors of nested outputs, in TensorFlow's order."""
    return tf.nest.flatten(outputs)


def pull_in_tensorflow(f: Callable[..., Any], arguments: Callable[..., Any]) -> list[Array]:
    """Outputs and gradients of x and w, of any function of TensorFlow's; None where there is
    none.
    """

    def run(x: Tensor, w: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            outputs = flat(f(*arguments(x, w)))
        upstream = [tf.constant(UPSTREAM) if y.shape.rank else tf.constant(2.0) for y in outputs]
        return outputs, tape.gradient(outputs, [x, w], output_gradients=upstream)

    return run  # type: ignore[return-value]


def arrays(tensors: Sequence[Tensor | None]) -> list[Array | None]:
    return [None if t is None else np.asarray(t) for t in tensors]


def assert_equal_bits(got: Sequence[Any], expected: Sequence[Any]) -> None:
    for a, b in zip(arrays(got), arrays(expected), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_on_tensorflow_the_numbers_are_the_originals_bit_for_bit(name: str, graph: bool) -> None:
    original, (arguments, _) = written()[name], CASES[name]
    imported = from_tf_custom_gradient(original)
    results = []
    for f in (imported, original):
        run: Any = pull_in_tensorflow(f, arguments)
        run = tf.function(run, autograph=False) if graph else run
        results.append(run(tf.constant(X), tf.constant(W)))
    for got, expected in zip(*results, strict=True):
        assert_equal_bits(got, expected)
    assert imported.captures.variants, "it is captured, and does not run as it is"


@pytest.mark.parametrize("name", CASES)
def test_on_every_backend_the_numbers_are_the_originals(backend: NumpyBackend, name: str) -> None:
    original, (arguments, is_exact) = written()[name], CASES[name]
    imported = from_tf_custom_gradient(original)
    own, of = (lambda x, w, f=f: f(*arguments(x, w)) for f in (original, imported))
    limits = {"rtol": 0.0, "atol": 0.0} if is_exact else {"rtol": 2e-6, "atol": 1e-6}
    assert_as_in("tensorflow", own, X, W, of=of, backend=backend, **limits)


class Scaler:
    """A user's object, with a decorated method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

        self.bound = tf.custom_gradient(self.scale)

    def scale(self, x: Tensor) -> Any:
        return tf.minimum(x * self.factor, 8.0), lambda dy: dy * self.factor


@pytest.mark.parametrize("decorated", ["in the class", "in the object"])
def test_a_method_is_imported_with_its_object(backend: NumpyBackend, decorated: str) -> None:
    class Decorated(Scaler):
        scale = tf.custom_gradient(Scaler.scale)

    f = Scaler(4.0).bound if decorated == "in the object" else Decorated(4.0).scale
    y, (gradient,) = pull(backend, from_tf_custom_gradient(f), (X,), UPSTREAM)
    np.testing.assert_array_equal(y, np.minimum(4.0 * X, 8.0))
    np.testing.assert_array_equal(gradient, 4.0 * UPSTREAM)


def test_keyword_arguments_are_taken_in_compiled_code_too(backend: NumpyBackend) -> None:
    imported = from_tf_custom_gradient(written()["keyword_only"])
    _, (gradient,) = pull(backend, lambda x: imported(x, width=4.0), (X,), UPSTREAM)
    expected = UPSTREAM * np.maximum(1.0 - np.abs(X) / np.float32(4.0), 0.0)
    np.testing.assert_array_equal(gradient, expected)


# --- one inside of another ------------------------------------------------------------------------


def decorated_outside() -> Callable[..., Tensor]:
    clip = tf.custom_gradient(
        lambda x: (tf.identity(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0))
    )
    return lambda x: 3.0 * clip(x)


def decorated_inside() -> Callable[..., Tensor]:
    def tripled(x: Tensor) -> Tensor:
        @tf.custom_gradient
        def clip(x: Tensor) -> Any:
            return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)

        return 3.0 * clip(x)

    return tripled


def passed_through() -> Callable[..., Tensor]:
    return lambda x: tf.grad_pass_through(tf.round)(x) * 2.0


def stopped() -> Callable[..., Tensor]:
    def through_uint8(x: Tensor) -> Tensor:
        q = tf.cast(tf.clip_by_value(tf.round(x * 10.0) + 8.0, 0.0, 15.0), tf.uint8)
        return x + tf.stop_gradient((tf.cast(q, x.dtype) - 8.0) / 10.0 - x)

    return through_uint8


@pytest.mark.parametrize("make", [decorated_outside, decorated_inside, passed_through, stopped])
def test_a_decorated_helper_keeps_its_gradient_where_a_true_derivative_is_taken(
    backend: NumpyBackend, make: Callable[[], Any]
) -> None:
    assert_as_in("tensorflow", make(), X, backend=backend, cotangent=UPSTREAM, rtol=0, atol=0)


class Growth:
    """A method that is its own derivative, and says so."""

    rate = 2.0

    @staticmethod
    def decorated() -> Any:
        class Decorated(Growth):
            @tf.custom_gradient
            def grow(self, x: Tensor) -> Any:
                def grad(dy: Tensor) -> Tensor:
                    return dy * self.rate * self.grow(x)

                return tf.exp(x), grad

        return Decorated().grow


@pytest.mark.parametrize("of_method", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_a_gradient_that_calls_its_own_function_has_that_gradient_again(
    graph: bool, of_method: bool
) -> None:
    @tf.custom_gradient
    def grow(x: Tensor) -> Any:
        return tf.exp(x), lambda dy: dy * 2.0 * grow(x)

    def second(f: Callable[..., Any]) -> Any:
        def run(x: Tensor) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = f(x)
                gradient = inner.gradient(y, x)
            return gradient, outer.gradient(gradient, x)

        return tf.function(run, autograph=False) if graph else run

    original = Growth.decorated() if of_method else grow
    x = tf.constant(W)
    results = [second(f)(x) for f in (from_tf_custom_gradient(original), original)]
    assert_equal_bits(*results)
    np.testing.assert_allclose(results[0][1], 4.0 * np.exp(W), rtol=1e-6)


# --- variables ------------------------------------------------------------------------------------


def make_scaled(variable: Any, takes_variables: bool = True) -> Callable[..., Any]:
    """A function that reads a variable, and delivers it a gradient of its own."""

    @tf.custom_gradient
    def scaled(x: Tensor) -> Any:
        def grad(dy: Tensor, variables: Any = None) -> Any:
            return dy * variable * 2.0, [tf.reduce_sum(dy * x) * 10.0 for _ in variables]

        def plain(dy: Tensor) -> Tensor:
            return dy * variable

        return x * variable, grad if takes_variables else plain

    return scaled


@pytest.mark.parametrize("graph", [False, True])
def test_a_variable_that_is_read_gets_the_gradient_that_tensorflow_delivers(graph: bool) -> None:
    variable = tf.Variable(3.0)
    original = make_scaled(variable)

    def pull(f: Callable[..., Any]) -> Any:
        def run(x: Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return y, *tape.gradient(y, [x, variable])

        return tf.function(run, autograph=False) if graph else run

    results = [pull(f)(tf.constant(X)) for f in (from_tf_custom_gradient(original), original)]
    assert_equal_bits(*results)
    assert float(results[0][2]) == 10.0 * X.sum()


def test_a_new_value_of_a_variable_is_seen() -> None:
    variable = tf.Variable(3.0)
    imported = from_tf_custom_gradient(make_scaled(variable))
    np.testing.assert_array_equal(imported(tf.constant(X)), 3.0 * X)
    variable.assign(5.0)
    np.testing.assert_array_equal(imported(tf.constant(X)), 5.0 * X)


def test_a_gradient_function_without_variables_is_refused_as_by_tensorflow() -> None:
    original = make_scaled(tf.Variable(3.0), takes_variables=False)
    for f in (original, from_tf_custom_gradient(original)):
        with pytest.raises(TypeError, match="variables"):
            f(tf.constant(X))


def test_a_function_that_reads_a_variable_is_refused_elsewhere() -> None:
    imported = from_tf_custom_gradient(make_scaled(tf.Variable(3.0)))
    with pytest.raises(
        xg.errors.TraceError, match=r"test_from_tf_custom_gradient\.py:\d+.*Variable"
    ):
        imported(X)


def test_a_variable_may_be_an_argument() -> None:
    imported = from_tf_custom_gradient(written()["bilinear"])
    variable = tf.Variable(W)
    with tf.GradientTape() as tape:
        y = imported(tf.constant(X), variable)
    gradient = tape.gradient(y, variable)
    np.testing.assert_array_equal(gradient, np.clip(X, -1.0, 1.0))


def test_a_branch_on_values_is_taken_by_values_on_every_framework() -> None:
    @tf.custom_gradient
    def branching(x: Tensor) -> Any:
        y = tf.abs(x) if tf.reduce_sum(x) > 0 else tf.negative(x)
        return y, lambda dy: 5.0 * dy

    imported = from_tf_custom_gradient(branching)
    for sign in (1.0, -1.0):
        y, pullback = vjp(imported, tf.constant(sign * X))
        np.testing.assert_array_equal(y, np.abs(X) if sign > 0 else X)
        np.testing.assert_array_equal(pullback(tf.constant(UPSTREAM))[0], 5.0 * UPSTREAM)
        y, pullback = vjp(imported, sign * X)
        np.testing.assert_array_equal(y, np.abs(X) if sign > 0 else X)
        np.testing.assert_array_equal(pullback(UPSTREAM)[0], 5.0 * UPSTREAM)


# --- what is no such function ---------------------------------------------------------------------


def test_what_is_not_decorated_is_refused_with_what_to_do() -> None:
    def plain(x: Tensor) -> Tensor:
        return x

    with pytest.raises(TypeError, match=r"'plain', a function.*xg\.custom_gradient"):
        from_tf_custom_gradient(plain)
    with pytest.raises(TypeError, match=r"inside tf\.function"):
        from_tf_custom_gradient(tf.function(plain))
    with pytest.raises(TypeError, match=r"decorated with tf\.custom_gradient, got 3"):
        from_tf_custom_gradient(3)
    with pytest.raises(TypeError, match=r"recompute_grad.*f\.__wrapped__, to xg\.function"):
        from_tf_custom_gradient(tf.recompute_grad(plain))


def test_what_is_returned_must_be_outputs_and_a_function() -> None:
    lone = tf.custom_gradient(lambda x: tf.exp(x))
    with pytest.raises(xg.GradientError, match=r"\(outputs, grad_fn\)"):
        from_tf_custom_gradient(lone)(tf.constant(X))


def test_a_wrong_number_of_gradients_is_told() -> None:
    @tf.custom_gradient
    def one_for_two(x: Tensor, w: Tensor) -> Any:
        return x * w, lambda dy: dy

    with pytest.raises(xg.GradientError, match=r"1 gradient for 2 arguments \(x, w\)"):
        from_tf_custom_gradient(one_for_two)(tf.constant(X), tf.constant(W))


def test_a_method_is_one_still(backend: NumpyBackend) -> None:
    class Scaled:
        factor = 2.0

        @from_tf_custom_gradient
        @tf.custom_gradient
        def scale(self, x: Tensor) -> Any:
            return x * self.factor, lambda upstream: upstream * 10.0

    scaled = Scaled()
    for factor in (2.0, 5.0):
        scaled.factor = factor
        y, (gradient,) = pull(backend, scaled.scale, (X,), X)
        np.testing.assert_array_equal(y, X * np.float32(factor))
        np.testing.assert_array_equal(gradient, 10 * X)


def test_what_comes_by_keyword_alone_has_the_gradient_that_tensorflow_gives_it() -> None:
    import warnings

    @tf.custom_gradient
    def doubled(x: Tensor) -> Any:
        return x * 2.0, lambda upstream: upstream * 7.0

    gradients = []
    for each in (doubled, from_tf_custom_gradient(doubled)):
        x = tf.constant(X)
        with warnings.catch_warnings(), tf.GradientTape() as tape:
            warnings.simplefilter("error")
            tape.watch(x)
            y = each(x=x)
        gradients.append(tape.gradient(y, x))
    np.testing.assert_array_equal(*gradients)
    with pytest.raises(xg.errors.TraceError, match="Pass them by position"):
        from_tf_custom_gradient(doubled)(x=X)
