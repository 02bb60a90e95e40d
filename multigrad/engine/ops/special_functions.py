"""Special functions of NumPy arrays beside the error function, as that in float64 and rounded once.

They are our own, so that the numbers do not depend on the release of SciPy. Each is within 4 eps of
the exact result, or of what half an eps of the argument changes in it. What is missing here, Bessel
functions, is SciPy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.ops.numerics import (
    ROOT_HALF,
    ROOT_PI,
    Array,
    complement,
    erf_near_zero,
    evaluate_polynomial,
    in_float64,
    scaled_erfc,
    widened,
)
from ..support.extras import import_extra

# B(2k) / (2k), of the asymptotic series of digamma; B(2k) / (2k)! follows from them.
BERNOULLI = (
    1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160,
)  # fmt: skip
ROOT = (1.4616321449683623, 9.549995429965697e-17)  # where digamma is zero, in two parts
FAR = 10  # from where the asymptotic series are exact
STEPS = np.arange(FAR)[:, None]


@in_float64
def ndtr(x: Array) -> Array:
    return 0.5 * complement(x * -ROOT_HALF)


def log_tail(x: Array) -> Array:
    """Return log(ndtr(-x)), for x from 0 on."""
    return np.log(scaled_erfc(x * ROOT_HALF) / 2) - x * x / 2


@in_float64
def log_ndtr(x: Array) -> Array:
    size = np.abs(x)
    above = 0.5 * complement(size * ROOT_HALF)
    near = np.where(x < 0, np.log(above), np.log1p(-above))
    return np.where(x < -1, log_tail(size), near)


def inverse_near_zero(x: Array) -> Array:
    """Return erfinv(x), for |x| up to 0.5."""
    x = np.clip(x, -0.5, 0.5)
    y = 0.5 * ROOT_PI * x
    for _ in range(3):  # Halley's steps: the error is 0.04, 1e-5, 1e-16
        step = (erf_near_zero(y) - x) * (0.5 * ROOT_PI) * np.exp(y * y)
        y -= step / (1 + y * step)
    return y


def inverse_tail(q: Array) -> Array:
    """Return the x from 0.67 on of ndtr(-x) = q, for q up to 0.25."""
    q = np.minimum(q, 0.25)
    logarithm = np.log(np.where(q > 0, q, 0.25))
    x = np.sqrt(-2 * logarithm) - 0.6
    for _ in range(6):  # Newton's steps for the logarithms, which are concave
        slope = -math.sqrt(2 / math.pi) / scaled_erfc(x * ROOT_HALF)
        x = np.maximum(x - (log_tail(x) - logarithm) / slope, 0.5)
    return np.where(q > 0, x, np.inf)


@in_float64
def erfinv(x: Array) -> Array:
    size = np.abs(x)
    far = np.copysign(inverse_tail((1 - size) / 2) * ROOT_HALF, x)
    y = np.where(size <= 0.5, inverse_near_zero(x), far)
    return np.where(size <= 1, y, np.nan)


@in_float64
def ndtri(p: Array) -> Array:
    far = np.copysign(inverse_tail(np.minimum(p, 1 - p)), p - 0.5)
    y = np.where(np.abs(p - 0.5) <= 0.25, inverse_near_zero(2 * p - 1) / ROOT_HALF, far)
    return np.where((p >= 0) & (p <= 1), y, np.nan)


@functools.cache
def zetas() -> list[float]:
    """Return the coefficients of lgamma(2 + z) / z by powers of z, for |z| up to 0.5."""
    # Taylor: the n-th derivative of lgamma is polygamma(n - 1); the first is 1 - Euler's constant.
    two = np.full(1, 2.0)
    rest = [polygamma(two, n=n - 1)[0] / math.factorial(n) for n in range(2, 28)]
    return [1 - np.euler_gamma, *rest]


def log_gamma_above_zero(x: Array) -> Array:
    # lgamma(x) = log((x - 1) (x - 2) ...) + lgamma(z), z up to 2.5; from FAR on Stirling's series.
    z, product = np.minimum(x, FAR), np.ones_like(x)
    for _ in range(FAR - 2):
        is_large = z > 2.5
        z = np.where(is_large, z - 1, z)
        product *= np.where(is_large, z, 1.0)
    from_two = np.where(z < 0.5, z, np.where(z <= 1.5, z - 1, z - 2))
    near = from_two * evaluate_polynomial(zetas()[::-1], from_two) + np.log(product)
    near -= np.where(z <= 1.5, np.log1p(from_two), 0.0) + np.where(z < 0.5, np.log(z), 0.0)
    logarithm, far = np.log(x), np.maximum(x, FAR)
    series = sum(b / (2 * k - 1) * far ** (1.0 - 2 * k) for k, b in enumerate(BERNOULLI, 1))
    stirling = x * (logarithm - 1) - 0.5 * logarithm + (0.5 * math.log(2 * math.pi) + series)
    return np.where(x < FAR, near, np.where(x < math.inf, stirling, x))


@in_float64
def lgamma(x: Array) -> Array:
    # Below zero by reflection, from the distance to the pole.
    right = log_gamma_above_zero(np.where(x < 0, 1 - x, x))
    distance = x - np.round(x)
    left = -np.log(np.abs(distance)) - np.log(np.sinc(distance)) - right
    return np.where(x < 0, np.where(x == np.floor(x), np.inf, left), right)


def digamma_above_zero(x: Array) -> Array:
    # The sum of (x - root) / ((x + k) (root + k)), in which nothing cancels near the root, and the
    # difference of two asymptotic series.
    root = ROOT[0]
    distance = x - root - ROOT[1]
    total = np.sum(1 / (x + STEPS) / (root + STEPS), 0)
    far, far_root = x + FAR, root + FAR
    series = np.log1p(distance / far_root) + distance / far / (2 * far_root)
    for k, coefficient in enumerate(BERNOULLI, 1):
        series -= coefficient * (far ** (-2 * k) - far_root ** (-2 * k))
    return np.where(x < math.inf, distance * total + series, x)


def digamma_by_reflection(xp: Any, digamma: Any, x: Any) -> Any:
    """Return psi of an array, by reflection below zero, from a framework's functions and its psi.

    That loses every digit near its poles in float64 (torch 2.13, jax 0.10, tensorflow 2.21).
    """
    is_below = x < 0
    # A branch that is not taken gets harmless numbers, because derivatives go through it too.
    right = digamma(xp.where(is_below, 1.0 - x, x))
    left = right - math.pi / xp.tan(math.pi * xp.where(is_below, x - xp.round(x), 0.5))
    # At its poles psi is NaN, and its derivative inf: a sum keeps that.
    psi = xp.where(is_below, left, right)
    return xp.where(is_below & (x == xp.floor(x)), psi + math.nan, psi)


@in_float64
def digamma(x: Array) -> Array:
    psi = digamma_by_reflection(np, digamma_above_zero, x)
    return np.where(x == 0, np.copysign(np.inf, -x), psi)


def polygamma_by_zeta(xp: Any, zeta: Any, x: Any, n: int) -> Any:
    """Return the n-th derivative of psi, n at least 1, by a framework's functions and zeta."""
    factor, is_inside = (-1.0) ** (n + 1) * math.factorial(n), (x > 0) & (x < math.inf)
    inside = zeta(xp.zeros_like(x) + (n + 1.0), xp.where(is_inside, x, 1.0))
    # A power of the root has its limits at 0 and inf, its derivative too, and is NaN below.
    limits = xp.sqrt(xp.where(is_inside, 1.0, x)) ** (-2.0 * n)
    return factor * xp.where(is_inside, inside, limits)


