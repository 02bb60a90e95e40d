"""Ops over whole arrays in TensorFlow's graphs: lengths known at run time only, and its vectorized
map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multigrad.testing.oracles import FLOAT32, spread
from multigrad.trace.xp import all as neutral
from multigrad_conformance.declared import Case
from multigrad_conformance.ops.test_ops_arrays import REDUCTIONS
from multigrad_conformance.ops.test_ops_declared import OF_ANY_SHAPE
from multigrad_conformance.ops.test_ops_ordering import ALONG, EXACT
from multigrad_conformance.ops.test_ops_shapes import MOVES, UNDOING
from multigrad_conformance.vjps.test_vjps import OTHER, X

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]


def called(case: Case) -> Function:
    """A case as a plain function, which TensorFlow can refer to weakly."""
    return lambda t: case(t)


COMPILED: dict[str, tuple[tuple[int, ...], Function]] = {
    **{
        name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=(0, 2), keepdims=False))
        for name, row in REDUCTIONS.items()
    },
    **{
        name: ((2, 3, 4), lambda t, f=row[0]: f(t, axis=1))
        for name, row in {**ALONG, **EXACT}.items()
    },
    **{name: ((2, 3, 4), called(case)) for name, case in OF_ANY_SHAPE.items()},
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
}


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", COMPILED)
def test_graphs_with_lengths_known_at_run_time_give_the_same(backend: Any, name: str) -> None:
    import tensorflow as tf

    shape, function = COMPILED[name]
    x = spread(shape, FLOAT32)
    graph = tf.function(function, input_signature=[tf.TensorSpec([None] * len(shape), tf.float32)])
    expected = function(tf.constant(x)).numpy()
    np.testing.assert_allclose(graph(tf.constant(x)).numpy(), expected, rtol=1e-6)


@pytest.mark.backends("tensorflow")
def test_padding_keeps_its_value_in_a_vectorized_map(backend: Any) -> None:
    import tensorflow as tf

    stacked = tf.constant(np.stack([X, OTHER]))
    padded = tf.vectorized_map(lambda t: xp.pad(t, ((1, 0), (0, 2)), 0.5), stacked)
    expected = np.pad(np.stack([X, OTHER]), ((0, 0), (1, 0), (0, 2)), constant_values=0.5)
    np.testing.assert_array_equal(padded, expected)
