"""Factors of matrices on every backend: in 16 bits, of equal and of zero values, beside mpmath; and
how jax's solves keep their derivative. The numbers and gradients of NumPy are in
`test_linear_algebra.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...harness.own_library import assert_as_in

xp: Any = xg.xp
Tensor = Any


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(backend: Any, dtype: str) -> None:
    given = np.random.default_rng(5).normal(size=(4, 3)).astype(getattr(ml_dtypes, dtype, dtype))
    eps = float(ml_dtypes.finfo(given.dtype).eps)

    def values(x: Tensor) -> tuple[Tensor, ...]:
        return xp.svd(x)[1], xp.lu(x)[0], xp.abs(xp.qr(x)[0]), xp.eigh(x[:3])[0]

    with backend.precision(given.dtype):
        found = xg.function(values, native=False)(backend.array(given))
        for own, right in zip(found, values(given.astype(np.float32)), strict=True):
            wide = backend.numpy(own).astype(np.float32)
            np.testing.assert_allclose(wide, right, 0.51 * eps, eps * 1e-2)


def test_values_of_equal_and_zero_ones_have_a_gradient(backend: Any) -> None:
    def norm(x: Tensor) -> Tensor:
        return xp.sum(xp.svd(x)[1]) + xp.sum(xp.eigh(x[:2])[0] * 2)

    given = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    _, (gradient,) = pull(backend, xg.function(norm, native=False), (given,))
    np.testing.assert_allclose(gradient, [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]], atol=1e-12)
    largest = xg.function(lambda x: xp.svd(x)[1][:1], native=False)
    _, (gradient,) = pull(backend, largest, (np.array([[3.0, 0], [0, 0]]),))
    np.testing.assert_allclose(gradient, [[1.0, 0.0], [0.0, 0.0]], atol=1e-12)


def test_pivots_say_how_rows_were_exchanged(backend: Any) -> None:
    from multigrad.engine.trace.xp import transposes

    given = np.array([[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[1, 0], [0, 0], [0, 0]]], np.float32)

    def places(x: Tensor) -> tuple[Tensor, Tensor]:
        pivots = xp.lu(x)[1]
        return pivots, transposes.lu_permutation(pivots, x)

    with backend.precision(np.float32):
        found = xg.function(places, native=False)(backend.array(given))
        pivots, order = (np.asarray(backend.numpy(each)) for each in found)
    assert pivots.tolist() == [[2, 2], [0, 1]]
    assert order.tolist() == [[2, 0, 1], [0, 1, 2]]


def test_a_full_form_is_refused_where_it_is_not_unique() -> None:
    tall = np.ones((3, 2))
    for function in (np.linalg.svd, lambda x: np.linalg.qr(x, mode="complete")):
        with pytest.raises(xg.TraceError, match="beyond"):
            xg.function(lambda x, f=function: f(x)[0], native=False, dialect="numpy")(tall)


# --- jax ------------------------------------------------------------------------------------------


def mapped(a: Tensor, b: Tensor) -> Tensor:
    import jax

    return jax.vmap(jax.numpy.linalg.solve)(a, b)


def factored_before(a: Tensor, b: Tensor) -> Tensor:
    """A user's own solve by factors through which no gradient passes."""
    import jax
    from jax.scipy.linalg import lu_factor, lu_solve

    def one(a: Tensor, b: Tensor) -> Tensor:
        factors = lu_factor(jax.lax.stop_gradient(a))
        ways = (lambda _, b, trans=trans: lu_solve(factors, b, trans=trans) for trans in (0, 1))
        return jax.lax.custom_linear_solve(lambda x: a @ x, b, *ways)

    return jax.vmap(one)(a, b[..., 0])


def nearly_solved(a: Tensor, b: Tensor) -> Tensor:
    """What does not solve its equation."""
    import jax

    def halved(matvec: Any, b: Tensor) -> Tensor:
        return b / jax.lax.stop_gradient(a[..., 0, 0])[:, None]

    return jax.lax.custom_linear_solve(
        lambda x: jax.numpy.einsum("nij,nj->ni", a, x), b[..., 0], halved, halved
    )


