"""Rules on the gradients of several tasks: weights, of the matrix of their scalar products."""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..in_force.tasks import task_rule

Tensor = Any


@task_rule("pcgrad")
def pcgrad(products: Tensor, order: str = "fixed") -> Tensor:
    """The sum of the tasks' gradients, from each of which its conflicts are taken: for each other
    task j in turn, g_i - min(0, g_i . g_j) / |g_j|^2 * g_j.

    `order` is that of the others: "fixed", as they are given; "random", as in the paper, drawn for
    each task by the key of the call. Where a gradient is not finite nothing is taken from any.
    Source: Yu et al., 2020 (arXiv 2001.06782), alg. 1.
    """
    if order not in ("fixed", "random"):
        raise ValueError(f"order is 'fixed' or 'random', got {order!r}")
    number = products.shape[0]
    own = xp.tril(xp.triu(xp.ones_like(products)))
    lengths = xp.sum(products * own, axis=0)
    places = xp.argsort(xp.rand_like(products), axis=1) if order == "random" else None
    rows = own  # what task i's gradient has become, in terms of all
    for turn in range(number):
        if places is None:
            other = xp.stack([own[turn]] * number)
        else:
            other = xp.astype(xp.one_hot(places[:, turn], number), products.dtype)
        dots = xp.sum(xp.matmul(rows, products) * other, axis=1, keepdims=True)
        length = xp.sum(lengths * other, axis=1, keepdims=True)
        is_itself = xp.sum(own * other, axis=1, keepdims=True) > 0
        conflicts = (dots < 0) & (length > 0) & ~is_itself
        rows = rows - xp.where(conflicts, dots / xp.where(conflicts, length, 1.0), 0.0) * other
    return xp.sum(rows, axis=0)


@task_rule("gradnorm")
def gradnorm(products: Tensor, rates: Any = None, alpha: float = 1.5) -> Tensor:
    """The sum of the tasks' gradients, weighted so that their norms are as rate^alpha, and the
    weights add up to the number of tasks: those at which GradNorm's loss is 0.

    `rates` are the relative inverse training rates r_i, a number for each task: its loss by its
    first loss, by the mean of these over tasks; None: all are 1. The paper goes towards these
    weights by a step of gradient descent at a time. A gradient of 0 has weight 0; one that is NaN
    makes all weights NaN.
    Source: Chen et al., 2018 (arXiv 1711.02257), eq. 1 and 2.
    """
    number = products.shape[0]
    norms = xp.sqrt(xp.stack([products[i, i] for i in range(number)]))
    if rates is None:
        rates = (1.0,) * number
    if len(rates) != number:
        raise ValueError(f"there are {len(rates)} rates for {number} tasks")
    if isinstance(rates, tuple | list):
        rates = xp.stack([xp.full_like(norms[0], rate) for rate in rates])
    aimed = xp.astype(rates, norms.dtype) ** alpha
    shares = xp.where(norms == 0, 0.0, aimed / xp.where(norms == 0, 1.0, norms))
    total = xp.sum(shares)
    return number * shares / xp.where(total == 0, 1.0, total)
