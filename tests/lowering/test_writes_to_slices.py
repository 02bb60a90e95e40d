"""Writes to slices: one op each, over the tensor itself where nobody reads it afterwards."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.engine.ops.indexing import are_apart, as_index

G = np.array([[1.0, -2.0, 3.0, 0.5], [-1.0, 0.25, 4.0, -3.0], [2.0, 5.0, -0.0, 7.0]], np.float32)
X = np.linspace(-2.0, 3.0, 12, dtype=np.float32).reshape(3, 4)


def a_number(g: Any, x: Any) -> Any:
    y = g.copy()
    y[:, :2] = 0
    y[..., -1:] = 2.5
    return y


def a_row_for_all(g: Any, x: Any) -> Any:
    y = g.copy()
    y[1:] = x[0]
    y[:1] = x[2]
    return y


def steps(g: Any, x: Any) -> Any:
    y = g * 2.0
    y[::2, 1::2] = x[:2, :2]
    y[::-1, 0] = x[:, 3]
    y[1, 3:0:-2] = 7.0
    return y


def new_axes_and_integers(g: Any, x: Any) -> Any:
    y = g * 2.0
    y[None, 1, ..., 2:] = x[:1, :2]
    y[-1, -1] = x[0, 0]
    y[3:] = 9.0
    return y


def augmented(g: Any, x: Any) -> Any:
    y = g * 2.0
    y[:, :2] += 1
    y[:, 2:] *= x[:, :2]
    y[0] -= y[1]
    return y


def parts_that_overlap(g: Any, x: Any) -> Any:
    y = g * 2.0
    y[1:] = y[:-1]
    y[:, :-1] += y[:, 1:]
    return y


def what_is_read_later(g: Any, x: Any) -> Any:
    y = g * 2.0
    before = y.copy()
    row = y[0] * 3.0
    y[0] = 1.0
    y[1] = row
    return y + before


def zeros_twice(g: Any, x: Any) -> Any:
    first, second = np.zeros_like(x), np.zeros_like(x)
    first[0] = g[0]
    second[1] = x[1]
    first[2] = second[1]
    return first - second


def a_scan_that_reads_itself(g: Any, x: Any) -> Any:
    y = np.zeros_like(x)
    y[0] = x[0]
    for t in range(1, 3):
        y[t] = 0.5 * y[t - 1] + x[t] * g[t]
    return y


WRITES = (
    a_number, a_row_for_all, steps, new_axes_and_integers, augmented, parts_that_overlap,
    what_is_read_later, zeros_twice, a_scan_that_reads_itself,
)  # fmt: skip


def slope(function: Callable[..., Any], g: Any, x: Any) -> Any:
    """Return the slope of the sum of squares along ones, in float64."""
    low, high = (function(g + h, x + h).astype(np.float64) for h in (-1e-4, 1e-4))
    return (np.square(high) - np.square(low)).sum() / 2e-4


@pytest.mark.parametrize("write", WRITES, ids=lambda each: each.__name__)
def test_a_write_means_what_it_means_in_numpy(write: Any, backend: Any) -> None:
    function = xg.function(write, dialect="numpy")
    expected = write(G.copy(), X.copy())
    g, x = backend.array(G), backend.array(X)
    y, pull = xg.vjp(function, g, x)
    np.testing.assert_array_equal(backend.numpy(y), expected)
    gradients = map(backend.numpy, pull(2 * y))
    total = sum(each.astype(np.float64).sum() for each in gradients)
    wide = [each.astype(np.float64) for each in (G, X)]
    np.testing.assert_allclose(total, slope(lambda *a: write(*map(np.copy, a)), *wide), rtol=1e-4)
    np.testing.assert_array_equal(backend.numpy(g), G)


def test_a_value_is_cast_to_the_dtype_of_the_tensor_as_in_the_library(backend: Any) -> None:
    def write(x: Any) -> Any:
        whole, mask = xp.astype(x, "int32"), x > 0
        whole[0] = x[1]
        whole[1, :2] = 2.9
        mask[2] = whole[1]
        return x * whole + mask

    given = np.where(np.abs(X) < 0.1, 1.0, X)
    whole, mask = given.astype(np.int32), given > 0
    whole[0], whole[1, :2] = given[1], 2.9
    mask[2] = whole[1]
    y = xg.function(write)(backend.array(given.astype(np.float32)))
    np.testing.assert_allclose(backend.numpy(y), given * whole + mask, rtol=1e-6)


# --- how many copies ------------------------------------------------------------------------------


def scan(x: Any) -> Any:
    out = xp.zeros_like(x)
    h = x[0] * 0.0
    for t in range(6):
        h = 0.5 * h + x[t] * x[t]
        out[t] = h
    return out


def copies_and_writes(function: Any, backend: Any) -> list[tuple[int, int]]:
    """Return how often forward and backward copy a tensor to write to it, and write over one."""
    source = xg.source(function, backend.name)
    if backend.name == "torch":
        source = re.search(r"class \w+_eager.*?(?=\nclass )", source, re.DOTALL)[0]
        source = re.sub(r"if is_grad_enabled.*?\n {8}(?=\w)", "", source, flags=re.DOTALL)
    halves = re.split(r"def \w*backward", source)
    return [
        tuple(len(re.findall(rf"\b{put}\(", half)) for put in ("put", "put_")) for half in halves
    ]


@pytest.mark.needs("numpy", "torch")
def test_rows_that_are_written_one_by_one_cost_no_copy_each(backend: Any) -> None:
    if backend.name not in ("numpy", "torch"):
        pytest.skip("its compiler decides")
    function = xg.function(scan)
    y, pull = xg.vjp(function, backend.array(np.ones((6, 3), np.float32)))
    pull(y)
    forward, backward = copies_and_writes(function, backend)
    assert forward == (0, 6)
    assert backward == (0, 0)  # each row's cotangent is read where it is


def test_the_backward_of_many_writes_copies_the_cotangent_once(backend: Any) -> None:
    if backend.name not in ("numpy", "torch"):
        pytest.skip("its compiler decides")

    def overwrite(x: Any, rows: Any) -> Any:
        y = x * 2.0
        for t in range(5):
            y[t] = rows[t] * 3.0
        return y

    function = xg.function(overwrite)
    ones = np.ones((6, 3), np.float32)
    y, pull = xg.vjp(function, backend.array(ones), backend.array(ones))
    first, second = map(backend.numpy, pull(y))
    np.testing.assert_array_equal(first, [[0] * 3] * 5 + [[4] * 3])
    np.testing.assert_array_equal(second, [[9] * 3] * 5 + [[0] * 3])
    forward, backward = copies_and_writes(function, backend)
    assert forward == (0, 5)
    assert backward[0] <= 1


@pytest.mark.needs("torch")
def test_a_write_is_batched_and_differentiated_twice() -> None:
    torch = pytest.importorskip("torch")

    def write(x: Any, row: Any) -> Any:
        y = x * x
        y[1:, ::2] = row[:2] * x[0, 0]
        y[0] += row
        return y

    function = xg.function(write)
    x, rows = torch.tensor(X), torch.tensor(G)
    for dims in ((None, 0), (0, None), (0, 0)):
        given = [
            torch.stack([a, 2 * a]) if d == 0 else a
            for d, a in zip(dims, (x, rows[0]), strict=True)
        ]
        expected = torch.vmap(lambda a, b: torch.cat([(a * a)[:1] + b, swapped(torch, a, b)]), dims)
        torch.testing.assert_close(torch.vmap(function, dims)(*given), expected(*given))
    hessian = torch.func.hessian(lambda a: function(a, rows[0]).square().sum())(x)
    wanted = torch.func.hessian(
        lambda a: torch.cat([(a * a)[:1] + rows[0], swapped(torch, a, rows[0])]).square().sum()
    )(x)
    torch.testing.assert_close(hessian, wanted)


def swapped(torch: Any, a: Any, b: Any) -> Any:
    columns = (
        (b[:1] * a[0, 0]).expand(2),
        (a * a)[1:, 1],
        (b[1:2] * a[0, 0]).expand(2),
        (a * a)[1:, 3],
    )
    return torch.stack(columns, -1)


# --- indices that have nothing in common ----------------------------------------------------------
ITEMS = (
    0, 2, -1, (None, None, None), (None, 2, None), (1, None, None), (None, -1, None),
    (-1, None, None), (0, 3, 2), (2, 0, -1), None, "...",
)  # fmt: skip


def test_indices_are_apart_only_if_they_are_in_tensors_of_every_shape() -> None:
    pairs = [pair for pair in itertools.product(ITEMS, ITEMS) if pair != ("...", "...")]
    found = 0
    for shape in ((3, 4), (1, 3)):
        places, taken = np.arange(np.prod(shape)).reshape(shape), {}
        for index in (*pairs, *[(item,) for item in ITEMS]):
            try:
                taken[index] = set(places[as_index(index)].ravel().tolist())
            except IndexError:
                continue
        for a, b in itertools.product(taken, taken):
            if are_apart(a, b):
                found += 1
                assert not taken[a] & taken[b], (shape, a, b)
    assert found > 4_000
