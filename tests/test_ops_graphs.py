"""Ops over whole arrays in a graph whose lengths are known at run time only; and that none of them is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.ir import arrays, neutral, ops, ordering, shapes
from multigrad.ir.op import Op

from .oracles import FLOAT32, spread
from .test_ops_arrays import REDUCTIONS
from .test_ops_ordering import ALONG, EXACT
from .test_ops_shapes import MOVES, UNDOING

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]


COMPILED: dict[str, tuple[tuple[int, ...], Function]] = {
    **{name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=(0, 2), keepdims=False)) for name, row in REDUCTIONS.items()},
    **{name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=1)) for name, row in {**ALONG, **EXACT}.items()},
    **{name: (row[0], row[1]) for name, row in MOVES.items()},
    **{name: ((2, 3, 4), lambda t, f=row: f[1](f[0](t), t)) for name, row in UNDOING.items()},
    "glu": ((4, 3), lambda t: xp.glu(t, 0)),
    "unsort": ((2, 3, 4), lambda t: xp.unsort(t, t, 1, True)),
    "unhold": ((2, 3, 4), lambda t: xp.unhold(t, t > 0, 1)),
    "hold": ((2, 3, 4), lambda t: xp.hold(t, t > 0, 2)),
    "quantile_weights": ((2, 3, 4), lambda t: xp.quantile_weights(t, 0.3, (0, 2))),
    "matmul": ((3, 3), lambda t: xp.matmul(t, t)),
    "matmul_left": ((3, 3), lambda t: xp.matmul_left(t, t, t)),
    "einsum": ((3, 3), lambda t: xp.einsum("ij,kj->ik", t, t)),
    "unpart": ((2, 3), lambda t: xp.unpart(t, xp.concatenate([t, t]), 1, 0)),
}  # fmt: skip


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", COMPILED)
def test_graphs_with_lengths_known_at_run_time_give_the_same(backend: Any, name: str) -> None:
    import tensorflow as tf

    shape, function = COMPILED[name]
    x = spread(shape, FLOAT32)
    graph = tf.function(function, input_signature=[tf.TensorSpec([None] * len(shape), tf.float32)])
    expected = function(tf.constant(x)).numpy()
    np.testing.assert_allclose(graph(tf.constant(x)).numpy(), expected, rtol=1e-6)


# The names above that differ from the op's; the last are tested with the older ops in test_ops.py.
NAMED = {
    *REDUCTIONS, *ALONG, *EXACT, *MOVES, *UNDOING, "matmul", "matmul_left", "matmul_right", "einsum",
    "glu", "argmin_mask", "sort_like", "unsort", "hold", "unhold", "quantile_weights", "unpart",
    "bernoulli_like", "rademacher_like", "exponential_like", "gumbel_like",
}  # fmt: skip
OLDER = {
    "sum", "mean", "max", "min", "any", "all", "var", "std", "sum_to", "broadcast_to",
    "expand_dims", "dim", "size", "fold_in", "uniform_like", "normal_like", "array",
}  # fmt: skip


def test_every_op_of_these_families_is_tested_here() -> None:
    families = (arrays, ordering, shapes)
    rows = {op.name for family in families for op in vars(family).values() if isinstance(op, Op)}
    assert rows <= NAMED | OLDER
    assert rows <= {op.name for op in ops.CALLABLE_OPS}
