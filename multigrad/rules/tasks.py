"""Rules on the gradients of several losses at once: each gives a weight to each task.

What such a rule sees is the matrix of scalar products of the tasks' gradients, over all their
tensors, however many these are. It is a Function of that, the same on every framework.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backend.discovery import backend_among, backend_of
from ..capture.user_code.signature import name_of
from ..errors import BackendNotFound, RuleError, RuleTypeError, RuleValueError, suggest
from ..functions.custom_gradient import function as as_function
from ..functions.function import Function
from ..graph.ir.types import FLOATS, dtype_name
from ..graph.support.class_bases import dataclass
from ..graph.support.trees import optree
from ..trace.xp import all as xp

Tensor = Any


@dataclass(frozen=True, slots=True, eq=False)
class TaskRule:
    """A rule on the gradients of several tasks.

    Attributes:
        function: `(products, **params) -> weights`: of the matrix of scalar products of the tasks'
            gradients, a weight for each task.
    """

    name: str
    function: Function[..., Any]

    @property
    def params(self) -> tuple[inspect.Parameter, ...]:
        known = self.function.parameters
        return () if known is None else tuple(known.parameters.values())[1:]


def task_rule(name: str) -> Callable[[Callable[..., Tensor]], TaskRule]:

    def declare(function: Callable[..., Tensor]) -> TaskRule:
        return TaskRule(name, as_function(function, native=False))

    return declare


def find_task_rule(rule: Any) -> TaskRule:
    names = ", ".join(sorted(TASK_RULES))
    if isinstance(rule, TaskRule):
        return rule
    if isinstance(rule, str):
        if rule in TASK_RULES:
            return TASK_RULES[rule]
        raise RuleError(
            f"no rule on several tasks is named {rule!r}{suggest(rule, TASK_RULES)}; there are "
            f"{names}, and any function of the matrix of the gradients' "
            "scalar products that returns weights. A rule on one gradient goes without tasks=True"
        )
    if callable(rule) and not hasattr(rule, "under"):
        return TaskRule(name_of(rule), rule if isinstance(rule, Function) else as_function(rule))
    raise RuleTypeError(
        f"tasks=True needs a rule on several tasks, got {rule!r:.60}: one of "
        f"{names}, or a function of the matrix of scalar products"
    )


def combine(trees: Any, rule: Any, params: Mapping[str, Any] | None, key: Any) -> Any:
    """Return the sum of the tasks' gradients, each with the weight that a rule gives it."""
    chosen = find_task_rule(rule)
    known = [each.name for each in chosen.params]
    for name in params or ():
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in chosen.params):
            raise RuleTypeError(
                f"rule {chosen.name!r} on several tasks has no param {name!r}{suggest(name, known)}"
                f"; its params are {', '.join(known) or 'none'}"
            )
    columns, tree = align(chosen.name, trees)
    tensors = [column for column in columns if column is not None]
    if not tensors:
        return optree.tree_unflatten(tree, columns)
    leaves = [leaf for column in tensors for leaf in column if leaf is not None]
    wide = widest(chosen.name, leaves)
    products = products_of(tensors, len(trees), wide)
    function = chosen.function if key is None else chosen.function.keyed(key)
    weights = function(products, **(params or {}))
    if tuple(weights.shape) != (len(trees),):
        raise RuleValueError(
            f"rule {chosen.name!r} gave weights of shape {tuple(weights.shape)} for {len(trees)} "
            "tasks; expected one number for each"
        )
    return optree.tree_unflatten(
        tree, [None if column is None else weighted(column, weights, wide) for column in columns]
    )


