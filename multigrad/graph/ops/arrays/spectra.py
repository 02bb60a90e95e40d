"""Fourier transforms; real and imaginary parts lie in a last axis of length two.

Graphs have real numbers only: a complex number is two of them, and so is its cotangent. The
transform is linear in both, and its transpose is the transform in the other direction. `xg.xp` has
the parts as two tensors. 16-bit values are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.op import Attr
from ..attributes import are_integers, flag
from ..numerics import Array, widened
from ..properties import linear
from ..result_shapes import Shape
from ..results import kept
from ..table import Cotangents, op


def are_spectral(value: object) -> bool:
    """Return whether a value holds axes, counted from the end, before the axis of parts."""
    if not are_integers(value) or not value:
        return False
    return max(value) < -1 and len(set(value)) == len(value)


@widened
def fft(x: Array, *, axes: tuple[int, ...], inverse: bool) -> Array:
    places = tuple(axis + 1 for axis in axes)  # of the complex numbers
    whole = x[..., 0] + 1j * x[..., 1]
    # Assigned, because 1j times an infinity has a real part of NaN.
    whole.real, whole.imag = x[..., 0], x[..., 1]
    if inverse:
        found = np.fft.ifftn(whole, axes=places, norm="forward")
    else:
        found = np.fft.fftn(whole, axes=places)
    return np.stack((found.real, found.imag), -1).astype(x.dtype, copy=False)


def fft_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, axes: tuple[int, ...], inverse: bool
) -> Cotangents:
    # The transpose of the real matrix is the conjugate transform.
    return (xp.packed_fft(ct, axes=axes, inverse=not inverse),)


def of_parts(x: Shape, axes: tuple[int, ...] = (-2,), **attrs: Any) -> Shape:
    """Return the operand's shape, or raise ValueError if it has no such transform."""
    if not x or x[-1] != 2 or -min(axes) > len(x) or not all(x[axis] for axis in axes):
        raise ValueError(f"no Fourier transform of shape {x}, with the parts last, over {axes}")
    return x


FFT = op(
    "fft",
    "x",
    numpy=fft,
    vjp=fft_vjp,
    doc="Fourier transforms of numbers whose parts lie in the last axis, without a divisor.",
    result=kept,
    degree=linear,
    shape_of=of_parts,
    axes=Attr(are_spectral, ((-2,), (-3, -2))),
    inverse=flag(False),
    in_vjps=True,
    xp="packed_fft",
)
