"""NumPy's arrays beside tensors of one framework in a call: they are that framework's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.torch_class import torch_class

xp = xg.xp
pytestmark = pytest.mark.backends("torch", "jax", "tensorflow")
X = np.array([1.0, 2.0, -3.0], np.float32)
M = np.array([0.5, 2.0, -1.0], np.float32)


@xg.custom_gradient
def scaled(x: Any, mask: Any) -> Any:
    return x * mask, lambda upstream: (upstream * mask * 2.0, None)


def masked(x: Any, mask: Any) -> Any:
    return x * mask


def gradients(upstream: Any, x: Any, mask: Any) -> Any:
    return upstream * mask * 2.0, upstream * x


def as_written(x: Any, mask: Any) -> Any:
    return xp.multiply(x, mask)


def gradients_as_written(upstream: Any, x: Any, mask: Any) -> Any:
    return xp.multiply(upstream, mask) * 2.0, None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "custom_gradient": scaled,
    "function": xg.function(masked, gradients, native=False),
    "as it is": xg.function(as_written, gradients_as_written, native=True),
}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=[*FUNCTIONS])


@functions
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_an_array_is_a_constant(function: Any, dtype: str, backend: Any) -> None:
    mask = M.astype(dtype)
    for _ in range(2):  # the second call is the known one
        if backend.name == "tensorflow" and dtype in ("int32", "bool"):
            continue  # its operators multiply no floats by integers
        y, pull = xg.vjp(lambda x: function(x, mask), backend.array(X))
        assert backend.numpy(y).dtype == np.float32
        np.testing.assert_array_equal(backend.numpy(y), X * mask)
        np.testing.assert_array_equal(backend.numpy(pull(backend.array(X))[0]), 2 * X * mask)


@functions
def test_an_array_comes_first_and_by_keyword(function: Any, backend: Any) -> None:
    w = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(function(M, w)), X * M)
    np.testing.assert_array_equal(backend.numpy(function(w, mask=M)), X * M)


@functions
def test_compiled_code_takes_arrays(function: Any, backend: Any) -> None:
    run = xg.jit(lambda x: function(x, M), backend.name)
    np.testing.assert_array_equal(backend.numpy(run(backend.array(X))), X * M)
    np.testing.assert_array_equal(backend.numpy(xg.jit(function)(backend.array(X), M)), X * M)


@pytest.mark.parametrize("where", ["strided", "read-only", "big-endian", "empty"])
def test_arrays_lie_in_memory_as_they_like(where: str, backend: Any) -> None:
    mask = {
        "strided": np.stack([M, M], 1)[::-1, 0],
        "read-only": np.broadcast_to(np.float32(2.0), (3,)),
        "big-endian": M.astype(">f4"),
        "empty": M[:0],
    }[where]
    x = X[: len(mask)]
    np.testing.assert_array_equal(backend.numpy(scaled(backend.array(x), mask)), x * mask)


def test_inputs_of_vjp_and_jvp_get_their_gradients(backend: Any) -> None:
    function = FUNCTIONS["function"]
    y, pull = xg.vjp(function, backend.array(X), M)
    np.testing.assert_array_equal(backend.numpy(y), X * M)
    first, second = pull(X)  # a cotangent may be an array, too
    np.testing.assert_array_equal(backend.numpy(first), 2 * X * M)
    np.testing.assert_array_equal(backend.numpy(second), X * X)
    assert xg.check(xg.convert(masked), backend.array(X), M).ok


def test_an_activation_takes_an_array_beside_a_param_of_the_framework(backend: Any) -> None:
    act = xg.activation("Heaviside", "triangular")
    width = backend.array(np.float32(2.0))
    np.testing.assert_array_equal(backend.numpy(act(X, width=width)), (X > 0).astype(np.float32))


def test_arrays_are_bound_and_left_out(backend: Any) -> None:
    function, x = FUNCTIONS["function"], backend.array(X)
    np.testing.assert_array_equal(backend.numpy(function.bind({"mask": M})(x)), X * M)
    np.testing.assert_array_equal(backend.numpy(function.bind({"mask": x})(M)), X * M)
    np.testing.assert_array_equal(backend.numpy(function.with_defaults((M,))(x)), X * M)
    np.testing.assert_array_equal(backend.numpy(function.with_defaults((x,))(M)), X * M)


def test_an_array_and_then_a_number_for_one_argument(backend: Any) -> None:
    @xg.custom_gradient
    def grown(x: Any, mask: Any) -> Any:
        y = x * mask
        return y, lambda upstream: (upstream * mask, xp.sum_to(upstream * x, mask))

    x = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(grown(x, M)), X * M)
    np.testing.assert_array_equal(backend.numpy(scaled(x, M)), X * M)
    np.testing.assert_array_equal(backend.numpy(scaled(x, 2.0)), X * 2)


def test_a_rule_takes_an_array_beside_a_tensor(backend: Any) -> None:
    rule = xg.get("triangular")
    expected = rule(None, M, X)
    for given in ((M, backend.array(X)), (backend.array(M), X)):
        np.testing.assert_allclose(backend.numpy(rule(None, *given)), expected, 1e-6)


@pytest.mark.backends("jax")
def test_wide_numbers_widen_floats_of_16_bits_in_jax(backend: Any) -> None:
    x = backend.array(X.astype(np.float16))
    for number in (np.float32(2.0), np.array(2.0, np.float32), M):
        assert scaled(x, number).dtype == (x * number).dtype == np.float32
    assert scaled(x, 2.0).dtype == (x * 2.0).dtype == np.float16


@pytest.mark.backends("jax")
def test_a_class_of_jax_takes_a_batch_of_numpy_and_a_traced_weight(backend: Any) -> None:
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def layer(x: Any, w: Any) -> Any:
        return x * w

    layer.defvjp(lambda x, w: (x * w, (x, w)), lambda kept, g: (g * kept[1], 3.0 * g * kept[0]))
    converted = xg.convert(layer)
    for function in (layer, converted, jax.jit(converted)):
        gradient = jax.grad(lambda w, f=function: f(M.astype(np.float64), w).sum())(jnp.asarray(X))
        np.testing.assert_array_equal(gradient, 3 * M)
        mapped = jax.vmap(lambda w, f=function: f(M, w))(jnp.stack([X, X]))
        np.testing.assert_array_equal(mapped, np.stack([X * M, X * M]))


@pytest.mark.backends("torch")
def test_a_class_that_runs_as_it_is_gets_the_callers_own_array(backend: Any) -> None:
    import torch

    @torch_class(lambda ctx, g: (g * ctx.mask, None))
    def Masked(ctx: Any, x: Any, mask: Any) -> Any:
        assert isinstance(mask, np.ndarray)
        ctx.mask = torch.from_numpy(mask)
        return x * ctx.mask

    x = torch.tensor(X, requires_grad=True)
    y = xg.convert(Masked)(x, M)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach(), X * M)
    np.testing.assert_array_equal(x.grad, M)


def test_what_is_no_number_names_the_argument(backend: Any) -> None:
    with pytest.raises(xg.GradientError, match="for argument 'mask'; expected one of"):
        scaled(backend.array(X), np.array(["a", "b", "c"]))


@pytest.mark.needs("torch", "jax")
@pytest.mark.backends("torch")
def test_two_frameworks_in_one_call_stay_an_error(backend: Any) -> None:
    import jax.numpy as jnp

    with pytest.raises(xg.MultigradError, match="mixes tensors of jax and torch"):
        FUNCTIONS["function"](backend.array(X), jnp.asarray(M))
