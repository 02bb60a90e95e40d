"""Fourier transforms: NumPy's numbers on every backend, gradients beside the frameworks' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

xp: Any = xg.xp
EPS = float(np.finfo(np.float64).eps)
RNG = np.random.default_rng(7)
REAL, IMAG = RNG.normal(size=(2, 2, 6, 5))
# A transform of both parts, and what NumPy calls it.
TRANSFORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "fft": (xp.fft, lambda z: np.fft.fft(z)),
    "fft of a longer axis": (
        lambda a, b: xp.fft(a, b, 9, 1), lambda z: np.fft.fft(z, 9, 1),
    ),
    "fft of a shorter one": (lambda a, b: xp.fft(a, b, 3), lambda z: np.fft.fft(z, 3)),
    "ifft, ortho": (
        lambda a, b: xp.ifft(a, b, norm="ortho"), lambda z: np.fft.ifft(z, norm="ortho"),
    ),
    "ifft2": (
        lambda a, b: xp.ifft(a, b, axes=(-2, -1)), lambda z: np.fft.ifft2(z),
    ),
    "fftn": (
        lambda a, b: xp.fft(a, b, axes=None, norm="forward"),
        lambda z: np.fft.fftn(z, norm="forward"),
    ),
    "rfft": (lambda a, b: xp.rfft(a), lambda z: np.fft.rfft(z.real)),
    "rfft2": (
        lambda a, b: xp.rfft(a, (6, 8), (1, 2)), lambda z: np.fft.rfft2(z.real, (6, 8)),
    ),
    "irfft": (xp.irfft, lambda z: np.fft.irfft(z)),
    "irfft of an odd length": (lambda a, b: xp.irfft(a, b, 7), lambda z: np.fft.irfft(z, 7)),
    "irfftn": (
        lambda a, b: xp.irfft(a, b, axes=None, norm="ortho"),
        lambda z: np.fft.irfftn(z, norm="ortho"),
    ),
}  # fmt: skip


def parts(found: Any) -> list[Any]:
    if isinstance(found, tuple):
        return [*found]
    return [found.real, found.imag] if np.iscomplexobj(found) else [found]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_numpys_and_their_gradients_the_transposes(backend: Any, name: str) -> None:
    function, own = TRANSFORMS[name]
    expected = parts(own(REAL + 1j * IMAG))
    with backend.precision(np.dtype(np.float64)):
        given = [backend.array(each) for each in (REAL, IMAG)]
        found, pullback = xg.vjp(xg.function(function, native=False), *given)
        weights = [RNG.normal(size=each.shape) for each in expected]
        cotangents = [backend.array(each) for each in weights]
        slopes = pullback(tuple(cotangents) if isinstance(found, tuple) else cotangents[0])
        results = [backend.numpy(each) for each in parts(found)]
        slopes = [np.zeros_like(REAL) if s is None else backend.numpy(s) for s in slopes]
    for result, wanted in zip(results, expected, strict=True):
        assert np.abs(result - wanted).max() <= 4 * EPS * np.abs(REAL + 1j * IMAG).sum()
    # <weights, T z> = <T* weights, z>, for another z.
    a, b = RNG.normal(size=(2, *REAL.shape))
    left = sum(np.sum(w * p) for w, p in zip(weights, parts(own(a + 1j * b)), strict=True))
    right = np.sum(slopes[0] * a) + np.sum(slopes[1] * b)
    assert abs(left - right) <= 4 * EPS * sum(np.abs(w).sum() for w in weights) * np.abs(a).sum()


def test_cotangents_are_torchs_and_tensorflows_and_the_conjugate_of_jaxs() -> None:
    """Of z to the inner product of weights with both parts of an ifft."""
    z, weight = REAL + 1j * IMAG, IMAG - 1j * REAL
    _, pullback = xg.vjp(xg.function(xp.ifft, native=False), REAL, IMAG)
    real, imag = pullback((weight.real, weight.imag))
    own = real + 1j * imag
    torch = pytest.importorskip("torch")
    tin = torch.tensor(z, requires_grad=True)
    torch.fft.ifft(tin).backward(torch.tensor(weight))
    np.testing.assert_allclose(own, tin.grad.numpy(), 0, 1e-14)
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        (slope,) = jax.vjp(jax.numpy.fft.ifft, jax.numpy.asarray(z))[1](weight.conj())
        np.testing.assert_allclose(own, np.conj(slope), 0, 1e-14)
    tf = pytest.importorskip("tensorflow")
    with tf.GradientTape() as tape:
        tin = tf.constant(z)
        tape.watch(tin)
        result = tf.signal.ifft(tin)
    slope = tape.gradient(result, tin, output_gradients=tf.constant(weight))
    np.testing.assert_allclose(own, slope.numpy(), 0, 1e-14)


def test_nan_in_one_row_stays_in_it(backend: Any) -> None:
    x = REAL.copy()
    x[0, 1, 2] = np.nan
    with backend.precision(np.dtype(np.float64)):
        found = backend.numpy(xg.function(xp.rfft, native=False)(backend.array(x))[0])
    assert np.isnan(found[0, 1]).all()
    assert np.isnan(found).sum() == found.shape[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: xp.rfft(x, norm="orthogonal"), "norm='orthogonal'"),
        (lambda x: xp.rfft(x, 0), r"lengths \(0,\)"),
        (lambda x: xp.irfft(x[..., :1], x[..., :1]), "irfft of length 0; give n"),
    ],
)
def test_what_no_transform_is_raises_by_name(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(REAL)