@in_float64
def polygamma(x: Array, *, n: int) -> Array:
    # (-1)^(n + 1) n! zeta(n + 1, x), by the formula of Euler and Maclaurin; NaN below zero.
    start = np.where(x > 0, x, 1.0)
    total, far = np.zeros_like(x), start + (FAR + n)
    for k in range(FAR + n):
        total += (start + k) ** -(n + 1.0)
    total += far**-n * (1.0 / n) + 0.5 * far ** -(n + 1.0)
    for k, coefficient in enumerate(BERNOULLI, 1):
        # coefficient * 2k = B(2k), over (2k)!, times (n + 1) ... (n + 2k - 1).
        factor = math.factorial(n + 2 * k - 1) / (math.factorial(n) * math.factorial(2 * k))
        total += coefficient * 2 * k * factor * far ** -(n + 2.0 * k)
    values = np.where(x > 0, math.factorial(n) * total, np.where(x == 0, np.inf, np.nan))
    return (-1) ** (n + 1) * values


# --- of SciPy -------------------------------------------------------------------------------------
def from_scipy(name: str, module: str = "special") -> Any:
    """Return a function of SciPy's, or raise BackendNotFound if it is not installed."""
    who_needs_it = f"{name} is SciPy's, for NumPy arrays"
    return getattr(import_extra(f"scipy.{module}", "scipy", who_needs_it), name)


def late_from_scipy(name: str) -> Callable[..., Array]:
    """Return a function of scipy.special as an op; SciPy is imported when it is first called."""

    def call(x: Array) -> Array:
        return from_scipy(name)(x)

    call.__name__ = call.__qualname__ = name
    return widened(call)
