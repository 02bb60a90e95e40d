"""`xg.opaque`: what nobody can look into, code of NumPy's arrays, is a Function everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad.errors import GradientError, RuleTypeError, UnsupportedOp

X = np.array([0.5, 1.0, 4.0], np.float32)
MATRIX = np.array([[2.0, 1.0], [0.0, 3.0]], np.float32)
SIDE = np.array([1.0, 2.0], np.float32)


def gammaln(x: Any) -> Any:
    return special.gammaln(x)  # itself names its arguments on newer releases of NumPy alone


def slope(grad_out: Any, x: Any) -> Any:
    return grad_out * special.digamma(x)


log_gamma = xg.opaque(gammaln, slope, result="x")


def solve(a: Any, b: Any, times: float) -> Any:
    return {"x": np.linalg.solve(a, b) * np.float32(times), "rank": np.int64(2)}


def solve_backward(grad_out: Any, a: Any, b: Any, times: float) -> Any:
    inner = np.linalg.solve(a.T, grad_out["x"] * np.float32(times))
    return -np.outer(inner, np.linalg.solve(a, b)), inner, None


solver = xg.opaque(
    solve, solve_backward, result=lambda a, b, times: {"x": b, "rank": ((), "int64")}
)


def test_the_gradient_is_that_of_the_own_backward(backend: Any) -> None:
    y, gradient = backend.vjp(log_gamma, X, np.array([1.0, -2.0, 0.5], np.float32))
    np.testing.assert_array_equal(y, special.gammaln(X))
    wanted = np.array([1.0, -2.0, 0.5], np.float32) * special.digamma(X)
    np.testing.assert_array_equal(gradient, wanted)


def test_outputs_may_be_nested_and_numbers_are_handed_on(backend: Any) -> None:
    found = solver(backend.array(MATRIX), backend.array(SIDE), 3.0)
    np.testing.assert_allclose(backend.numpy(found["x"]), [0.5, 2.0], rtol=1e-6)
    assert int(backend.numpy(found["rank"])) == 2
    outputs, pull = xg.vjp(solver, backend.array(MATRIX), backend.array(SIDE), 3.0)
    ones = backend.array(np.ones_like(backend.numpy(outputs["x"])))
    first, second, third = pull({"x": ones, "rank": None})
    wanted = [[-0.25, -1.0], [-1 / 12, -1 / 3]]
    np.testing.assert_allclose(backend.numpy(first), wanted, rtol=1e-6)
    np.testing.assert_allclose(backend.numpy(second), [1.5, 0.5], rtol=1e-6)
    assert third is None


@pytest.mark.parametrize(
    "result",
    ["x", ((3,), np.float32), X, [((3,), "float32")], lambda x: x, lambda x: (x.shape, x.dtype)],
    ids=["name", "pair", "array", "list", "function", "function of a shape"],
)
def test_a_result_is_declared_in_several_ways(backend: Any, result: Any) -> None:
    is_list = isinstance(result, list)
    f = xg.opaque(
        lambda x: [x * 2] if is_list else x * 2,
        lambda g, x: (g[0] if is_list else g) * 2,
        result=result,
    )
    y = f(backend.array(X))
    np.testing.assert_array_equal(backend.numpy(y[0] if is_list else y), 2 * X)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda x: x.astype(np.float64), r"returned float64 of shape \(3,\), .* says float32"),
        (lambda x: x[:2], r"returned float32 of shape \(2,\), .* says float32 of shape \(3,\)"),
        (lambda x: (x, x), "returned 2 arrays in .*, and its result= says one array"),
    ],
    ids=["dtype", "shape", "count"],
)
def test_code_that_returns_something_else_than_it_said_is_refused(
    backend: Any, forward: Any, said: str
) -> None:
    with pytest.raises(RuleTypeError, match=said):
        xg.opaque(forward, result="x")(backend.array(X))


def test_a_gradient_of_another_shape_is_refused(backend: Any) -> None:
    f = xg.opaque(lambda x: x * 2, lambda g, x: g[:2], result="x")
    with pytest.raises(GradientError, match=r"gradient of shape \(2,\)"):
        backend.vjp(f, X, np.ones_like(X))


def test_code_without_a_backward_has_no_gradient_and_says_so(backend: Any) -> None:
    f = xg.opaque(lambda x: x * 2, result="x")
    np.testing.assert_array_equal(backend.numpy(f(backend.array(X))), 2 * X)
    with pytest.raises(GradientError, match=r"has no backward: give xg\.opaque one"):
        backend.vjp(f, X, np.ones_like(X))


def test_arguments_cannot_be_written_to(backend: Any) -> None:
    def doubled(x: Any) -> Any:
        x *= 2
        return x

    given = backend.array(X)
    with pytest.raises(Exception, match="read-only"):
        xg.opaque(doubled, result="x")(given)
    np.testing.assert_array_equal(backend.numpy(given), X)


def test_what_it_returns_may_be_a_buffer_of_its_own(backend: Any) -> None:
    buffer = np.zeros_like(X)

    def fill(x: Any) -> Any:
        buffer[:] = 2 * x
        return buffer

    f = xg.opaque(fill, lambda g, x: 2 * g, result="x")
    first = f(backend.array(X))
    second = f(backend.array(-X))
    np.testing.assert_array_equal(backend.numpy(first), 2 * X)
    np.testing.assert_array_equal(backend.numpy(second), -2 * X)


def test_what_cannot_be_a_result_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="result='z' is no argument of <lambda>; it has x, y"):
        xg.opaque(lambda x, y: x, result="z")
    with pytest.raises(RuleTypeError, match=r"result= is 3\.0; expected the name of an argument"):
        xg.opaque(lambda x: x, result=3.0)
    with pytest.raises(TypeError, match="expected a function, got int 3"):
        xg.opaque(lambda x: x, 3, result="x")  # type: ignore[arg-type]


def test_a_function_around_it_runs_as_it_is(backend: Any) -> None:
    around = xg.function(lambda x: log_gamma(x) * 2.0, lambda g, x: g)
    np.testing.assert_array_equal(backend.numpy(around(backend.array(X))), 2 * special.gammaln(X))


# --- derivatives, transforms, compilers -----------------------------------------------------------


def noting(batched: bool) -> tuple[list[Any], Any]:
    """Return gammaln, and a list of the shapes that it is called with."""
    shapes = []

    def forward(x: Any) -> Any:
        shapes.append(x.shape)
        return special.gammaln(x)

    return shapes, xg.opaque(forward, slope, result="x", batched=batched)


@pytest.mark.needs("torch")
def test_torch_compiles_it_into_one_graph() -> None:
    import torch

    def loss(a: Any, b: Any, x: Any) -> Any:
        return solver(a, b, 3.0)["x"].sum() + log_gamma(x * 2).sum()

    given = [torch.tensor(each, requires_grad=True) for each in (MATRIX, SIDE, X)]
    wanted = torch.autograd.grad(loss(*given), given)
    found = torch.autograd.grad(
        torch.compile(loss, fullgraph=True, backend="aot_eager")(*given), given
    )
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    with pytest.raises(RuleTypeError, match="returned float64"):
        lies = xg.opaque(lambda x: x.astype(np.float64), result="x")
        torch.compile(lies, fullgraph=True, backend="aot_eager")(given[2])


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("batched", "calls"), [(False, 4), (True, 1)])
def test_torch_maps_it_by_a_loop_or_at_once(batched: bool, calls: int) -> None:
    import torch

    shapes, f = noting(batched)
    x = torch.rand(4, 3) + 1
    gradient = torch.func.vmap(torch.func.grad(lambda row: f(row).sum()))(x)
    torch.testing.assert_close(gradient, torch.digamma(x))
    assert shapes == [(4, 3) if batched else (3,)] * calls
    mapped = torch.compile(torch.func.vmap(f), backend="aot_eager")(x)
    torch.testing.assert_close(mapped, torch.lgamma(x))


@pytest.mark.needs("torch")
def test_torch_refuses_its_second_derivative() -> None:
    import torch

    x = torch.tensor(X, requires_grad=True)
    (first,) = torch.autograd.grad(log_gamma(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError, match="no second derivative: it is opaque"):
        first.sum().backward()
    with pytest.raises(GradientError, match="no second derivative: it is opaque"):
        torch.func.grad(torch.func.grad(log_gamma))(torch.tensor(2.0))


@pytest.mark.needs("jax")
@pytest.mark.parametrize(("batched", "calls"), [(False, 4), (True, 1)])
def test_jax_compiles_it_and_maps_it_by_a_loop_or_at_once(batched: bool, calls: int) -> None:
    import jax
    import jax.numpy as jnp

    shapes, f = noting(batched)
    x = jnp.linspace(1, 3, 12, dtype=jnp.float32).reshape(4, 3)
    f_grad = jax.jit(jax.vmap(jax.value_and_grad(lambda row: f(row).sum())))
    _, gradient = f_grad(x)
    np.testing.assert_allclose(gradient, special.digamma(np.asarray(x)), rtol=1e-6)
    assert shapes == [(4, 3) if batched else (3,)] * calls
    with pytest.raises(GradientError, match="no second derivative: it is opaque"):
        jax.grad(jax.grad(log_gamma))(jnp.float32(2.0))


@pytest.mark.needs("tensorflow")
def test_tensorflow_compiles_it_for_lengths_that_it_does_not_know() -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = log_gamma(x)
        assert y.shape.as_list() == [None]
        return tape.gradient(y, x)

    for x in (X, X[:2]):
        np.testing.assert_array_equal(gradient(x).numpy(), special.digamma(x))
    with pytest.raises(
        UnsupportedOp, match="is opaque, which TensorFlow's XLA cannot call: compile with"
    ):
        tf.function(log_gamma, jit_compile=True)(tf.constant(X))


@pytest.mark.backends("torch")
def test_forward_mode_of_torch_is_refused_in_our_words(backend: Any) -> None:
    import torch
    from torch.autograd import forward_ad

    x = backend.array(X)
    with pytest.raises(GradientError, match=r"gammaln.* has no forward mode: it is opaque"):
        torch.func.jvp(log_gamma, (x,), (x,))
    with (
        forward_ad.dual_level(),
        pytest.raises(GradientError, match=r"gammaln.* has no forward mode: it is opaque"),
    ):
        log_gamma(forward_ad.make_dual(x, x))
