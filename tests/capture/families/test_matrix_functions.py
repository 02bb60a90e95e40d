"""Functions of matrices beside mpmath, at 4 eps a row times the condition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

xp: Any = xg.xp
EPS = float(np.finfo(np.float64).eps)
# The algorithms of libraries leave the most where the norm is below a power of two times 5.4.
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


def exponential(backend: Any, x: np.ndarray, cotangent: np.ndarray) -> tuple[Any, Any]:
    """Return the exponential and the gradient."""
    with backend.precision(np.dtype(np.float64)):
        value, pullback = xg.vjp(xg.function(xp.expm, native=False), backend.array(x))
        (gradient,) = pullback(backend.array(cotangent))
        return backend.numpy(value), backend.numpy(gradient)


def test_exponentials_and_their_gradients_are_those_of_mpmath(backend: Any) -> None:
    matrices = np.stack([drawn(norm) for norm in NORMS])
    # Neither a large nor a small cotangent takes digits from its gradient.
    cotangents = np.stack([10.0**p * drawn(7.0) for p in (0, -300, 8, 0, 100, 3, -9)])
    values, gradients = exponential(backend, matrices, cotangents)
    for x, ct, value, gradient in zip(matrices, cotangents, values, gradients, strict=True):
        wanted = exact(x)
        assert np.linalg.norm(value - wanted) <= tolerance(x, wanted)
        scale = np.abs(ct).sum()
        blocks = np.block([[x.T, ct / scale], [np.zeros_like(x), x.T]])
        right = exact(blocks)
        error = np.linalg.norm(gradient / scale - right[:3, 3:])
        assert error <= tolerance(blocks, right)


def test_the_exponential_of_a_large_negative_matrix_is_zero(backend: Any) -> None:
    value, gradient = exponential(backend, -1e6 * np.eye(3), np.ones((3, 3)))
    np.testing.assert_array_equal(value, np.zeros((3, 3)))
    np.testing.assert_array_equal(gradient, np.zeros((3, 3)))


def test_a_matrix_with_nan_or_infinity_is_nan_and_leaves_those_beside_it(backend: Any) -> None:
    x = np.stack([np.diag([np.nan, 1.0]), np.diag([np.inf, 1.0]), np.eye(2)])
    value, gradient = exponential(backend, x, np.ones((3, 2, 2)))
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
