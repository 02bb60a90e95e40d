"""The VJPs of the ops over whole arrays in every dtype, against central differences in float64.

A composition of test_vjps*.py is run in float32 and in 16 bits. Its gradient must be within 4 eps of the slope of the
float64 values times the largest value met on the way, which is read off the graph's nodes one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from multigrad.ir import neutral
from multigrad.ir.derivatives import pullback
from multigrad.ir.graph import Graph
from multigrad.ir.passes import simplify
from multigrad.lowering.backend import load_backend
from multigrad.lowering.lower import emit_rule

from ..oracles import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, finfo, slack, spread
from ..strides import strided
from .test_vjps import FUNCTIONS as OF_BASIC_OPS
from .test_vjps import OTHER, X, record_function, slopes
from .test_vjps_arrays import FUNCTIONS as OF_ARRAY_OPS

xp: Any = neutral
Tensor = Any
# In place of compositions that magnify what rounding does to the product.
GENTLER: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x * xp.sum(x @ xp.swapaxes(0.3 * x - 1.0, 0, 1)),
    "einsum": lambda x: x * xp.sum(xp.einsum("ij,kj->ik", x, 0.3 * x - 1.0)),
    "einsum of three": lambda x: x * xp.sum(xp.einsum("ij,kj,kl->i", x, 0.1 * x, 0.1 * x)),
    "einsum with batches": lambda x: x * xp.sum(xp.einsum("...i,...i->...", x, 0.3 * x - 1.0)),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {**OF_BASIC_OPS, **OF_ARRAY_OPS, **GENTLER}
NARROW = (FLOAT32, FLOAT16, BFLOAT16)


@cache
def lowered(name: str, backend: str, forward: bool = False) -> Callable[..., Any]:
    """The gradient `(grad_out, x) -> grad` of a function, or the function itself, emitted for a backend."""
    graph = record_function((ANY_SHAPE if name in ANY_SHAPE else FUNCTIONS)[name])
    return emit_rule(graph if forward else simplify(pullback(graph)), load_backend(backend))[0]


def largest_met(graph: Graph, *arrays: Any) -> float:
    """The largest finite magnitude among all values of a graph, computed in float64."""
    values: dict[Any, Any] = dict(zip(graph.inputs, arrays, strict=True))
    largest = max(np.max(np.abs(array), initial=0) for array in arrays)
    for node in graph.nodes():
        if node in values:
            continue
        attrs = dict(node.attrs)
        if node.op.name == "const":
            values[node] = attrs["value"]
            continue
        if "dtype" in attrs:
            attrs["dtype"] = np.dtype(bool if attrs["dtype"] == "bool" else np.float64)
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
    assert (error <= limit).all(), f"{name}, {x.dtype}: off by {error.max() / limit} of the bound"


def evaluate(backend: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    with backend.precision(arrays[0].dtype), warnings.catch_warnings(action="ignore"):
        return backend.numpy(function(*(backend.array(a) for a in arrays)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_vjp_is_the_slope_in_every_narrower_dtype(backend: Any, name: str) -> None:
    for dtype in NARROW:
        x, g = X.astype(dtype), OTHER.astype(dtype)
        assert_gradient(backend, name, x, g, evaluate(backend, lowered(name, backend.name), g, x))


def spread_out(reduce: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """x times a reduction over all of it."""
    return lambda x: x * reduce(x)


ANY_SHAPE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        f"{reduce.__name__} of any shape": spread_out(reduce)
        for reduce in (
            xp.sum, xp.mean, xp.max, xp.min, xp.prod, xp.norm, xp.var, xp.std, xp.logsumexp,
            xp.median, xp.count_nonzero, xp.size,
        )
    },
    "softmax of any shape": lambda x: x * xp.softmax(x, axis=-1),
    "log_softmax of any shape": lambda x: x * xp.log_softmax(x, axis=-1),
    "cumsum of any shape": lambda x: x * xp.cumsum(x, axis=-1),
    "cumprod of any shape": lambda x: x * xp.cumprod(x, axis=-1),
    "cummax of any shape": lambda x: x * xp.cummax(x, axis=-1),
    "sort of any shape": lambda x: x * xp.sort(x, axis=-1),
    "argmax_mask of any shape": lambda x: x * xp.argmax_mask(x, axis=-1),
    "top_k_mask of any shape": lambda x: x * xp.top_k_mask(x, 2, axis=-1),
    "quantile_weights of any shape": lambda x: x * xp.quantile_weights(x, 0.3, -1),
    "flip of any shape": lambda x: x * xp.flip(x),
    "roll of any shape": lambda x: x * xp.roll(x, 1),
    "reshape of any shape": lambda x: x * xp.reshape_like(xp.square(xp.reshape(x, -1)), x),
    "expand_dims of any shape": lambda x: x * xp.reshape_like(xp.squeeze(xp.square(xp.expand_dims(x, -1)), -1), x),
    "repeat of any shape": lambda x: x * xp.sum(xp.square(xp.repeat(x, 2))),
    "concatenate of any shape": lambda x: x * xp.sum(xp.square(xp.concat([x, x * x], axis=None))),
    "stack of any shape": lambda x: x * xp.sum(xp.stack([x, x * x], axis=0)),
    "getitem of any shape": lambda x: x * xp.sum(xp.square(xp.getitem(x, (..., None)))),
}  # fmt: skip
SHAPES = ((), (0,), (3,), (2, 3, 4))
# What has no value over nothing: frameworks raise their own errors, or give an infinity.
NEEDS_ELEMENTS = {"max", "min", "median", "argmax_mask", "quantile_weights", "top_k_mask"}


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_vjps_of_ops_over_whole_arrays_take_every_shape(backend: Any, name: str) -> None:
    function = lowered(name, backend.name)
    for shape in SHAPES:
        if shape == (0,) and name.split(" ")[0] in NEEDS_ELEMENTS:
            continue
        for dtype in DTYPES if shape in ((3,), (2, 3, 4)) else (FLOAT32,):
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
