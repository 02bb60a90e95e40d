"""Sparsemax (Martins, Astudillo 2016), 1.5-entmax (Peters et al. 2019): softmax with zeros in it.

Of scores z both are relu((alpha - 1) z - tau) ** (1 / (alpha - 1)), with the tau for which each row
sums to one. Bisection finds it, and that equation has its gradient.
Needs: multigrad; with torch, jax, tensorflow it runs there too
"""

import numpy as np
from frameworks import distance, gradients

import multigrad as xg
from multigrad import xp


def weights(tau, z, alpha):
    return xp.relu((alpha - 1) * z - tau) ** (1 / (alpha - 1))


def excess(tau, z, alpha):
    return xp.sum(weights(tau, z, alpha), axis=-1, keepdims=True) - 1


def bisect(z, alpha):
    high = (alpha - 1) * xp.max(z, axis=-1, keepdims=True)
    low = high - 1
    for _ in range(52):
        middle = (low + high) / 2
        is_low = excess(middle, z, alpha) > 0
        low, high = xp.where(is_low, middle, low), xp.where(is_low, high, middle)
    return (low + high) / 2


threshold = xg.implicit(excess, bisect, solve="cg")  # a row each: the matrix is diagonal


def entmax(z, alpha):
    return weights(threshold(z, alpha), z, alpha)


def closed_form(p: np.ndarray, cotangent: np.ndarray, alpha: float) -> np.ndarray:
    """Return the gradient by Peters et al. 2019, proposition 2."""
    s = np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0)
    mean = (cotangent * s).sum(-1, keepdims=True) / s.sum(-1, keepdims=True)
    return s * (cotangent - mean)


def main() -> None:
    random = np.random.default_rng(0)
    z, cotangent = random.normal(size=(8, 6)), random.normal(size=(8, 6))
    for title, alpha in (("sparsemax", 2.0), ("1.5-entmax", 1.5)):
        for name, p, found in gradients(lambda z, a=alpha: entmax(z, a), (z,), cotangent):
            error = distance(found, (closed_form(p, cotangent, alpha),))
            zeros = (p == 0).mean()
            print(f"{title:12}{name:12}zeros: {zeros:.2f}  from the closed form: {error:.1e}")


if __name__ == "__main__":
    main()