@pytest.mark.needs("jax")
@pytest.mark.parametrize("function", [mapped, factored_before])
def test_a_solve_of_jax_keeps_its_derivatives(function: Callable[..., Tensor], jax: Any) -> None:
    draw = np.random.default_rng(3)
    a, b = draw.normal(size=(2, 3, 3)) + 3 * np.eye(3), draw.normal(size=(2, 3, 1))
    converted = xg.function(function, native=False, dialect="jax")

    def slope(run: Any) -> Any:
        def first(a: Tensor) -> Tensor:
            return jax.numpy.sum(jax.numpy.sin(run(a, jax.numpy.asarray(b))))

        second = jax.grad(lambda a: jax.numpy.sum(jax.numpy.cos(jax.grad(first)(a))))
        return jax.grad(first)(jax.numpy.asarray(a)), second(jax.numpy.asarray(a))

    with jax.enable_x64(True):
        for own, right in zip(slope(converted), slope(function), strict=True):
            assert np.abs(right).max() > 0.01
            np.testing.assert_allclose(own, right, 1e-9, 1e-9)


@pytest.mark.needs("jax")
def test_what_does_not_solve_its_equation_is_not_converted() -> None:
    a, b = np.eye(3)[None] + 0.1, np.ones((1, 3, 1))
    converted = xg.function(nearly_solved, native=False, dialect="jax")
    with pytest.raises(xg.MultigradError, match="differs from"):
        xg.vjp(converted, a, b)[1](np.ones((1, 3)))


@pytest.mark.needs("jax")
def test_a_pseudo_inverse_of_equal_and_lost_rank_has_jaxs_gradient(jax: Any) -> None:
    def inverses(x: Tensor) -> Tensor:
        return jax.vmap(jax.numpy.linalg.pinv)(x)

    given = np.stack([2 * np.eye(3)[:, :2], np.ones((3, 2))])
    of = xg.function(inverses, native=False, dialect="jax")
    with jax.enable_x64(True):
        assert_as_in("jax", inverses, given, of=of, rtol=1e-9, atol=1e-9)


# Functions of matrices beside mpmath, at 4 eps a row times the condition.


EPS = float(np.finfo(np.float64).eps)
# The algorithms of libraries leave the most where the norm is below a power of two times 5.4.
EXPONENTIAL = xg.function(xp.expm, native=False)
NORMS = (1e-8, 0.3, 5.0, 9.0, 10.7, 12.0, 40.0)


