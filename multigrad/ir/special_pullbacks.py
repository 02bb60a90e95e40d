"""The VJP of each special function: error functions, gamma functions, sinc; see `pullbacks.py` for how they are written."""

from __future__ import annotations

import math
from typing import Any

Cotangents = tuple[Any, ...]
ROOT_TAU = math.sqrt(2 * math.pi)
MILLS_FROM = 8.0


def erf(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x))),)


def erfc(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (-ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x))),)


def erfinv(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (math.sqrt(math.pi) / 2 * xp.exp(y * y)),)


def ndtr(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.exp(-0.5 * x * x) * (1 / ROOT_TAU)),)


def ndtri(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (ROOT_TAU * xp.exp(0.5 * y * y)),)


def log_ndtr(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    """phi(x) / Phi(x): in the left tail by Laplace's continued fraction, as the quotient of exponentials cancels."""
    tail = inverse_mills(xp.maximum(-x, MILLS_FROM))
    near = xp.maximum(x, -MILLS_FROM)
    quotient = xp.exp(-0.5 * near * near - xp.log_ndtr(near)) * (1 / ROOT_TAU)
    return (ct * xp.where(xp.less(x, -MILLS_FROM), tail, quotient),)


def inverse_mills(t: Any) -> Any:
    """phi(t) / Phi(-t) for t from MILLS_FROM up, where 14 levels of Laplace's fraction reach float64."""
    fraction = t
    for k in range(14, 0, -1):
        fraction = t + k / fraction
    return fraction


def lgamma(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.digamma(x),)


def digamma(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    """Trigamma; below zero by reflection: (pi / sin(pi x))^2 - trigamma(1 - x)."""
    below = xp.less(x, 0)
    trigamma = xp.polygamma(1, xp.where(below, 1.0 - x, x))
    apart = xp.where(below, x - xp.round(x), 0.5)  # from the nearest pole, exactly
    reflected = xp.square(math.pi / xp.sin(math.pi * apart))
    return (ct * xp.where(below, reflected - trigamma, trigamma),)


def polygamma(xp: Any, ct: Any, y: Any, x: Any, *, n: int) -> Cotangents:
    return (ct * xp.polygamma(n + 1, x),)


# Below this the quotient cancels; its series converges there to float64 in so many terms.
SINC_NEAR, SINC_TERMS = 0.3, 9


def sinc(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    """(cos(pi x) - sinc(x)) / x, near zero by its series."""
    close = xp.less(xp.abs(x), SINC_NEAR)
    near = xp.where(close, x, 0.0)
    square, series = near * near, 0.0
    for k in range(SINC_TERMS, 0, -1):
        term = (-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1)
        series = term + square * series
    far = xp.where(close, 1.0, x)
    return (ct * xp.where(close, near * series, (xp.cos(math.pi * far) - xp.sinc(far)) / far),)
