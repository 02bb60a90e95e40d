"""Names of NumPy that are composed from ops, or recorded by NumPy's own code: captured, they give
NumPy's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import multigrad as xg

from ...harness.own_library import assert_as_in

Call = Callable[..., Any]
SOME = np.arange(12).reshape(3, 4) % 5 > 1
# Matrices x and y, w square, v a vector, b a batch of matrices, p and q between 0 and 1.
CALLS: list[Call] = [
    lambda x, y, w, v, b, p, q: np.split(x, 2, axis=1),
    lambda x, y, w, v, b, p, q: np.split(x, [1, 3], axis=1),
    lambda x, y, w, v, b, p, q: np.array_split(x, 3, axis=1),
    lambda x, y, w, v, b, p, q: np.hsplit(x, 2),
    lambda x, y, w, v, b, p, q: np.vsplit(x, 3),
    lambda x, y, w, v, b, p, q: np.hstack([x, y]),
    lambda x, y, w, v, b, p, q: np.vstack([v, v]),
    lambda x, y, w, v, b, p, q: np.dstack([x, y]),
    lambda x, y, w, v, b, p, q: np.column_stack([v, v]),
    lambda x, y, w, v, b, p, q: np.append(x, y),
    lambda x, y, w, v, b, p, q: np.append(x, y, axis=1),
    lambda x, y, w, v, b, p, q: np.diag(v),
    lambda x, y, w, v, b, p, q: np.diag(w),
    lambda x, y, w, v, b, p, q: np.diag(w, 1),
    lambda x, y, w, v, b, p, q: np.diagonal(w),
    lambda x, y, w, v, b, p, q: w.diagonal(),
    lambda x, y, w, v, b, p, q: np.diagflat(x),
    lambda x, y, w, v, b, p, q: np.trace(w),
    lambda x, y, w, v, b, p, q: np.eye(4) * w,
    lambda x, y, w, v, b, p, q: np.eye(x.shape[1]) + w,
    lambda x, y, w, v, b, p, q: np.identity(4) @ w,
    lambda x, y, w, v, b, p, q: np.tril(w, -1),
    lambda x, y, w, v, b, p, q: np.tri(4) * w,
    lambda x, y, w, v, b, p, q: np.broadcast_arrays(x, v),
    lambda x, y, w, v, b, p, q: np.broadcast_to(v, x.shape),
    lambda x, y, w, v, b, p, q: np.meshgrid(v, x[:, 0]),
    lambda x, y, w, v, b, p, q: np.meshgrid(v, x[:, 0], indexing="ij"),
    lambda x, y, w, v, b, p, q: np.kron(w, x),
    lambda x, y, w, v, b, p, q: np.moveaxis(b, 0, -1),
    lambda x, y, w, v, b, p, q: np.rollaxis(b, 2),
    lambda x, y, w, v, b, p, q: np.atleast_2d(v),
    lambda x, y, w, v, b, p, q: np.atleast_3d(x),
    lambda x, y, w, v, b, p, q: np.inner(x, y),
    lambda x, y, w, v, b, p, q: np.outer(v, v),
    lambda x, y, w, v, b, p, q: np.dot(x, w),
    lambda x, y, w, v, b, p, q: np.vdot(x, y),
    lambda x, y, w, v, b, p, q: np.matmul(x, w),
    lambda x, y, w, v, b, p, q: np.tensordot(x, w, axes=([1], [0])),
    lambda x, y, w, v, b, p, q: np.tensordot(x, w, 1),
    lambda x, y, w, v, b, p, q: np.einsum("ij,jk->ik", x, w),
    lambda x, y, w, v, b, p, q: np.linalg.multi_dot([x, w, v]),
    lambda x, y, w, v, b, p, q: np.linalg.norm(x),
    lambda x, y, w, v, b, p, q: np.linalg.norm(x, axis=1),
    lambda x, y, w, v, b, p, q: np.linalg.norm(x, "fro"),
    lambda x, y, w, v, b, p, q: np.linalg.matrix_power(w, 3),
    lambda x, y, w, v, b, p, q: np.linalg.trace(w),
    lambda x, y, w, v, b, p, q: np.linalg.diagonal(w),
    lambda x, y, w, v, b, p, q: np.linalg.vector_norm(x),
    lambda x, y, w, v, b, p, q: np.linalg.matrix_norm(x),
    lambda x, y, w, v, b, p, q: np.cross(x[:, :3], y[:, :3]),
    lambda x, y, w, v, b, p, q: np.cov(x),
    lambda x, y, w, v, b, p, q: np.logaddexp2(x, y),
    lambda x, y, w, v, b, p, q: np.diff(x),
    lambda x, y, w, v, b, p, q: np.diff(x, axis=0, n=2),
    lambda x, y, w, v, b, p, q: np.ediff1d(v),
    lambda x, y, w, v, b, p, q: np.trapezoid(x),
    lambda x, y, w, v, b, p, q: np.trapezoid(y, x, axis=1),
    lambda x, y, w, v, b, p, q: np.nan_to_num(x),
    lambda x, y, w, v, b, p, q: np.nansum(x, axis=1),
    lambda x, y, w, v, b, p, q: np.nanmax(x),
    lambda x, y, w, v, b, p, q: np.nanmean(x, axis=0),
    lambda x, y, w, v, b, p, q: np.nanvar(x),
    lambda x, y, w, v, b, p, q: np.nanstd(x),
    lambda x, y, w, v, b, p, q: np.ptp(x, axis=1),
    lambda x, y, w, v, b, p, q: np.average(x, weights=y),
    lambda x, y, w, v, b, p, q: np.average(x, axis=1, weights=v),
    lambda x, y, w, v, b, p, q: np.median(x, axis=1),
    lambda x, y, w, v, b, p, q: np.cumsum(x),
    lambda x, y, w, v, b, p, q: np.sort(x),
    lambda x, y, w, v, b, p, q: np.polyval([1.0, 2.0, 3.0], x),
    lambda x, y, w, v, b, p, q: np.clip(x, -1, 1),
    lambda x, y, w, v, b, p, q: np.round(x, 1),
    lambda x, y, w, v, b, p, q: np.fix(x),
    lambda x, y, w, v, b, p, q: np.divmod(x, 0.7),
    lambda x, y, w, v, b, p, q: np.modf(x),
    lambda x, y, w, v, b, p, q: np.flip(x, 0),
    lambda x, y, w, v, b, p, q: np.fliplr(x),
    lambda x, y, w, v, b, p, q: np.flipud(x),
    lambda x, y, w, v, b, p, q: np.rot90(x),
    lambda x, y, w, v, b, p, q: np.pad(x, 1, mode="reflect"),
    lambda x, y, w, v, b, p, q: np.pad(x, 1, mode="edge"),
    lambda x, y, w, v, b, p, q: np.unstack(x),
    lambda x, y, w, v, b, p, q: np.isclose(x, y),
    lambda x, y, w, v, b, p, q: np.select([x > 0, y > 0], [x, y], 0.0),
    lambda x, y, w, v, b, p, q: np.expand_dims(x, (0, 2)),
    lambda x, y, w, v, b, p, q: np.stack([x, y], axis=-1),
    lambda x, y, w, v, b, p, q: np.isposinf(x),
    lambda x, y, w, v, b, p, q: np.real(x),
    lambda x, y, w, v, b, p, q: x.conj().T @ np.conj(y) + x.real.T @ y.conjugate(),
    lambda x, y, w, v, b, p, q: np.real_if_close(x) + np.imag(y) + x.imag,
    lambda x, y, w, v, b, p, q: np.angle(x) + np.angle(y, deg=True),
    lambda x, y, w, v, b, p, q: np.angle([-0.0, 0.0, np.nan] * x[:, :3]),
    lambda x, y, w, v, b, p, q: np.zeros(x.shape, np.float32) + np.full(x.shape, 2, np.int32),
    lambda x, y, w, v, b, p, q: np.ones(x.shape, x.dtype) - np.empty(y.shape, bool) * 0,
    lambda x, y, w, v, b, p, q: np.isreal(x) * y - np.iscomplex(x),
    lambda x, y, w, v, b, p, q: x if np.isrealobj(x) and not np.iscomplexobj(y) else y,
    lambda x, y, w, v, b, p, q: np.fmax(x, y),
    lambda x, y, w, v, b, p, q: np.sign(x) * x,
    lambda x, y, w, v, b, p, q: np.vecdot(x, y),
    lambda x, y, w, v, b, p, q: np.matvec(x, v),
    lambda x, y, w, v, b, p, q: np.matrix_transpose(x),
    lambda x, y, w, v, b, p, q: np.permute_dims(b, (2, 0, 1)),
    lambda x, y, w, v, b, p, q: np.concat([x, y]),
    lambda x, y, w, v, b, p, q: np.cumulative_sum(x, axis=1),
    lambda x, y, w, v, b, p, q: scipy.special.entr(np.stack([p, x])),
    lambda x, y, w, v, b, p, q: scipy.special.rel_entr(p, q) + scipy.special.rel_entr(x, y),
    lambda x, y, w, v, b, p, q: scipy.special.rel_entr(p * 0, q),
    lambda x, y, w, v, b, p, q: np.pad(x, 2, mode="symmetric") + np.pad(x, 2, mode="wrap"),
    lambda x, y, w, v, b, p, q: np.diff(x, prepend=0.0, append=y),
    lambda x, y, w, v, b, p, q: np.round(x * 100, -1),
    lambda x, y, w, v, b, p, q: np.sum(x, axis=1, initial=2.0, where=SOME, keepdims=True),
    lambda x, y, w, v, b, p, q: np.prod(x, where=SOME),
    lambda x, y, w, v, b, p, q: np.mean(x, axis=1, where=SOME),
    lambda x, y, w, v, b, p, q: np.max(x, axis=0, initial=0.5, where=SOME),
    lambda x, y, w, v, b, p, q: x.min(axis=1, initial=0.5),
    lambda x, y, w, v, b, p, q: np.any(x > 0, axis=1, where=SOME),
    lambda x, y, w, v, b, p, q: np.std(x, axis=1, where=SOME, ddof=1),
    lambda x, y, w, v, b, p, q: np.var(x, where=SOME, correction=2, keepdims=True),
    lambda x, y, w, v, b, p, q: np.std(x.astype(np.float32), axis=0, dtype=np.float64),
    lambda x, y, w, v, b, p, q: np.dsplit(b, 2),
    lambda x, y, w, v, b, p, q: np.atleast_1d(v, x),
    lambda x, y, w, v, b, p, q: np.array(v, ndmin=3) + np.asanyarray(x),
    lambda x, y, w, v, b, p, q: np.linalg.matrix_power(w, -2) - np.linalg.matrix_power(w, 0),
    lambda x, y, w, v, b, p, q: np.linalg.multi_dot([x, w, w, v]),
    lambda x, y, w, v, b, p, q: np.prod(x, axis=1, keepdims=True),
    lambda x, y, w, v, b, p, q: np.cumsum(x, axis=0) + np.cumprod(y, axis=1),
    lambda x, y, w, v, b, p, q: np.sort(y) + np.sort(x, axis=0),
    lambda x, y, w, v, b, p, q: y - np.median(x, axis=1, keepdims=True) - np.median(x),
    lambda x, y, w, v, b, p, q: y - np.quantile(x, 0.3) - np.percentile(x, 25, axis=0),
    lambda x, y, w, v, b, p, q: y * np.count_nonzero(x > 0, axis=1, keepdims=True),
    lambda x, y, w, v, b, p, q: np.transpose(np.transpose(y, (1, 0))) + np.transpose(x.transpose()),
    lambda x, y, w, v, b, p, q: np.swapaxes(np.moveaxis(y, 0, 1), 0, 1) + x.swapaxes(0, 1).T,
    lambda x, y, w, v, b, p, q: np.reshape(y, (4, -1)).reshape(x.shape) + np.ravel(x).reshape(3, 4),
    lambda x, y, w, v, b, p, q: np.concatenate((y[:1], x[1:]), 0) + np.concatenate([y], axis=1),
    lambda x, y, w, v, b, p, q: np.pad(y, ((0, 0), (1, 1)), constant_values=3.0),
    lambda x, y, w, v, b, p, q: np.pad(y, (1, 0))[1:, 1:] * np.pad(x, 1)[:3, 2:],
    lambda x, y, w, v, b, p, q: np.roll(y, 1) + np.flip(x) + np.roll(x, -1, axis=1),
    lambda x, y, w, v, b, p, q: np.tile(y[:, :2], 2) + np.repeat(x[:, :2], 2, axis=1),
    lambda x, y, w, v, b, p, q: np.take(y, [3, 1, 1, 0], axis=1) + np.take(x, 1, axis=0),
    lambda x, y, w, v, b, p, q: np.triu(x, 1) + np.squeeze(y[None], axis=0),
    lambda x, y, w, v, b, p, q: np.tensordot(x, y, axes=2) * x[:, ::-1] + y[..., 0, None] + x[-1],
    lambda x, y, w, v, b, p, q: y[None, None, :].sum((0, 1)) + x[None, :, None].sum((0, 2)),
    lambda x, y, w, v, b, p, q: np.gradient(x),
    lambda x, y, w, v, b, p, q: np.gradient(x * y, 0.5, axis=1, edge_order=2),
    # Places as values.
    lambda x, y, w, v, b, p, q: b * np.argmax(b, axis=1, keepdims=True),
    lambda x, y, w, v, b, p, q: np.take(b, np.argmax(b[:, :, 0], axis=1), axis=1),
    lambda x, y, w, v, b, p, q: np.take_along_axis(b, np.argsort(b, axis=1), axis=1) * 3,
    lambda x, y, w, v, b, p, q: b[np.arange(2), b[:, :, 0].argmax(axis=1)],
    lambda x, y, w, v, b, p, q: b * (b * 3).astype(np.int64),
    lambda x, y, w, v, b, p, q: put_along_axis(b.copy()),
]


def put_along_axis(y: Any) -> Any:
    np.put_along_axis(y, np.argmax(y, axis=1, keepdims=True), 9.0, axis=1)
    return y


def inputs() -> list[Any]:
    draw = np.random.default_rng(3)
    shapes = (3, 4), (3, 4), (4, 4), 4, (2, 3, 4)
    unit = [draw.uniform(0.1, 0.9, (3, 4)) for _ in range(2)]
    return [*(draw.normal(size=shape) for shape in shapes), *unit]


def flat(result: Any) -> list[Any]:
    parts = isinstance(result, list | tuple)
    return [part for each in result for part in flat(each)] if parts else [result]


@pytest.mark.parametrize("call", CALLS, ids=[f"{i}" for i in range(len(CALLS))])
def test_a_name_of_numpy_means_what_numpy_computes(call: Call) -> None:
    arrays = inputs()
    wanted, line = flat(call(*arrays)), call.__code__.co_firstlineno
    given = flat(xg.function(call, native=False)(*arrays))
    assert len(given) == len(wanted), line
    for each, own in zip(given, wanted, strict=True):
        assert np.shape(each) == np.shape(own), line
        np.testing.assert_allclose(each, own, 1e-12, 1e-12, err_msg=f"line {line}")


def test_numpys_own_code_is_said_to_be_recorded_and_gives_its_gradient() -> None:
    def slopes(x: Any) -> Any:
        return np.gradient(x**3, axis=1)

    captured = xg.function(slopes, native=False)
    assert_as_in("numpy", slopes, inputs()[0], of=captured)
    assert "NumPy's own code" in xg.show(captured)
