"""A deep equilibrium layer (Bai et al. 2019): its output is the fixed point x = tanh(x w + z v + b)
for each row z of a batch, as if it had no end of layers that share their weights.

Memory is that of one layer, and the gradient that of all of them.
Needs: multigrad; with torch, jax, tensorflow it runs there too
"""

import numpy as np
from frameworks import distance, gradients

import multigrad as xg
from multigrad import xp


def turn(x, z, w, v, b):
    return xp.tanh(xp.matmul(x, w) + xp.matmul(z, v) + b)


def iterate(z, w, v, b):
    x = xp.zeros_like(xp.matmul(z, v))
    for _ in range(100):
        x = turn(x, z, w, v, b)
    return x


layer = xg.implicit(lambda x, *params: x - turn(x, *params), iterate)


def main() -> None:
    random = np.random.default_rng(0)
    z, v = random.normal(size=(16, 4)), random.normal(size=(4, 8))
    w, b = 0.25 * random.normal(size=(8, 8)), random.normal(size=8)
    params, cotangent = (z, w, v, b), random.normal(size=(16, 8))

    _, pull = xg.vjp(xg.function(iterate), *params)
    unrolled = pull(cotangent)
    print(layer.report(*params, cotangent=cotangent))
    for name, _, found in gradients(layer, params, cotangent):
        print(f"{name:12}from the gradient of 100 layers: {distance(found, unrolled):.1e}")


if __name__ == "__main__":
    main()
