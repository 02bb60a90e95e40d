"""The Functions of `xg.estimators` once more: slow, element by element in Python's floats, from the
papers and the peers' documentation; each gives the output and a gradient for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Oracle = Callable[..., tuple[Array, tuple[Array, ...]]]
ORACLES: dict[str, Oracle] = {}


def oracle(function: Oracle) -> Oracle:
    ORACLES[function.__name__] = function
    return function


def by_element(g: Array, x: Array, *others: Array, compute: Callable[..., Any]) -> tuple[Any, Any]:
    """`compute(x, *others) -> (y, slopes)` at each element; gradients summed to their argument."""
    y = np.zeros(x.shape)
    gradients = [np.zeros(np.shape(each)) for each in (x, *others)]
    wide = [np.broadcast_to(each, x.shape) for each in others]
    for at in np.ndindex(*x.shape):
        y[at], slopes = compute(float(x[at]), *(float(each[at]) for each in wide))
        for gradient, slope in zip(gradients, slopes, strict=True):
            lead = len(at) - gradient.ndim
            own = tuple(0 if n == 1 else i for i, n in zip(at[lead:], gradient.shape, strict=True))
            gradient[own] += g[at] * slope
    return y, tuple(gradients)


def to_even(v: float) -> float:
    low = math.floor(v)
    if v - low != 0.5:
        return float(math.floor(v + 0.5))
    return float(low if low % 2 == 0 else low + 1)


def clamped(v: float, low: float, high: float) -> float:
    return low if v < low else min(v, high)


def inside(x: float, clip: float | None) -> float:
    return 1.0 if clip is None or -clip <= x <= clip else 0.0


# --- rounding and signs --------------------------------------------------------------------------


def rounded_by(rounding: Callable[[float], float]) -> Oracle:
    return lambda g, x: by_element(g, x, compute=lambda v: (rounding(v), (1.0,)))


ORACLES["ste_round"] = rounded_by(to_even)
ORACLES["ste_floor"] = rounded_by(math.floor)
ORACLES["ste_ceil"] = rounded_by(math.ceil)
ORACLES["ste_trunc"] = rounded_by(math.trunc)


def sign(v: float) -> float:
    return 1.0 if v >= 0 else -1.0


@oracle
def ste_sign(g: Array, x: Array, clip: float | None = 1.0) -> Any:
    return by_element(g, x, compute=lambda v: (sign(v), (inside(v, clip),)))


@oracle
def ste_heaviside(g: Array, x: Array, clip: float | None = 1.0) -> Any:
    return by_element(g, x, compute=lambda v: (float(v > 0), (inside(v, clip),)))


@oracle
def ste_ternary(g: Array, x: Array, threshold: float = 0.05, clip: float | None = 1.0) -> Any:
    def compute(v: float) -> Any:
        return float(v >= threshold) - float(v <= -threshold), (inside(v, clip),)

    return by_element(g, x, compute=compute)


@oracle
def approx_sign(g: Array, x: Array) -> Any:
    def compute(v: float) -> Any:
        # The slope of 2 x + x**2 below 0 and of 2 x - x**2 above.
        slope = 2 + 2 * v if -1 <= v < 0 else 2 - 2 * v if 0 <= v <= 1 else 0.0
        return sign(v), (slope,)

    return by_element(g, x, compute=compute)


@oracle
def swish_sign(g: Array, x: Array, beta: float = 5.0) -> Any:
    def compute(v: float) -> Any:
        u = beta * v
        slope = 0.0 if abs(u) > 700 else beta * (2 - u * math.tanh(u / 2)) / (1 + math.cosh(u))
        return sign(v), (slope,)

    return by_element(g, x, compute=compute)


@oracle
def magnitude_aware_sign(g: Array, x: Array, clip: float | None = 1.0) -> Any:
    y, gradient = np.zeros(x.shape), np.zeros(x.shape)
    for channel in range(x.shape[-1]):
        column = x[..., channel]
        m = sum(abs(float(v)) for v in column.flat) / column.size
        for at in np.ndindex(*column.shape):
            y[(*at, channel)] = m * sign(column[at])
            gradient[(*at, channel)] = g[(*at, channel)] * m * inside(column[at], clip)
    return y, (gradient,)


# --- quantizers ----------------------------------------------------------------------------------


@oracle
def dorefa_activations(g: Array, x: Array, bits: int = 2) -> Any:
    n = 2**bits - 1

    def compute(v: float) -> Any:
        return to_even(clamped(v, 0.0, 1.0) * n) / n, (float(0 <= v <= 1),)

    return by_element(g, x, compute=compute)


@oracle
def dorefa_weights(g: Array, x: Array, bits: int = 2) -> Any:
    n, m = 2**bits - 1, max(abs(math.tanh(v)) for v in x.flat)

    def compute(v: float) -> Any:
        t = math.tanh(v)
        return 2 * to_even((t / (2 * m) + 0.5) * n) / n - 1, ((1 - t * t) / m,)

    return by_element(g, x, compute=compute)


@oracle
def pact(g: Array, x: Array, alpha: Array, bits: int = 4) -> Any:
    n = 2**bits - 1

    def compute(v: float, a: float) -> Any:
        y = 0.0 if v < 0 else min(a, v)
        return to_even(y * n / a) * a / n, (float(0 <= v < a), float(v >= a))

    return by_element(g, x, alpha, compute=compute)


@oracle
def lsq(
    g: Array, x: Array, step: Array, bits: int = 4, signed: bool = True, scaled: bool = True
) -> Any:
    zero = np.zeros(np.shape(step))
    y, (grad_x, grad_step, _) = lsq_plus(g, x, step, zero, bits, signed, scaled)
    return y, (grad_x, grad_step)


@oracle
def lsq_plus(
    g: Array,
    x: Array,
    step: Array,
    offset: Array,
    bits: int = 4,
    signed: bool = False,
    scaled: bool = True,
) -> Any:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def compute(v: float, s: float, b: float) -> Any:
        q = (v - b) / s
        if q <= low:
            return low * s + b, (0.0, low, 1.0)
        if q >= high:
            return high * s + b, (0.0, high, 1.0)
        return to_even(q) * s + b, (1.0, to_even(q) - q, 0.0)

    y, (grad_x, grad_step, grad_offset) = by_element(g, x, step, offset, compute=compute)
    if scaled:
        grad_step = grad_step / math.sqrt(x.size / np.size(step) * high)
        grad_offset = grad_offset / math.sqrt(x.size / np.size(offset) * high)
    return y, (grad_x, grad_step, grad_offset)


@oracle
def n2uq(g: Array, x: Array, widths: Array, start: Any = 0.0) -> Any:
    y, grad_x = np.zeros(x.shape), np.zeros(x.shape)
    grad_widths, grad_start = np.zeros(widths.shape), 0.0
    for at in np.ndindex(*x.shape):
        left = float(start)
        for i, width in enumerate(widths.tolist()):
            y[at] += x[at] > left + width / 2
            if left < x[at] <= left + width:  # y = i + (x - left) / width there
                grad_x[at] += g[at] / width
                grad_start -= g[at] / width
                grad_widths[i] -= g[at] * (x[at] - left) / width**2
                grad_widths[:i] -= g[at] / width
            left += width
    return y, (grad_x, grad_widths, np.asarray(grad_start))


@oracle
def fake_quantize(
    g: Array, x: Array, low: Array, high: Array, bits: int = 8, narrow: bool = False
) -> Any:
    least, most = int(narrow), 2**bits - 1

    def compute(v: float, a: float, b: float) -> Any:
        scale = (b - a) / (most - least)
        zero = clamped(to_even(clamped(least - a / scale, least, most)), least, most)
        first, last = (least - zero) * scale, (most - zero) * scale
        y = (to_even((clamped(v, first, last) - first) / scale) + least - zero) * scale
        return y, (float(first <= v <= last), float(v <= first), float(v >= last))

    return by_element(g, x, low, high, compute=compute)


@oracle
def quantization_noise(g: Array, x: Array, q: Array, factor: float = 1.0) -> Any:
    def compute(v: float, level: float) -> Any:
        return (1 - factor) * v + factor * level, (1 - factor, 0.0)

    return by_element(g, x, q, compute=compute)


@oracle
def learnable_step(g: Array, x: Array, width: Array, kind: str = "sigmoid") -> Any:
    def compute(v: float, w: float) -> Any:
        u = v / w
        if kind == "sigmoid":
            slope = math.exp(-abs(u)) / (1 + math.exp(-abs(u))) ** 2
        else:
            slope = 1 / (2 * (1 + (math.pi * u / 2) ** 2))
        return float(v > 0), (slope / w, -v * slope / w**2)

    return by_element(g, x, width, compute=compute)


# --- vectors -------------------------------------------------------------------------------------


@oracle
def vq(g: Array, x: Array, codebook: Array, trained: bool = False, with_index: bool = False) -> Any:
    y, index = np.zeros(x.shape), np.zeros(x.shape[:-1], np.int64)
    grad_codebook = np.zeros(codebook.shape)
    for at in np.ndindex(*x.shape[:-1]):
        distances = [math.dist(x[at], code) for code in codebook]
        index[at] = distances.index(min(distances))
        y[at] = codebook[index[at]]
        if trained:
            grad_codebook[index[at]] += g[at]
    return (y, index) if with_index else y, (g, grad_codebook)


@oracle
def straight_through(g: Array, x: Array, q: Array) -> Any:
    return q, (g, np.zeros(q.shape))


@oracle
def replace_grad(g: Array, x_forward: Array, x_backward: Array) -> Any:
    zero = np.zeros(x_forward.shape)
    _, (_, summed) = by_element(g, zero, x_backward, compute=lambda v, w: (v, (0.0, 1.0)))
    return x_forward, (zero, summed)


@oracle
def rotation_trick(g: Array, x: Array, q: Array) -> Any:
    gradient = np.zeros(x.shape)
    for at in np.ndindex(*x.shape[:-1]):
        size, other = np.linalg.norm(x[at]), np.linalg.norm(q[at])
        if size == 0:
            gradient[at] = g[at]
        elif other != 0:
            e, f = x[at] / size, q[at] / other
            length = np.linalg.norm(e + f)
            r = (e + f) / length if length else e + f
            rotation = np.eye(e.size) - 2 * np.outer(r, r) + 2 * np.outer(f, e)
            gradient[at] = g[at] @ (other / size * rotation)
    return q, (gradient, np.zeros(q.shape))


# --- clamps --------------------------------------------------------------------------------------


@oracle
def clamp_with_grad(g: Array, x: Array, low: float = -1.0, high: float = 1.0) -> Any:
    y, gradient = np.zeros(x.shape), np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        y[at] = clamped(x[at], low, high)
        gradient[at] = g[at] if g[at] * (x[at] - y[at]) >= 0 else 0.0
    return y, (gradient,)


@oracle
def clipped_relu(g: Array, x: Array, c: float = 1.0) -> Any:
    return by_element(g, x, compute=lambda v: (clamped(v, 0.0, c), (float(0 < v < c),)))


@oracle
def gradient_reversal(g: Array, x: Array, alpha: float = 1.0) -> Any:
    return x, (-alpha * g,)