def align(name: str, trees: Any) -> tuple[list[list[Tensor] | None], Any]:
    """Return for each leaf the gradients of the tasks, None among them where a task has none (None
    for all where no task has one), and the nesting.
    """
    if not isinstance(trees, list | tuple) or not trees:
        raise RuleTypeError(
            f"rule {name!r} takes gradients of several tasks, tasks=True: a list of trees, one for "
            f"each loss, as [grads_1, grads_2]; got {type(trees).__name__} {trees!r:.40}"
        )
    flat = [optree.tree_flatten(each, none_is_leaf=True) for each in trees]
    tree = flat[0][1]
    for i, (_, nesting) in enumerate(flat):
        if nesting != tree:
            raise RuleValueError(
                f"rule {name!r}: the gradients of task {i} are nested otherwise than those of task "
                f"0: {nesting} and {tree}. Give None for a tensor that a loss does not reach"
            )
    columns: list[list[Tensor] | None] = []
    for path, column in zip(
        tree.paths(), zip(*(leaves for leaves, _ in flat), strict=True), strict=True
    ):
        shapes = {tuple(leaf.shape) for leaf in column if hasattr(leaf, "shape")}
        if len(shapes) > 1:
            raise RuleValueError(
                f"rule {name!r}: the gradients at {list(path)} have shapes "
                f"{', '.join(map(str, sorted(shapes)))}; those of all tasks are of one tensor"
            )
        arrays = [np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for leaf in column]
        columns.append(None if all(leaf is None for leaf in arrays) else arrays)
    return columns, tree


def widest(name: str, leaves: Sequence[Tensor]) -> str:
    """Return the dtype in which products are taken: float64 where a gradient has it."""
    try:
        for leaf in leaves:
            backend_of(leaf)
    except BackendNotFound as error:
        raise BackendNotFound(
            f"apply_to_gradients found a leaf that is not a tensor: {error}"
        ) from None
    backend_among(leaves)  # refuses several
    dtypes = {dtype_name(leaf.dtype) for leaf in leaves}
    if others := sorted(dtypes.difference(FLOATS)):
        raise RuleTypeError(f"rule {name!r} takes gradients of floats, got {', '.join(others)}")
    return "float64" if "float64" in dtypes else "float32"


def products_of(columns: Sequence[Sequence[Tensor]], number: int, wide: str) -> Tensor:
    products: dict[tuple[int, int], Tensor] = {}
    for column in columns:
        vectors = {i: flat(leaf, wide) for i, leaf in enumerate(column) if leaf is not None}
        # Reversed, so that i >= j in each pair, as the rows below look them up.
        for i, j in itertools.combinations_with_replacement(reversed(vectors), 2):
            product = xp.sum(vectors[i] * vectors[j], axis=0, keepdims=True)
            products[i, j] = product if (i, j) not in products else products[i, j] + product
    zero = xp.zeros_like(next(iter(products.values())))
    pairs = itertools.product(range(number), repeat=2)
    rows = [products.get((max(pair), min(pair)), zero) for pair in pairs]
    return xp.reshape(xp.concat(rows), (number, number))


def flat(leaf: Tensor, wide: str) -> Tensor:
    # Scalar products are taken of vectors in a wide dtype, whatever the leaves are.
    return xp.astype(xp.reshape(leaf, (-1,)), wide)


def weighted(column: Sequence[Tensor], weights: Tensor, wide: str) -> Tensor:
    total = None
    for i, leaf in enumerate(column):
        if leaf is not None:
            share = flat(leaf, wide) * weights[i]
            total = share if total is None else total + share
    first = next(leaf for leaf in column if leaf is not None)
    return xp.astype(xp.reshape_like(total, first), first.dtype)


# --- the library's --------------------------------------------------------------------------------
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
    # In terms of the scalar products: row i has task i's coefficients of all gradients.
    for turn in range(number):
        if places is None:
            other = xp.stack([own[turn]] * number)
        else:
            other = xp.astype(xp.one_hot(places[:, turn], number), products.dtype)
        dots = xp.sum(xp.matmul(rows, products) * other, axis=1, keepdims=True)
        length = xp.sum(lengths * other, axis=1, keepdims=True)
        is_itself = xp.sum(own * other, axis=1, keepdims=True) > 0
        conflicts = (dots < 0) & (length > 0) & ~is_itself
        # The inner `where` keeps 0 / 0 out of the branch that is not taken.
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


TASK_RULES = {each.name: each for each in (pcgrad, gradnorm)}
