"""Linear algebra under each library's names: on NumPy they give its numbers and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from ...harness.models.linear_names import (
    Call,
    check_jax,
    check_numpy,
    check_tensorflow,
    check_torch,
)

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


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_a_name_of_torch_means_what_torch_computes(name: str) -> None:
    check_torch(TORCH[name])


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", TENSORFLOW)
def test_a_name_of_tensorflow_means_what_tensorflow_computes(name: str) -> None:
    check_tensorflow(TENSORFLOW[name])


@pytest.mark.needs("jax")
@pytest.mark.parametrize("table", [NUMPY, SCIPY, NEWER, JAX], ids=["numpy", "scipy", "new", "own"])
def test_a_name_of_jax_means_what_jax_computes(table: dict[str, Call]) -> None:
    import jax
    import jax.scipy.linalg

    room = jax.scipy.linalg if table is SCIPY else jax.numpy.linalg
    for name, call in table.items():
        if (table is SCIPY) and name == "solve":
            continue  # jax takes no "pos" for a vector's sake; below
        check_jax(call, jax if table is JAX else jax.numpy, room)


@pytest.mark.parametrize(
    ("room", "name"),
    [
        *(("numpy", name) for name in (*NUMPY, *NEWER)),
        *(("scipy", name) for name in (*SCIPY, *ONLY_SCIPY)),
    ],
)
def test_a_name_of_numpy_and_scipy_means_what_it_computes(room: str, name: str) -> None:
    import scipy.linalg

    if name in NEWER and not hasattr(np.linalg, name):
        pytest.skip(f"np.linalg.{name} is of NumPy 2")
    tables = NUMPY | NEWER if room == "numpy" else SCIPY | ONLY_SCIPY
    check_numpy(tables[name], np.linalg if room == "numpy" else scipy.linalg)
