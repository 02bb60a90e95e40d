"""A quadratic program as a layer (Amos, Kolter 2017): the x that minimizes x Q x / 2 + c x where
G x <= h, and its gradient with respect to all four.

The unknowns are x and the multipliers y of the constraints; zero are the derivative of the
Lagrangian and y (h - G x). An interior-point method solves that, and needs no gradient.
Needs: multigrad; with torch, jax, tensorflow it runs there too
"""

import numpy as np
from frameworks import distance, gradients

import multigrad as xg
from multigrad import xp


def conditions(unknowns, q, c, g, h):
    x, y = unknowns
    stationary = xp.matmul(q, x) + c + xp.matmul(xp.matrix_transpose(g), y)
    return stationary, y * (h - xp.matmul(g, x))


def step_to(values, change):
    """Return how far values may go, and stay above zero."""
    falls = change < 0
    return xp.min(xp.where(falls, -0.99 * values / xp.where(falls, change, -1.0), 1.0))


def interior_point(q, c, g, h):
    x, y, s = xp.zeros_like(c), xp.ones_like(h), xp.ones_like(h)
    turned = xp.matrix_transpose(g)
    for _ in range(16):
        stationary = xp.matmul(q, x) + c + xp.matmul(turned, y)
        slack = xp.matmul(g, x) + s - h
        center = y * s - 0.1 * xp.mean(y * s)
        matrix = q + xp.matmul(turned, (y / s)[:, None] * g)
        right = stationary + xp.matmul(turned, (y * slack - center) / s)
        dx = -xp.solve(matrix, right)
        ds = -slack - xp.matmul(g, dx)
        dy = -(center + y * ds) / s
        size = xp.minimum(step_to(y, dy), step_to(s, ds))
        x, y, s = x + size * dx, y + size * dy, s + size * ds
    return x, y


solved = xg.implicit(conditions, interior_point, solve="direct")


def program(q, c, g, h):
    return solved(q, c, g, h)[0]


def differences(inputs: tuple[np.ndarray, ...], cotangent: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the gradients by central differences of the solution."""
    found = tuple(np.zeros_like(x) for x in inputs)
    for gradient, x in zip(found, inputs, strict=True):
        for at in np.ndindex(x.shape):
            kept, values = x[at], []
            for move in (1e-5, -1e-5):
                x[at] = kept + move
                values.append(interior_point(*inputs)[0] @ cotangent)
            x[at], gradient[at] = kept, (values[0] - values[1]) / 2e-5
    return found


def main() -> None:
    random = np.random.default_rng(1)
    root = random.normal(size=(4, 4))
    q, c = root @ root.T + np.eye(4), random.normal(size=4) * 6
    g, h = random.normal(size=(5, 4)), random.uniform(0.1, 1.0, size=5)
    inputs, cotangent = (q, c, g, h), random.normal(size=4)
    expected = differences(inputs, cotangent)
    active = int((interior_point(*inputs)[1] > 1e-6).sum())
    print(f"{active} of 5 constraints hold the solution")
    for name, _, found in gradients(program, inputs, cotangent):
        print(f"{name:12}from differences: {distance(found, expected):.1e}")


if __name__ == "__main__":
    main()