def exact(matrix: np.ndarray) -> np.ndarray:
    """The exponential, by a series of 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        result = mpmath.expm(mpmath.matrix(matrix.tolist()), method="taylor")
        return np.array(result.tolist(), float)


def tolerance(matrix: np.ndarray, result: np.ndarray) -> float:
    """4 eps for each row, times the condition."""
    from scipy.linalg import expm_cond

    return 4 * EPS * len(matrix) * max(1.0, expm_cond(matrix)) * float(np.linalg.norm(result))


def drawn(norm: float, rows: int = 3) -> np.ndarray:
    matrix = np.random.default_rng(int(10 * norm)).normal(size=(rows, rows))
    return matrix * (norm / np.linalg.norm(matrix, 1))


def test_exponentials_and_their_gradients_are_those_of_mpmath(backend: Any) -> None:
    matrices = np.stack([drawn(norm) for norm in NORMS])
    # Neither a large nor a small cotangent takes digits from its gradient.
    cotangents = np.stack([10.0**p * drawn(7.0) for p in (0, -300, 8, 0, 100, 3, -9)])
    values, (gradients,) = pull(backend, EXPONENTIAL, (matrices,), cotangents)
    for x, ct, value, gradient in zip(matrices, cotangents, values, gradients, strict=True):
        wanted = exact(x)
        assert np.linalg.norm(value - wanted) <= tolerance(x, wanted)
        scale = np.abs(ct).sum()
        blocks = np.block([[x.T, ct / scale], [np.zeros_like(x), x.T]])
        right = exact(blocks)
        error = np.linalg.norm(gradient / scale - right[:3, 3:])
        assert error <= tolerance(blocks, right)


def test_the_exponential_of_a_large_negative_matrix_is_zero(backend: Any) -> None:
    value, (gradient,) = pull(backend, EXPONENTIAL, (-1e6 * np.eye(3),))
    np.testing.assert_array_equal(value, np.zeros((3, 3)))
    np.testing.assert_array_equal(gradient, np.zeros((3, 3)))


def test_a_matrix_with_nan_or_infinity_is_nan_and_leaves_those_beside_it(backend: Any) -> None:
    x = np.stack([np.diag([np.nan, 1.0]), np.diag([np.inf, 1.0]), np.eye(2)])
    value, (gradient,) = pull(backend, EXPONENTIAL, (x,))
    assert np.isnan(value[:2]).all()
    assert np.isnan(gradient[:2]).all()
    np.testing.assert_allclose(value[2], np.e * np.eye(2), 4 * EPS)
    np.testing.assert_allclose(gradient[2], np.full((2, 2), np.e), 4 * EPS)


# --- systems of equations, determinants -----------------------------------------------------------
CONDITIONS = (1.0, 1e3, 1e6, 1e9, 1e12)


def of_condition(condition: float, rows: int = 3) -> np.ndarray:
    """A matrix with singular values from 1 down to one over its condition."""
    generator = np.random.default_rng(3)
    u, v = (np.linalg.qr(generator.normal(size=(rows, rows)))[0] for _ in range(2))
    return (u * np.geomspace(1.0, 1.0 / condition, rows)) @ v


def logarithm_of(x: Any) -> Any:
    return xp.slogdet(x)[1]


def precisely(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse, and the logarithm of the determinant's size, by 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        own = mpmath.matrix(matrix.tolist())
        inverse = np.array(mpmath.inverse(own).tolist(), float)
        return inverse, float(mpmath.log(abs(mpmath.det(own))))


def test_solutions_determinants_and_their_gradients_are_those_of_mpmath(backend: Any) -> None:
    b, ct = np.array([[1.0], [-2.0], [0.5]]), np.array([[0.3], [1.0], [-0.7]])
    solve, logdet = (xg.function(f, native=False) for f in (xp.solve, logarithm_of))
    for condition in CONDITIONS:
        x = of_condition(condition)
        inverse, logarithm = precisely(x)
        bound = 4 * EPS * len(x) * condition
        with backend.precision(np.dtype(np.float64)):
            given = backend.array(x)
            solution, pullback = xg.vjp(solve, given, backend.array(b))
            gradients = [backend.numpy(g) for g in pullback(backend.array(ct))]
            found, pullback = xg.vjp(logdet, given)
            slope = backend.numpy(pullback(backend.array(np.ones(())))[0])
        size = np.linalg.norm(inverse)
        pulled = inverse.T @ ct
        pairs = (
            (backend.numpy(solution), inverse @ b, size * np.linalg.norm(b)),
            (gradients[1], pulled, size * np.linalg.norm(ct)),
            (gradients[0], -pulled @ (inverse @ b).T, size**2 * np.linalg.norm(b)),
            (backend.numpy(found), logarithm, max(1.0, abs(logarithm))),
            (slope, inverse.T, size),
        )
        for own, wanted, scale in pairs:
            assert np.linalg.norm(own - wanted) <= bound * scale


# --- where there is no derivative -----------------------------------------------------------------
WEIGHTS = np.array([[1.0, 2.0], [2.0, 3.0]])


def by_eigenvalues(function: Any) -> Any:
    """A function of symmetric matrices, by one of their eigenvalues."""

    def result(x: Any) -> Any:
        w, v = xp.eigh(x)
        return xp.matmul(v * xp.expand_dims(function(w), -2), xp.matrix_transpose(v))

    return result


def by_singular_values(x: Any) -> Any:
    """The matrix itself."""
    u, s, v = xp.svd(x)
    return xp.matmul(u * xp.expand_dims(s, -2), v)


@pytest.mark.parametrize("at", [0.0, 1.0, 2.0])
def test_vectors_of_equal_values_have_no_gradient_that_is_a_wrong_number(
    backend: Any, at: float
) -> None:
    """A cotangent of vectors is zero there where the function of the values is, as a logarithm at
    1: the gradient is not.
    """
    functions = [by_eigenvalues(lambda w: w), by_singular_values]
    functions += [by_eigenvalues(xp.log)] if at else []
    for function in functions:
        with backend.precision(np.dtype(np.float64)):
            x = backend.array(at * np.eye(2))
            _, pullback = xg.vjp(xg.function(function, native=False), x)
            gradient = backend.numpy(pullback(backend.array(WEIGHTS))[0])
        assert not np.isfinite(gradient[0, 1])
