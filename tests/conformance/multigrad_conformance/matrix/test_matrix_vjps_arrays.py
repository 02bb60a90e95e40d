"""The VJPs of the ops over whole arrays in every dtype, against central differences in float64.

A composition of test_vjps*.py is run in float32 and in 16 bits. Its gradient must be within 4 eps
of the slope of the float64 values times the largest value met on the way, which is read off the
graph's nodes one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.ir.graph import Graph
from multigrad.core.ir.op import Op
from multigrad.core.lowering.derivatives import pullback
from multigrad.core.lowering.lower import emit_rule
from multigrad.core.ops.numerics import ignoring_warnings
from multigrad.core.passes.simplify import simplify
from multigrad.core.trace.xp import all as neutral

from ..declared import case_of_any_shape, cases
from ..expected.exact import names_of
from ..expected.slopes import BINARY
from ..oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, finfo, slack, spread
from ..under_test import strided
from ..vjps.test_vjps import FUNCTIONS as OF_OPS
from ..vjps.test_vjps import OTHER, SPECIAL, X, record_function, slopes

xp: Any = neutral
Tensor = Any


def has_edges(row: Op) -> bool:
    """Return whether test_matrix_vjps.py has the op, at every edge in every dtype."""
    return row.in_xp in names_of(1) or row.in_xp in BINARY


CASES = {name: case for name, case in cases().items() if not has_edges(case.row)}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: OF_OPS[name] for name in (*CASES, *SPECIAL)},
    # In place of one that magnifies what rounding does to the product.
    "einsum of three": lambda x: x * xp.sum(xp.einsum("ij,kj,kl->i", x, 0.1 * x, 0.1 * x)),
}
NARROW = (FLOAT32, FLOAT16, BFLOAT16)


@cache
def lowered(name: str, backend: str, forward: bool = False) -> Callable[..., Any]:
    """The gradient `(grad_out, x) -> grad` of a function, or the function itself, emitted for a
    backend.
    """
    graph = record_function((ANY_SHAPE if name in ANY_SHAPE else FUNCTIONS)[name])
    return emit_rule(graph if forward else simplify(pullback(graph)), load_backend(backend))[0]


def largest_met(graph: Graph, *arrays: Any) -> float:
    """The largest finite magnitude among all values of a graph, computed in float64."""
    values: dict[Any, Any] = dict(zip(graph.inputs, arrays, strict=True))
    largest = max(np.max(np.abs(array), initial=0) for array in arrays)
    for node in graph.nodes:
        if node in values:
            continue
        attrs = dict(node.attrs)
        if node.op.name == "const":
            values[node] = attrs["value"]
            continue
        if "dtype" in attrs:
            kind = {"bool": bool, "int32": np.int32}.get(attrs["dtype"], np.float64)
            attrs["dtype"] = np.dtype(kind)
        values[node] = node.op.numpy(*(values[operand] for operand in node.operands), **attrs)
        number = np.abs(np.asarray(values[node], np.float64))
        largest = max(largest, np.max(number, where=np.isfinite(number), initial=0))
    return float(largest)


def assert_gradient(backend: Any, name: str, x: Any, g: Any, actual: Any) -> None:
    wide_x, wide_g = x.astype(np.float64), g.astype(np.float64)
    function = (ANY_SHAPE if name in ANY_SHAPE else FUNCTIONS)[name]
    expected = slopes(lowered(name, "numpy", forward=True), wide_x, wide_g)
    peak = largest_met(simplify(pullback(record_function(function))), wide_g, wide_x)
    assert (actual.dtype, actual.shape) == (x.dtype, x.shape)
    error = np.abs(actual.astype(np.float64) - expected)
    # 1e-8: of the differences themselves, as in test_vjps.py
    limit = 4 * float(finfo(x.dtype).eps) * peak + slack(x.dtype) + 1e-8 * max(peak, 1)
    worst = np.unravel_index(np.argmax(error), error.shape) if error.size else ()
    assert (error <= limit).all(), (
        f"the VJP of {name} (multigrad/core/ops), {x.dtype}: off by {error.max() / limit} of the "
        f"bound at x = {x[worst]}, where it is {actual[worst]}, by differences {expected[worst]}"
    )


def evaluate(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    with backend.precision(arrays[0].dtype), ignoring_warnings():
        return backend.numpy(function(*(backend.array(a) for a in arrays)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_vjp_is_the_slope_in_every_narrower_dtype(backend: Any, name: str) -> None:
    for dtype in NARROW:
        x, g = X.astype(dtype), OTHER.astype(dtype)
        assert_gradient(backend, name, x, g, evaluate(backend, lowered(name, backend.name), g, x))


OF_ANY_SHAPE = {
    case.name: case
    for row in ops.CALLABLE_OPS
    if not has_edges(row) and (case := case_of_any_shape(row)) is not None
}
ANY_SHAPE: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: case.smooth for name, case in OF_ANY_SHAPE.items()},
    "size of any shape": lambda x: x * xp.size(x),
    "roll of any shape": lambda x: x * xp.roll(x, 1),
    "reshape of any shape": lambda x: x * xp.reshape_like(xp.square(xp.reshape(x, -1)), x),
    "expand_dims of any shape": lambda x: (
        x * xp.reshape_like(xp.squeeze(xp.square(xp.expand_dims(x, -1)), -1), x)
    ),
    "repeat of any shape": lambda x: x * xp.sum(xp.square(xp.repeat(x, 2))),
    "concatenate of any shape": lambda x: x * xp.sum(xp.square(xp.concat([x, x * x], axis=None))),
    "stack of any shape": lambda x: x * xp.sum(xp.stack([x, x * x], axis=0)),
    "getitem of any shape": lambda x: x * xp.sum(xp.square(xp.getitem(x, (..., None)))),
}
SHAPES = ((), (0,), (3,), (2, 3, 4))


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_vjps_of_ops_over_whole_arrays_take_every_shape(
    backend: Any, name: str, paired: Any
) -> None:
    function = lowered(name, backend.name)
    for shape, dtype in [*paired(SHAPES[:2], [FLOAT32]), *paired(SHAPES[2:], DTYPES)]:
        if shape == (0,) and name in OF_ANY_SHAPE and OF_ANY_SHAPE[name].needs_elements():
            continue
        x, g = points(shape, dtype), np.asarray(spread(shape, dtype, seed=1, width=0.5))
        with np.errstate(all="ignore"):
            assert_gradient(backend, name, x, g, evaluate(backend, function, g, x))


def points(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers of both signs that lie apart, near one, shuffled."""
    count = int(np.prod(shape))
    numbers = np.linspace(0.55, 1.65, count) * np.where(np.arange(count) % 4 == 1, -1, 1)
    return np.random.default_rng(5).permutation(numbers).astype(dtype).reshape(shape)


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_vjps_of_ops_over_whole_arrays_do_not_mind_the_strides(backend: Any, name: str) -> None:
    function = lowered(name, backend.name)
    for dtype in (FLOAT32, FLOAT64):
        x, g = points((4, 6), dtype), spread((4, 6), dtype, seed=1, width=0.5)
        actual = evaluate(backend, lambda g, x: function(strided(g), strided(x)), g, x)
        assert_gradient(backend, name, strided(x), strided(g), actual)
