"""Code of a library that computes with complex numbers between real ones is captured: as two real
graphs, with the values and gradients that the library gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

Tensor = Any
RNG = np.random.default_rng(11)
X, A, B = RNG.normal(size=(4, 6)), *RNG.normal(size=(2, 4, 4))


def check(library: str, call: Callable[..., Tensor]) -> None:
    """Compare values and gradients in float64."""
    assert_as_in(library, call, X, A, B, rtol=0, atol=1e-13, scaled=True)


def in_torch() -> dict[str, Callable[..., Tensor]]:
    import torch

    fft = torch.fft
    return {
        "spectral convolution": lambda x, a, b: fft.irfft(
            torch.einsum("bix,io->box", fft.rfft(x[None]), torch.complex(a, b))[0], n=6
        ),
        "matmul": lambda x, a, b: (torch.complex(a, b) @ fft.fft(x)).abs(),
        "division": lambda x, a, b: torch.view_as_real(fft.fft2(a) / (torch.complex(b, a) + 3)),
        "angle and exp": lambda x, a, b: (
            torch.angle(torch.exp(torch.complex(a, b))) + torch.polar(a, b).imag
        ),
        "conj": lambda x, a, b: (fft.rfft(x, norm="ortho") * fft.rfft(x).conj()).real,
        "fft2": lambda x, a, b: fft.ifft2(fft.fft2(a, s=(5, 3)) * (2 - 1j), dim=(0, 1)).real,
        "rfft2": lambda x, a, b: fft.irfft2(fft.rfft2(x) ** 2, s=(4, 6)),
        "rfftn": lambda x, a, b: fft.irfftn(fft.rfftn(x, dim=(0, 1)), s=(3, 5), norm="forward"),
        "parts": lambda x, a, b: torch.stack([torch.complex(a, b), fft.fft(a)]).mean(-1)[1].imag,
        "view": lambda x, a, b: torch.view_as_complex(x.reshape(4, 3, 2)).mT.reshape(-1).abs(),
        "shift": lambda x, a, b: fft.ifftshift(fft.fftshift(fft.fft(x)) * 1.5, dim=1).real,
        "numbers": lambda x, a, b: (1 - torch.complex(a, b) * 1j + a).imag + abs(fft.fft(a)),
    }  # fmt: skip


def in_jax() -> dict[str, Callable[..., Tensor]]:
    import jax
    import jax.numpy as jnp

    fft = jnp.fft
    return {
        "spectral convolution": lambda x, a, b: fft.irfft(
            jnp.einsum("ix,io->ox", fft.rfft(x), jax.lax.complex(a, b)), 6
        ),
        "matmul": lambda x, a, b: jnp.abs(jax.lax.complex(a, b) @ fft.fft(x)),
        "conj": lambda x, a, b: (fft.rfft(x, norm="ortho") * jnp.conj(fft.rfft(x))).real,
        "fft2": lambda x, a, b: jnp.real(fft.ifft2(fft.fft2(a, s=(5, 3)), axes=(0, 1))),
        "angle": lambda x, a, b: jnp.angle(jax.lax.complex(a, b)) * jnp.imag(fft.fftn(a)),
        "where": lambda x, a, b: jnp.where(a > 0, fft.fft(a), 2.0).imag,
    }


def in_tensorflow() -> dict[str, Callable[..., Tensor]]:
    import tensorflow as tf

    return {
        "spectral convolution": lambda x, a, b: tf.signal.irfft(
            tf.matmul(tf.complex(a, b), tf.signal.rfft(x)), [6]
        ),
        "abs": lambda x, a, b: tf.abs(tf.signal.fft(tf.complex(a, b))),
        "conj": lambda x, a, b: tf.math.real(tf.signal.rfft(x) * tf.math.conj(tf.signal.rfft(x))),
        "fft2d": lambda x, a, b: tf.math.imag(tf.signal.ifft2d(tf.signal.fft2d(tf.complex(a, b)))),
    }


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [
    "spectral convolution", "matmul", "division", "angle and exp", "conj", "fft2", "rfft2", "rfftn",
    "parts", "view", "shift", "numbers",
])  # fmt: skip
def test_complex_numbers_of_torch_are_pairs_of_real_ones(name: str) -> None:
    check("torch", in_torch()[name])


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    "name", ["spectral convolution", "matmul", "conj", "fft2", "angle", "where"]
)
def test_complex_numbers_of_jax_are_pairs_of_real_ones(name: str, jax: Any) -> None:
    with jax.enable_x64(True):
        check("jax", in_jax()[name])


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", ["spectral convolution", "abs", "conj", "fft2d"])
def test_complex_numbers_of_tensorflow_are_pairs_of_real_ones(name: str) -> None:
    check("tensorflow", in_tensorflow()[name])


def test_complex_numbers_of_numpy_are_pairs_of_real_ones() -> None:
    def power(x: Tensor) -> Tensor:
        z = np.fft.rfft(x) * np.exp(1j * np.arange(4))
        return np.abs(z) ** 2 + np.real(z * np.conj(z)) + np.angle(z)

    assert_as_in("numpy", power, X, rtol=0, atol=1e-13, scaled=True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.linalg.norm(np.fft.fft(x)), "norm of complex numbers"),
        (lambda x: np.sin(np.fft.fft(x)).real, "sin of complex numbers"),
        (lambda x: np.fft.rfft(np.fft.fft(x)).real, "rfft of complex numbers"),
        (lambda x: np.fft.fft(x).astype(np.float64), "astype of complex numbers"),
        (lambda x: np.fft.fft(x), "returns complex numbers"),
        (lambda x: x if np.fft.fft(x) == 0 else -x, "== of complex numbers"),
    ],
)
def test_what_complex_numbers_lack_is_refused_by_name(function: Any, message: str) -> None:
    with pytest.raises(xg.TraceError, match=message):
        xg.function(function, native=False)(X)


def test_a_complex_argument_is_refused_with_what_to_write() -> None:
    with pytest.raises((TypeError, xg.MultigradError), match="real and"):
        xg.function(lambda z: abs(z), native=False)(X + 1j)


@pytest.mark.needs("torch")
def test_a_layer_of_a_fourier_neural_operator_is_captured_as_it_is_written(torch: Any) -> None:
    """It makes complex zeros, and writes the lowest frequencies into them; in float32."""

    def layer(x: Tensor, weights: Tensor) -> Tensor:
        seen = torch.fft.rfft2(x)
        out = torch.zeros(2, 3, 4, 3, dtype=torch.cfloat)
        kept = torch.view_as_complex(weights)
        out[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :2, :2], kept)
        return torch.fft.irfft2(out, s=(4, 4))

    shapes = (2, 3, 4, 4), (3, 3, 2, 2, 2)
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    assert xg.function(layer, native=False)(*arrays).dtype == np.float32
    assert_as_in("torch", layer, *arrays, rtol=0)


@pytest.mark.needs("torch")
def test_the_imaginary_part_of_a_conjugate_keeps_its_sign(torch: Any) -> None:
    """Torch negates it when it is read, and hands over the number without its sign."""
    x = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert xg.convert(lambda x: 2.0 * x)(x).tolist() == [-2.0, -2.0]
    check("torch", lambda x, a, b: torch.complex(a, b).conj().imag)
