"""Factors of matrices under each library's names: on NumPy they give its numbers and gradients, of
what does not depend on the signs of vectors.
"""

from __future__ import annotations

import numpy as np
import pytest

import multigrad as xg

from ...harness.models.linear_names import (
    Call,
    Tensor,
    arrays,
    check_jax,
    check_numpy,
    check_tensorflow,
    check_torch,
)
from ...support.sampling import sample


def products(u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, ...]:
    """What of singular vectors does not depend on their signs."""
    return s, u**2, vh**2, (u * (s * s)[..., None, :]) @ vh


TORCH: dict[str, Call] = {
    "linalg.lu": lambda t, m, a, s, b, v, r: (
        *m.lu(a), *m.lu(r), m.lu(r.mT)[1], m.lu_factor(r).LU, m.lu_factor_ex(r).LU,
        t.lu_unpack(*m.lu_factor(r))[2], m.lu_factor(a).pivots * a[:, 0],
    ),
    "linalg.lu_solve": lambda t, m, a, s, b, v, r: (
        m.lu_solve(*m.lu_factor(a), b), m.lu_solve(*m.lu_factor(a[0]), b, adjoint=True),
        m.lu_solve(*m.lu_factor(a), b.mT, left=False), t.lu_solve(b[0], *m.lu_factor(a)),
    ),
    "linalg.svd": lambda t, m, a, s, b, v, r: (
        *products(*m.svd(r, full_matrices=False)), *products(*m.svd(a)),
        *products(*m.svd(r.mT, full_matrices=False)), m.svdvals(r),
        t.svd(r).V ** 2, r.svd()[1], m.svd(a[0]).S, t.svd(r).S,
    ),
    "linalg.eigh": lambda t, m, a, s, b, v, r: (
        m.eigh(a)[0], m.eigh(a, UPLO="U").eigenvectors ** 2, m.eigvalsh(s), m.eigvalsh(s, "U"),
    ),
    "linalg.qr": lambda t, m, a, s, b, v, r: (
        m.qr(r).Q ** 2, m.qr(r)[1] ** 2, m.qr(r.mT)[0] ** 2, m.qr(r.mT).R ** 2, t.qr(a)[0] ** 2,
        m.qr(a, mode="complete").R ** 2,
    ),
    "matrix norms by singular values": lambda t, m, a, s, b, v, r: (
        m.matrix_norm(r, 2), m.matrix_norm(r, -2, keepdim=True), m.matrix_norm(a, "nuc", (0, 2)),
        m.norm(a[0], 2), m.norm(a, "nuc", (1, 2)), m.cond(a), m.cond(r, -2),
    ),
}  # fmt: skip
NUMPY: dict[str, Call] = {
    "svd": lambda t, m, a, s, b, v, r: (
        *products(*m.svd(r, full_matrices=False)), *products(*m.svd(a)),
        m.svd(r, compute_uv=False),
    ),
    "eigh": lambda t, m, a, s, b, v, r: (
        m.eigh(s).eigenvalues, m.eigh(s, "U")[1] ** 2, m.eigvalsh(s),
    ),
    "qr": lambda t, m, a, s, b, v, r: (m.qr(r)[0] ** 2, m.qr(r).R ** 2, m.qr(a, mode="r") ** 2),
    "norm": lambda t, m, a, s, b, v, r: (
        m.norm(a[0], 2), m.norm(a, "nuc", (0, 2), True), m.norm(a, -2, (1, 2)), m.cond(a),
    ),
}  # fmt: skip
SCIPY: dict[str, Call] = {
    "lu": lambda t, m, a, s, b, v, r: (
        *m.lu(r[0]), *m.lu(r[0].T), m.lu(a[0], permute_l=True)[0], m.lu_factor(r[0])[0],
        m.lu_solve(m.lu_factor(a[0]), b[0]), m.lu_solve(m.lu_factor(a[0]), v[0], trans=1),
    ),
    "svd": lambda t, m, a, s, b, v, r: (
        *products(*m.svd(r[0], full_matrices=False)), m.svd(r[0], compute_uv=False),
    ),
    "eigh": lambda t, m, a, s, b, v, r: (
        m.eigh(s[0])[0], m.eigh(s[0], lower=False)[1] ** 2, m.eigh(s[0], eigvals_only=True),
    ),
    "qr": lambda t, m, a, s, b, v, r: (
        m.qr(r[0], mode="economic")[0] ** 2, m.qr(a[0])[1] ** 2, m.qr(a[0], mode="r")[0] ** 2,
    ),
}  # fmt: skip
JAX: dict[str, Call] = {
    "lax": lambda t, m, a, s, b, v, r: (
        t.lax.linalg.lu(r)[0], *products(*t.lax.linalg.svd(r, full_matrices=False)),
        t.lax.linalg.eigh(s)[0] ** 2, t.lax.linalg.eigh(s, symmetrize_input=False)[1],
        t.lax.linalg.qr(r, full_matrices=False)[1] ** 2,
    ),
    "mapped": lambda t, m, a, s, b, v, r: (
        *t.vmap(lambda a, b, r: (m.solve(a, b), m.pinv(r), m.det(a), m.slogdet(a)[1]))(a, b, r),
        *t.vmap(lambda r: products(*m.svd(r, full_matrices=False)))(r),
        t.vmap(lambda r: t.lax.linalg.lu(r)[0])(r), t.vmap(lambda s: m.eigh(s)[1] ** 2)(s),
        t.vmap(lambda r: m.qr(r)[1] ** 2)(r),
        t.vmap(lambda a, b: t.scipy.linalg.lu_solve(t.scipy.linalg.lu_factor(a), b))(a, b),
    ),
}  # fmt: skip
TENSORFLOW: dict[str, Call] = {
    "svd": lambda t, m, a, s, b, v, r: (
        m.svd(r)[0], m.svd(r)[1] ** 2, m.svd(r)[2] ** 2, m.svd(a, compute_uv=False),
    ),
    "eigh": lambda t, m, a, s, b, v, r: (m.eigh(a)[0], m.eigh(s)[1] ** 2, m.eigvalsh(a)),
    "qr": lambda t, m, a, s, b, v, r: (m.qr(r).q ** 2, m.qr(r).r ** 2),
}  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.filterwarnings("ignore:torch.(lu_solve|svd|qr) is deprecated")
def test_a_name_of_torch_means_what_torch_computes(name: str) -> None:
    check_torch(TORCH[name])


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", TENSORFLOW)
def test_a_name_of_tensorflow_means_what_tensorflow_computes(name: str) -> None:
    check_tensorflow(TENSORFLOW[name])


