"""`xg.implicit`: the gradient of what a solver finds, by the equation that it solves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull as pulled

from ...conftest import find_backend

xp = xg.xp
Array = np.ndarray[Any, Any]
WAYS = ("gmres", "cg", "direct", "fixed_point")
RNG = np.random.default_rng(0)
W = 0.2 * RNG.standard_normal((4, 4))
B = RNG.standard_normal(4)
U = RNG.standard_normal(4)
TURNS = 28  # after which neither iteration moves its solution in float64
COMPILED = pytest.mark.backends("torch", "jax", "tensorflow")


# --- a deep equilibrium layer: x = tanh(w x + b), whose matrix is not symmetric -------------------
def turn(x: Any, w: Any, b: Any) -> Any:
    return xp.tanh(xp.matmul(w, x) + b)


def iterate(w: Any, b: Any) -> Any:
    x = xp.zeros_like(b)
    for _ in range(TURNS):
        x = turn(x, w, b)
    return x


def left_of(x: Any, w: Any, b: Any) -> Any:
    return x - turn(x, w, b)


def symmetric(x: Any, w: Any, b: Any) -> Any:
    """The stationary point of a strictly convex function: the matrix is that of its second
    derivatives.
    """
    return xp.matmul(xp.matrix_transpose(w), xp.tanh(xp.matmul(w, x))) + x - b


def descend(w: Any, b: Any) -> Any:
    x = xp.zeros_like(b)
    for _ in range(TURNS):
        x = x - 0.75 * symmetric(x, w, b)
    return x


def problem(way: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (symmetric, descend) if way == "cg" else (left_of, iterate)


@functools.cache
def unrolled(solver: Callable[..., Any]) -> tuple[Array, tuple[Array, ...]]:
    """The solution and its gradients, by the derivative of all iterations."""
    y, pull = xg.vjp(xg.function(solver), W, B)
    return y, pull(U)


def assert_close(found: Any, expected: Any, relative: float = 1e-6) -> None:
    for one, other in zip(optree.tree_leaves(found), optree.tree_leaves(expected), strict=True):
        assert one.shape == other.shape
        assert np.max(np.abs(one - other)) <= relative * np.max(np.abs(other))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_all_iterations(backend: Any, way: str) -> None:
    residual, solver = problem(way)
    y, found = pulled(backend, xg.implicit(residual, solver, solve=way), (W, B), U)
    expected, gradients = unrolled(solver)
    assert found[0].dtype == np.float64
    assert_close(y, expected, 1e-12)
    assert_close(found, gradients)


def test_a_closed_form(backend: Any) -> None:
    x = np.array([[0.25, 4.0], [9.0, 1e6]])
    root = xg.implicit(lambda x, theta: x * x - theta, lambda theta: xp.sqrt(theta))
    y, (found,) = pulled(backend, root, (x,), np.ones_like(x))
    assert np.array_equal(y, np.sqrt(x))
    assert_close(found, 0.5 / np.sqrt(x), 1e-11)


# --- several unknowns and params ------------------------------------------------------------------
def balance(x: Any, params: Any, scale: float) -> Any:
    first, second = x["first"], x["rest"][0]
    total = xp.sum(second)
    return {
        "first": first - xp.tanh(params["a"] + 0.3 * total) * scale,
        "rest": [second - 0.2 * xp.cos(params["b"] * xp.sum(first))],
    }


def settle(params: Any, scale: float) -> Any:
    x = {"first": xp.zeros_like(params["a"]), "rest": [xp.zeros_like(params["b"])]}
    for _ in range(100):
        left = balance(x, params, scale)
        x = {
            "first": x["first"] - left["first"],
            "rest": [x["rest"][0] - left["rest"][0]],
        }
    return x


TREE = {"a": RNG.standard_normal(3), "b": RNG.standard_normal((2, 2))}
COTANGENT = {"first": RNG.standard_normal(3), "rest": [RNG.standard_normal((2, 2))]}


@pytest.mark.parametrize("way", ["gmres", "direct"])
def test_unknowns_and_params_are_nested(backend: Any, way: str) -> None:
    layer = xg.implicit(balance, settle, solve=way)
    y, (found, of_number) = pulled(backend, layer, (TREE, 0.7), COTANGENT)
    expected, (gradients, _) = pulled(
        find_backend("numpy"), xg.function(settle), (TREE, 0.7), COTANGENT
    )
    assert_close(y, expected, 1e-12)
    assert_close(found, gradients)
    assert of_number is None


def test_unknowns_without_axes(backend: Any) -> None:
    def left_of(x: Any, theta: Any) -> Any:
        return x["a"] * x["a"] - xp.sum(theta), x["b"] - x["a"] * theta

    def solver(theta: Any) -> Any:
        root = xp.sqrt(xp.sum(theta))
        return {"a": root, "b": root * theta}

    theta = np.array([1.0, 3.0])
    cotangent = {"a": np.ones(()), "b": np.zeros(2)}
    y, (found,) = pulled(backend, xg.implicit(left_of, solver), (theta,), cotangent)
    assert y["a"] == pytest.approx(2.0)
    assert_close(found, np.full(2, 0.25), 1e-10)
    sum_of_all = xg.implicit(lambda x, theta: x - xp.sum(theta), lambda theta: xp.sum(theta))
    _, (found,) = pulled(backend, sum_of_all, (theta,), np.full((), 2.0))
    assert_close(found, np.full(2, 2.0), 1e-10)


def test_params_by_name_get_gradients(backend: Any) -> None:
    root = xg.implicit(lambda x, *, theta: x * x - theta, lambda *, theta: xp.sqrt(theta))
    with backend.precision(np.float64):
        x = backend.array(np.array([4.0]))
        _, pull = xg.vjp(lambda theta: root(theta=theta), x)
        (found,) = pull(backend.array(np.ones(1)))
        assert abs(float(backend.numpy(found)[0]) - 0.25) < 1e-12


# --- derivatives of derivatives -------------------------------------------------------------------
@COMPILED
@pytest.mark.parametrize("way", ["gmres", "direct"])
def test_the_gradient_has_a_derivative(backend: Any, way: str) -> None:
    theta = np.array([0.25, 4.0, 9.0])
    root = xg.implicit(lambda x, theta: x * x * x - theta, lambda theta: xp.cbrt(theta), solve=way)
    with backend.precision(np.float64):
        ones = backend.array(np.ones(3))

        def slope(theta: Any) -> Any:
            return xg.vjp(root, theta)[1](ones)[0]

        def bend(theta: Any) -> Any:
            return xg.vjp(slope, theta)[1](ones)[0]

        given = backend.array(theta)
        assert_close(backend.numpy(bend(given)), -2 / 9 * theta ** (-5 / 3), 1e-10)
        third = backend.numpy(xg.vjp(bend, given)[1](ones)[0])
        assert_close(third, 10 / 27 * theta ** (-8 / 3), 1e-10)


@COMPILED
def test_second_derivatives_are_those_of_all_iterations(backend: Any) -> None:
    layer = xg.implicit(left_of, iterate)

    def bent(f: Callable[..., Any]) -> list[Array]:
        with backend.precision(np.float64):
            w, b, u = map(backend.array, (W, B, U))
            _, pull = xg.vjp(lambda w, b: xg.vjp(f, w, b)[1](u)[0], w, b)
            return [backend.numpy(x) for x in pull(backend.array(np.cos(W)))]

    assert_close(bent(layer), bent(xg.function(iterate)))


# --- what fails -----------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["gmres", "cg", "fixed_point"])
def test_a_system_that_is_not_solved_names_iterations_and_error(backend: Any, way: str) -> None:
    residual, solver = problem(way)
    layer = xg.implicit(residual, solver, solve=way, maxiter=2)
    with pytest.raises(xg.GradientError, match=rf"solve='{way}': after 2 iterations"):
        pulled(backend, layer, (W, B), U)


def test_a_solver_that_has_not_converged_is_an_error(backend: Any) -> None:
    layer = xg.implicit(lambda x, theta: x * x - theta, lambda theta: 0.9 * theta)
    with pytest.raises(xg.GradientError, match=r"did not converge: .* residual is 0\.19 where"):
        layer(backend.array(np.ones(2, np.float32)))
    rough = xg.implicit(lambda x, theta: x * x - theta, lambda theta: 0.9 * theta, accept=0.2)
    assert backend.numpy(rough(backend.array(np.ones(2, np.float32)))) == pytest.approx(0.9)


def singular(x: Any, theta: Any) -> Any:
    """Both equations are the same one."""
    return xp.sum(x) * xp.ones_like(x) - theta


@pytest.mark.parametrize("way", ["direct", "gmres"])
def test_a_singular_matrix_is_an_error(backend: Any, way: str) -> None:
    layer = xg.implicit(singular, lambda theta: 0.5 * theta, solve=way)
    with pytest.raises(xg.GradientError, match="singular"):
        pulled(backend, layer, (np.ones(2),), np.array([1.0, -1.0]))


def test_gmres_solves_a_singular_system_that_has_a_solution(backend: Any) -> None:
    layer = xg.implicit(singular, lambda theta: 0.5 * theta)
    _, (found,) = pulled(backend, layer, (np.ones(2),), np.ones(2))
    assert_close(found, np.full(2, 0.5), 1e-10)


def test_a_residual_of_another_shape_is_an_error(backend: Any) -> None:
    layer = xg.implicit(lambda x, theta: xp.sum(x) - xp.sum(theta), lambda theta: theta)
    with pytest.raises(xg.GradientError, match=r"shapes \[\(\)\], and x \[\(2,\)\]"):
        layer(backend.array(np.ones(2, np.float32)))


def test_what_is_no_float_tensor_is_an_error(backend: Any) -> None:
    layer = xg.implicit(lambda x, theta: theta, lambda theta: "x")
    with pytest.raises(xg.GradientError, match="gives str 'x' where"):
        layer(backend.array(np.ones(2, np.float32)))


@pytest.mark.parametrize("way", ["gmres", "direct"])
def test_nan_is_passed_on(backend: Any, way: str) -> None:
    residual, solver = problem(way)
    layer = xg.implicit(residual, solver, solve=way)
    y, found = pulled(backend, layer, (W, np.array([np.nan, 0.0, 0.0, 0.0])), U)
    assert np.isnan(y).all()
    assert np.isnan(found[1]).all()
    _, found = pulled(backend, layer, (W, B), np.array([np.nan, 0.0, 0.0, 0.0]))
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solve": "gmers"}, "no way to solve 'gmers'; did you mean 'gmres'"),
        ({"tol": 0.0}, "tol is a number above zero, not 0.0"),
        ({"maxiter": 0}, "maxiter is a number above zero"),
        ({"accept": -1.0}, "accept is a number above zero"),
    ],
)
def test_options_that_mean_nothing_are_an_error(options: Any, message: str) -> None:
    with pytest.raises(xg.RuleError, match=message):
        xg.implicit(left_of, iterate, **options)


def test_a_zero_cotangent_has_zero_gradients(backend: Any) -> None:
    _, found = pulled(backend, xg.implicit(left_of, iterate), (W, B), np.zeros(4))
    assert not any(x.any() for x in found)


def test_the_report_says_how_well_both_are_solved(backend: Any) -> None:
    layer = xg.implicit(left_of, iterate)
    with backend.precision(np.float64):
        w, b = map(backend.array, (W, B))
        report = layer.report(w, b, cotangent=backend.array(U))
        assert report.converged is True
        assert report.residual < 1e-15
        assert 2 <= report.iterations <= 8  # as many as there are unknowns, but for rounding
        assert report.error < 1e-11
        short = xg.implicit(left_of, iterate, maxiter=1).report(w, b)
        assert (short.converged, short.iterations) == (False, 1)
        assert short.error > 1e-3


# --- dtypes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_floats_keep_their_dtype(backend: Any, dtype: str) -> None:
    w, b, u = (x.astype(dtype) for x in (W, B, U))
    layer = xg.implicit(left_of, iterate, accept=1e-2)
    y, found = pulled(backend, layer, (w, b), u)
    assert {x.dtype for x in (y, *found)} == {np.dtype(dtype)}
    eps = float(np.finfo(dtype).eps)
    assert_close([x.astype(float) for x in found], list(unrolled(iterate)[1]), 30 * eps)
    root = xg.implicit(lambda x, theta: x * x - theta, lambda theta: xp.sqrt(theta), accept=1e-2)
    _, (found,) = pulled(backend, root, (np.array([4.0, 9.0], dtype),), np.ones(2, dtype))
    assert_close(found.astype(float), np.array([1 / 4, 1 / 6]), 2 * eps)


def test_a_saved_one_takes_the_dtypes_that_it_was_called_with(tmp_path: Path) -> None:
    layer = xg.implicit(left_of, lambda w, b: iterate(w, b))
    calls = [(W, B, U), [x.astype("float32") for x in (W, B, U)]]
    expected = [xg.vjp(layer, w, b)[1](u) for w, b, u in calls]
    xg.save(layer, tmp_path / "layer.json")
    saved = xg.load(tmp_path / "layer.json")
    for (w, b, u), gradients in zip(calls, expected, strict=True):
        found = xg.vjp(saved, w, b)[1](u)
        assert {x.dtype for x in found} == {u.dtype}
        assert_close(found, gradients)


# --- compilers and transforms ---------------------------------------------------------------------
def in_compiled_code(backend: Any, layer: Any) -> list[Array]:
    """The gradients of W and B where the compiler of a framework reads along."""
    with backend.precision(np.float64):
        w, b, u = map(backend.array, (W, B, U))
        if backend.name != "torch":
            pull = xg.jit(lambda w, b, u: xg.vjp(layer, w, b)[1](u), backend.name)
            return [backend.numpy(x) for x in pull(w, b, u)]
        import torch

        given = [x.detach().requires_grad_() for x in (w, b)]
        torch.compile(layer, backend="aot_eager", fullgraph=True)(*given).backward(u)
        return [backend.numpy(x.grad) for x in given]


@COMPILED
def test_compiled_code_has_the_same_gradients(backend: Any) -> None:
    found = in_compiled_code(backend, xg.implicit(left_of, iterate))
    assert_close(found, list(unrolled(iterate)[1]))


@COMPILED
def test_what_fails_in_compiled_code_is_nan(backend: Any) -> None:
    found = in_compiled_code(backend, xg.implicit(left_of, iterate, maxiter=1))
    assert all(np.isnan(x).all() for x in found)
    found = in_compiled_code(backend, xg.implicit(left_of, lambda w, b: xp.zeros_like(b)))
    assert all(np.isnan(x).all() for x in found)


CUBE = xg.implicit(lambda x, theta: x * x * x - theta, lambda theta: xp.cbrt(theta))


@pytest.mark.needs("jax")
def test_jax_compiles_the_second_derivative_and_refuses_the_third_by_name() -> None:
    import jax

    def slope(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda theta: jax.grad(lambda theta: f(theta).sum())(theta)

    theta = np.array([0.25, 4.0, 9.0])
    with jax.enable_x64(True):
        found = jax.jit(slope(slope(CUBE)))(theta)
        assert_close(np.asarray(found), -2 / 9 * theta ** (-5 / 3), 1e-10)
        with pytest.raises(xg.GradientError, match="the derivative of a loop"):
            jax.jit(slope(slope(slope(CUBE))))(theta)


@pytest.mark.needs("tensorflow")
def test_a_graph_of_tensorflow_need_not_know_lengths() -> None:
    import tensorflow as tf

    theta = np.array([0.25, 4.0, 9.0])
    taken = tf.function(
        lambda x: xg.vjp(CUBE, x)[1](tf.ones_like(x))[0],
        input_signature=[tf.TensorSpec([None], tf.float64)],
    )
    assert_close(taken(tf.constant(theta)).numpy(), theta ** (-2 / 3) / 3, 1e-10)


ROWS = np.stack([B, 2 * B, np.zeros(4)])
OF_ROWS = np.stack([U, -U, U])


def by_rows(way: str) -> Array:
    layer = xg.implicit(left_of, iterate, solve=way)
    return np.stack([xg.vjp(layer, W, b)[1](u)[1] for b, u in zip(ROWS, OF_ROWS, strict=True)])


@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("way", ["gmres", "fixed_point", "direct"])
def test_vmap_solves_each_row(backend: Any, way: str) -> None:
    layer = xg.implicit(left_of, iterate, solve=way)
    with backend.precision(np.float64):
        w, rows, of_rows = map(backend.array, (W, ROWS, OF_ROWS))
        transforms = importlib.import_module("torch.func" if backend.name == "torch" else "jax")
        grad = transforms.grad(lambda b, u: (layer(w, b) * u).sum())
        found = backend.numpy(transforms.vmap(grad)(rows, of_rows))
    assert_close(found, by_rows(way), 1e-10)


# --- solvers of a framework's own -----------------------------------------------------------------
@pytest.mark.needs("torch")
def test_a_solver_of_torch_looks_at_values_and_keeps_nothing() -> None:
    import torch

    asked = []

    def solver(w: Any, b: Any) -> Any:
        x, size = torch.zeros_like(b), 1.0
        while size > 1e-13:
            x, old = torch.tanh(w @ x + b), x
            size = float((x - old).abs().max())
            asked.append(x.requires_grad)
        return x

    layer = xg.implicit(lambda x, w, b: x - torch.tanh(w @ x + b), solver)
    w, b = (torch.tensor(x, requires_grad=True) for x in (W, B))
    layer(w, b).backward(torch.tensor(U))
    assert_close([w.grad.numpy(), b.grad.numpy()], list(unrolled(iterate)[1]))
    assert not any(asked)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("others", [pytest.param("torch", marks=pytest.mark.needs("torch")), ""])
def test_a_solver_of_jax_runs_everywhere(others: str) -> None:
    import jax
    import jax.numpy as jnp

    backend = find_backend(others or "jax")

    def solver(w: Any, b: Any) -> Any:
        def goes_on(carry: Any) -> Any:
            return jnp.max(jnp.abs(carry[0] - carry[1])) > 1e-13

        def step(carry: Any) -> Any:
            return jnp.tanh(w @ carry[0] + b), carry[0]

        return jax.lax.while_loop(goes_on, step, (jnp.zeros_like(b), jnp.ones_like(b)))[0]

    layer = xg.implicit(lambda x, w, b: x - jnp.tanh(w @ x + b), solver)
    _, found = pulled(backend, layer, (W, B), U)
    assert_close(found, unrolled(iterate)[1])


@pytest.mark.needs("torch")
def test_a_tensor_from_around_that_asks_for_a_gradient_is_refused() -> None:
    import torch

    w = torch.tensor(W, requires_grad=True)
    b = torch.tensor(B, requires_grad=True)
    read = xg.implicit(lambda x, b: x - torch.tanh(w @ x + b), lambda b: iterate(w.detach(), b))
    with pytest.raises(xg.TraceError, match="gradient"):
        read(b).sum().backward()
    solved = xg.implicit(lambda x, b: x - torch.tanh(w @ x + b), lambda b: iterate(w, b))
    with pytest.raises(xg.GradientError, match="asks for a gradient, which it would not get"):
        solved(b)


@pytest.mark.needs("torch")
def test_forward_mode_is_refused_by_name() -> None:
    import torch

    root = xg.implicit(lambda x, theta: x * x - theta, lambda theta: torch.sqrt(theta))
    with pytest.raises(xg.UnsupportedOp, match="no forward mode"):
        xg.jvp(root, (torch.ones(2),), (torch.ones(2),))
    with pytest.raises(NotImplementedError, match="no forward mode"):
        torch.func.hessian(lambda theta: root(theta).sum())(torch.ones(2))


def test_an_implicit_function_inside_of_another(backend: Any) -> None:
    root = xg.implicit(lambda x, theta: x * x - theta, lambda theta: xp.sqrt(theta))
    outer = xg.function(lambda x: root(x + 1.0) * 2.0)
    y, (found,) = pulled(backend, outer, (np.array([3.0, 8.0]),), np.ones(2))
    assert_close(y, np.array([4.0, 6.0]), 1e-12)
    assert_close(found, np.array([0.5, 1 / 3]), 1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_of_no_elements_there_is_nothing_to_solve(way: str, backend: Any) -> None:
    empty = backend.array(np.zeros((0,), np.float32))
    root = xg.implicit(lambda x, a: x - a, lambda a: a * 1.0, solve=way)
    y, pull = xg.vjp(root, empty)
    (gradient,) = pull(empty)
    assert backend.numpy(y).shape == backend.numpy(gradient).shape == (0,)
