"""Optimal transport with entropy (Cuturi 2013): Sinkhorn's iteration finds the plan, and the
equation of its potential has the gradient with respect to costs and weights.

A constant may be added to the potential, so that I - dT/df is singular. The residual says that its
mean is zero, too: then it is regular.
Needs: multigrad; with torch, jax, tensorflow it runs there too
"""

import numpy as np
from frameworks import distance, gradients

import multigrad as xg
from multigrad import xp

EPSILON = 0.5


def of_columns(f, costs, b):
    return EPSILON * (xp.log(b) - xp.logsumexp((f[:, None] - costs) / EPSILON, axis=0))


def turn(f, costs, a, b):
    g = of_columns(f, costs, b)
    return EPSILON * (xp.log(a) - xp.logsumexp((g[None, :] - costs) / EPSILON, axis=1))


def sinkhorn(costs, a, b):
    f = xp.zeros_like(a)
    for _ in range(80):
        f = turn(f, costs, a, b)
        f = f - xp.mean(f)
    return f


potential = xg.implicit(lambda f, *params: f - turn(f, *params) + xp.mean(f), sinkhorn)


def plan_of(f, costs, b):
    return xp.exp((f[:, None] + of_columns(f, costs, b)[None, :] - costs) / EPSILON)


def plan(costs, a, b):
    return plan_of(potential(costs, a, b), costs, b)


def main() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(6, 2)), random.normal(size=(8, 2))
    costs = ((x[:, None] - y[None]) ** 2).sum(-1)
    a, b = random.dirichlet(np.ones(6) * 4), random.dirichlet(np.ones(8) * 4)
    inputs, cotangent = (costs, a, b), random.normal(size=(6, 8))

    def unrolled(costs, a, b):
        return plan_of(sinkhorn(costs, a, b), costs, b)

    _, pull = xg.vjp(xg.function(unrolled), *inputs)
    # A change of a that does not sum to zero has no plan: of the gradient that part is nobody's.
    expected = pull(cotangent)
    for name, found, (of_costs, of_a, of_b) in gradients(plan, inputs, cotangent):
        rows = np.abs(found.sum(1) - a).max()
        given = (of_costs, of_a - of_a.mean(), of_b)
        wanted = (expected[0], expected[1] - expected[1].mean(), expected[2])
        error = distance(given, wanted)
        print(f"{name:12}rows sum to a: {rows:.0e}  from 80 iterations: {error:.1e}")


if __name__ == "__main__":
    main()
