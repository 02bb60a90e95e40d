"""Functions on a backend: outputs and gradients of a gradient of its own, captured and run as it
is.

The expected numbers are NumPy's, written here by hand. A Function is made of operators and `xg.xp`
alone, so that it runs as it is on every framework's tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import GradientError, MultigradError

from .oracles import DTYPES, FLOAT32, finfo, spread
from .under_test import as_function, pull

xp = xg.xp
Tensor = Any
X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.75]], np.float32)
W = np.array([[1.5, 2.0, -0.5], [0.25, -1.0, 4.0]], np.float32)
G = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)


@pytest.fixture(params=[None, True], ids=["captured", "as it is"])
def native(request: pytest.FixtureRequest) -> bool | None:
    return request.param


def weighted(x: Tensor, w: Tensor, scale: float) -> Any:
    """Two outputs; the gradients are no derivatives, so that none can come from autodiff."""

    def grad(upstream: Any) -> Any:
        product, total = upstream
        return product * w * 3.0 + total, product * x * scale, None

    return (x * w * scale, x + w), grad


def test_several_inputs_outputs_and_a_number(backend: Any, native: bool | None) -> None:
    function = xg.custom_gradient(weighted, native=native)
    # NumPy makes float32 of bfloat16 beside a number.
    for dtype in DTYPES[: 3 if native or backend.name == "numpy" else 4]:
        if native and not backend.computes_in(dtype):
            continue
        x, w, g = (array.astype(dtype) for array in (X, W, G))
        outputs, gradients = pull(backend, function, (x, w, 2.0), (g, g))
        expected = (
            (x * w * dtype.type(2), x + w),
            (g * w * dtype.type(3) + g, g * x * dtype.type(2)),
        )
        for actual, right in zip(
            (*outputs, *gradients[:2]), (*expected[0], *expected[1]), strict=True
        ):
            assert (actual.dtype, actual.shape) == (dtype, X.shape)
            right = right.astype(np.float64)
            limit = 4 * float(finfo(dtype).eps) * 24  # the largest product
            np.testing.assert_allclose(actual.astype(np.float64), right, rtol=0, atol=limit)
        assert gradients[2] is None


def test_a_cotangent_of_none_is_zero(backend: Any, native: bool | None) -> None:
    function = xg.custom_gradient(weighted, native=native)
    _, (grad_x, grad_w, _) = pull(backend, function, (X, W, 2.0), (None, G))
    np.testing.assert_array_equal(grad_x, G)
    np.testing.assert_array_equal(grad_w, np.zeros_like(W))


def test_numbers_are_run_time_arguments_of_one_capture(backend: Any) -> None:
    function = xg.custom_gradient(weighted)
    for scale in (2.0, -0.5, 0.0):
        (product, _), (_, grad_w, _) = pull(backend, function, (X, W, scale), (G, None))
        np.testing.assert_array_equal(product, X * W * np.float32(scale))
        np.testing.assert_array_equal(grad_w, G * X * np.float32(scale))
    assert len(function.captures.variants) == 1


def chosen(x: Tensor, index: Tensor, flag: Tensor) -> Any:
    def grad(upstream: Any) -> Any:
        return xp.where(flag, upstream * 2.0, upstream), None, None

    return xp.where(index > 0, x, 0.0 * x), grad


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers_and_bools_are_inputs_without_gradient(
    backend: Any, native: bool | None, kind: str
) -> None:
    index, flag = np.array([[1, 0, 2], [-1, 5, 0]], kind), X > 0
    function = xg.custom_gradient(chosen, native=native)
    y, gradients = pull(backend, function, (X, index, flag), G)
    np.testing.assert_array_equal(y, np.where(index > 0, X, 0))
    np.testing.assert_array_equal(gradients[0], np.where(flag, G * 2, G))
    assert gradients[1] is None and gradients[2] is None


def test_a_gradient_of_none_is_zero(backend: Any, native: bool | None) -> None:
    function = xg.custom_gradient(
        lambda x, w: (x * w, lambda upstream: (None, upstream)), native=native
    )
    _, (grad_x, grad_w) = pull(backend, function, (X, W), G)
    np.testing.assert_array_equal(grad_x, np.zeros_like(X))
    np.testing.assert_array_equal(grad_w, G)


@pytest.mark.parametrize("flat", [False, True])
def test_arguments_and_outputs_may_be_nested(backend: Any, native: bool | None, flat: bool) -> None:
    def layer(given: Any, mode: str) -> Any:
        x, (w, b) = given[0], given[1]["rest"]

        def grad(upstream: Any) -> Any:
            own, z, y = upstream["y"] * 2.0, upstream["z"], upstream["y"]
            return [own, z, y, None] if flat else ((own, {"rest": (z, y)}), None)

        return {"y": x * w, "z": w + b, "mode": mode}, grad

    function = xg.custom_gradient(layer, native=native)
    given = (X, {"rest": (W, G)})
    cotangent = {"y": G, "z": X, "mode": None}
    outputs, ((grad_x, gradients), _) = pull(backend, function, (given, "plain"), cotangent)
    assert outputs["mode"] == "plain"
    np.testing.assert_array_equal(outputs["y"], X * W)
    np.testing.assert_array_equal(outputs["z"], W + G)
    np.testing.assert_array_equal(grad_x, G * 2)
    np.testing.assert_array_equal(gradients["rest"][0], X)
    np.testing.assert_array_equal(gradients["rest"][1], G)


def test_inputs_of_different_shapes_have_gradients_of_their_own(
    backend: Any, native: bool | None
) -> None:
    def biased(x: Tensor, bias: Tensor) -> Any:
        return x + bias, lambda upstream: (upstream, xp.sum(upstream, axis=0))

    function = xg.custom_gradient(biased, native=native)
    for shape in ((2, 3), (0, 3), (5, 1)):
        x, g = spread(shape, FLOAT32), spread(shape, FLOAT32, seed=1)
        bias = spread(shape[1:], FLOAT32, seed=2)
        y, (grad_x, grad_bias) = pull(backend, function, (x, bias), g)
        np.testing.assert_array_equal(y, x + bias)
        np.testing.assert_array_equal(grad_x, g)
        assert grad_bias.shape == bias.shape
        np.testing.assert_allclose(grad_bias, g.sum(axis=0), rtol=1e-6)


def test_a_gradient_of_another_shape_is_refused_by_its_argument(
    backend: Any, native: bool | None
) -> None:
    def reduced(x: Tensor, weight: Tensor) -> Any:
        return x * weight, lambda upstream: (upstream, xp.sum(upstream))

    function = xg.custom_gradient(reduced, native=native)
    message = r"reduced.*gradient of shape \(\).*'weight'.*\(2, 3\)"
    with pytest.raises(GradientError, match=message):
        pull(backend, function, (X, W), G)


def test_a_wrong_number_of_gradients_is_refused(backend: Any, native: bool | None) -> None:
    function = xg.custom_gradient(lambda x, w: (x * w, lambda upstream: (upstream,)), native=native)
    with pytest.raises(GradientError, match=r"1 gradient for 2 arguments \(x, w\)"):
        pull(backend, function, (X, W), G)


def test_a_gradient_of_another_float_dtype_is_cast(backend: Any, native: bool | None) -> None:
    function = xg.custom_gradient(
        lambda x: (x * 2.0, lambda upstream: xp.astype(upstream * 0 + 3, "float16")), native=native
    )
    _, gradients = pull(backend, function, (X,), G)
    assert gradients[0].dtype == np.float32
    np.testing.assert_array_equal(gradients[0], np.full_like(X, 3.0))


def test_an_exception_in_the_users_function_arrives_as_it_was_raised(
    backend: Any, native: bool | None
) -> None:
    calls = []

    def broken(x: Tensor) -> Any:
        calls.append(1)
        raise ArithmeticError("the user's own")

    with pytest.raises(ArithmeticError, match="the user's own"):
        xg.custom_gradient(broken, native=native)(backend.array(X))
    assert len(calls) == 1


def test_a_forward_alone_has_its_true_derivative(backend: Any) -> None:
    function = xg.function(lambda x, w: xp.tanh(x) * w + x)
    y, (grad_x, grad_w) = pull(backend, function, (X, W), G)
    t = np.tanh(X.astype(np.float64))
    np.testing.assert_allclose(y, t * W + X, rtol=1e-6)
    np.testing.assert_allclose(grad_x, G * (W * (1 - t * t) + 1), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(grad_w, G * t, rtol=1e-6)


def test_what_residuals_keeps_is_what_backward_gets(backend: Any) -> None:
    function = xg.function(
        lambda x, w: xp.exp(x) * w,
        lambda grad_out, kept: (grad_out * kept[0], grad_out * kept[1]),
        lambda outputs, x, w: (outputs, x > 0),
    )
    with pytest.raises(MultigradError):  # a bool is no gradient's factor
        pull(backend, xg.function(lambda x: x, lambda g, kept: kept, lambda y, x: x > 0), (X,), G)
    y, (grad_x, grad_w) = pull(backend, function, (X, W), G)
    np.testing.assert_allclose(y, np.exp(X) * W, rtol=1e-6)
    np.testing.assert_allclose(grad_x, G * np.exp(X) * W, rtol=1e-6)
    np.testing.assert_array_equal(grad_w, G * (X > 0))


def test_a_function_inside_of_another_keeps_its_own_gradient(backend: Any) -> None:
    inner = xg.custom_gradient(lambda x: (xp.square(x), lambda upstream: upstream * 5.0))
    y, (gradient,) = pull(backend, lambda x: inner(x) * 2.0, (X,), G)
    np.testing.assert_array_equal(y, X * X * 2)
    np.testing.assert_array_equal(gradient, G * 2 * 5)


def test_random_draws_in_a_function_are_those_of_its_key(backend: Any) -> None:
    def noisy(x: Tensor) -> Any:
        return x + xp.rand_like(x), lambda upstream: upstream * xp.rand_like(upstream)

    function = xg.custom_gradient(noisy)
    _, (gradient,) = pull(backend, function.keyed(7), (X,), G)
    y, (again,) = pull(backend, function.keyed(7), (X,), G)
    reference, (expected,) = xg.vjp(function.keyed(7), X)[0], xg.vjp(function.keyed(7), X)[1](G)
    np.testing.assert_array_equal(y, reference)
    np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_array_equal(again, expected)


def test_a_lowered_function_is_called_with_its_tensors_and_numbers(backend: Any) -> None:
    function = xg.custom_gradient(weighted)
    function(X, W, 2.0)
    native = as_function(xg.lower(function, backend.name))
    outputs = native(backend.array(X), backend.array(W), 0.5)
    np.testing.assert_array_equal(backend.numpy(outputs[0]), X * W * np.float32(0.5))
    np.testing.assert_array_equal(backend.numpy(outputs[1]), X + W)


def test_a_rule_that_runs_as_it_is_gets_the_frameworks_tensors(backend: Any) -> None:
    seen = []

    def as_it_is(ctx: Any, grad_out: Tensor, tin: Tensor, factor: float = 2.0) -> Tensor:
        seen.append(isinstance(grad_out, backend.row.tensors.types))
        return grad_out * factor

    rule = xg.register("conformance_as_it_is", native=True)(as_it_is)
    try:
        act = xg.activation("ReLU", rule, params={"factor": 3.0})
        x = backend.array(X)
        np.testing.assert_array_equal(backend.numpy(act(x)), np.maximum(X, 0))
        bare = rule(None, backend.array(G), x, factor=3.0)
        np.testing.assert_array_equal(backend.numpy(bare), G * 3)
        if (
            backend.row.autodiff.vjp is not None
        ):  # without autodiff, nothing runs a rule that has no graph
            _, (gradient,) = pull(backend, act, (X,), G)
            np.testing.assert_array_equal(gradient, G * 3)
        assert seen and all(seen)
    finally:
        xg.unregister("conformance_as_it_is")


@pytest.mark.beside_numpy
def test_numpys_arrays_beside_tensors_are_constants_of_their_framework(backend: Any) -> None:
    function = xg.custom_gradient(weighted)
    x = backend.array(X)
    for found, expected in zip(
        function(x, W, 2.0), function(x, backend.array(W), 2.0), strict=True
    ):
        assert type(found) is type(expected)
        np.testing.assert_array_equal(backend.numpy(found), backend.numpy(expected))


def test_a_tensor_in_the_place_of_a_lowered_number_gets_no_gradient_in_silence(
    backend: Any,
) -> None:
    def scaled(x: Tensor, beta: Any) -> Any:
        return x * beta, lambda upstream: (upstream * beta, None)

    function = xg.custom_gradient(scaled)
    x = backend.array(X)
    function(x, 2.0)
    native = xg.lower(function, backend.name)
    y, gradient = backend.vjp(native, X, G, 3.0)
    np.testing.assert_array_equal(y, X * 3)
    np.testing.assert_array_equal(gradient, G * 3)
    if backend.row.autodiff.vjp is None:
        return  # a pullback has no place for a number
    call = as_function(native)
    with pytest.raises(GradientError, match="lowered after a call with a number for 'beta'"):
        backend.vjp(lambda beta: call(x, beta), np.float32(2.0), G)