@pytest.mark.needs("tensorflow")
def test_lu_of_tensorflow_has_a_gradient_that_tensorflow_lacks() -> None:
    import tensorflow as tf

    a, _, b, *_ = arrays()

    def solved(a: Tensor, b: Tensor) -> Tensor:
        return tf.linalg.lu_solve(*tf.linalg.lu(a), b)

    found, pullback = xg.vjp(xg.function(solved, native=False), a, b)
    np.testing.assert_allclose(found, solved(a, b), 1e-9)
    np.testing.assert_allclose(tf.linalg.lu(a).p, [[0, 2, 1], [0, 1, 2]])
    wanted, solve = xg.vjp(xg.function(xg.xp.solve), a, b)
    for own, right in zip(pullback(wanted), solve(wanted), strict=True):
        np.testing.assert_allclose(own, right, 1e-9, 1e-9)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", sample([*NUMPY, *SCIPY, *JAX], 1 / 3))
def test_a_name_of_jax_means_what_jax_computes(name: str) -> None:
    import jax
    import jax.scipy.linalg

    if name in JAX:
        check_jax(JAX[name], jax, jax.numpy.linalg)
    for table, room in ((NUMPY, jax.numpy.linalg), (SCIPY, jax.scipy.linalg)):
        if name in table:
            check_jax(table[name], jax.numpy, room)


@pytest.mark.parametrize("name", NUMPY)
def test_a_name_of_numpy_means_what_it_computes(name: str) -> None:
    check_numpy(NUMPY[name], np.linalg)


@pytest.mark.parametrize("name", SCIPY)
def test_a_name_of_scipy_means_what_it_computes(name: str) -> None:
    import scipy.linalg

    check_numpy(SCIPY[name], scipy.linalg)
