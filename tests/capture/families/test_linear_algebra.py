"""Linear algebra on every backend: NumPy's numbers and gradients, batched, empty, of one row, and
what becomes of a matrix that has no factor or inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg

xp: Any = xg.xp
Tensor = Any


# Functions of square matrices s that have every factor and inverse, and of right sides b.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cholesky": lambda s, b: xp.cholesky(s),
    "solve": xp.solve,
    "solve_triangular": lambda s, b: xp.solve_triangular(s, b, lower=True),
    "solve_triangular, transposed": lambda s, b: xp.solve_triangular(
        s, b, transposed=True, unit_diagonal=True
    ),
    "inv": lambda s, b: xp.inv(s),
    "expm": lambda s, b: xp.expm(s),
    "pinv": lambda s, b: xp.pinv(b),
    "det": lambda s, b: xp.det(s),
    "slogdet": lambda s, b: xp.slogdet(s)[0] * xp.slogdet(s)[1],
}
SHAPES = {
    "one matrix": ((3, 3), (3, 2)),
    "a batch": ((2, 3, 3), (2, 3, 2)),
    "batches that broadcast": ((3, 3), (2, 3, 2)),
    "one row": ((1, 1), (1, 2)),
    "no rows": ((2, 0, 0), (2, 0, 3)),
}


def of_svd(x: Tensor) -> tuple[Tensor, ...]:
    """What does not depend on the signs of vectors."""
    u, s, vh = xp.svd(x)
    return s, u * u, vh * vh, (u * xp.expand_dims(xp.sin(s), -2)) @ vh


def of_eigh(x: Tensor) -> tuple[Tensor, ...]:
    square, other = x @ xp.matrix_transpose(x), x @ xp.exp(xp.matrix_transpose(x))
    other = other + xp.matrix_transpose(other)
    return xp.eigh(square)[0], xp.square(xp.eigh(other, lower=False)[1])


def of_qr(x: Tensor) -> tuple[Tensor, ...]:
    q, r = xp.qr(x)
    return q * q, r * r, q @ xp.sin(xp.matrix_transpose(q))


def of_lu(x: Tensor) -> tuple[Tensor, ...]:
    factors, pivots = xp.lu(x)
    return factors, factors * xp.sum(xp.cast(pivots, "float64"))


# Functions of matrices of any form.
FACTORS = {"svd": of_svd, "eigh": of_eigh, "qr": of_qr, "lu": of_lu}
FORMS = ((2, 4, 3), (3, 4), (2, 2), (2, 0, 3))


def matrices(shapes: tuple[tuple[int, ...], ...], dtype: Any = np.float64) -> list[Any]:
    draw = np.random.default_rng(5)
    a, b = (draw.normal(size=shape) for shape in shapes)
    s = a @ np.swapaxes(a, -1, -2) + 2 * np.eye(shapes[0][-1])
    return [each.astype(dtype) for each in (s, b)]


def results_of(backend: Any, function: Any, given: list[Any]) -> list[Any]:
    """Return the values and the gradients, of what does not lie in one piece."""
    with backend.precision(np.float64):
        tensors = [backend.array(each) for each in given]
        turned = [xp.matrix_transpose(backend.array(np.swapaxes(each, -1, -2))) for each in given]
        results = []
        for each in (tensors, turned):
            values, pullback = xg.vjp(xg.function(function, native=False), *each)
            own = values if isinstance(values, tuple) else (values,)
            results.append([backend.numpy(x) for x in (*own, *pullback(values))])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, 1e-9, 1e-6)
    return results[0]


CASES: dict[str, Any] = {
    name: (function, [[np.random.default_rng(5).normal(size=form)] for form in FORMS])
    for name, function in FACTORS.items()
}
for name, function in FUNCTIONS.items():  # one matrix is among batches that broadcast
    CASES[name] = function, [matrices(own) for what, own in SHAPES.items() if what != "one matrix"]


@pytest.mark.parametrize("name", CASES)
def test_every_backend_gives_the_numbers_and_gradients_of_numpy(backend: Any, name: str) -> None:
    from multigrad_conformance.under_test import BackendUnderTest

    function, inputs = CASES[name]
    for given in inputs:
        shapes = [each.shape for each in given]
        wanted = results_of(BackendUnderTest("numpy"), function, given)
        if backend.name == "numpy":
            check_by_differences(function, given, wanted[-len(given) :])
        for own, right in zip(results_of(backend, function, given), wanted, strict=True):
            np.testing.assert_allclose(own, right, 1e-9, 1e-9, err_msg=f"{name} of {shapes}")


def check_by_differences(function: Any, given: list[Any], gradients: list[Any]) -> None:
    """Along a direction, symmetric for a symmetric matrix, the slope of half the square of the
    values is that of a difference.
    """
    draw, step = np.random.default_rng(1), 1e-6
    ways = [draw.normal(size=each.shape) for each in given]
    if len(given) == 2:
        ways[0] = ways[0] + np.swapaxes(ways[0], -1, -2)
    ends = []
    for sign in (1, -1):
        moved = [each + sign * step * way for each, way in zip(given, ways, strict=True)]
        values = xg.function(function)(*moved)
        own = values if isinstance(values, tuple) else (values,)
        ends.append(sum(float(np.sum(np.square(each))) for each in own) / 2)
    slope = sum(float(np.sum(g * way)) for g, way in zip(gradients, ways, strict=True))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(backend: Any, dtype: str) -> None:
    given = matrices(SHAPES["a batch"], getattr(ml_dtypes, dtype, dtype))
    eps = float(ml_dtypes.finfo(given[0].dtype).eps)
    wide = [each.astype(np.float64) for each in given]
    with backend.precision(given[0].dtype):
        for name, function in FUNCTIONS.items():
            own = backend.numpy(xg.function(function, native=False)(*map(backend.array, given)))
            assert own.dtype == given[0].dtype
            right = np.asarray(function(*wide))
            if name == "slogdet":  # a product of two results
                eps *= 2
            np.testing.assert_allclose(own.astype(np.float64), right, 0.51 * eps, eps * 1e-3)


def errors_of(backend: Any) -> tuple[type[Exception], ...]:
    if backend.name != "tensorflow":
        return np.linalg.LinAlgError, RuntimeError, ValueError
    import tensorflow as tf

    return (tf.errors.OpError,)


def test_a_matrix_without_a_factor_or_inverse_raises_or_gives_no_number(backend: Any) -> None:
    singular = np.ones((2, 2), np.float32)
    cases = [
        (lambda s: xp.cholesky(s), -np.eye(2, dtype=np.float32)),
        (lambda s: xp.inv(s), np.zeros((2, 2), np.float32)),
        (lambda s: xp.solve(s, s), singular * 0),
    ]
    for function, given in cases:
        run = xg.function(function, native=False)
        with backend.precision(np.float32):
            try:
                result = backend.numpy(run(backend.array(given)))
            except errors_of(backend) as error:
                assert backend.name != "jax", error
            else:
                assert not np.isfinite(result[np.tril_indices(2)]).any()


@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_matrix_that_is_not_finite_raises_or_gives_no_number(
    backend: Any, number: float, size: int
) -> None:
    given = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    given[0, 0] = number
    for function in (xp.svd, xp.svdvals, xp.eigvalsh, xp.pinv, xp.qr, lambda s: xp.eigh(s)[0]):
        run = xg.function(function, native=False)
        with backend.precision(np.float32), suppress(*errors_of(backend)):
            results = run(backend.array(given))
            for each in results if isinstance(results, tuple) else [results]:
                assert np.isnan(backend.numpy(each)).any(), function


def test_of_a_singular_matrix_the_determinant_is_zero(backend: Any) -> None:
    singular = backend.array(np.ones((2, 2), np.float32))
    with backend.precision(np.float32):
        run = xg.function(lambda s: (xp.det(s), *xp.slogdet(s)), native=False)
        det, sign, logarithm = (backend.numpy(each) for each in run(singular))
    assert (det, sign, logarithm) == (0, 0, -np.inf)


def test_a_triangular_matrix_is_divided_by_its_diagonal_and_read_in_one_half(backend: Any) -> None:
    matrix = np.array([[2.0, np.nan], [1.0, 4.0]], np.float32)
    with backend.precision(np.float32):
        run = xg.function(lambda s: xp.solve_triangular(s, s[:, :1], lower=True), native=False)
        found = backend.numpy(run(backend.array(matrix)))
    np.testing.assert_array_equal(found, [[1.0], [0.0]])


def test_a_shape_that_is_no_matrix_is_refused() -> None:
    for function in (xp.cholesky, xp.inv, xp.det):
        with pytest.raises((ValueError, np.linalg.LinAlgError)):
            xg.function(function)(np.ones((2, 3)))


def everything(s: Tensor, b: Tensor) -> Tensor:
    symmetric = (s + xp.matrix_transpose(s)) / 2
    solved = xp.solve(symmetric, xp.inv(xp.cholesky(symmetric)) @ b)
    return solved * xp.slogdet(s)[1] + xp.det(s) * xp.matrix_transpose(xp.pinv(b))


@pytest.mark.needs("torch")
def test_torchs_checker_finds_the_second_derivatives_right(torch: Any) -> None:
    s, b, x = (
        torch.tensor(each, requires_grad=True)
        for each in (*matrices(SHAPES["one matrix"]), np.random.default_rng(5).normal(size=(4, 3)))
    )
    cases = [(f, (x,)) for f in (of_svd, of_qr, of_lu, lambda x: of_eigh(x[:3]))]
    for function, inputs in [*cases, (everything, (s, b))]:
        run = xg.function(function, native=False)
        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.needs("jax")
def test_jaxs_checker_finds_the_gradients_right_and_they_are_compiled(jax: Any) -> None:
    from jax.test_util import check_grads

    def total(s: Tensor, b: Tensor, x: Tensor) -> Tensor:
        tall = x[..., :2]
        parts = (*of_svd(tall), *of_qr(tall), *of_lu(tall)[:1], *of_eigh(tall[..., :2, :]))
        return sum((xp.sum(part) for part in parts), xp.sum(everything(s, b)))

    with jax.enable_x64(True):
        given = (*matrices(SHAPES["one matrix"]), np.random.default_rng(5).normal(size=(3, 3)))
        run = jax.jit(xg.function(total, native=False))
        check_grads(run, tuple(map(jax.numpy.asarray, given)), order=2, modes=["rev"])
