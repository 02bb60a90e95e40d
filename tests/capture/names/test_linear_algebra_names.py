"""Linear algebra under each library's names: on NumPy they give its numbers and gradients."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS
from ...harness.own_library import assert_as_in

# A function of linear algebra under a library's names: on NumPy it gives the library's numbers and
# gradients. A call takes the library, its room of linear algebra, square matrices a, positive ones
# s, right sides b of matrices and v of vectors, and r with more rows.


Tensor: TypeAlias = Any
Call: TypeAlias = Callable[..., Any]


def arrays() -> list[np.ndarray[Any, Any]]:
    """a, what makes s of it, b, v and r."""
    draw = np.random.default_rng(3)
    shapes = ((2, 3, 3), (2, 3, 2), (2, 3), (2, 4, 3))
    a, b, v, r = (draw.normal(size=shape) for shape in shapes)
    return [a + 2 * np.eye(3), np.eye(3), b, v, r]


def program(call: Call, library: Any, room: Any) -> Call:
    """Return the function that is captured."""

    def run(a: Tensor, one: Tensor, b: Tensor, v: Tensor, r: Tensor) -> Any:
        s = a @ a.swapaxes(-1, -2) + (one + one.T) / 2
        return call(library, room, a, s, b, v, r)

    return run


def check(
    name: str, call: Call, library: Any, room: Any, program: Callable[..., Call] = program
) -> None:
    run = program(call, library, room)
    own = import_module("jax").jit(run) if name == "jax" else run
    of = xg.function(run, native=False, dialect=name)
    with BACKENDS[name].precision(np.float64):
        assert_as_in(name, own, *arrays(), of=of, rtol=1e-9, atol=1e-9)


def program_in_tensorflow(call: Call, library: Any, room: Any) -> Call:
    """The same, where no tensor has methods."""

    def run(a: Tensor, one: Tensor, b: Tensor, v: Tensor, r: Tensor) -> Any:
        return call(library, room, a, library.matmul(a, a, transpose_b=True) + one, b, v, r)

    return run


TORCH: dict[str, Call] = {
    "linalg.cholesky": lambda t, m, a, s, b, v, r: (m.cholesky(s), m.cholesky(s, upper=True)),
    "linalg.cholesky_ex": lambda t, m, a, s, b, v, r: m.cholesky_ex(s).L,
    "cholesky": lambda t, m, a, s, b, v, r: (t.cholesky(s, upper=True), s.cholesky()),
    "cholesky_solve": lambda t, m, a, s, b, v, r: (
        t.cholesky_solve(b, m.cholesky(s)), b.cholesky_solve(m.cholesky(s, upper=True), upper=True)
    ),
    "cholesky_inverse": lambda t, m, a, s, b, v, r: (
        t.cholesky_inverse(m.cholesky(s)), t.cholesky_inverse(m.cholesky(s[0], upper=True), True)
    ),
    "linalg.solve": lambda t, m, a, s, b, v, r: (
        m.solve(a, b), m.solve(a, v), m.solve(a, v[0]), m.solve(a[0], b[0]),
        m.solve(a, b.mT, left=False), m.solve(a[0], b),
    ),
    "linalg.solve_ex": lambda t, m, a, s, b, v, r: m.solve_ex(a, b)[0],
    "linalg.solve_triangular": lambda t, m, a, s, b, v, r: (
        m.solve_triangular(s, b, upper=True), m.solve_triangular(s, b[0], upper=False),
        m.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
        m.solve_triangular(s, b.mT, upper=True, left=False),
    ),
    "linalg.matrix_exp": lambda t, m, a, s, b, v, r: (
        m.matrix_exp(a), t.matrix_exp(a[0]), a.matrix_exp(),
    ),
    "linalg.inv": lambda t, m, a, s, b, v, r: (m.inv(a), t.inverse(a), a.inverse(), m.inv_ex(a)[0]),
    "linalg.pinv": lambda t, m, a, s, b, v, r: (
        m.pinv(r), m.pinv(r.mT), t.pinverse(r), r.pinverse(), m.pinv(r, rtol=1e-3),
    ),
    "linalg.det": lambda t, m, a, s, b, v, r: (m.det(a), t.det(a[0]), a.det()),
    "logdet": lambda t, m, a, s, b, v, r: (t.logdet(s), s.logdet()),
    "linalg.slogdet": lambda t, m, a, s, b, v, r: (
        m.slogdet(a)[1], m.slogdet(a).logabsdet, t.slogdet(a)[1], a.slogdet().logabsdet,
        m.slogdet(a).sign * a[:, 0, 0],
    ),
    "linalg.norm": lambda t, m, a, s, b, v, r: (
        m.norm(a), m.norm(v[0]), m.norm(v[0], 3), m.norm(a[0], "fro"), m.norm(a, 1, (1, 2)),
        m.norm(a, dim=(0, 2), ord=-float("inf")), m.norm(a[0], float("inf"), keepdim=True),
    ),
    "linalg.vector_norm": lambda t, m, a, s, b, v, r: (
        m.vector_norm(a), m.vector_norm(a, 3, dim=(0, 1)), m.vector_norm(a, -2, 1),
        m.vector_norm(a, -float("inf"), -1, keepdim=True), m.vector_norm(a, 0, 1) * a[:, 0],
    ),
    "linalg.matrix_norm": lambda t, m, a, s, b, v, r: (
        m.matrix_norm(a), m.matrix_norm(a, 1), m.matrix_norm(a, -1, dim=(2, 0)),
        m.matrix_norm(a, float("inf"), keepdim=True),
    ),
    "cdist": lambda t, m, a, s, b, v, r: (t.cdist(a, r, 1.0), t.cdist(a, r), t.cdist(v, v[:1], 3)),
    "trace, kron, outer": lambda t, m, a, s, b, v, r: (
        t.trace(a[0]), t.kron(a[0], b[0]), t.outer(v[0], v[1]), m.multi_dot([a[0], a[1], b[0]]),
        m.cross(v, v.flip(0)), m.matrix_power(a, 3),
    ),
}  # fmt: skip
NUMPY: dict[str, Call] = {
    "cholesky": lambda t, m, a, s, b, v, r: (m.cholesky(s), m.cholesky(s[0], upper=True)),
    "solve": lambda t, m, a, s, b, v, r: (m.solve(a, b), m.solve(a, v[0]), m.solve(a[0], b)),
    "inv": lambda t, m, a, s, b, v, r: (m.inv(a), m.inv(a[0])),
    "pinv": lambda t, m, a, s, b, v, r: (m.pinv(r), m.pinv(t.swapaxes(r, 1, 2), 1e-4)),
    "det": lambda t, m, a, s, b, v, r: m.det(a),
    "slogdet": lambda t, m, a, s, b, v, r: (m.slogdet(a)[1], m.slogdet(a).logabsdet),
    "norm": lambda t, m, a, s, b, v, r: (
        m.norm(a), m.norm(v[0], 3), m.norm(a[0], 1), m.norm(a[0], -t.inf), m.norm(a, 2, 1),
        m.norm(a, 1, (1, 2)), m.norm(a, None, (0, 1), True), m.norm(v[0], -1),
    ),
}  # fmt: skip
NEWER: dict[str, Call] = {
    "vector_norm": lambda t, m, a, s, b, v, r: (m.vector_norm(a, axis=1, ord=3), m.vector_norm(a)),
    "matrix_norm": lambda t, m, a, s, b, v, r: (m.matrix_norm(a), m.matrix_norm(a, ord=1)),
}
SCIPY: dict[str, Call] = {
    "cholesky": lambda t, m, a, s, b, v, r: (m.cholesky(s[0]), m.cholesky(s[1], lower=True)),
    "cho_solve": lambda t, m, a, s, b, v, r: (
        m.cho_solve((m.cholesky(s[0], lower=True), True), b[0]),
        m.cho_solve(m.cho_factor(s[0]), v[0]),
    ),
    "solve_triangular": lambda t, m, a, s, b, v, r: (
        m.solve_triangular(s[0], b[0]), m.solve_triangular(s[0], v[0], 1, lower=True),
        m.solve_triangular(a[0], b[0], trans="T", unit_diagonal=True),
    ),
    "solve": lambda t, m, a, s, b, v, r: (
        m.solve(a[0], b[0]), m.solve(a[0], v[0]), m.solve(s[0], b[0], assume_a="pos"),
    ),
    "inv, det": lambda t, m, a, s, b, v, r: (m.inv(a[0]), m.det(a[0])),
    "expm": lambda t, m, a, s, b, v, r: m.expm(a),
}  # fmt: skip
ONLY_SCIPY: dict[str, Call] = {
    "pinv": lambda t, m, a, s, b, v, r: m.pinv(r[0]),
    "norm": lambda t, m, a, s, b, v, r: (m.norm(a[0]), m.norm(v[0], 1), m.norm(a[0], 1)),
}
JAX: dict[str, Call] = {
    "cholesky of a": lambda t, m, a, s, b, v, r: m.cholesky(a + 9 * s),
    "lax": lambda t, m, a, s, b, v, r: (
        t.lax.linalg.cholesky(s),
        t.lax.linalg.triangular_solve(s, b, left_side=True, transpose_a=True),
        t.lax.linalg.triangular_solve(s, v, lower=True, unit_diagonal=True),
        t.lax.linalg.triangular_solve(s, t.numpy.swapaxes(b, 1, 2), lower=True),
    ),
}
TENSORFLOW: dict[str, Call] = {
    "cholesky": lambda t, m, a, s, b, v, r: m.cholesky(s),
    "cholesky_solve": lambda t, m, a, s, b, v, r: m.cholesky_solve(m.cholesky(s), b),
    "triangular_solve": lambda t, m, a, s, b, v, r: (
        m.triangular_solve(s, b), m.triangular_solve(s, b, lower=False, adjoint=True),
    ),
    "solve": lambda t, m, a, s, b, v, r: (m.solve(a, b), m.solve(a, b, adjoint=True)),
    "inv": lambda t, m, a, s, b, v, r: (m.inv(a), m.inv(a, adjoint=True)),
    "expm": lambda t, m, a, s, b, v, r: m.expm(a),
    "pinv": lambda t, m, a, s, b, v, r: m.pinv(r),
    "det": lambda t, m, a, s, b, v, r: m.det(a),
    "logdet": lambda t, m, a, s, b, v, r: m.logdet(s),
    "slogdet": lambda t, m, a, s, b, v, r: (m.slogdet(a)[1], m.slogdet(a).log_abs_determinant),
}  # fmt: skip


# Factors of matrices under each library's names: on NumPy they give its numbers and gradients, of
# what does not depend on the signs of vectors.


def products(u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, ...]:
    """What of singular vectors does not depend on their signs."""
    return s, u**2, vh**2, (u * (s * s)[..., None, :]) @ vh


TORCH_FACTORS: dict[str, Call] = {
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
NUMPY_FACTORS: dict[str, Call] = {
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
SCIPY_FACTORS: dict[str, Call] = {
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
JAX_FACTORS: dict[str, Call] = {
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
        t.vmap(lambda s, b: t.scipy.linalg.solve_triangular(m.cholesky(s), b, lower=True))(s, b),
    ),
}  # fmt: skip
TENSORFLOW_FACTORS: dict[str, Call] = {
    "svd": lambda t, m, a, s, b, v, r: (
        m.svd(r)[0], m.svd(r)[1] ** 2, m.svd(r)[2] ** 2, m.svd(a, compute_uv=False),
    ),
    "eigh": lambda t, m, a, s, b, v, r: (m.eigh(a)[0], m.eigh(s)[1] ** 2, m.eigvalsh(a)),
    "qr": lambda t, m, a, s, b, v, r: (m.qr(r).q ** 2, m.qr(r).r ** 2),
}  # fmt: skip


@pytest.mark.needs("tensorflow")
def test_lu_of_tensorflow_has_a_gradient_that_tensorflow_lacks(tf: Any) -> None:
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
@pytest.mark.parametrize("name", [*NUMPY_FACTORS, *SCIPY_FACTORS, *JAX_FACTORS])
def test_a_factor_of_jax_means_what_jax_computes(name: str) -> None:
    import jax.scipy.linalg

    if name in JAX_FACTORS:
        check("jax", JAX_FACTORS[name], jax, jax.numpy.linalg)
    for table, room in ((NUMPY_FACTORS, jax.numpy.linalg), (SCIPY_FACTORS, jax.scipy.linalg)):
        if name in table:
            check("jax", table[name], jax.numpy, room)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [*TORCH, *TORCH_FACTORS])
@pytest.mark.filterwarnings("ignore:torch.(cholesky|lu_solve|svd|qr) is deprecated")
def test_a_name_of_torch_means_what_torch_computes(name: str, torch: Any) -> None:
    check("torch", (TORCH | TORCH_FACTORS)[name], torch, torch.linalg)


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", [*TENSORFLOW, *TENSORFLOW_FACTORS])
def test_a_name_of_tensorflow_means_what_tensorflow_computes(name: str, tf: Any) -> None:
    call = (TENSORFLOW | TENSORFLOW_FACTORS)[name]
    check("tensorflow", call, tf, tf.linalg, program_in_tensorflow)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("table", [NUMPY, SCIPY, NEWER, JAX], ids=["numpy", "scipy", "new", "own"])
def test_a_name_of_jax_means_what_jax_computes(table: dict[str, Call]) -> None:
    import jax.scipy.linalg

    room = jax.scipy.linalg if table is SCIPY else jax.numpy.linalg
    for name, call in table.items():
        if (table is SCIPY) and name == "solve":
            continue  # jax takes no "pos" for a vector's sake; below
        check("jax", call, jax if table is JAX else jax.numpy, room)


@pytest.mark.parametrize(
    ("room", "name"),
    [
        *(("numpy", name) for name in (*NUMPY, *NEWER)),
        *(("scipy", name) for name in (*SCIPY, *ONLY_SCIPY)),
        *(("numpy, factors", name) for name in NUMPY_FACTORS),
        *(("scipy, factors", name) for name in SCIPY_FACTORS),
    ],
)
def test_a_name_of_numpy_and_scipy_means_what_it_computes(room: str, name: str) -> None:
    import scipy.linalg

    if name in NEWER and not hasattr(np.linalg, name):
        pytest.skip(f"np.linalg.{name} is of NumPy 2")
    tables = {
        "numpy": NUMPY | NEWER,
        "scipy": SCIPY | ONLY_SCIPY,
        "numpy, factors": NUMPY_FACTORS,
        "scipy, factors": SCIPY_FACTORS,
    }
    check("numpy", tables[room][name], np, np.linalg if "numpy" in room else scipy.linalg)
